"""The sums over all entries of a row that GradTopK needs, by one series or another.

Where the count's variance is not small, Chebyshev series cover every entry (Proposition
prop-grad-chebyshev); otherwise power series and a core of separate entries (`contour`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from ..._compile.array_intrinsics import block, read_apart, write_apart
from ..._compile.decorators import overload_scalar, scalar, summing
from ..._math.elementary import fma, limits, wide_vectors
from ..formulas import core_limit, minority_probability
from ..nodes import FEWEST_STEPS
from ..records import EVEN, ODD, ORDER
from .contour import begin_sums

# Least variances for the Chebyshev series, and for those with 4 steps less.
LEAST, LEAST_32 = 24.0, 12.0
ENOUGH, ENOUGH_32 = 48.0, 24.0
STEPS, STEPS_32 = ORDER, FEWEST_STEPS + 4

SURE = 1.05  # times the safe 0.9 of `core_limit` is 0.945: a margin for an inexact tilt

STEP = 512  # entries whose sums are float32 if the row is


class TiltSums(NamedTuple):
    """Sums over a row at a tilt, which the search for the tilt needs."""

    above: float  # number of entries with pi >= 1/2
    tails_above: float  # of 1 - pi there
    tails_below: float  # of pi of the others
    variance: float  # of pi (1 - pi)
    skewness: float  # of pi (1 - pi) (1 - 2 pi)


@scalar
def choose_series(variance, inv):
    """(s above which an entry is of the core, 0), or (1/4, steps of the Chebyshev series).

    `variance`: a bound from below.
    """
    double = limits(inv)[0] < 1e-10
    if variance < (LEAST if double else LEAST_32):
        return core_limit(SURE * variance, inv), 0
    steps = STEPS if double else STEPS_32
    return 0.25, steps - 4 if variance >= (ENOUGH if double else ENOUGH_32) else steps


@summing
def tilted_block(x, c, inv, d, ys):
    """Write y of a block; returns the sums of its signs, r, s = r (1 - r), s (1 - 2 pi) and y."""
    wide_vectors()
    T = x.dtype.type
    signs, several, weight, skewness = T(0), T(0), T(0), T(0)
    for i in range(x.shape[0]):
        t = (read_apart(x, i) - c) * inv - d
        r = minority_probability(t)
        s = r * (T(1) - r)
        side = T(-1) if t >= T(0) else T(1)  # one condition, or else no vectors
        y = side * (r + r)
        signs += side
        several += r
        weight += s
        skewness += s * (side - y)
        write_apart(ys, i, y)
    # It makes up the mean, whose error is not divided among entries: float64.
    first = 0.0
    for i in range(x.shape[0]):
        first += np.float64(ys[i])
    return signs, several, weight, skewness, first


@scalar
def tilted_probabilities(x, c, inv, d, kept):
    """Write y = 2 r of each entry to `kept`, negative where pi >= 1/2; returns sums over the row.

    t = (x - c)/tau - d. Blocks are added in order: otherwise the compiler would make one sum of
    them in float64.
    """
    above, total, first, w, v = 0.0, 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], STEP):
        part, ys = block(x, start, STEP), block(kept, start, STEP)
        signs, several, weight, skewness, firsts = tilted_block(part, c, inv, d, ys)
        above += 0.5 * (part.shape[0] - signs)
        total += several
        first += firsts
        w += weight
        v += skewness
    return TiltSums(above, 0.5 * total - 0.25 * first, 0.5 * total + 0.25 * first, w, v)


@scalar
def four_more(now, before, twice, rise):
    """The next four polynomials, as differences from 1, with twice = 2 xi and rise = 2 - 2 xi."""
    first = fma(twice, now, rise - before)
    second = fma(twice, first, rise - now)
    third = fma(twice, second, rise - first)
    return first, second, third, fma(twice, third, rise - second)


def series_of(steps):
    """The function that adds a row's sums of this many steps, from y of each entry.

    With xi = 1 - 8 s and z = |2 pi - 1| they are of 1 - T_l(xi), and of 1 - T_2l+1(z), negated
    where pi >= 1/2. T_l(xi) = T_2l(z), and both follow from T_j+2(z) = 2 xi T_j(z) - T_j-2(z).
    """

    @summing
    def series(y, sums):
        wide_vectors()
        T = y.dtype.type
        e0, e1, e2, e3 = T(0), T(0), T(0), T(0)
        o0, o1, o2, o3 = T(0), T(0), T(0), T(0)
        e4, e5, e6, e7 = T(0), T(0), T(0), T(0)
        o4, o5, o6, o7 = T(0), T(0), T(0), T(0)
        e8, e9, e10, e11 = T(0), T(0), T(0), T(0)
        o8, o9, o10, o11 = T(0), T(0), T(0), T(0)
        for i in range(y.shape[0]):
            odd = y[i]
            z = abs(odd)
            rise = T(4) * z * (T(2) - z)  # 16 s
            twice, side = T(2) - rise, rise if odd > T(0) else -rise
            even = four_more(T(0.5) * rise, T(0), twice, rise)
            odds = four_more(odd, odd, twice, side)
            e0 += even[0]
            e1 += even[1]
            e2 += even[2]
            e3 += even[3]
            o0 += odds[0]
            o1 += odds[1]
            o2 += odds[2]
            o3 += odds[3]
            if steps > 4:
                even = four_more(even[3], even[2], twice, rise)
                odds = four_more(odds[3], odds[2], twice, side)
                e4 += even[0]
                e5 += even[1]
                e6 += even[2]
                e7 += even[3]
                o4 += odds[0]
                o5 += odds[1]
                o6 += odds[2]
                o7 += odds[3]
            if steps > 8:
                even = four_more(even[3], even[2], twice, rise)
                odds = four_more(odds[3], odds[2], twice, side)
                e8 += even[0]
                e9 += even[1]
                e10 += even[2]
                e11 += even[3]
                o8 += odds[0]
                o9 += odds[1]
                o10 += odds[2]
                o11 += odds[3]
        add_four(sums, 0, (e0, e1, e2, e3), (o0, o1, o2, o3))
        add_four(sums, 4, (e4, e5, e6, e7), (o4, o5, o6, o7))
        add_four(sums, 8, (e8, e9, e10, e11), (o8, o9, o10, o11))

    return series


@scalar
def add_four(sums, m, even, odd):
    """Add a block's sums of four steps, from step m on."""
    for j in range(4):
        sums[EVEN + m + j] += even[j]
        if m + j + 1 < ORDER:
            sums[ODD + m + j + 1] += odd[j]


SERIES = {steps: series_of(steps) for steps in (STEPS_32 - 4, STEPS_32, STEPS)}


def add_series(y, steps, sums):
    """Add a row's sums of `steps` steps, from y of each entry."""
    for start in range(0, len(y), STEP):
        SERIES[steps](y[start : start + STEP], sums)


@overload_scalar(add_series)
def _add_series(y, steps, sums):
    most = STEPS_32 if y.dtype == types.float32 else STEPS
    all_of_them, fewer = SERIES[most], SERIES[most - 4]

    def impl(y, steps, sums):
        for start in range(0, y.shape[0], STEP):
            if steps == most:
                all_of_them(block(y, start, STEP), sums)
            else:
                fewer(block(y, start, STEP), sums)

    return impl


@scalar
def chebyshev_sums(y, seen, steps, sums):
    """Write the sums over a row without a core.

    `y`, `seen`: what `tilted_probabilities` has written and returned.
    """
    begin_sums(seen, sums)
    sums[ODD] = 2.0 * (seen.tails_below - seen.tails_above)
    add_series(y, steps, sums)
