"""The hard top-k of one long row, its parts shared out among the threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._compile import kernel
from .._parts import PART, part_count, range_of
from .._schedule import over

__all__ = ["solve"]

Array = Any


@kernel
def count_parts(lo, hi, x, value, counts):
    """How many entries of each part lie above the value, and how many at or above it."""
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        above, from_on = 0, 0
        for i in range(part.shape[0]):
            above += part[i] > value
            from_on += part[i] >= value
        counts[j, 0], counts[j, 1] = above, from_on


@kernel
def write_parts(lo, hi, x, value, ties, out):
    """Ones above the value, and at the first `ties` of each part that equal it."""
    T = x.dtype.type
    for j in range(lo, hi):
        part, target = x[j * PART : (j + 1) * PART], out[j * PART : (j + 1) * PART]
        left = ties[j]
        for i in range(part.shape[0]):
            tied = part[i] == value and left > 0
            left -= tied
            target[i] = T(1) if part[i] > value or tied else T(0)


def _value_at(place: int, dtype: Any) -> Any:
    """The float at a place in the order of floats, as `_scalars.from_ordinal`."""
    integer = np.int32 if dtype == np.float32 else np.int64
    bits = place if place >= 0 else place ^ int(np.iinfo(integer).max)
    return np.array(bits, integer).view(dtype)[()]


def solve(x: Array, k: int, out: Array) -> None:
    """One row, as `rows.hard_row`: the same bisection, one pass over all parts at a time."""
    counts = np.empty((part_count(x), 2), np.int64)

    def count(value: Any) -> Any:
        over(len(counts), x.size // 2, count_parts, x, value, counts)
        return counts.sum(axis=0)

    lo, hi = map(int, range_of(x))
    lowest, highest = _value_at(lo, x.dtype), _value_at(hi, x.dtype)
    if np.isnan(lowest) or np.isnan(highest) or k > count(x.dtype.type(-np.inf))[0]:
        out[...] = np.nan
        return
    # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`.
    while lo < hi:
        middle = -((-lo - hi) // 2)
        enough = count(_value_at(middle, x.dtype))[1] >= k
        lo, hi = (middle, hi) if enough else (lo, middle - 1)
    value = _value_at(lo, x.dtype)
    above, _ = count(value)
    equal = counts[:, 1] - counts[:, 0]
    before = np.cumsum(equal) - equal
    ties = np.clip(k - above - before, 0, equal)
    over(len(counts), x.size, write_parts, x, value, ties, out)
