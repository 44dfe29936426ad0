"""The hard top-k of one long row, whose parts are shared among the threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._math.elementary import from_ordinal, to_ordinal
from ..._threads.long_rows import PART, Pass, Passes, here, part_count, range_of
from .rows import count

Array = Any


# values compared in a pass: 5e7 float32 take 0.16 s, and 0.24 s with one (two cores, AVX-512).
VALUES = 15
BLOCK = 2048  # entries that stay in the L1 cache meanwhile


@kernel
def count_parts(lo, hi, x, values, counts):
    """Write the number of entries in each part that are at least each of the values."""
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        for m in range(values.shape[0]):
            counts[j, m] = 0
        for start in range(0, part.shape[0], BLOCK):
            near = part[start : start + BLOCK]
            for m in range(values.shape[0]):
                counts[j, m] += int(count(near, values[m], False))


@kernel
def write_parts(lo, hi, x, value, ties, out):
    """Write ones above the value, and at the first `ties[j]` entries of part j that equal it."""
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
    """The float with this ordinal, a Python integer."""
    return from_ordinal(np.int32(place) if dtype == np.float32 else np.int64(place))


def _count(x: Array, places: list[int]) -> Passes[Array]:
    """The number of entries in each part that are at least the floats with these ordinals."""
    values = np.array([_value_at(place, x.dtype) for place in places])
    counts = np.empty((part_count(x), len(places)), np.int32)
    yield Pass(count_parts, x.size, (x, values, counts), (counts,))
    return counts


def solve(x: Array, k: int, out: Array) -> None:
    """Solve one row, as `rows.hard_row`."""
    lo, hi = map(int, range_of(x))
    lowest, highest = (int(to_ordinal(x.dtype.type(end))) for end in (-np.inf, np.inf))
    undefined = lo < lowest or hi > highest
    if not undefined and lo == lowest:
        undefined = k > here(_count(x, [lowest + 1])).sum()
    if undefined:
        out[...] = np.nan
    else:
        here(solve_present(x, k, lo, hi, out))


def solve_present(x: Array, k: int, lo: int, hi: int, out: Array) -> Passes[None]:
    """Solve a row without NaN and with k entries above -inf, from the ordinals of its range.

    A search for the k-th largest value that compares with VALUES values in each pass.
    """
    # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`, unless k is 0.
    while True:
        last = hi - lo + 2 <= VALUES
        inner = range(1, VALUES + 1)
        spaced = (lo + (hi - lo + 1) * m // (VALUES + 1) for m in inner)
        places = list(range(lo, hi + 2) if last else spaced)
        counts = yield from _count(x, places)
        total = counts.sum(0, np.int64)
        enough = int((total >= k).sum()) - 1  # totals decrease along `places`
        exact = enough >= 0 and total[enough] == k
        if last or exact:
            break
        if enough + 1 < VALUES:
            hi = places[enough + 1] - 1
        if enough >= 0:
            lo = places[enough]
    place, ties = places[enough], np.zeros(len(counts), np.int64)
    if exact:
        place = -2 if place in (-1, 0) else place - 1  # two zeros, and neither is above the other
    else:
        above = counts[:, enough + 1].astype(np.int64)
        equal = counts[:, enough] - above
        ties = np.clip(k - above.sum() - (np.cumsum(equal) - equal), 0, equal)
    yield Pass(write_parts, x.size, (x, _value_at(place, x.dtype), ties, out), (ties,), (), (out,))
