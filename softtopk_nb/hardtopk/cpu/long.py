"""The hard top-k of one long row, its parts shared out among the threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._math.elementary import from_ordinal
from ..._threads.long_rows import PART, Pass, Passes, here, part_count, range_of
from .rows import count

Array = Any


@kernel
def count_parts(lo, hi, x, value, strictly, counts):
    """How many entries of each part exceed the value."""
    for j in range(lo, hi):
        counts[j] = count(x[j * PART : (j + 1) * PART], value, strictly)


@kernel
def write_parts(lo, hi, x, value, ties, out):
    """Ones above the value, and at the first `ties` of each part that equal it."""
    T = x.dtype.type
    for j in range(lo, hi):
        part, target = x[j * PART : (j + 1) * PART], out[j * PART : (j + 1) * PART]
        left = ties[j]
        if left == 0:
            for i in range(part.shape[0]):
                target[i] = T(1) if part[i] > value else T(0)
            continue
        for i in range(part.shape[0]):
            tied = part[i] == value and left > 0
            left -= tied
            target[i] = T(1) if part[i] > value or tied else T(0)


def _value_at(place: int, dtype: Any) -> Any:
    """The float at a place in the order of floats, which is an integer of Python's here."""
    return from_ordinal(np.int32(place) if dtype == np.float32 else np.int64(place))


def _count(x: Array, value: Any, strictly: bool) -> Passes[Array]:
    """`rows.count` of each part."""
    counts = np.empty(part_count(x))
    yield Pass(count_parts, x.size // 4, (x, value, strictly, counts), (counts,))
    return counts


def solve(x: Array, k: int, out: Array) -> None:
    """One row, as `rows.hard_row`: the same bisection, one pass over all parts at a time."""
    lo, hi = map(int, range_of(x))
    if np.isnan([_value_at(lo, x.dtype), _value_at(hi, x.dtype)]).any() or (
        k > here(_count(x, x.dtype.type(-np.inf), True)).sum()
    ):
        out[...] = np.nan
    else:
        here(solve_present(x, k, lo, hi, out))


def solve_present(x: Array, k: int, lo: int, hi: int, out: Array) -> Passes[None]:
    """A row without a NaN and with k entries above -inf, from the ordinals of its range."""
    # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`.
    while lo < hi:
        middle = -((-lo - hi) // 2)
        found = (yield from _count(x, _value_at(middle, x.dtype), False)).sum()
        lo, hi = (middle, hi) if found >= k else (lo, middle - 1)
        if found == k:
            break
    value = _value_at(lo, x.dtype)
    above = yield from _count(x, value, True)
    equal = (yield from _count(x, value, False)) - above
    before = np.cumsum(equal) - equal
    ties = np.clip(k - above.sum() - before, 0, equal).astype(np.int64)
    yield Pass(write_parts, x.size, (x, value, ties, out), (ties,), (), (out,))
