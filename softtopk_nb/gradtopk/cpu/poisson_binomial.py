"""GradTopK of short rows: the count is Poisson-binomial, and each entry's factor is divided out.

An entry of tilted probability pi has the minority odds e = r/(1 - r) <= 1, and the factor 1 + e z
below pi = 1/2, e + z from there on. The product of all factors has the distribution of the count N
as its coefficients, up to a common factor: sums of positive terms. The distribution without entry i
is that product over the entry's factor, a division that is stable from below for one half of the
entries and from above for the other (Theorem thm-grad-division).

Rows are multiplied out side by side, one in each SIMD lane, and divided one after the other. The
result of a row does not depend on its neighbours.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..._compile.array_intrinsics import borrowed, held, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.simd import (
    LANES,
    any_less,
    between,
    constant,
    fused,
    load,
    magnitude,
    product,
    spread,
    store,
    total,
    turn,
    where_less,
)
from ..._math.elementary import exp_neg, limits, wide_vectors
from ..._nonfinite import (
    FINITE,
    WITH_INFINITIES,
    fill_behind,
    length,
    rows_at_once,
    with_infinities,
    without_infinities,
)
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import UNSOLVED
from ..formulas import DEEP, bernstein_radius, exponent
from ..records import CODE, LOG_P, SHORT, C, D
from .marginals import write_deep

FACTORS = 4  # factors multiplied with each other before they are multiplied on
STRETCH = 4 * LANES  # entries divided out together
BELOW = FACTORS * LANES  # zeros below the weight of N = 0, for sums that reach there

FAINTEST = 2.0**-60  # smaller odds are 0 in the distribution, so that no product is subnormal
LEAST = 2.0**-200  # smaller weights are set to 0, before more factors could make them subnormal
OFTEN = 3 * FACTORS  # entries after which this is done


@scalar
def radius(level, n, k):
    """The radius around k outside of which counts have at most e^-level of P(N = k) (Bernstein)."""
    variance = k * (n - k) / n + 0.5
    # The error of the tilt moves the mean by less than an eighth of the variance.
    return int(bernstein_radius(level, variance) + variance / 8.0) + 2


@scalar
def sizes_of(n, one):
    """The sizes of `scratch_sizes`, in compiled code; `one` has the type of the row."""
    level = exponent(0.25 * SHORT.most, one)
    width = (n + STRETCH - 1) // STRETCH * STRETCH
    zeros = radius(level, max(n, 1), n // 2) + 1
    in_row = width + LANES + 2 * zeros
    return level, width, BELOW + LANES * (in_row + LANES), in_row, zeros


@functools.lru_cache(maxsize=256)
def scratch_sizes(n: int, dtype: Any) -> tuple[float, int, int, int, int]:
    """(level of `radius`, lengths: of a row, of its distribution in lanes and in a row, zeros)."""
    sizes: tuple[float, int, int, int, int] = sizes_of(n, dtype.type(1))
    return sizes


@summing
def minority_odds(x, c, inv, d, odds):
    """Write the minority odds e of each entry, negative where pi >= 1/2, and zeros after them.

    Returns the number of entries below 1/2 whose e underflows.
    """
    wide_vectors()
    T = x.dtype.type
    least = T(limits(inv)[1])
    floor = T(DEEP * math.log(limits(inv)[1]))
    n, deep = x.shape[0], T(0)
    for i in range(n):
        t = (x[i] - c) * inv - d
        e = exp_neg(-abs(t))
        odds[i] = -(e if e > least else least) if t >= T(0) else e
        deep += T(1) if t < floor else T(0)
    for i in range(n, odds.shape[0]):
        odds[i] = T(0)  # a factor of 1
    return deep


@scalar
def factor(odds, at):
    """(a, b) of the factor a + b z of an entry, in each lane."""
    signed, one, zero = load(odds, at), constant(1.0), constant(0.0)
    e = magnitude(signed)
    e = where_less(e, constant(FAINTEST), zero, e)
    return where_less(signed, zero, e, one), where_less(signed, zero, one, e)


@scalar
def factor_slope(odds, moves, at):
    """The derivative of `factor`, from those of the log-odds (`moves`)."""
    signed, zero = load(odds, at), constant(0.0)
    move = product(signed, load(moves, at))  # e falls with t where pi >= 1/2
    return where_less(signed, zero, move, zero), where_less(signed, zero, zero, move)


@scalar
def linear_product(a, b):
    """The product of two factors of degree 1."""
    return product(a[0], b[0]), fused(a[0], b[1], product(a[1], b[0])), product(a[1], b[1])


@scalar
def linear_product_slope(a, da, b, db):
    """The derivative of `linear_product`."""
    first = fused(da[0], b[0], product(a[0], db[0]))
    last = fused(da[1], b[1], product(a[1], db[1]))
    middle = fused(da[0], b[1], product(a[0], db[1]))
    return first, fused(da[1], b[0], fused(a[1], db[0], middle)), last


@scalar
def quadratic_product(a, b):
    """The product of two factors of degree 2."""
    return (
        product(a[0], b[0]),
        fused(a[0], b[1], product(a[1], b[0])),
        fused(a[0], b[2], fused(a[1], b[1], product(a[2], b[0]))),
        fused(a[1], b[2], product(a[2], b[1])),
        product(a[2], b[2]),
    )


@scalar
def convolved(c, w):
    """The next weight of a count, from the factor c and the weights w at and below it."""
    high = fused(c[2], w[2], fused(c[3], w[3], product(c[4], w[4])))
    return fused(c[0], w[0], fused(c[1], w[1], high))


def multiply_out_of(moving):
    """The function that writes the count's distribution and, if `moving`, its derivative."""

    @scalar
    def multiply_out(factors, moves, n, top, distribution, slope):
        """Write the weights of counts up to `top`, from BELOW on, for n entries in each lane."""
        zero, least = constant(0.0), constant(LEAST)
        for m in range(0, BELOW + (top + LANES) * LANES, LANES):
            store(distribution, m, zero)
            if moving:
                store(slope, m, zero)
        store(distribution, BELOW, constant(1.0))
        for i in range(0, n, FACTORS):
            at = i * LANES
            f0, f1 = factor(factors, at), factor(factors, at + LANES)
            f2, f3 = factor(factors, at + 2 * LANES), factor(factors, at + 3 * LANES)
            a, b = linear_product(f0, f1), linear_product(f2, f3)
            quartic, most = quadratic_product(a, b), i + FACTORS
            end = BELOW + (most if most < top else top) * LANES
            m = end
            w0, w1 = load(distribution, m), load(distribution, m - LANES)
            w2, w3 = load(distribution, m - 2 * LANES), load(distribution, m - 3 * LANES)
            if moving:
                d0 = factor_slope(factors, moves, at)
                d1 = factor_slope(factors, moves, at + LANES)
                d2 = factor_slope(factors, moves, at + 2 * LANES)
                d3 = factor_slope(factors, moves, at + 3 * LANES)
                da, db = linear_product_slope(f0, d0, f1, d1), linear_product_slope(f2, d2, f3, d3)
                one, other = quadratic_product(da, b), quadratic_product(a, db)
                low = total(one[0], other[0]), total(one[1], other[1]), total(one[2], other[2])
                quartic_slope = *low, total(one[3], other[3]), total(one[4], other[4])
                s0, s1 = load(slope, m), load(slope, m - LANES)
                s2, s3 = load(slope, m - 2 * LANES), load(slope, m - 3 * LANES)
            # From the highest count down, so that weights are read before they are overwritten.
            while m >= BELOW:
                w4 = load(distribution, m - 4 * LANES)
                w = w0, w1, w2, w3, w4
                store(distribution, m, convolved(quartic, w))
                if moving:
                    s4 = load(slope, m - 4 * LANES)
                    own = convolved(quartic, (s0, s1, s2, s3, s4))
                    store(slope, m, total(own, convolved(quartic_slope, w)))
                    s0, s1, s2, s3 = s1, s2, s3, s4
                w0, w1, w2, w3 = w1, w2, w3, w4
                m -= LANES
            if most % OFTEN != 0:
                continue
            # The distribution is log-concave: its smallest weights are at the ends.
            if any_less(load(distribution, BELOW), least) or any_less(
                load(distribution, end), least
            ):
                for m in range(BELOW, end + LANES, LANES):
                    w = load(distribution, m)
                    store(distribution, m, where_less(w, least, zero, w))
                    if moving:
                        store(slope, m, where_less(w, least, zero, load(slope, m)))

    return multiply_out


multiply_out = multiply_out_of(False)


@scalar
def rows_of_distribution(distribution, top, distributions, length, first):
    """Copy each lane's distribution to a row of its own: the weight of m to position first + m."""
    for m in range(0, top + 1, LANES):
        turn(distribution, BELOW + m * LANES, LANES, distributions, first + m, length)


@scalar
def terms_needed(distribution, at_k, down, up, eps):
    """Number of counts on one side of k that a quotient must sum, at most `down` and `up`."""
    least = distribution[at_k] * eps * 0.03125
    count = 0
    while count < down and distribution[at_k - 1 - count] > least:
        count += 1
    while count < up and distribution[at_k + 1 + count] > least:
        count += 1
    return count


@scalar
def marginal_of_quotient(signed, quotient, unit):
    """p from the quotient of `divide_out`."""
    zero, one = constant(0.0), constant(1.0)
    tail = between(product(magnitude(signed), product(quotient, unit)), zero, one)
    return where_less(signed, zero, fused(constant(-1.0), tail, one), tail)


@scalar
def divide_out(odds, at, n, distribution, at_k, count):
    """Turn the odds of a row into p: e/b_k times sum_j (-e)^j b_(k -+ (1 + j)), j < count.

    The sum goes down from k below 1/2, where it is p, and up above, where it is 1 - p.
    """
    zero, minus, unit = constant(0.0), constant(-1.0), constant(1.0 / distribution[at_k])
    for i in range(at, at + n, STRETCH):
        e0, e1 = load(odds, i), load(odds, i + LANES)
        e2, e3 = load(odds, i + 2 * LANES), load(odds, i + 3 * LANES)
        y0, y1 = product(minus, magnitude(e0)), product(minus, magnitude(e1))
        y2, y3 = product(minus, magnitude(e2)), product(minus, magnitude(e3))
        q0 = q1 = q2 = q3 = zero
        for j in range(count, 0, -1):
            lower, upper = spread(distribution, at_k - j), spread(distribution, at_k + j)
            q0 = fused(q0, y0, where_less(e0, zero, upper, lower))
            q1 = fused(q1, y1, where_less(e1, zero, upper, lower))
            q2 = fused(q2, y2, where_less(e2, zero, upper, lower))
            q3 = fused(q3, y3, where_less(e3, zero, upper, lower))
        store(odds, i, marginal_of_quotient(e0, q0, unit))
        store(odds, i + LANES, marginal_of_quotient(e1, q1, unit))
        store(odds, i + 2 * LANES, marginal_of_quotient(e2, q2, unit))
        store(odds, i + 3 * LANES, marginal_of_quotient(e3, q3, unit))


@summing
def majority(x, odds):
    """(the sum of the entries with pi >= 1/2, their number)."""
    wide_vectors()
    total, found = 0.0, 0.0
    for i in range(x.shape[0]):
        above = odds[i] < x.dtype.type(0)
        total += np.float64(x[i]) if above else 0.0
        found += 1.0 if above else 0.0
    return total, found


@kernel
def solve(lo, hi, x, k, tau, tilt, sizes, out, phi, others):
    """Write p of rows lo .. hi to `out`, and the potential to `phi`, unless these are empty.

    `sizes`: of `scratch_sizes`. With b_k the weight of k and a the number of entries with
    pi >= 1/2, tau log Z_k is the sum of these entries, (k - a)(c + tau d) and tau log b_k
    (prop-grad-short-potential). The tilt gets log b_k.

    Rows whose tilt is not FINITE are left out, and those of k = n, whose tilt is then UNSOLVED; and
    `others` is set.
    """
    T = x.dtype.type
    level, width, in_lanes, in_row, zeros = sizes
    own_odds, own_factors = np.zeros(LANES * width, x.dtype), np.zeros(LANES * width)
    own_distribution, own_distributions = np.zeros(in_lanes), np.zeros(LANES * in_row)
    x, tilt, out = borrowed(x), borrowed(tilt), borrowed(out)
    odds, factors = borrowed(own_odds), borrowed(own_factors)
    distribution, distributions = borrowed(own_distribution), borrowed(own_distributions)
    lengths = np.empty(LANES, np.int64)
    for first in range(lo, hi, LANES):
        most, top, deep = 0, 0, 0
        count = hi - first if hi - first < LANES else LANES
        for lane in range(count):
            i = first + lane
            n, left = length(x[i]), k[i]
            if tilt[i, CODE] != FINITE or left >= n:
                tilt[i, CODE] = UNSOLVED if tilt[i, CODE] == FINITE else tilt[i, CODE]
                n, others[0] = 0, True
            lengths[lane] = n
            if n > 0:
                c, d, inv = T(tilt[i, C]), T(tilt[i, D]), inverse_temperature(tau[i], x)
                e = window(odds, lane * width, width)
                deep |= (minority_odds(window(x[i], 0, n), c, inv, d, e) > T(0)) << lane
                last = left + radius(level, n, left)
                most, top = n if n > most else most, last if last > top else top
        for at in range(0, most, LANES):
            turn(odds, at, width, factors, at * LANES, LANES)
        multiply_out(factors, factors, most, top, distribution, distribution)
        rows_of_distribution(distribution, top, distributions, in_row, zeros)
        for lane in range(count):
            i, start = first + lane, lane * width
            n, left = lengths[lane], k[i]
            if n == 0:
                continue
            at_k, far = lane * in_row + zeros + left, radius(level, n, left)
            log_b = math.log(distributions[at_k])
            tilt[i, LOG_P] = log_b
            if phi.shape[0] > 0:
                whole, above = majority(window(x[i], 0, n), window(odds, start, n))
                threshold = tilt[i, C] + tau[i] * tilt[i, D]
                phi[i] = whole + (left - above) * threshold + tau[i] * log_b
            if out.shape[1] == 0:
                continue
            down, up = left if left < far else far, n - left if n - left < far else far
            terms = terms_needed(distributions, at_k, down, up, limits(T(1))[0])
            divide_out(odds, start, n, distributions, at_k, terms)
            p, values = window(out[i], 0, n), window(odds, start, n)
            for j in range(n):
                p[j] = values[j]
            fill_behind(out[i], n, T(0))
            if deep >> lane & 1:
                c, d, inv = T(tilt[i, C]), T(tilt[i, D]), inverse_temperature(tau[i], x)
                # P(N = k - 1)/P(N = k), which is the limit of p/r for pi -> 0.
                write_deep(
                    window(x[i], 0, n), c, inv, d, distributions[at_k - 1] / distributions[at_k], p
                )
    held((own_odds, own_factors, own_distribution, own_distributions))


@scalar
def pack_tilts(first, last, x, k, tau, tilt, packed):
    """Pack the finite entries of rows with infinities as rows of a batch; returns their number."""
    entries, left, taus, tilts, which = packed
    entries, count = borrowed(entries), 0
    for i in range(first, last):
        if tilt[i, CODE] == WITH_INFINITIES:
            xs, left[count] = without_infinities(x[i], k[i], entries[count])
            if not 0 < left[count] < xs.shape[0]:
                tilt[i, CODE] = UNSOLVED
                continue
            fill_behind(entries[count], xs.shape[0], x.dtype.type(-np.inf))
            tilts[count, C], tilts[count, D] = tilt[i, C], tilt[i, D]
            tilts[count, CODE] = FINITE
            taus[count], which[count] = tau[i], i
            count += 1
    return count


@scalar
def scratch_for_packed(x, tilt):
    """Scratch for one group: (entries, shares of k, temperatures, tilts, row indices)."""
    several = rows_at_once(x.shape[1])
    numbers = np.empty(several, np.int64), np.empty(several)
    tilts = workspace(tilt, several, tilt.shape[1])
    return workspace(x, several, x.shape[1]), *numbers, tilts, np.empty(several, np.int64)


@kernel
def solve_mixed(lo, hi, x, k, tau, tilt, sizes, out, phi, others):
    """Apply `solve` to the finite entries of rows with infinities, a few rows at a time."""
    packed, several = scratch_for_packed(x, tilt), rows_at_once(x.shape[1])
    entries, left, taus, tilts, which = packed
    values = workspace(x, several, x.shape[1] if out.shape[1] > 0 else 0)
    phis = np.empty(several if phi.shape[0] > 0 else 0)
    x, out, p = borrowed(x), borrowed(out), borrowed(values)
    for first in range(lo, hi, several):
        count = pack_tilts(first, min(first + several, hi), x, k, tau, tilt, packed)
        solve(0, count, entries, left, taus, tilts, sizes, values, phis, others)
        for r in range(count):
            i = which[r]
            if out.shape[1] > 0:
                with_infinities(x[i], p[r], k[i] - left[r], out[i])
            tilt[i, LOG_P] = tilts[r, LOG_P]
            if phi.shape[0] > 0:
                phi[i] = phis[r] if left[r] == k[i] else np.inf
