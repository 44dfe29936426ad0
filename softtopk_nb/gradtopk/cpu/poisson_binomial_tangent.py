"""The derivative of GradTopK of short rows: the count's distribution with its derivative.

Along a direction v all odds change, and with them the distribution b of `poisson_binomial`: each
factor and each product carries its own derivative. With B the sum that is entry i's quotient
(Theorem thm-grad-division), B' its derivative in y = -e, and G the same sum over the derivatives of
b relative to that of b_k, negated above 1/2, tau (J v)_i = e (v_i (B + y B') + G)/b_k.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, held, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import unpack
from ..._compile.simd import (
    LANES,
    constant,
    fused,
    load,
    magnitude,
    product,
    spread,
    store,
    turn,
    where_less,
)
from ..._math.elementary import limits, wide_vectors
from ..._nonfinite import (
    FINITE,
    UNDEFINED,
    WITH_INFINITIES,
    fill_behind,
    length,
    pack_row,
    rows_at_once,
)
from ..._threads.jobs import call_and_raise
from ..._threshold.newton import inverse_temperature
from ..formulas import combined_direction
from ..records import CODE, C, D
from .chebyshev_tangent import pair_with_t
from .poisson_binomial import (
    minority_odds,
    multiply_out_of,
    pack_tilts,
    radius,
    rows_of_distribution,
    scratch_for_packed,
    terms_needed,
)


@summing
def centred_direction(x, v, c, inv, d, drift, odds, moves):
    """Write v - t dtau, less a mean of it, which does not change p."""
    wide_vectors()
    total, weight, n = 0.0, 0.0, x.shape[0]
    least = x.dtype.type(limits(inv)[1])
    for i in range(n):
        e = abs(odds[i])
        e = e if e > least else x.dtype.type(0)  # smaller odds are not written by `minority_odds`
        move = np.float64(combined_direction((x[i] - c) * inv - d, e, v[i], drift))
        moves[i] = move
        total += move * np.float64(e)
        weight += np.float64(e)
    mean = total / weight if weight > 0.0 else 0.0
    for i in range(n):
        moves[i] -= mean
    for i in range(n, moves.shape[0]):
        moves[i] = 0.0


multiply_out_with_slope = multiply_out_of(True)


@scalar
def divide_out_slope(odds, moves, at, n, distribution, slope, at_k, count, inv):
    """Turn the odds of a row into J v; `slope`, the distribution's derivative, is made relative."""
    common = slope[at_k] / distribution[at_k]
    for j in range(1, count + 1):
        slope[at_k - j] -= common * distribution[at_k - j]
        slope[at_k + j] = common * distribution[at_k + j] - slope[at_k + j]
    zero, minus, unit = constant(0.0), constant(-1.0), constant(inv / distribution[at_k])
    for i in range(at, at + n, 2 * LANES):
        e0, e1 = load(odds, i), load(odds, i + LANES)
        y0, y1 = product(minus, magnitude(e0)), product(minus, magnitude(e1))
        q0 = q1 = own0 = own1 = others0 = others1 = zero
        for j in range(count, 0, -1):
            lower, upper = spread(distribution, at_k - j), spread(distribution, at_k + j)
            below, above = spread(slope, at_k - j), spread(slope, at_k + j)
            own0, own1 = fused(own0, y0, q0), fused(own1, y1, q1)
            q0 = fused(q0, y0, where_less(e0, zero, upper, lower))
            q1 = fused(q1, y1, where_less(e1, zero, upper, lower))
            others0 = fused(others0, y0, where_less(e0, zero, above, below))
            others1 = fused(others1, y1, where_less(e1, zero, above, below))
        all0 = fused(load(moves, i), fused(y0, own0, q0), others0)
        all1 = fused(load(moves, i + LANES), fused(y1, own1, q1), others1)
        store(odds, i, product(magnitude(e0), product(all0, unit)))
        store(odds, i + LANES, product(magnitude(e1), product(all1, unit)))


@scalar
def write_constant(code, out, gtau, with_infinities):
    """Write the derivative of a constant row; for one with infinities set `with_infinities`."""
    if code == WITH_INFINITIES:
        with_infinities[0] = True
        return
    nothing = out.dtype.type(np.nan if code == UNDEFINED else 0.0)
    fill_behind(out, 0, nothing)
    fill_behind(gtau, 0, np.float64(nothing))


# Longer than a screen: each stage reads what the one before it has left in the same tables.
@kernel
def jvp(lo, hi, x, k, tau, tilt, sizes, v, dtau, out, gtau, with_infinities):
    """Write dp of rows lo .. hi along (v, dtau), as `rows.jvp`; the rest is as in `solve`.

    Rows with infinities are left out, and `with_infinities` is set.
    """
    T = x.dtype.type
    level, width, in_lanes, in_row, zeros = sizes
    own_odds, own_moves = np.zeros(LANES * width, x.dtype), np.zeros(LANES * width)
    own_factors, own_turned = np.zeros(LANES * width), np.zeros(LANES * width)
    own_distribution, own_slope = np.zeros(in_lanes), np.zeros(in_lanes)
    own_distributions, own_slopes = np.zeros(LANES * in_row), np.zeros(LANES * in_row)
    x, v, out, tilt = borrowed(x), borrowed(v), borrowed(out), borrowed(tilt)
    lengths = np.empty(LANES, np.int64)
    odds, moves, factors = borrowed(own_odds), borrowed(own_moves), borrowed(own_factors)
    turned, distribution, slope = (
        borrowed(own_turned),
        borrowed(own_distribution),
        borrowed(own_slope),
    )
    distributions, slopes = borrowed(own_distributions), borrowed(own_slopes)
    for first in range(lo, hi, LANES):
        most, top = 0, 0
        count = hi - first if hi - first < LANES else LANES
        for lane in range(count):
            i, start = first + lane, lane * width
            n, left = length(x[i]) if tilt[i, CODE] == FINITE else 0, k[i]
            lengths[lane] = n
            if n > 0:
                xs, e = window(x[i], 0, n), window(odds, start, width)
                c, d, inv = T(tilt[i, C]), T(tilt[i, D]), inverse_temperature(tau[i], x)
                minority_odds(xs, c, inv, d, e)
                move = window(moves, start, width)
                centred_direction(xs, window(v[i], 0, n), c, inv, d, T(dtau[i]), e, move)
                last = left + radius(level, n, left)
                most, top = n if n > most else most, last if last > top else top
        for at in range(0, most, LANES):
            turn(odds, at, width, factors, at * LANES, LANES)
            turn(moves, at, width, turned, at * LANES, LANES)
        multiply_out_with_slope(factors, turned, most, top, distribution, slope)
        rows_of_distribution(distribution, top, distributions, in_row, zeros)
        rows_of_distribution(slope, top, slopes, in_row, zeros)
        for lane in range(count):
            i, start = first + lane, lane * width
            n, left = lengths[lane], k[i]
            if n == 0:
                write_constant(tilt[i, CODE], out[i], gtau[i], with_infinities)
                continue
            at_k, far = lane * in_row + zeros + left, radius(level, n, left)
            down, up = left if left < far else far, n - left if n - left < far else far
            terms = terms_needed(distributions, at_k, down, up, limits(T(1))[0])
            inv = inverse_temperature(tau[i], x)
            divide_out_slope(
                odds, moves, start, n, distributions, slopes, at_k, terms, np.float64(inv)
            )
            dp, values = window(out[i], 0, n), window(odds, start, n)
            for j in range(n):
                dp[j] = values[j]
            fill_behind(out[i], n, T(0))
            if gtau.shape[1] > 0:
                c, d = T(tilt[i, C]), T(tilt[i, D])
                gtau[i, 0] = -pair_with_t(window(x[i], 0, n), dp, c, inv, d)
    held(
        (
            own_odds,
            own_moves,
            own_factors,
            own_turned,
            own_distribution,
            own_slope,
            own_distributions,
            own_slopes,
        )
    )


@kernel
def jvp_with_infinities(lo, hi, x, k, tau, tilt, sizes, v, dtau, out, gtau, with_infinities, move):
    """Apply `jvp` to the finite entries of rows lo .. hi with infinities, a few rows at a time.

    `move`: the address of `jvp`.
    """
    packed, several = scratch_for_packed(x, tilt), rows_at_once(x.shape[1])
    entries, left, taus, tilts, which = packed
    vs, dp = workspace(x, several, x.shape[1]), workspace(x, several, x.shape[1])
    dtaus, slopes = np.empty(several), np.empty((several, gtau.shape[1]))
    x, v, out, directions, moved = (
        borrowed(x),
        borrowed(v),
        borrowed(out),
        borrowed(vs),
        borrowed(dp),
    )
    for first in range(lo, hi, several):
        count = pack_tilts(first, min(first + several, hi), x, k, tau, tilt, packed)
        for r in range(count):
            pack_row(x[which[r]], v[which[r]], 0.0, directions[r])
            dtaus[r] = dtau[which[r]]
        given = entries, left, taus, tilts, sizes, vs, dtaus, dp, slopes, with_infinities
        call_and_raise(move, 0, count, given)
        for r in range(count):
            i = which[r]
            unpack(x[i], moved[r], x.dtype.type(0), out[i])
            for j in range(gtau.shape[1]):
                gtau[i, j] = slopes[r, j]
