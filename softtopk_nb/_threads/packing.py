"""Rows with infinities: their finite entries as rows of their own, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._compile.array_intrinsics import borrowed
from .._compile.decorators import kernel
from .._nonfinite import compress, expand_apart
from . import pool

Array = npt.NDArray[Any]

#: In place of the lengths of rows that are taken whole.
WHOLE = np.empty(0, np.int64)
CHUNK = 1 << 19  # entries that are packed at a time, about


@kernel
def _gather(lo: int, hi: int, x: Any, these: Any, values: Any, sizes: Any, packed: Any) -> None:
    """Write the values at the finite entries of these rows, one after the other; and how many."""
    x, values, packed = borrowed(x), borrowed(values), borrowed(packed)
    for j in range(lo, hi):
        i = these[j]
        sizes[j] = compress(x[i], values[i], packed[j])


@kernel
def _scatter(
    lo: int, hi: int, x: Any, these: Any, packed: Any, at_plus_inf: float, out: Any
) -> None:
    """Write these rows from what belongs to their finite entries; -inf entries get 0."""
    x, packed, out = borrowed(x), borrowed(packed), borrowed(out)
    for j in range(lo, hi):
        i = these[j]
        expand_apart(x[i], packed[j], at_plus_inf, out[i])


def chunks(chosen: Array, n: int) -> Iterator[Array]:
    """The indices of the chosen rows of n entries, so many at a time as are packed together."""
    these, several = np.flatnonzero(chosen), max(1, CHUNK // max(1, n))
    for start in range(0, len(these), several):
        yield these[start : start + several]


def gather(x: Array, these: Array, *values: Array) -> tuple[Array, ...]:
    """(how many entries of each of these rows are finite, the values at them in rows)."""
    shape, sizes = (len(these), x.shape[1]), np.empty(len(these), np.int64)
    packed = [np.empty(shape, each.dtype) for each in values]
    for each, part in zip(values, packed, strict=True):
        pool.over(len(these), part.size, _gather, x, these, each, sizes, part)
    return sizes, *packed


def scatter(x: Array, these: Array, packed: Array, at_plus_inf: float, out: Array) -> None:
    """Undo `gather`: whole rows, with `at_plus_inf` at +inf and 0 at -inf."""
    pool.over(len(these), packed.size, _scatter, x, these, packed, at_plus_inf, out)


@kernel
def _mask(lo: int, hi: int, x: Any, present: Any, absent: float, out: Any) -> None:
    """Copy rows, with `absent` in place of the entries that take no part."""
    nothing = x.dtype.type(absent)
    x, present, out = borrowed(x), borrowed(present), borrowed(out)
    for i in range(lo, hi):
        entries, there, copy = x[i], present[i], out[i]
        for j in range(entries.shape[0]):
            copy[j] = entries[j] if there[j] else nothing


def masked(x: Array, present: Array, absent: float) -> Array:
    """A copy of the rows with `absent` where an entry is not `present`."""
    out = np.empty(x.shape, x.dtype)
    pool.over(len(x), x.size // 2, _mask, x, present, absent, out)
    return out
