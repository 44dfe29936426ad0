"""The calls that are timed: operators of the package, and what they are compared with.

Each is called as a user would call it, and makes its own result, as `torch.softmax(x, -1)` does.
Rows are a NumPy array or a PyTorch tensor on any device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import lapsum
import lml
import log_domain
import numpy as np
import torch
from cases import Case, is_ours
from scipy.special import softmax as scipy_softmax

import softtopk_nb as stk

__all__ = ["ALPHA", "call", "unit"]

ALPHA = 1.5  # of the curve entmax

Call = Callable[[], Any]


def _budget_bisect(x: torch.Tensor, k: int) -> torch.Tensor:
    import entmax

    return entmax.budget_bisect(x, budget=k, dim=-1)


def _entmax_bisect(x: torch.Tensor, k: int) -> torch.Tensor:
    import entmax

    return entmax.entmax_bisect(x, alpha=ALPHA, dim=-1)


def _cupy_sort(x: torch.Tensor, k: int) -> Any:
    import cupy

    return cupy.sort(cupy.from_dlpack(x), -1)


ON_TENSORS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "torch.softmax": lambda x, k: torch.softmax(x, -1),
    "torch.topk": lambda x, k: torch.topk(x, k, -1),
    "torch.sort": lambda x, k: torch.sort(x, -1),
    "cupy.sort": _cupy_sort,
    "entmax budget_bisect": _budget_bisect,
    "entmax entmax_bisect": _entmax_bisect,
    "LapSum (sort)": lapsum.soft_topk,
    "LML (bracketing)": lml.soft_topk,
}


def _copyto(x: np.ndarray, k: int) -> Call:
    return functools.partial(np.copyto, np.empty_like(x), x)


def _sample(x: np.ndarray, k: int) -> Call:
    """One subset of a row whose distribution is at hand."""
    return functools.partial(stk.KSubset(x[0], k).sample, rng=np.random.default_rng(1))


ON_ARRAYS: dict[str, Callable[[np.ndarray, int], Call]] = {
    "np.partition": lambda x, k: functools.partial(np.partition, x, x.shape[1] - k, axis=-1),
    "scipy softmax": lambda x, k: functools.partial(scipy_softmax, x, axis=-1),
    "np.copyto": _copyto,
    "log-domain DP": lambda x, k: functools.partial(log_domain.marginals, x[0], k),
    "KSubset.sample": _sample,
}


def _tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def _on_tensors(name: str, what: str, x: torch.Tensor, k: int) -> Call:
    function = ON_TENSORS[name]
    if what == "value":
        return functools.partial(function, x, k)
    leaf = x.clone().requires_grad_()
    p = function(leaf, k)
    return lambda: torch.autograd.grad(p, leaf, x, retain_graph=True)


def _ours(case: Case, x: Any) -> Call:
    operator, options = getattr(stk, case.operator), {}
    size = () if case.operator == "softmax" else (case.k,)
    if case.curve:
        options["curve"] = case.curve
    if case.curve == "entmax":
        options["alpha"] = ALPHA
    if case.method:
        options["method"] = case.method
    if case.what == "value":
        return functools.partial(operator, x, *size, **options)
    if case.what == "jvp":
        return functools.partial(operator.jvp, x, *size, x, **options)
    return functools.partial(operator.vjp(x, *size, **options)[1], x)


def call(case: Case, x: Any) -> Call:
    """The case on these rows, compiled and with its forward pass done if it is a pullback."""
    if case.operator in ON_ARRAYS:
        return ON_ARRAYS[case.operator](x, case.k)
    if is_ours(case.operator):
        return _ours(case, x)
    return _on_tensors(case.operator, case.what, _tensor(x), case.k)


def unit(what: str, x: Any) -> Call:
    """What a case is divided by: softmax, or for derivatives its backward pass."""
    return _on_tensors("torch.softmax", "value" if what == "value" else "pullback", _tensor(x), 0)
