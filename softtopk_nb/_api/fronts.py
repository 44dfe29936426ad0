"""Arrays of other libraries: the front that answers for them where a function of NumPy is called.

No library is imported here: an array can only exist if its library is already loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any


def name_of(x: Any) -> str | None:
    """The front for x: "torch", "jax" or "dask"; None if it is no array of these libraries."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    dask = sys.modules.get("dask.array")
    return "dask" if dask is not None and isinstance(x, dask.Array) else None


def named(options: Mapping[str, Any], axis: Any, default: Any = -1, **given: Any) -> dict[str, Any]:
    """What is handed to a front by name: PyTorch's `dim` if it was given, else the axis.

    Both, if the axis was given as well, and is not the default: the front refuses that.
    """
    if axis is None:
        raise TypeError("axis is None; expected an integer")
    known = {} if "dim" in options and axis == default else {"axis": axis}
    return {**known, **given, **options}


def _front(name: str) -> Any:
    """The module of the front, by statements that PyTorch's compiler follows while it traces."""
    found: Any
    if name == "torch":
        from .. import torch as found
    elif name == "jax":
        from .. import jax as found
    else:
        from .. import dask as found
    return found


def function(name: str, x: Any, out: Any = None) -> Any:
    """The function with this name ("thretopk", "thretopk.potential") of the front for x.

    None if x belongs to no front, or its front has no such function; and for a tensor with `out`,
    which NumPy's function writes.
    """
    front = name_of(x)
    if front is None:
        return None
    if out is not None:
        if front == "torch":
            return None
        raise TypeError(f"out was given, but an array of {front} is never written")
    found = _front(front)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def drawing(name: str, x: Any, rng: Any) -> Any:
    """The function of the front for x that draws from rng: a generator or key of x's library.

    None for all else that says where randomness comes from: NumPy draws then.
    """
    front = name_of(x)
    if front == "torch" and (rng is None or isinstance(rng, sys.modules["torch"].Generator)):
        return functools.partial(function(name, x), generator=rng)
    if front == "jax" and name_of(rng) == "jax":
        return functools.partial(function(name, x), rng)
    return None


def values(x: Any) -> Any:
    """x without the history of its derivatives, for what has none."""
    return x.detach() if name_of(x) == "torch" else x
