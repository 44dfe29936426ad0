"""The hard top-k of the rows of a batch."""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import block, borrowed
from ..._compile.decorators import kernel, scalar, summing
from ..._math.elementary import from_ordinal, to_ordinal, wide_vectors
from ..._nonfinite import survey
from ..formulas import middle_of

BLOCK = 1 << 16  # entries counted in the row's own type, which is exact and vectorises


@summing
def count(x, value, strictly):
    """Number of entries greater than `value`, or, unless `strictly`, at least that."""
    wide_vectors()
    T = x.dtype.type
    total = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part = block(x, start, BLOCK)
        hits = T(0)
        for i in range(part.shape[0]):
            hit = part[i] > value if strictly else part[i] >= value
            hits += T(1) if hit else T(0)
        total += hits
    return total


@scalar
def hard_row(x, k, out):
    """Write ones at the k largest entries, ties to the lowest index; NaN where that is undefined.

    Bisection on ordinals for the k-th largest value: no sort, and at most 64 passes of comparisons.
    """
    wide_vectors()
    T = x.dtype.type
    lo, hi = survey(x)
    if lo < to_ordinal(T(-np.inf)) or hi > to_ordinal(T(np.inf)) or k > count(x, T(-np.inf), True):
        for i in range(x.shape[0]):
            out[i] = T(np.nan)
        return
    # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`.
    exact = False
    while lo < hi and not exact:
        middle = middle_of(lo, hi)
        found = count(x, from_ordinal(middle), False)
        exact = found == k
        if found >= k:
            lo = middle
        else:
            hi = type(lo)(middle - 1)
    value = from_ordinal(lo)
    if exact:
        for i in range(x.shape[0]):
            out[i] = T(1) if x[i] >= value else T(0)
        return
    ties = k - int(count(x, value, True))
    for i in range(x.shape[0]):
        tied = x[i] == value and ties > 0
        out[i] = T(1) if x[i] > value or tied else T(0)
        ties -= tied


@kernel
def solve(lo, hi, x, k, out):
    """Solve rows lo .. hi."""
    x, out = borrowed(x), borrowed(out)
    for i in range(lo, hi):
        hard_row(x[i], k[i], out[i])
