"""The derivative of GradTopK of short rows: the law of the count and its derivative, in one go.

Along a direction v every odds moves, and with them the law b of `poisson_binomial`: each factor
carries its own derivative, and products carry theirs. With B the sum that entry i's quotient is
(Theorem thm-grad-division), B' its derivative in y = -e, and G the same sum over the derivatives of
b relative to that of b_k, with a minus above 1/2, tau (J v)_i = e (v_i (B + y B') + G)/b_k.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, held, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import pack, unpack
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
from ..._nonfinite import MIXED, UNDEFINED, fill_behind, length, without_infinities
from ..._threshold.newton import inverse_temperature
from ..formulas import combined_direction
from ..records import CODE, C, D
from .chebyshev_tangent import pair_with_t
from .poisson_binomial import minority_odds, multiply_out_of, radius, rows_of_law, terms_needed


@summing
def centred_direction(x, v, c, inv, d, drift, odds, moves):
    """Write v - t dtau, less a mean of it, which moves nothing."""
    wide_vectors()
    total, weight, n = 0.0, 0.0, x.shape[0]
    least = x.dtype.type(limits(inv)[1])
    for i in range(n):
        e = abs(odds[i])
        e = e if e > least else x.dtype.type(0)  # `minority_odds` writes no odds below
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
def divide_out_slope(odds, moves, at, n, law, slope, at_k, count, inv):
    """Turn the odds of a row into J v; `slope`: the derivative of the law, made relative here."""
    common = slope[at_k] / law[at_k]
    for j in range(1, count + 1):
        slope[at_k - j] -= common * law[at_k - j]
        slope[at_k + j] = common * law[at_k + j] - slope[at_k + j]
    zero, minus, unit = constant(0.0), constant(-1.0), constant(inv / law[at_k])
    for i in range(at, at + n, 2 * LANES):
        e0, e1 = load(odds, i), load(odds, i + LANES)
        y0, y1 = product(minus, magnitude(e0)), product(minus, magnitude(e1))
        q0 = q1 = own0 = own1 = others0 = others1 = zero
        for j in range(count, 0, -1):
            lower, upper = spread(law, at_k - j), spread(law, at_k + j)
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


# Longer than a screen: each stage reads what the one before it has left in the same tables.
@kernel
def push(lo, hi, x, k, tau, tilt, sizes, v, dtau, out, gtau):
    """Rows lo .. hi: dp along (v, dtau), as `rows.push`; the rest is as in `solve`."""
    T = x.dtype.type
    level, width, in_lanes, in_row, zeros = sizes
    own_odds, own_moves = np.zeros(LANES * width, x.dtype), np.zeros(LANES * width)
    own_factors, own_turned = np.zeros(LANES * width), np.zeros(LANES * width)
    own_law, own_slope = np.zeros(in_lanes), np.zeros(in_lanes)
    own_laws, own_slopes = np.zeros(LANES * in_row), np.zeros(LANES * in_row)
    x, v, out, tilt = borrowed(x), borrowed(v), borrowed(out), borrowed(tilt)
    own_apart = workspace(x, LANES + 1, x.shape[1])
    apart = borrowed(own_apart)
    lengths, shares = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    odds, moves, factors = borrowed(own_odds), borrowed(own_moves), borrowed(own_factors)
    turned, law, slope = borrowed(own_turned), borrowed(own_law), borrowed(own_slope)
    laws, slopes = borrowed(own_laws), borrowed(own_slopes)
    for first in range(lo, hi, LANES):
        most, top = 0, 0
        count = hi - first if hi - first < LANES else LANES
        for lane in range(count):
            i, start = first + lane, lane * width
            n, code, left = length(x[i]), tilt[i, CODE], k[i]
            xs, vs = window(x[i], 0, n), window(v[i], 0, n)
            if code == MIXED:
                vs = window(apart[LANES], 0, pack(xs, vs, apart[LANES]))
                xs, left = without_infinities(xs, k[i], apart[lane])
            n = xs.shape[0] if code <= MIXED else 0
            lengths[lane], shares[lane] = n, left
            if n > 0:
                e = window(odds, start, width)
                c, d, inv = T(tilt[i, C]), T(tilt[i, D]), inverse_temperature(tau[i], x)
                minority_odds(xs, c, inv, d, e)
                move = window(moves, start, width)
                centred_direction(xs, vs, c, inv, d, T(dtau[i]), e, move)
                last = left + radius(level, n, left)
                most, top = n if n > most else most, last if last > top else top
        for at in range(0, most, LANES):
            turn(odds, at, width, factors, at * LANES, LANES)
            turn(moves, at, width, turned, at * LANES, LANES)
        multiply_out_with_slope(factors, turned, most, top, law, slope)
        rows_of_law(law, top, laws, in_row, zeros)
        rows_of_law(slope, top, slopes, in_row, zeros)
        for lane in range(count):
            i, start = first + lane, lane * width
            n, left, mixed = lengths[lane], shares[lane], tilt[i, CODE] == MIXED
            if n == 0:
                nothing = np.nan if tilt[i, CODE] == UNDEFINED else 0.0
                fill_behind(out[i], 0, T(nothing))
                if gtau.shape[1] > 0:
                    gtau[i, 0] = nothing
                continue
            at_k, far = lane * in_row + zeros + left, radius(level, n, left)
            down, up = left if left < far else far, n - left if n - left < far else far
            terms = terms_needed(laws, at_k, down, up, limits(T(1))[0])
            inv = inverse_temperature(tau[i], x)
            divide_out_slope(odds, moves, start, n, laws, slopes, at_k, terms, np.float64(inv))
            size, values = length(x[i]), window(odds, start, n)
            dp = window(out[i], 0, size)
            if mixed:
                unpack(window(x[i], 0, size), values, T(0), dp)
            else:
                for j in range(n):
                    dp[j] = values[j]
            fill_behind(out[i], size, T(0))
            if gtau.shape[1] > 0:
                c, d, xs = (
                    T(tilt[i, C]),
                    T(tilt[i, D]),
                    window(apart[lane] if mixed else x[i], 0, n),
                )
                gtau[i, 0] = -pair_with_t(xs, values, c, inv, d)
    held(
        (
            own_apart,
            own_odds,
            own_moves,
            own_factors,
            own_turned,
            own_law,
            own_slope,
            own_laws,
            own_slopes,
        )
    )
