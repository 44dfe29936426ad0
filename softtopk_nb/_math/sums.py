"""Sums of float32 numbers whose error does not depend on the width of the processor's vectors.

A loop that adds up a block in float32 keeps one partial sum for each SIMD lane. Where all entries
are equal, every addition to one of them is rounded the same way, and with few lanes there are many
additions: the relative error of the sum of 1024 is then some 10^-6. Of 128 entries, four lanes,
which every processor has, take 32 each: with m/3 roundings for m additions to a sum of equal
numbers, the error is less than 7 10^-7. Eight such sums are added in their own type: sums of equal
numbers are equal then, and doubling is exact.
"""

from __future__ import annotations

import numpy as np

from .._compile.array_intrinsics import block
from .._compile.decorators import scalar, summing
from .elementary import wide_vectors

FEW = 128  # entries whose sum may be added up plainly
MANY = 8 * FEW  # summed as eight times FEW side by side: 5 % of a pass less than FEW at a time


@summing
def _plain_sum(v):
    wide_vectors()
    s = v.dtype.type(0)
    for i in range(v.shape[0]):
        s += v[i]
    return s


@summing
def _eight_sums(v):
    """The sum of MANY entries, as eight plain sums side by side."""
    wide_vectors()
    T = v.dtype.type
    a, b, c, d, e, f, g, h = T(0), T(0), T(0), T(0), T(0), T(0), T(0), T(0)
    for i in range(FEW):
        a += v[i]
        b += v[i + FEW]
        c += v[i + 2 * FEW]
        d += v[i + 3 * FEW]
        e += v[i + 4 * FEW]
        f += v[i + 5 * FEW]
        g += v[i + 6 * FEW]
        h += v[i + 7 * FEW]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@scalar
def accurate_sum(v):
    """The sum of a flat array in float64, of sums over FEW or MANY entries in its own type."""
    if v.shape[0] == MANY:
        return np.float64(_eight_sums(v))
    total = 0.0
    for start in range(0, v.shape[0], FEW):
        total += _plain_sum(block(v, start, FEW))
    return total
