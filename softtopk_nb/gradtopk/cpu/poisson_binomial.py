"""GradTopK of short rows: the law of the number of heads, and each coin divided out of it again.

A coin whose rarer side has the odds e <= 1 is the factor 1 + e z below pi = 1/2 and e + z from
there on. Multiplied out, the factors make a polynomial b whose coefficients are the law of the
number of heads, but for a common factor: sums of positive terms. Without coin i it is b over that
coin's factor, a division that is stable from below for one half of the coins and from above for
the other (Theorem thm-grad-division).

Rows are multiplied out side by side, one in each lane, and divided one after the other. Nothing
that a row gets depends on its neighbours.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import borrowed, held, window
from ..._compile.decorators import kernel, row, scalar, summing
from ..._compile.simd import (
    LANES,
    between,
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
from ..._math.elementary import exp_neg, limits, wide_vectors
from ..._nonfinite import (
    FINITE,
    MIXED,
    classify,
    expand,
    fill_constant,
    present_part,
    survey,
    verdict,
)
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import CODE as TILT_CODE
from ..._threshold.records import C, D
from ..formulas import DEEP, bernstein, exponent
from .marginals import write_deep

SHORT, SHORT_32 = 512, 256  # entries of a row, at most

# A solved row: its tilt (C and D as in `_threshold`), what of k the finite entries get, which kind
# of row it was.
LEFT, CODE = 2, 3
SOLUTION = 4

COINS = 4  # coins multiplied together before they are multiplied on
STRETCH = 4 * LANES  # entries divided out together
BELOW = COINS * LANES  # zeros below the law of no heads, for sums that reach there

FAINTEST = 2.0**-60  # odds below are 0 in the law, so that no product leaves the normal numbers


@scalar
def reach(level, n, k):
    """How far from k counts can matter: farther out they are e^-level of P(N = k), by Bernstein."""
    variance = k * (n - k) / n + 0.5
    # What the tilt is off moves the mean by less than an eighth of the variance.
    return int(bernstein(level, variance) + variance / 8.0) + 2


@scalar
def lengths(n, level):
    """(room for a row of entries, for a law in lanes, for a law in a row, zeros below the last)."""
    width = (n + STRETCH - 1) // STRETCH * STRETCH
    zeros = reach(level, n if n > 0 else 1, n // 2) + 1
    in_row = width + LANES + 2 * zeros
    return width, BELOW + LANES * (in_row + LANES), in_row, zeros


@summing
def toss(x, c, inv, d, odds):
    """Write the odds e of the rarer side of each coin, with a minus where that is tails.

    Returns how many heads are so rare that e underflows.
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
        odds[i] = T(0)  # a coin that never shows heads
    return deep


@row
def coin(odds, at):
    """(tails, heads) of a coin in each lane: the terms of its factor."""
    signed, one, zero = load(odds, at), constant(1.0), constant(0.0)
    e = magnitude(signed)
    e = where_less(e, constant(FAINTEST), zero, e)
    return where_less(signed, zero, e, one), where_less(signed, zero, one, e)


@row
def join(a, b):
    """The product of two factors of degree 1."""
    return product(a[0], b[0]), fused(a[0], b[1], product(a[1], b[0])), product(a[1], b[1])


@row
def join_pairs(a, b):
    """The product of two factors of degree 2."""
    return (
        product(a[0], b[0]),
        fused(a[0], b[1], product(a[1], b[0])),
        fused(a[0], b[2], fused(a[1], b[1], product(a[2], b[0]))),
        fused(a[1], b[2], product(a[2], b[1])),
        product(a[2], b[2]),
    )


@row
def weighted(c, w):
    """The next weight of a count, from the factor c and the weights w of it and those below."""
    high = fused(c[2], w[2], fused(c[3], w[3], product(c[4], w[4])))
    return fused(c[0], w[0], fused(c[1], w[1], high))


@row
def no_coins(law, top):
    """Begin with the law of no coins: no heads."""
    zero = constant(0.0)
    for m in range(0, BELOW + (top + LANES) * LANES, LANES):
        store(law, m, zero)
    store(law, BELOW, constant(1.0))


@row
def multiply_out(coins, n, top, law):
    """Write the counts' weights up to `top` to `law`, from BELOW on; those of n coins."""
    no_coins(law, top)
    for i in range(0, n, COINS):
        at = i * LANES
        a = join(coin(coins, at), coin(coins, at + LANES))
        b = join(coin(coins, at + 2 * LANES), coin(coins, at + 3 * LANES))
        factor, most = join_pairs(a, b), i + COINS
        m = BELOW + (most if most < top else top) * LANES
        w0, w1 = load(law, m), load(law, m - LANES)
        w2, w3 = load(law, m - 2 * LANES), load(law, m - 3 * LANES)
        # From the highest count down: what is read has not been written yet.
        while m >= BELOW:
            w4 = load(law, m - 4 * LANES)
            store(law, m, weighted(factor, (w0, w1, w2, w3, w4)))
            w0, w1, w2, w3 = w1, w2, w3, w4
            m -= LANES


@row
def turn_back(law, top, turned, length, first):
    """Write the law of each lane to a row of its own: that of m heads at first + m of it."""
    for m in range(0, top + 1, LANES):
        turn(law, BELOW + m * LANES, LANES, turned, first + m, length)


@scalar
def terms(law, middle, down, up, eps):
    """Of how many counts on either side of k, at most `down` and `up`, the quotients are sums."""
    least = law[middle] * eps * 0.03125
    count = 0
    while count < down and law[middle - 1 - count] > least:
        count += 1
    while count < up and law[middle + 1 + count] > least:
        count += 1
    return count


@row
def settle(signed, quotient, unit):
    """p from the quotient of `divide`."""
    zero, one = constant(0.0), constant(1.0)
    tail = between(product(magnitude(signed), product(quotient, unit)), zero, one)
    return where_less(signed, zero, fused(constant(-1.0), tail, one), tail)


@row
def divide(odds, at, n, law, middle, count):
    """Turn the odds of a row into p: e/b_k times sum_j (-e)^j b_(k -+ (1 + j)), j < count.

    Down from k below 1/2, where the sum is p, up above, where it is 1 - p.
    """
    zero, minus, unit = constant(0.0), constant(-1.0), constant(1.0 / law[middle])
    for i in range(at, at + n, STRETCH):
        e0, e1 = load(odds, i), load(odds, i + LANES)
        e2, e3 = load(odds, i + 2 * LANES), load(odds, i + 3 * LANES)
        y0, y1 = product(minus, magnitude(e0)), product(minus, magnitude(e1))
        y2, y3 = product(minus, magnitude(e2)), product(minus, magnitude(e3))
        q0 = q1 = q2 = q3 = zero
        for j in range(count, 0, -1):
            lower, upper = spread(law, middle - j), spread(law, middle + j)
            q0 = fused(q0, y0, where_less(e0, zero, upper, lower))
            q1 = fused(q1, y1, where_less(e1, zero, upper, lower))
            q2 = fused(q2, y2, where_less(e2, zero, upper, lower))
            q3 = fused(q3, y3, where_less(e3, zero, upper, lower))
        store(odds, i, settle(e0, q0, unit))
        store(odds, i + LANES, settle(e1, q1, unit))
        store(odds, i + 2 * LANES, settle(e2, q2, unit))
        store(odds, i + 3 * LANES, settle(e3, q3, unit))


@scalar
def kind(x, k, tilt):
    """(code, finite entries, entries of +inf, k left) of `classify`.

    A row whose tilt was found among finite entries need not be looked at again.
    """
    if tilt[TILT_CODE] == FINITE:
        return verdict(x.shape[0], x.shape[0], k), x.shape[0], 0, int(k)
    code, n, above, left, _, _ = classify(x, k, *survey(x))
    return code, n, above, int(left)


@kernel
def solve(lo, hi, x, k, tau, tilt, out, solution):
    """Rows lo .. hi: p to `out`, and to `solution`, if it has columns, what derivatives need."""
    T, wide = x.dtype.type, solution.shape[1] > 0
    level = exponent(0.25 * SHORT, T(1))
    width, in_lanes, length, zeros = lengths(x.shape[1], level)
    own_odds, own_coins = np.zeros(LANES * width, x.dtype), np.zeros(LANES * width)
    own_law, own_turned = np.zeros(in_lanes), np.zeros(LANES * length)
    own_rows = np.empty((5, LANES), np.int64)
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    odds, coins, law = borrowed(own_odds), borrowed(own_coins), borrowed(own_law)
    turned, rows = borrowed(own_turned), borrowed(own_rows)
    i = lo
    while i < hi:
        count, most, top = 0, 0, 0
        while i < hi and count < LANES:
            entries = x[i]
            code, n, above, left = kind(entries, k[i], tilt[i])
            if wide:
                solution[i, C], solution[i, D] = tilt[i, C], tilt[i, D]
                solution[i, LEFT], solution[i, CODE] = left, code
            if code > MIXED:
                fill_constant(entries, k[i], code, above, out[i])
            else:
                present, _ = present_part(entries, entries, code)
                c, d, inv = T(tilt[i, C]), T(tilt[i, D]), inverse_temperature(tau[i], x)
                deep = toss(present, c, inv, d, window(odds, count * width, width))
                far = reach(level, n, left)
                most, top = max(most, n), max(top, left + far)
                rows[0, count], rows[1, count], rows[2, count] = i, n, left
                rows[3, count], rows[4, count] = far, deep > T(0)
                count += 1
            i += 1
        for at in range(0, most, LANES):
            turn(odds, at, width, coins, at * LANES, LANES)
        multiply_out(coins, most, top, law)
        turn_back(law, top, turned, length, zeros)
        for r in range(count):
            at, n, left, far = rows[0, r], rows[1, r], rows[2, r], rows[3, r]
            middle, mixed = r * length + zeros + left, n < x.shape[1]
            sums = terms(turned, middle, min(left, far), min(n - left, far), limits(T(1))[0])
            divide(odds, r * width, n, turned, middle, sums)
            p, values = window(out[at], 0, n), window(odds, r * width, n)
            for j in range(n):
                p[j] = values[j]
            if rows[4, r]:
                present, _ = present_part(x[at], x[at], MIXED if mixed else FINITE)
                c, d, inv = T(tilt[at, C]), T(tilt[at, D]), inverse_temperature(tau[at], x)
                # P(N = k - 1)/P(N = k), which is p/r of an entry that is hardly there.
                write_deep(present, c, inv, d, turned[middle - 1] / turned[middle], p)
            if mixed:
                expand(x[at], p, 1.0, out[at])
    held((own_odds, own_coins, own_law, own_turned, own_rows))
