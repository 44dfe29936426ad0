"""Arrays of other libraries: the front that answers for them where a function of NumPy is called.

No library is imported here: an array can only exist if its library is already loaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

_found: dict[tuple[str, str], Any] = {}


def name_of(x: Any) -> str | None:
    """The front for x: "torch", "jax" or "dask"; None if it is no array of these libraries."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    dask = sys.modules.get("dask.array")
    return "dask" if dask is not None and isinstance(x, dask.Array) else None


def named(options: Mapping[str, Any], axis: Any, **given: Any) -> dict[str, Any]:
    """What is handed to a front by name: PyTorch's `dim`, if it was given, in place of the axis."""
    return {**given, **options} if "dim" in options else {"axis": axis, **given, **options}


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
    key = front, name
    if key not in _found:
        found: Any = importlib.import_module(f"...{front}", __name__)
        for part in name.split("."):
            found = getattr(found, part, None)
        _found[key] = found
    return _found[key]
