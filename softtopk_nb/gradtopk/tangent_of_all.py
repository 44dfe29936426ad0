"""The derivative of GradTopK where Chebyshev series take every entry, and there is no core.

What `tangent` does with powers of s, done with Chebyshev polynomials of xi = 1 - 8 s (Proposition
prop-grad-chebyshev). They are never small, however small s is, so that one loop makes all sums.
"""

from __future__ import annotations

import math

from .._compile import row, scalar, summing
from .._scalars import fma, wide_vectors
from .._views import block, borrowed, layout_known, read_apart, touched
from .contour import rarer
from .marginals import polynomial
from .nodes import DEGREE, FEW

__all__ = ["EVEN", "ODD", "motion", "room_for", "spread_all", "sums_at", "weigh_all"]

# Sums of s^m, or of T_m(xi), times s v z and s v.
ODD, EVEN = 0, DEGREE

STEP = 512  # entries whose sums are of the row's own type

# Of each entry: r, s v and s v z, 2 xi, and two polynomials in a row.
R, SV, SVZ, TWICE, NOW, BEFORE = 0, 1, 2, 3, 4, 5
_known = layout_known(6, STEP)


@scalar
def room_for(x):
    """An array for `weigh_all` to work in."""
    return touched(6, STEP, x)


@summing
def motion(t, s, v, drift):
    """v - t dtau; where s underflows, t can be infinite."""
    return v - drift * (t if s > type(t)(0) else type(t)(0))


@summing
def weigh_all(x, v, dtau, c, inv, d, terms, room, flows, kept):
    """Write the sums over the row of the direction v - t dtau; `room`: of `room_for`.

    Unless `kept` is None, r of each entry goes there, for `write_tangents`.
    """
    wide_vectors()
    T = x.dtype.type
    drift = T(dtau)
    room = _known(borrowed(room))
    for m in range(2 * DEGREE):
        flows[m] = 0.0
    for start in range(0, x.shape[0], STEP):
        part, vs = block(x, start, STEP), block(v, start, STEP)
        e0, e1, e2, e3, e4 = T(0), T(0), T(0), T(0), T(0)
        o0, o1, o2, o3, o4 = T(0), T(0), T(0), T(0), T(0)
        for i in range(part.shape[0]):
            t = (read_apart(part, i) - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            even = s * motion(t, s, read_apart(vs, i), drift)
            z = T(1) - T(2) * r
            odd = even * (z if t >= T(0) else -z)
            xi = T(1) - T(8) * s
            twice = xi + xi
            second = fma(twice, xi, T(-1))
            third = fma(twice, second, -xi)
            fourth = fma(twice, third, -second)
            e0 += even
            e1 += even * xi
            e2 += even * second
            e3 += even * third
            e4 += even * fourth
            o0 += odd
            o1 += odd * xi
            o2 += odd * second
            o3 += odd * third
            o4 += odd * fourth
            if kept is not None:
                room[R, i] = r
            if terms > FEW:
                room[SV, i], room[SVZ, i], room[TWICE, i] = even, odd, twice
                room[NOW, i], room[BEFORE, i] = fourth, third
        add(flows, 0, (e0, e1, e2, e3, e4), (o0, o1, o2, o3, o4))
        if kept is not None:
            for i in range(part.shape[0]):
                kept[start + i] = room[R, i]
        if terms > FEW:
            e0, e1, e2, o0, o1, o2 = T(0), T(0), T(0), T(0), T(0), T(0)
            for i in range(part.shape[0]):
                even, odd, twice = room[SV, i], room[SVZ, i], room[TWICE, i]
                fifth = fma(twice, room[NOW, i], -room[BEFORE, i])
                sixth = fma(twice, fifth, -room[NOW, i])
                seventh = fma(twice, sixth, -fifth)
                e0 += even * fifth
                e1 += even * sixth
                e2 += even * seventh
                o0 += odd * fifth
                o1 += odd * sixth
                o2 += odd * seventh
            add(flows, FEW, (e0, e1, e2), (o0, o1, o2))


@row
def add(flows, m, even, odd):
    """Add the sums over a block, from the m-th polynomial on."""
    for j in range(len(even)):
        flows[EVEN + m + j] += even[j]
        flows[ODD + m + j] += odd[j]


@scalar
def sums_at(g, root, terms, flows):
    """The sums (odd, even) of s z v/(1 - g s) and s v/(1 - g s) over the row; root: tan(theta/4).

    1/(1 - g s) = (1 + 2 sum over m of (-root^2)^m T_m(xi))/cos(theta/2).
    """
    share = 1.0 / math.sqrt(1.0 - 0.25 * g)
    odd, even = share * flows[ODD], share * flows[EVEN]
    share *= 2.0
    for m in range(1, terms):
        share *= -root * root
        odd += share * flows[ODD + m]
        even += share * flows[EVEN + m]
    return odd, even


@summing
def write_tangents(x, v, dtau, c, inv, d, own, side_own, others, side_others, out, kept):
    """Write J (v - t dtau); the polynomials, in s, with and without a factor z: own, others.

    `kept`: None, or `out`, where `weigh_all` has left r.
    """
    wide_vectors()
    T = x.dtype.type
    drift = T(dtau)
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        r = rarer(t) if kept is None else out[i]
        s = r * (T(1) - r)
        z = (T(1) - T(2) * r) * (T(1) if t >= T(0) else T(-1))
        slope = polynomial(own, s) + z * polynomial(side_own, s)
        moved = polynomial(others, s) + z * polynomial(side_others, s)
        out[i] = s * inv * (motion(t, s, v[i], drift) * slope + moved)


@row
def few_of(c):
    """The first FEW coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4]


@row
def all_of(c):
    """All DEGREE coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]


@row
def spread_all(x, v, dtau, c, inv, d, terms, pieces, out, kept):
    """Write J (v - t dtau) with the polynomials of `tangent.steer`."""
    a, b, w, z = pieces[0], pieces[1], pieces[2], pieces[3]
    if terms == FEW:
        few = few_of(a), few_of(b), few_of(w), few_of(z)
        write_tangents(x, v, dtau, c, inv, d, few[0], few[1], few[2], few[3], out, kept)
    else:
        full = all_of(a), all_of(b), all_of(w), all_of(z)
        write_tangents(x, v, dtau, c, inv, d, full[0], full[1], full[2], full[3], out, kept)
