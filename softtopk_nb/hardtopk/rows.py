"""The hard top-k of rows lo .. hi of a batch."""

from __future__ import annotations

import numpy as np

from .._compile import kernel, scalar
from .._rows import survey
from .._scalars import from_ordinal, to_ordinal

__all__ = ["hard_row", "solve"]


@scalar
def hard_row(x, k, out):
    """Ones at the k largest entries, ties to the lowest index; NaN where that is not defined.

    Bisection on ordinals for a value with at most k entries above it and at least k from it on:
    no sort, and no more than 64 passes of comparisons.
    """
    T = x.dtype.type
    lo, hi = survey(x)
    lowest, highest = to_ordinal(T(-np.inf)), to_ordinal(T(np.inf))
    absent = 0
    if lo <= lowest:
        for i in range(x.shape[0]):
            absent += x[i] == -np.inf
    if lo < lowest or hi > highest or k > x.shape[0] - absent:
        for i in range(x.shape[0]):
            out[i] = T(np.nan)
        return
    # Invariant: fewer than k entries lie above `hi`, at least k at or above `lo`.
    above = 0
    while lo < hi:
        middle = type(lo)((lo >> 1) + (hi >> 1) + ((lo | hi) & 1))
        value = from_ordinal(middle)
        count = 0
        for i in range(x.shape[0]):
            count += x[i] >= value
        if count == k:
            hi = lo = middle
            above = count
            break
        if count > k:
            lo = middle
        else:
            hi = type(lo)(middle - 1)
    value = from_ordinal(lo)
    if above != k:
        above = 0
        for i in range(x.shape[0]):
            above += x[i] > value
        ties = k - above
        for i in range(x.shape[0]):
            if x[i] > value:
                out[i] = T(1)
            elif x[i] == value and ties > 0:
                out[i] = T(1)
                ties -= 1
            else:
                out[i] = T(0)
    else:
        for i in range(x.shape[0]):
            out[i] = T(1) if x[i] >= value and k > 0 else T(0)


@kernel
def solve(lo, hi, x, k, out):
    """Rows lo .. hi."""
    for i in range(lo, hi):
        hard_row(x[i], k[i], out[i])
