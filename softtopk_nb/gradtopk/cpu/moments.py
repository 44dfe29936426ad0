"""What GradTopK needs of all entries of a row, in one way or the other.

Where the count's variance is not small, Chebyshev series serve for every entry (Proposition
prop-grad-chebyshev); elsewhere power series, and a core of entries kept aside (`contour`).
"""

from __future__ import annotations

import numpy as np
from numba import types

from ..._compile.array_intrinsics import block, read_apart, write_apart
from ..._compile.decorators import overload_scalar, row, scalar, summing
from ..._math.elementary import fma, limits, wide_vectors
from ..formulas import cut_of, rarer
from ..nodes import takes_all
from ..records import EVEN, ODD, ORDER
from .contour import gather, open_sums

# From which variances on so many steps are enough, 12 (8 in float32) or 4 less.
LEAST, LEAST_32 = 24.0, 12.0
ENOUGH, ENOUGH_32 = 48.0, 24.0
STEPS, STEPS_32 = ORDER, ORDER - 4

SURE = 1.05  # times what `cut_of` is sure of is 0.945 of the variance: room for an inexact tilt

STEP = 512  # entries whose sums are float32, if the row is


@scalar
def cut_for(variance, inv):
    """`cut_of`, or how many steps make the sums where no entry needs to be kept aside.

    `variance`: a bound from below.
    """
    double = limits(inv)[0] < 1e-10
    if variance < (LEAST if double else LEAST_32):
        return cut_of(SURE * variance, inv)
    steps = STEPS if double else STEPS_32
    return np.float64(steps - 4 if variance >= (ENOUGH if double else ENOUGH_32) else steps)


@summing
def toss_block(x, c, inv, d, ys):
    """`toss` of a block: the sums of the sides, and of r, r (1 - r), its bend and y."""
    wide_vectors()
    T = x.dtype.type
    tails, several, weight, bend = T(0), T(0), T(0), T(0)
    for i in range(x.shape[0]):
        t = (read_apart(x, i) - c) * inv - d
        r = rarer(t)
        s = r * (T(1) - r)
        side = T(-1) if t >= T(0) else T(1)  # one condition, or else no vectors
        y = side * (r + r)
        tails += side
        several += r
        weight += s
        bend += s * (side - y)
        write_apart(ys, i, y)
    # It makes the mean, which is not spread thin: float64.
    first = 0.0
    for i in range(x.shape[0]):
        first += np.float64(ys[i])
    return tails, several, weight, bend, first


@row
def toss(x, c, inv, d, kept):
    """Write y = 2 r of each coin to `kept`, negative where heads is the likelier side.

    Returns the sums (m, a, b, w, v) over t = (x - c)/tau - d that the search for a tilt asks for.
    Blocks are added in their order: else the compiler would make one sum of them in float64.
    """
    ups, total, first, w, v = 0.0, 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], STEP):
        part, ys = block(x, start, STEP), block(kept, start, STEP)
        tails, several, weight, bend, firsts = toss_block(part, c, inv, d, ys)
        ups += 0.5 * (part.shape[0] - tails)
        total += several
        first += firsts
        w += weight
        v += bend
    return ups, 0.5 * total - 0.25 * first, 0.5 * total + 0.25 * first, w, v


@scalar
def four_more(now, before, twice, rise):
    """The four polynomials after these, as differences from 1; twice: 2 xi, rise: 2 - 2 xi."""
    first = fma(twice, now, rise - before)
    second = fma(twice, first, rise - now)
    third = fma(twice, second, rise - first)
    return first, second, third, fma(twice, third, rise - second)


def series_of(steps):
    """The function that adds the sums of so many steps over a row, from what `toss` has kept.

    With xi = 1 - 8 s and z = |2 pi - 1|: 1 - T_l(xi), and 1 - T_2l+1(z) with a minus above 1/2.
    T_l(xi) = T_2l(z), and both follow from T_j+2(z) = 2 xi T_j(z) - T_j-2(z).
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


@row
def add_four(sums, m, even, odd):
    """Add the sums over a block that four steps from m on have made."""
    for j in range(4):
        sums[EVEN + m + j] += even[j]
        if m + j + 1 < ORDER:
            sums[ODD + m + j + 1] += odd[j]


SERIES = {steps: series_of(steps) for steps in (STEPS_32 - 4, STEPS_32, STEPS)}


def add_series(y, steps, sums):
    """Add the sums of so many steps over y, of `toss`."""
    for start in range(0, len(y), STEP):
        SERIES[steps](y[start : start + STEP], sums)


@overload_scalar(add_series, inline=True)
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


@row
def collect(y, seen, inv, cut, work, sums, core):
    """Write the sums over the row and its core; returns its size. `work`: of `gather_room`.

    `y`, `seen`: what `toss` has written and returned.
    """
    if takes_all(cut):
        open_sums(seen, sums)
        sums[ODD] = 2.0 * (seen[2] - seen[1])
        add_series(y, int(cut), sums)
        return 0
    return gather(y, seen, inv, cut, work, sums, core)
