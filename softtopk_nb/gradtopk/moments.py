"""What GradTopK needs of all entries of a row, in one way or the other.

Where the count's variance is not small, Chebyshev series serve for every entry (Proposition
prop-grad-chebyshev); elsewhere power series, and a core of entries kept aside (`contour`).
"""

from __future__ import annotations

import numpy as np

from .._compile import row, scalar, summing
from .._scalars import fma, limits, wide_vectors
from .._views import block, borrowed, layout_known, read_apart, touched, write_apart
from .contour import ABOVE, EVEN, ODD, ORDER, SUMS, VARIANCE, cut_of, gather, gather_room, rarer
from .nodes import takes_all

__all__ = ["collect", "cut_for", "room_for"]

# From which variances on so many steps are enough, 12 (8 in float32) or 4 less.
LEAST, LEAST_32 = 24.0, 12.0
ENOUGH, ENOUGH_32 = 48.0, 24.0
STEPS, STEPS_32 = ORDER, ORDER - 4

SURE = 0.955  # of the weight, beside what `cut_of` is sure of: it allows a tilt that moved by 0.02

STEP = 512  # entries whose sums are float32, if the row is

# 16 s and the sign of each entry, and two polynomials in a row of either parity.
S16, SIDE, EVEN_NOW, EVEN_BEFORE, ODD_NOW, ODD_BEFORE, FIRST = 0, 1, 2, 3, 4, 5, 6
_known = layout_known(7, STEP)


@scalar
def cut_for(weight, inv):
    """`cut_of`, or how many steps make the sums where no entry needs to be kept aside.

    `weight`: the variance at a tilt at most 0.1 temperatures away.
    """
    double = limits(inv)[0] < 1e-10
    variance = 0.9 * weight
    if variance < (LEAST if double else LEAST_32):
        return cut_of(SURE * weight, inv)
    steps = STEPS if double else STEPS_32
    return np.float64(steps - 4 if variance >= (ENOUGH if double else ENOUGH_32) else steps)


@scalar
def room_for(x):
    """Arrays for `collect` to work in."""
    return gather_room(x), touched(7, STEP, x)


@row
def collect(x, c, inv, d, cut, work, sums, core, kept=None):
    """Write the sums over the row and its core; returns its size. `work`: of `room_for`.

    Where there is no core, 2 r of each entry goes to `kept` if it is given, for `marginals`.
    """
    if takes_all(cut):
        moments(x, c, inv, d, int(cut), work[1], sums, kept)
        return 0
    return gather(x, c, inv, d, cut, work[0], sums, core)


@scalar
def four_more(now, before, twice, rise):
    """The four polynomials after these, as differences from 1; twice: 2 xi, rise: 2 - 2 xi."""
    first = fma(twice, now, rise - before)
    second = fma(twice, first, rise - now)
    third = fma(twice, second, rise - first)
    return first, second, third, fma(twice, third, rise - second)


@summing
def moments(x, c, inv, d, steps, room, sums, kept=None):
    """Write the sums over a row of what Chebyshev series are made of; to `kept` 2 r, with a sign.

    With xi = 1 - 8 s and z = |2 pi - 1|: 1 - T_l(xi), and 1 - T_2l+1(z) with a minus above 1/2.
    T_l(xi) = T_2l(z), and both follow from T_j+2(z) = 2 xi T_j(z) - T_j-2(z).
    """
    wide_vectors()
    T = x.dtype.type
    room = _known(borrowed(room))
    for m in range(SUMS):
        sums[m] = 0.0
    for start in range(0, x.shape[0], STEP):
        part = block(x, start, STEP)
        count = part.shape[0]
        ups, variance, first = T(0), T(0), 0.0
        e0, e1, e2, e3 = T(0), T(0), T(0), T(0)
        o0, o1, o2, o3 = T(0), T(0), T(0), T(0)
        for i in range(count):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            upper = t >= T(0)
            side = T(-1) if upper else T(1)
            ups += T(1) if upper else T(0)
            variance += s
            rise = T(16) * s
            even = four_more(T(8) * s, T(0), T(2) - rise, rise)
            odd = four_more(r + r, r + r, T(2) - rise, rise)
            e0 += even[0]
            e1 += even[1]
            e2 += even[2]
            e3 += even[3]
            o0 += side * odd[0]
            o1 += side * odd[1]
            o2 += side * odd[2]
            o3 += side * odd[3]
            room[FIRST, i] = side * (r + r)
            if steps > 4:
                room[S16, i], room[SIDE, i] = rise, side
                room[EVEN_NOW, i], room[EVEN_BEFORE, i] = even[3], even[2]
                room[ODD_NOW, i], room[ODD_BEFORE, i] = odd[3], odd[2]
        firsts = room[FIRST]
        if kept is not None:
            row = block(kept, start, STEP)
        # It makes the mean, which is not spread thin: float64.
        for i in range(count):
            signed = read_apart(firsts, i)
            first += np.float64(signed)
            if kept is not None:
                write_apart(row, i, signed)
        sums[ABOVE] += ups
        sums[VARIANCE] += variance
        sums[ODD] += first
        add_four(sums, 0, (e0, e1, e2, e3), (o0, o1, o2, o3))
        for m in range(4, steps, 4):
            e0, e1, e2, e3 = T(0), T(0), T(0), T(0)
            o0, o1, o2, o3 = T(0), T(0), T(0), T(0)
            for i in range(count):
                rise, side = room[S16, i], room[SIDE, i]
                even = four_more(room[EVEN_NOW, i], room[EVEN_BEFORE, i], T(2) - rise, rise)
                odd = four_more(room[ODD_NOW, i], room[ODD_BEFORE, i], T(2) - rise, rise)
                e0 += even[0]
                e1 += even[1]
                e2 += even[2]
                e3 += even[3]
                o0 += side * odd[0]
                o1 += side * odd[1]
                o2 += side * odd[2]
                o3 += side * odd[3]
                room[EVEN_NOW, i], room[EVEN_BEFORE, i] = even[3], even[2]
                room[ODD_NOW, i], room[ODD_BEFORE, i] = odd[3], odd[2]
            add_four(sums, m, (e0, e1, e2, e3), (o0, o1, o2, o3))


@row
def add_four(sums, m, even, odd):
    """Add the sums over a block that four steps from m on have made."""
    for j in range(4):
        sums[EVEN + m + j] += even[j]
        if m + j + 1 < ORDER:
            sums[ODD + m + j + 1] += odd[j]
