"""GradTopK of one row in O(n): the count of n Bernoulli variables, by quadrature on a circle.

The k-subset distribution does not change when the scores are shifted. Shifted so that the tilted
probabilities pi_i = sigmoid((x_i - l)/tau) sum to about k - 1/2, it is the distribution of n
independent Bernoulli variables given that their sum N is k, and both k and k - 1 are likely values
of N (Theorem thm-grad-mass). P(N = k) is then a trapezoidal sum over a few points w_j of the unit
circle (Theorems thm-grad-aliasing and -nodes), and so is everything else: an entry enters only
through its pi (Theorem thm-grad-marginals).

With r = min(pi, 1 - pi), s = pi (1 - pi), u_j = w_j - 1 and g_j = |u_j|^2, products over the
entries are exponentials of the power sums of r, and sums over the nodes are polynomials in s, as
long as g s <= RATIO. The few entries that are not are the *core*: they are kept, and treated one
by one at every node. Their number is bounded by a constant (Proposition prop-grad-core).
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, empty, seek
from ..._compile.decorators import scalar, summing
from ..._math.elementary import (
    circular,
    exp_neg,
    limits,
    wide_vectors,
)
from ..formulas import node_count, node_weight
from ..nodes import (
    ANGLE,
    CAPACITY,
    IM,
    MODULUS,
    NODES,
    RE,
    ROOT,
    SINE,
    SQUARE,
    TERM,
    in_lanes,
    known_nodes,
    write_circle,
)
from ..records import ABOVE, EVEN, ODD, ORDER, ORDER_32, POWERS, SUMS, VARIANCE

# Smaller r and r^m are not multiplied further: r^2 and r^(m+2) would be subnormal, and arithmetic
# with these takes a hundred times as long.
LEAST_64, LEAST_32 = (
    np.array([float(np.finfo(T).tiny) ** (m / (m + 2) if m else 0.5) for m in range(0, ORDER, 2)])
    for T in (np.float64, np.float32)
)
MOST_IN_CORE = 8192  # most entries with g s > RATIO (Proposition prop-grad-core)
TOGETHER = 16  # nodes multiplied together over the core, a divisor of NODES
BLOCK = 1024  # entries summed in the row's own type before float64 is used


@scalar
def power_sums_scratch(x):
    """Scratch for `power_sums`: arrays of BLOCK numbers."""
    far, side = empty(BLOCK, x.dtype), empty(BLOCK, x.dtype)
    signed, power = empty(BLOCK, x.dtype), empty(BLOCK, x.dtype)
    return far, side, signed, power, empty(BLOCK, np.int64)


@scalar
def begin_sums(seen, sums):
    """Set the sums of a row to 0, and those that `moments.tilted_probabilities` has returned."""
    for m in range(SUMS):
        sums[m] = 0.0
    sums[ABOVE], sums[VARIANCE] = seen.above, seen.variance


# Longer than a screen: its loops over the row share the sums they add to.
@summing
def power_sums(y, seen, inv, limit, work, sums, core):
    """Write the sums over a row, and r of its core, negative where pi >= 1/2.

    `y`, `seen`: what `moments.tilted_probabilities` has written, 2 r with that sign, and returned.
    Returns the core's size. `work`: of `power_sums_scratch`; the series serve the type of `inv`.
    """
    wide_vectors()
    T = y.dtype.type
    limit = T(limit)
    order, least = (ORDER, LEAST_64) if limits(inv)[0] < 1e-10 else (ORDER_32, LEAST_32)
    far, side, signed, power, at = work
    begin_sums(seen, sums)
    found = 0
    for start in range(0, y.shape[0], BLOCK):
        part = block(y, start, BLOCK)
        count = part.shape[0]
        near = T(0)
        for i in range(count):
            r = T(0.5) * abs(part[i])
            s = r * (T(1) - r)
            f = r if s <= limit else T(0)
            far[i] = f
            side[i] = T(1) if part[i] > T(0) else T(-1)
            signed[i] = T(0.5) * part[i]
            power[i] = s
            near += T(1) if s > limit else T(0)
        if near > T(0):
            for q in range(seek(power[:count], limit, at)):
                core[found if found < MOST_IN_CORE else MOST_IN_CORE - 1] = signed[at[q]]
                found += 1
        if near == T(count):
            continue
        # The first powers make up the mean, whose error is not divided among entries: float64.
        all_first, signed_first, all_sum, signed_sum = 0.0, 0.0, T(0), T(0)
        floor = T(least[0])
        for i in range(count):
            all_first += np.float64(far[i])
            signed_first += np.float64(far[i] * side[i])
            f = far[i] if far[i] > floor else T(0)
            power[i] = f * f
            all_sum += power[i]
            signed_sum += power[i] * side[i]
        add_powers(sums, 0, all_first, signed_first)
        add_powers(sums, 1, all_sum, signed_sum)
        for m in range(2, order, 2):
            all_sum, signed_sum, all_next, signed_next = T(0), T(0), T(0), T(0)
            floor = T(least[m // 2])
            for i in range(count):
                f = far[i] if power[i] > floor else T(0)
                first = power[i] * f
                second = first * f
                power[i] = second
                all_sum += first
                signed_sum += first * side[i]
                all_next += second
                signed_next += second * side[i]
            add_powers(sums, m, all_sum, signed_sum)
            add_powers(sums, m + 1, all_next, signed_next)
    return found


@scalar
def add_powers(sums, m, plain, signed):
    """Add a block's sums of r^(m+1), and of it negated where pi >= 1/2."""
    sums[POWERS + m] += 0.5 * (np.float64(plain) + np.float64(signed))
    sums[POWERS + ORDER + m] += 0.5 * (np.float64(plain) - np.float64(signed))


@scalar
def excess_of_mean(k, sums, core, found):
    """The mean of the count less k. If `core` is None, the sums are those of Chebyshev series."""
    if core is None:
        return sums[ABOVE] - k + 0.5 * sums[ODD]
    excess = sums[ABOVE] - k + sums[POWERS] - sums[POWERS + ORDER]
    for i in range(found):
        excess += core[i]
    return excess


@scalar
def chebyshev_weights(table, count, size, winding, steps, sums):
    """Write the product of all entries' factors and w^-k, at each node and its conjugate.

    The factors are log(1 + pi u), less log w where pi >= 1/2, in Chebyshev series.
    """
    table = known_nodes(table)
    for j in range(count):
        root = table[ROOT, j]
        rho = root * root
        table[TERM, j] = -rho
        table[MODULUS, j] = -8.0 * rho * sums[VARIANCE]
        table[ANGLE, j] = 2.0 * math.pi * j / size * winding + 2.0 * root * sums[ODD]
    for m in range(1, steps + 1):
        odd = 2.0 * sums[ODD + m] / (2 * m + 1) if m < ORDER else 0.0
        even = sums[EVEN + m - 1] / (m + 1)
        for j in range(count):
            root, power = table[ROOT, j], table[TERM, j]
            table[ANGLE, j] += power * root * odd
            power *= -root * root
            table[MODULUS, j] += power * even
            table[TERM, j] = power
    for j in range(count):
        scale = exp_neg(table[MODULUS, j]) * (1.0 if j == 0 else 2.0)
        cosine, sine = circular(table[ANGLE, j])
        table[RE, j], table[IM, j] = scale * cosine, scale * sine


@scalar
def quadrature(n, k, inv, steps, sums, core, found, nodes, most=NODES):
    """Choose the nodes, at most `most`, and write them.

    If `core` is None, the sums are those of Chebyshev series with this number of `steps`.
    Otherwise its first `found` entries are the core, and `steps` is 0. Returns (number of nodes on
    the circle, number of them used, log P(N = k)).
    """
    wide_vectors()
    excess = excess_of_mean(k, sums, core, found)
    size, used = node_count(n, sums[VARIANCE], excess, inv, most)
    write_circle(size, used, steps, nodes)
    table = known_nodes(borrowed(nodes))
    winding = sums[ABOVE] - k
    for j in range(used, CAPACITY):
        table[SQUARE, j] = table[SINE, j] = 0.0  # to fill the lanes: factors of 1
    if core is None:
        chebyshev_weights(table, in_lanes(used), size, winding, steps, sums)
    else:
        multiply_core(table, used, core, found)
        for j in range(in_lanes(used)):
            g, y, re, im = table[SQUARE, j], table[SINE, j], table[RE, j], table[IM, j]
            cr, ci = node_weight(j, size, g, y, ORDER, winding, sums)
            table[RE, j], table[IM, j] = re * cr - im * ci, re * ci + im * cr
    total = 0.0
    for j in range(used):
        total += table[RE, j]
    for j in range(used):
        table[RE, j] /= total
        table[IM, j] /= total
    return size, used, math.log(total / size)


@scalar
def multiply_core(table, used, core, found):
    """Write the product of the factors of the core's entries at each node."""
    table = known_nodes(table)
    for j in range(CAPACITY):
        table[RE, j], table[IM, j] = 1.0, 0.0
    for i in range(found, min(found + 3, MOST_IN_CORE)):
        core[i] = 0.0  # to fill the lanes: factors of 1
    for group in range(CAPACITY // TOGETHER):
        if group * TOGETHER >= used:
            break
        for i in range(0, found, 4):
            # r u, or r times the conjugate of u where pi >= 1/2.
            y0, y1, y2, y3 = core[i], core[i + 1], core[i + 2], core[i + 3]
            x0, x1, x2, x3 = 0.5 * abs(y0), 0.5 * abs(y1), 0.5 * abs(y2), 0.5 * abs(y3)
            for lane in range(TOGETHER):
                j = np.uint64(group * TOGETHER + lane)  # an index that cannot be negative
                g, y = table[SQUARE, j], table[SINE, j]
                ar, ai = 1.0 - x0 * g, y0 * y
                br, bi = 1.0 - x1 * g, y1 * y
                cr, ci = 1.0 - x2 * g, y2 * y
                dr, di = 1.0 - x3 * g, y3 * y
                er, ei = ar * br - ai * bi, ar * bi + ai * br
                fr, fi = cr * dr - ci * di, cr * di + ci * dr
                er, ei = er * fr - ei * fi, er * fi + ei * fr
                fr, fi = table[RE, j], table[IM, j]
                table[RE, j], table[IM, j] = er * fr - ei * fi, er * fi + ei * fr
