"""The hard top-k of rows lo .. hi of a batch."""

from __future__ import annotations

import numpy as np

from .._compile import kernel, row, summing
from .._rows import survey
from .._scalars import from_ordinal, to_ordinal

__all__ = ["count_above", "count_from", "hard_row", "solve"]

BLOCK = 1 << 16  # entries counted in the row's own type, which is exact and vectorises


@summing
def count_from(x, value):
    """How many entries are at least `value`."""
    T = x.dtype.type
    total = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part = x[start : start + BLOCK]
        count = T(0)
        for i in range(part.shape[0]):
            count += T(1) if part[i] >= value else T(0)
        total += count
    return total


@summing
def count_above(x, value):
    """How many entries are greater than `value`."""
    T = x.dtype.type
    total = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part = x[start : start + BLOCK]
        count = T(0)
        for i in range(part.shape[0]):
            count += T(1) if part[i] > value else T(0)
        total += count
    return total


@row
def hard_row(x, k, out):
    """Ones at the k largest entries, ties to the lowest index; NaN where that is not defined.

    Bisection on ordinals for the k-th largest value: no sort, and no more than 64 passes of
    comparisons.
    """
    T = x.dtype.type
    lo, hi = survey(x)
    if lo < to_ordinal(T(-np.inf)) or hi > to_ordinal(T(np.inf)) or k > count_above(x, T(-np.inf)):
        for i in range(x.shape[0]):
            out[i] = T(np.nan)
        return
    # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`.
    exact = False
    while lo < hi and not exact:
        middle = type(lo)((lo >> 1) + (hi >> 1) + ((lo | hi) & 1))
        count = count_from(x, from_ordinal(middle))
        exact = count == k
        if count >= k:
            lo = middle
        else:
            hi = type(lo)(middle - 1)
    value = from_ordinal(lo)
    ties = k if exact else k - count_above(x, value)
    for i in range(x.shape[0]):
        tied = x[i] == value and ties > 0
        out[i] = T(1) if x[i] > value or tied else T(0)
        ties -= tied


@kernel
def solve(lo, hi, x, k, out):
    """Rows lo .. hi."""
    for i in range(lo, hi):
        hard_row(x[i], k[i], out[i])
