"""The derivative of GradTopK of short rows: the law of the count and how it moves, in one go.

Along a direction v every odds moves, and with them the law b of `poisson_binomial`: each factor
carries its own slope, and products carry theirs. With B the sum that entry i's quotient is (Theorem
thm-grad-division), B' its derivative in y = -e, and G the same sum over how b moves beside b_k,
with a minus above 1/2, tau (J v)_i = e (v_i (B + y B') + G)/b_k.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, held, window
from ..._compile.decorators import kernel, row, summing
from ..._compile.simd import (
    LANES,
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
from ..._math.elementary import limits, wide_vectors
from ..._nonfinite import FINITE, MIXED, UNDEFINED, expand, present_part
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import C, D
from ..formulas import exponent, motion
from .chebyshev_tangent import pair
from .poisson_binomial import (
    BELOW,
    CODE,
    COINS,
    LEFT,
    SHORT,
    coin,
    join,
    join_pairs,
    lengths,
    no_coins,
    reach,
    terms,
    toss,
    turn_back,
    weighted,
)


@summing
def moves_of(x, v, c, inv, d, drift, odds, moves):
    """Write v - t dtau, less a mean of it, which moves nothing."""
    wide_vectors()
    total, weight, n = 0.0, 0.0, x.shape[0]
    least = x.dtype.type(limits(inv)[1])
    for i in range(n):
        e = abs(odds[i])
        e = e if e > least else x.dtype.type(0)  # `toss` writes no odds below
        move = np.float64(motion((x[i] - c) * inv - d, e, v[i], drift))
        moves[i] = move
        total += move * np.float64(e)
        weight += np.float64(e)
    mean = total / weight if weight > 0.0 else 0.0
    for i in range(n):
        moves[i] -= mean
    for i in range(n, moves.shape[0]):
        moves[i] = 0.0


@row
def coin_slope(odds, moves, at):
    """How (tails, heads) of `coin` move."""
    signed, zero = load(odds, at), constant(0.0)
    move = product(signed, load(moves, at))  # tails' odds fall where those of heads rise
    return where_less(signed, zero, move, zero), where_less(signed, zero, zero, move)


@row
def join_slope(a, da, b, db):
    """How `join` moves."""
    first = fused(da[0], b[0], product(a[0], db[0]))
    last = fused(da[1], b[1], product(a[1], db[1]))
    middle = fused(da[0], b[1], product(a[0], db[1]))
    return first, fused(da[1], b[0], fused(a[1], db[0], middle)), last


@row
def join_pairs_slope(a, da, b, db):
    """How `join_pairs` moves."""
    one, other = join_pairs(da, b), join_pairs(a, db)
    return (
        total(one[0], other[0]),
        total(one[1], other[1]),
        total(one[2], other[2]),
        total(one[3], other[3]),
        total(one[4], other[4]),
    )


@row
def multiply_out_slope(coins, moves, n, top, law, slope):
    """`multiply_out`, and how the law moves to `slope`."""
    no_coins(law, top)
    no_coins(slope, top)
    store(slope, BELOW, constant(0.0))
    for i in range(0, n, COINS):
        at = i * LANES
        c0, c1 = coin(coins, at), coin(coins, at + LANES)
        c2, c3 = coin(coins, at + 2 * LANES), coin(coins, at + 3 * LANES)
        d0, d1 = coin_slope(coins, moves, at), coin_slope(coins, moves, at + LANES)
        d2 = coin_slope(coins, moves, at + 2 * LANES)
        d3 = coin_slope(coins, moves, at + 3 * LANES)
        a, b = join(c0, c1), join(c2, c3)
        da, db = join_slope(c0, d0, c1, d1), join_slope(c2, d2, c3, d3)
        factor, moving = join_pairs(a, b), join_pairs_slope(a, da, b, db)
        most = i + COINS
        m = BELOW + (most if most < top else top) * LANES
        w0, w1 = load(law, m), load(law, m - LANES)
        w2, w3 = load(law, m - 2 * LANES), load(law, m - 3 * LANES)
        s0, s1 = load(slope, m), load(slope, m - LANES)
        s2, s3 = load(slope, m - 2 * LANES), load(slope, m - 3 * LANES)
        while m >= BELOW:
            w4, s4 = load(law, m - 4 * LANES), load(slope, m - 4 * LANES)
            w, s = (w0, w1, w2, w3, w4), (s0, s1, s2, s3, s4)
            store(law, m, weighted(factor, w))
            store(slope, m, total(weighted(factor, s), weighted(moving, w)))
            w0, w1, w2, w3 = w1, w2, w3, w4
            s0, s1, s2, s3 = s1, s2, s3, s4
            m -= LANES


@row
def turn_slope(law, slope, middle, count):
    """Make `slope` how the law moves beside its weight at k, with the sign of p above 1/2."""
    common = slope[middle] / law[middle]
    for j in range(1, count + 1):
        slope[middle - j] -= common * law[middle - j]
        slope[middle + j] = common * law[middle + j] - slope[middle + j]


@row
def divide_slopes(odds, moves, at, n, law, slope, middle, count, inv):
    """Turn the odds of a row into J v."""
    zero, minus, unit = constant(0.0), constant(-1.0), constant(inv / law[middle])
    for i in range(at, at + n, 2 * LANES):
        e0, e1 = load(odds, i), load(odds, i + LANES)
        y0, y1 = product(minus, magnitude(e0)), product(minus, magnitude(e1))
        q0 = q1 = own0 = own1 = others0 = others1 = zero
        for j in range(count, 0, -1):
            lower, upper = spread(law, middle - j), spread(law, middle + j)
            below, above = spread(slope, middle - j), spread(slope, middle + j)
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
def push(lo, hi, x, tau, solution, v, dtau, out, gtau):
    """Rows lo .. hi: dp along (v, dtau); as `rows.push`."""
    T = x.dtype.type
    level = exponent(0.25 * SHORT, T(1))
    width, in_lanes, length, zeros = lengths(x.shape[1], level)
    own_odds, own_moves = np.zeros(LANES * width, x.dtype), np.zeros(LANES * width)
    own_coins, own_flows = np.zeros(LANES * width), np.zeros(LANES * width)
    own_law, own_slope = np.zeros(in_lanes), np.zeros(in_lanes)
    own_turned, own_moved = np.zeros(LANES * length), np.zeros(LANES * length)
    own_rows = np.empty((4, LANES), np.int64)
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    odds, moves, coins = borrowed(own_odds), borrowed(own_moves), borrowed(own_coins)
    flows, law, slope = borrowed(own_flows), borrowed(own_law), borrowed(own_slope)
    turned, moved, rows = borrowed(own_turned), borrowed(own_moved), borrowed(own_rows)
    i = lo
    while i < hi:
        count, most, top = 0, 0, 0
        while i < hi and count < LANES:
            answer, dp = solution[i], out[i]
            code, left = int(answer[CODE]), int(answer[LEFT])
            if code > MIXED:
                for j in range(dp.shape[0]):
                    dp[j] = T(np.nan) if code == UNDEFINED else T(0)
                if gtau.shape[1] > 0:
                    gtau[i, 0] = np.nan if code == UNDEFINED else 0.0
            else:
                xs, vs = present_part(x[i], v[i], code)
                n, c, d, inv = len(xs), T(answer[C]), T(answer[D]), inverse_temperature(tau[i], x)
                start = count * width
                part = window(odds, start, width)
                toss(xs, c, inv, d, part)
                moves_of(xs, vs, c, inv, d, T(dtau[i]), part, window(moves, start, width))
                far = reach(level, n, left)
                most, top = max(most, n), max(top, left + far)
                rows[0, count], rows[1, count], rows[2, count], rows[3, count] = i, n, left, far
                count += 1
            i += 1
        for at in range(0, most, LANES):
            turn(odds, at, width, coins, at * LANES, LANES)
            turn(moves, at, width, flows, at * LANES, LANES)
        multiply_out_slope(coins, flows, most, top, law, slope)
        turn_back(law, top, turned, length, zeros)
        turn_back(slope, top, moved, length, zeros)
        for r in range(count):
            at, n, left, far = rows[0, r], rows[1, r], rows[2, r], rows[3, r]
            middle, start = r * length + zeros + left, r * width
            sums = terms(turned, middle, min(left, far), min(n - left, far), limits(T(1))[0])
            turn_slope(turned, moved, middle, sums)
            inv = np.float64(inverse_temperature(tau[at], x))
            divide_slopes(odds, moves, start, n, turned, moved, middle, sums, inv)
            dp, values = window(out[at], 0, n), window(odds, start, n)
            for j in range(n):
                dp[j] = values[j]
            mixed = n < x.shape[1]
            if gtau.shape[1] > 0:
                xs, _ = present_part(x[at], x[at], MIXED if mixed else FINITE)
                c, d = T(solution[at, C]), T(solution[at, D])
                gtau[at, 0] = -pair(xs, dp, c, inverse_temperature(tau[at], x), d)
            if mixed:
                expand(x[at], dp, 0.0, out[at])
    held((own_odds, own_moves, own_coins, own_flows, own_law, own_slope))
    held((own_turned, own_moved, own_rows))
