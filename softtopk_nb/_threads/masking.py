"""Copies of rows with masked entries replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._compile.array_intrinsics import borrowed
from .._compile.decorators import kernel
from . import pool

Array = npt.NDArray[Any]


@kernel
def _mask(lo: int, hi: int, x: Any, present: Any, excluded: float, out: Any) -> None:
    """Copy rows, with `excluded` in place of masked entries."""
    nothing, shared = x.dtype.type(excluded), present.shape[0] == 1
    x, present, out = borrowed(x), borrowed(present), borrowed(out)
    for i in range(lo, hi):
        entries, there, copy = x[i], present[0 if shared else i], out[i]
        for j in range(entries.shape[0]):
            copy[j] = entries[j] if there[j] else nothing


def masked(x: Array, present: Array, excluded: float) -> Array:
    """A copy of the rows with `excluded` where `present` is False.

    `present` has a row for each of them, or one for all.
    """
    out = np.empty(x.shape, x.dtype)
    pool.over(len(x), x.size // 2, _mask, x, present, excluded, out)
    return out
