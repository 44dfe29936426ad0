"""The derivative of GradTopK where Chebyshev series cover every entry, and there is no core.

It is `tangent` with Chebyshev polynomials of xi = 1 - 8 s in place of powers of s (Proposition
prop-grad-chebyshev). They are never small, however small s is, so that one loop computes all sums.
"""

from __future__ import annotations

import math

from ..._compile.array_intrinsics import block, empty, read_apart, write_apart
from ..._compile.decorators import scalar, summing
from ..._math.elementary import fma, wide_vectors
from ..formulas import combined_direction, minority_probability, within_reach
from ..nodes import DEGREE, FEW, terms_of
from ..records import EVEN_SUM, ODD_SUM, OTHERS_EVEN, OTHERS_ODD, OWN_EVEN, OWN_ODD
from .marginals import all_of, few_of, polynomial

STEP = 512  # entries whose sums are in the row's own type


@scalar
def direction_scratch(x):
    """Scratch for `chebyshev_direction_sums` and `chebyshev_tangent`."""
    return empty(STEP, x.dtype)


@summing
def pair_with_t(x, gradient, c, inv, d):
    """<t, gradient>; entries that are far add 0, though their t may be infinite."""
    wide_vectors()
    T = x.dtype.type
    total = 0.0
    for start in range(0, x.shape[0], STEP):
        part, gs = block(x, start, STEP), block(gradient, start, STEP)
        several = T(0)
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            several += gs[i] * within_reach(t)
        total += several
    return total


@summing
def keep_probabilities(x, c, inv, d, y):
    """Write y = 2 r of each entry, negative where pi >= 1/2."""
    wide_vectors()
    T = x.dtype.type
    for i in range(x.shape[0]):
        t = (read_apart(x, i) - c) * inv - d
        r = minority_probability(t)
        write_apart(y, i, (T(-1) if t >= T(0) else T(1)) * (r + r))


@summing
def combined_directions(x, v, drift, c, inv, d, y, scratch):
    """v - t dtau of each entry, written to `scratch`; v itself if dtau is 0."""
    wide_vectors()
    T = x.dtype.type
    if drift == T(0):
        return v
    moved = scratch[: x.shape[0]]
    for i in range(x.shape[0]):
        write_apart(
            moved, i, combined_direction((read_apart(x, i) - c) * inv - d, abs(y[i]), v[i], drift)
        )
    return moved


def sums_of(terms):
    """The function that adds a block's sums over `terms` polynomials, from y and v."""

    @summing
    def add_sums(y, v, sums):
        wide_vectors()
        T = y.dtype.type
        e0, e1, e2, e3, e4 = T(0), T(0), T(0), T(0), T(0)
        o0, o1, o2, o3, o4 = T(0), T(0), T(0), T(0), T(0)
        e5, e6, e7, o5, o6, o7 = T(0), T(0), T(0), T(0), T(0), T(0)
        for i in range(y.shape[0]):
            z = abs(y[i])
            s = T(0.25) * z * (T(2) - z)
            even = s * v[i]
            odd = even * (y[i] - (T(1) if y[i] > T(0) else T(-1)))
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
            if terms > FEW:
                fifth = fma(twice, fourth, -third)
                sixth = fma(twice, fifth, -fourth)
                seventh = fma(twice, sixth, -fifth)
                e5 += even * fifth
                e6 += even * sixth
                e7 += even * seventh
                o5 += odd * fifth
                o6 += odd * sixth
                o7 += odd * seventh
        add_from(sums, 0, (e0, e1, e2, e3, e4), (o0, o1, o2, o3, o4))
        if terms > FEW:
            add_from(sums, FEW, (e5, e6, e7), (o5, o6, o7))

    return add_sums


@scalar
def add_from(sums, m, even, odd):
    """Add a block's sums to those of a row, from polynomial m on."""
    for j in range(len(even)):
        sums[EVEN_SUM + m + j] += even[j]
        sums[ODD_SUM + m + j] += odd[j]


add_few, add_all = sums_of(FEW), sums_of(DEGREE)


@scalar
def chebyshev_direction_sums(x, v, dtau, c, inv, d, steps, scratch, sums, kept):
    """Write the sums over the row of the direction v - t dtau; `scratch`: of `direction_scratch`.

    2 r of each entry goes to `kept`, negative where pi >= 1/2, for `chebyshev_tangent`.
    """
    for m in range(2 * DEGREE):
        sums[m] = 0.0
    for start in range(0, x.shape[0], STEP):
        part, vs = block(x, start, STEP), block(v, start, STEP)
        y = block(kept, start, STEP)
        keep_probabilities(part, c, inv, d, y)
        moved = combined_directions(part, vs, x.dtype.type(dtau), c, inv, d, y, scratch)
        if terms_of(steps) == FEW:
            add_few(y, moved, sums)
        else:
            add_all(y, moved, sums)


@scalar
def chebyshev_sums_at(g, root, terms, sums):
    """The sums (odd, even) over the row of s z v/(1 - g s) and s v/(1 - g s); root = tan(theta/4).

    1/(1 - g s) = (1 + 2 sum over m of (-root^2)^m T_m(xi))/cos(theta/2).
    """
    share = 1.0 / math.sqrt(1.0 - 0.25 * g)
    odd, even = share * sums[ODD_SUM], share * sums[EVEN_SUM]
    share *= 2.0
    for m in range(1, terms):
        share *= -root * root
        odd += share * sums[ODD_SUM + m]
        even += share * sums[EVEN_SUM + m]
    return odd, even


@summing
def write_tangents(v, inv, own, side_own, others, side_others, out):
    """Turn y of a block in `out` into J v, by polynomials in s, with and without a factor z."""
    wide_vectors()
    T = out.dtype.type
    for i in range(out.shape[0]):
        y = out[i]
        z = abs(y)
        s = T(0.25) * z * (T(2) - z)
        side = y - (T(1) if y > T(0) else T(-1))
        slope = polynomial(own, s) + side * polynomial(side_own, s)
        moved = polynomial(others, s) + side * polynomial(side_others, s)
        out[i] = s * inv * (v[i] * slope + moved)


@scalar
def chebyshev_tangent(x, v, dtau, c, inv, d, steps, polynomials, scratch, out):
    """Write J (v - t dtau) to `out`, in which `chebyshev_direction_sums` has kept 2 r."""
    a, b, w, z = (
        polynomials[OWN_EVEN],
        polynomials[OWN_ODD],
        polynomials[OTHERS_EVEN],
        polynomials[OTHERS_ODD],
    )
    few = few_of(a), few_of(b), few_of(w), few_of(z)
    full = all_of(a), all_of(b), all_of(w), all_of(z)
    for start in range(0, x.shape[0], STEP):
        part, vs, target = block(x, start, STEP), block(v, start, STEP), block(out, start, STEP)
        moved = combined_directions(part, vs, x.dtype.type(dtau), c, inv, d, target, scratch)
        if terms_of(steps) == FEW:
            write_tangents(moved, inv, few[0], few[1], few[2], few[3], target)
        else:
            write_tangents(moved, inv, full[0], full[1], full[2], full[3], target)
