"""Rows without the entries that take no part: the others one after the other, and back.

Which entries take part says a mask, of one row for all or of one for each; or the rows themselves,
whose infinities do not. Packed rows end with -inf where others are longer; kernels leave that out
(`_nonfinite.length`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._compile.array_intrinsics import borrowed
from .._compile.decorators import kernel
from .._compile.permute import number_there, pack, unpack
from . import pool

Array = npt.NDArray[Any]

CHUNK = 1 << 19  # entries that are packed at a time, about


@kernel
def _count(lo: int, hi: int, there: Any, these: Any, sizes: Any, above: Any) -> None:
    """How many entries of these rows take part, and how many others are +inf."""
    there = borrowed(there)
    for j in range(lo, hi):
        row, high = there[these[j]], 0
        sizes[j] = number_there(row)
        if there.itemsize > 1 and sizes[j] < row.shape[0]:
            for m in range(row.shape[0]):
                high += row[m] == np.inf
        above[j] = high


@kernel
def _gather(
    lo: int, hi: int, there: Any, these: Any, values: Any, behind: float, packed: Any
) -> None:
    """Write the values at the entries that take part, and `behind` after them."""
    rest, shared = values.dtype.type(behind), there.shape[0] == 1
    there, values, packed = borrowed(there), borrowed(values), borrowed(packed)
    for j in range(lo, hi):
        i, row = these[j], packed[j]
        for m in range(pack(there[0 if shared else i], values[i], row), row.shape[0]):
            row[m] = rest


@kernel
def _scatter(
    lo: int, hi: int, there: Any, these: Any, packed: Any, absent: float, out: Any
) -> None:
    """Undo `_gather`, with `absent` at the other entries; a row that is NaN is so everywhere."""
    rest, shared = out.dtype.type(absent), there.shape[0] == 1
    there, packed, out = borrowed(there), borrowed(packed), borrowed(out)
    for j in range(lo, hi):
        i, row = these[j], packed[j]
        undefined = row.shape[0] > 0 and row[0] != row[0]
        unpack(there[0 if shared else i], row, row[0] if undefined else rest, out[i])


@kernel
def _put_ones(lo: int, hi: int, x: Any, these: Any, out: Any) -> None:
    """Write 1 at the entries of +inf."""
    one, infinity = out.dtype.type(1), x.dtype.type(np.inf)
    x, out = borrowed(x), borrowed(out)
    for j in range(lo, hi):
        row, p = x[these[j]], out[these[j]]
        for m in range(row.shape[0]):
            p[m] = one if row[m] == infinity else p[m]


def chunks(these: Array, n: int) -> Iterator[Array]:
    """Some rows' indices, so many at a time as are packed together; the rows have n entries."""
    several = max(1, CHUNK // max(1, n))
    for start in range(0, len(these), several):
        yield these[start : start + several]


def count(there: Array, these: Array) -> tuple[Array, Array]:
    """How many entries of these rows take part, and how many others are +inf."""
    sizes, above = np.empty((2, len(these)), np.int64)
    pool.over(len(these), len(these) * there.shape[1] // 16, _count, there, these, sizes, above)
    return sizes, above


def gather(there: Array, these: Array, values: Array, behind: float, packed: Array) -> None:
    """Write those of the `values` that take part to rows of their own; `behind` after them."""
    pool.over(len(these), packed.size // 4, _gather, there, these, values, behind, packed)


def scatter(there: Array, these: Array, packed: Array, absent: float, out: Array) -> None:
    """Undo `gather`: these rows of `out`, with `absent` where an entry takes no part."""
    pool.over(len(these), packed.size // 4, _scatter, there, these, packed, absent, out)


def put_ones(x: Array, these: Array, out: Array) -> None:
    """Write 1 where these rows are +inf."""
    pool.over(len(these), len(these) * x.shape[1] // 8, _put_ones, x, these, out)


@kernel
def _mask(lo: int, hi: int, x: Any, present: Any, absent: float, out: Any) -> None:
    """Copy rows, with `absent` in place of the entries that take no part."""
    nothing, shared = x.dtype.type(absent), present.shape[0] == 1
    x, present, out = borrowed(x), borrowed(present), borrowed(out)
    for i in range(lo, hi):
        entries, there, copy = x[i], present[0 if shared else i], out[i]
        for j in range(entries.shape[0]):
            copy[j] = entries[j] if there[j] else nothing


def masked(x: Array, present: Array, absent: float) -> Array:
    """A copy of the rows with `absent` where an entry is not `present`."""
    out = np.empty(x.shape, x.dtype)
    pool.over(len(x), x.size // 2, _mask, x, present, absent, out)
    return out
