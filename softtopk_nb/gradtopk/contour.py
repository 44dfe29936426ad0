"""GradTopK of one row in O(n): a sum of n independent coins, read off a circle.

The k-subset law does not change when the scores are shifted. Shifted so that the tilted
probabilities pi_i = sigmoid((x_i - l)/tau) sum to about k - 1/2, it is the law of n independent
coins given that k of them came up, and both k and k - 1 are likely counts (Theorem thm-grad-mass).
The chance of k is then a trapezoidal sum over a few points w_j of the unit circle (Theorems
thm-grad-aliasing and -nodes), and so is everything else: an entry enters only through its pi
(Theorem thm-grad-marginals).

With r = min(pi, 1 - pi), s = pi (1 - pi), u_j = w_j - 1 and g_j = |u_j|^2, products over the
entries are exponentials of the power sums of r, and sums over the nodes are polynomials in s, as
long as g s <= RATIO. The few entries that are not are the *core*: they are kept, and treated one
by one at every node. Their number is bounded by a constant (Proposition prop-grad-core).
"""

from __future__ import annotations

import math

import numpy as np

from .._compile import scalar, summing
from .._scalars import circular, exp_neg, limits, quotient

__all__ = [
    "CORE",
    "DEEP",
    "DEGREE",
    "FIELDS",
    "IM",
    "NODES",
    "ORDER",
    "POWER",
    "RE",
    "SINE",
    "SQUARE",
    "SUMS",
    "add_node",
    "circle",
    "coefficients",
    "core_marginal",
    "cut_of",
    "deep_tail",
    "excess_of_mean",
    "exponent",
    "gather",
    "horner",
    "marginals",
    "node",
    "node_count",
    "node_terms",
    "node_weight",
    "quadrature",
    "rarer",
    "tail_away",
]

RATIO = 1 / 64  # of the geometric series in g s that polynomials cut off
ORDER = 12  # power sums: what is left out is below 1e-16 (Proposition prop-grad-series)
ORDER_32 = 6  # for float32
DEGREE = 8  # terms of the polynomials in s
NODES = 32  # most nodes on the upper half of the circle (Theorem thm-grad-nodes)
CORE = 8192  # most entries with g s > RATIO (Proposition prop-grad-core)
LANES = 16  # nodes taken together, a divisor of NODES
DEEP = 0.98  # of the log of the smallest normal number: below it p is not r times a polynomial
BLOCK = 1024  # entries summed in the row's own type before float64 takes over

# Sums over a row: entries with pi >= 1/2, the variance, then powers of r below and above 1/2.
ABOVE, VARIANCE, POWERS = 0, 1, 2
SUMS = POWERS + 2 * ORDER

# A table of nodes: |u|^2, sin theta, the normalised weight c, and a power of |u|^2 to work with.
SQUARE, SINE, RE, IM, POWER = 0, 1, 2, 3, 4
FIELDS = 5


@scalar
def exponent(variance, inv):
    """L: the nodes' sum is exact to e^-L P(N = k), and nodes of modulus below e^-L are left out.

    log(2/eps), and the bound of Theorem thm-grad-mass on -log P(N = k).
    """
    return math.log(2.0 / limits(inv)[0]) + math.log(16.0 * math.sqrt(variance) + 4.0)


@scalar
def cut_of(weight, inv):
    """The s up to which an entry is not of the core, from a sum of s at a threshold nearby."""
    variance = 0.9 * weight if weight > 0.25 else 0.2
    largest = 2.0 * exponent(variance, inv) / variance
    return RATIO / (largest if largest < 4.0 else 4.0)


@scalar
def rarer(t):
    """r = min(pi, 1 - pi) of a coin with log-odds t: the sigmoid of -|t|."""
    e = exp_neg(-abs(t))
    return quotient(e, type(t)(1) + e)


@summing
def gather(x, c, inv, d, cut, work, sums, core):
    """Write the sums over the row and its core, r of each entry, negative where pi >= 1/2.

    Returns the size of the core. `work`: four arrays of BLOCK numbers to work in.
    """
    T = x.dtype.type
    limit = T(cut)
    order = ORDER if limits(inv)[0] < 1e-10 else ORDER_32
    low, high, low_power, high_power = work
    for m in range(SUMS):
        sums[m] = 0.0
    found = 0
    for start in range(0, x.shape[0], BLOCK):
        part = x[start : start + BLOCK]
        count = part.shape[0]
        ups, variance, near = T(0), T(0), T(0)
        for i in range(count):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            far = r if s <= limit else T(0)
            upper = t >= T(0)
            low[i] = T(0) if upper else far
            high[i] = far if upper else T(0)
            low_power[i] = -r if upper else r
            ups += T(1) if upper else T(0)
            variance += s
            near += T(1) if s > limit else T(0)
        sums[ABOVE] += ups
        sums[VARIANCE] += variance
        if near > T(0):
            for i in range(count):
                # Left out above, and not because r underflows.
                out = low[i] == T(0) and high[i] == T(0) and abs(low_power[i]) > limit
                if out and found < CORE:
                    core[found] = low_power[i]
                    found += 1
        # The first powers make the mean, which is not spread thin: float64.
        first_low, first_high = 0.0, 0.0
        for i in range(count):
            first_low += np.float64(low[i])
            first_high += np.float64(high[i])
            low_power[i], high_power[i] = low[i], high[i]
        sums[POWERS] += first_low
        sums[POWERS + ORDER] += first_high
        for m in range(1, order):
            sum_low, sum_high = T(0), T(0)
            for i in range(count):
                low_power[i] *= low[i]
                high_power[i] *= high[i]
                sum_low += low_power[i]
                sum_high += high_power[i]
            sums[POWERS + m] += sum_low
            sums[POWERS + ORDER + m] += sum_high
    return found


@scalar
def node(j, size):
    """|u|^2 and sin theta of the j-th of `size` nodes, from theta = 0 on."""
    half = math.pi * j / size
    return 4.0 * circular(half)[1] ** 2, circular(2.0 * half)[1]


@scalar
def circle(size, used, nodes):
    """Write the first `used` of `size` nodes."""
    for j in range(used):
        nodes[SQUARE, j], nodes[SINE, j] = node(j, size)


@scalar
def excess_of_mean(k, sums, core, found):
    """How far the mean count lies above k."""
    excess = sums[ABOVE] - k + sums[POWERS] - sums[POWERS + ORDER]
    for i in range(found):
        excess += core[i]
    return excess


@scalar
def node_count(n, variance, excess, inv, most):
    """Of how many nodes how many are taken, at most `most`; `excess`: of the mean count over k."""
    # The tilt need not be exact: what it is off k - 1/2 by costs a node or two. Of counts farther
    # out than the standard deviation the chance is exact to e^-L, and not to e^-L of itself.
    off = excess + 0.5
    level = exponent(variance, inv) + (off * off / variance if off * off < variance else 1.0)
    wanted = level / 3.0 + math.sqrt(level * level / 9.0 + 2.0 * level * variance) + abs(excess)
    # n + 1 nodes are exact. An odd number avoids w = -1, where a factor can vanish.
    size = (int(wanted) + 1 if wanted < n else n + 1) | 1
    used = size // 2 + 1
    if 2.0 * variance > level:
        reach = math.asin(math.sqrt(0.5 * level / variance))
        used = min(used, int(size * reach / math.pi) + 1)
    return size, min(used, most)


@scalar
def node_weight(j, size, square, sine, order, turns, sums):
    """What the entries away from the core and w^-k multiply to at node j and its conjugate.

    `turns`: entries with pi >= 1/2, less k. `order`: how many power sums there are.
    """
    ur, ui = -0.5 * square, sine
    # log(1 + r u) = sum of (-1)^(m+1) (r u)^m / m.
    log_modulus, angle = 0.0, 2.0 * math.pi * j / size * turns
    power_r, power_i = ur, ui
    for m in range(order):
        below, above = sums[POWERS + m], sums[POWERS + ORDER + m]
        log_modulus += power_r * (below + above) / (m + 1)
        angle += power_i * (below - above) / (m + 1)
        power_r, power_i = power_i * ui - power_r * ur, -(power_r * ui + power_i * ur)
    scale = math.exp(log_modulus) * (1.0 if j == 0 else 2.0)
    cosine, sine = circular(angle)
    return scale * cosine, scale * sine


@scalar
def quadrature(n, k, inv, sums, core, found, nodes):
    """Choose the nodes and write them; returns (of how many, how many, log P(N = k))."""
    excess = excess_of_mean(k, sums, core, found)
    size, used = node_count(n, sums[VARIANCE], excess, inv, nodes.shape[1])
    circle(size, used, nodes)
    square, sine, re, im = nodes[SQUARE], nodes[SINE], nodes[RE], nodes[IM]
    for j in range(nodes.shape[1]):
        re[j], im[j] = 1.0, 0.0
        if j >= used:
            square[j] = sine[j] = 0.0  # to fill the lanes: factors of 1
    for i in range(found, min(found + 3, CORE)):
        core[i] = 0.0  # likewise
    for first in range(0, used, LANES):
        g, y = square[first : first + LANES], sine[first : first + LANES]
        pr, pi = re[first : first + LANES], im[first : first + LANES]
        for i in range(0, found, 4):
            # r u, or r times its conjugate above 1/2.
            y0, y1, y2, y3 = core[i], core[i + 1], core[i + 2], core[i + 3]
            x0, x1, x2, x3 = 0.5 * abs(y0), 0.5 * abs(y1), 0.5 * abs(y2), 0.5 * abs(y3)
            for j in range(LANES):
                ar, ai = 1.0 - x0 * g[j], y0 * y[j]
                br, bi = 1.0 - x1 * g[j], y1 * y[j]
                cr, ci = 1.0 - x2 * g[j], y2 * y[j]
                dr, di = 1.0 - x3 * g[j], y3 * y[j]
                er, ei = ar * br - ai * bi, ar * bi + ai * br
                fr, fi = cr * dr - ci * di, cr * di + ci * dr
                er, ei = er * fr - ei * fi, er * fi + ei * fr
                fr, fi = pr[j], pi[j]
                pr[j], pi[j] = er * fr - ei * fi, er * fi + ei * fr
    total = 0.0
    for j in range(used):
        cr, ci = node_weight(j, size, square[j], sine[j], ORDER, sums[ABOVE] - k, sums)
        re[j], im[j] = re[j] * cr - im[j] * ci, re[j] * ci + im[j] * cr
        total += re[j]
    for j in range(used):
        re[j] /= total
        im[j] /= total
    return size, used, math.log(total / size)


@scalar
def node_terms(g, sine, re, im):
    """Re(c w), Re c and Re(c / w)."""
    even, odd = re * (1.0 - 0.5 * g), im * sine
    return even - odd, re, even + odd


@scalar
def coefficients(nodes, used, coefficient, table):
    """What `marginals` needs of the nodes.

    `coefficient`, in the type of the row: polynomials in s, sums over the nodes of g^m times
    Re(c w), Re c and Re(c / w). `table`: g and these three at each node, for the core. In float64:
    the weights change sign, and errors of the sum over the row would add up.
    """
    for j in range(used):
        table[0, j] = g = nodes[SQUARE, j]
        terms = node_terms(g, nodes[SINE, j], nodes[RE, j], nodes[IM, j])
        table[1, j], table[2, j], table[3, j] = terms
        nodes[POWER, j] = 1.0
    for m in range(DEGREE):
        below, plain, above = 0.0, 0.0, 0.0
        for j in range(used):
            power = nodes[POWER, j]
            below += power * table[1, j]
            plain += power * table[2, j]
            above += power * table[3, j]
            nodes[POWER, j] = power * table[0, j]
        coefficient[0, m], coefficient[1, m], coefficient[2, m] = below, plain, above


@scalar
def horner(c, s):
    """The polynomial of DEGREE coefficients c at s."""
    high = ((c[7] * s + c[6]) * s + c[5]) * s + c[4]
    return (((high * s + c[3]) * s + c[2]) * s + c[1]) * s + c[0]


@summing
def tail_away(r, s, upper, a, b, z):
    """p below 1/2, 1 - p above, of an entry away from the core; a, b, z: the polynomials."""
    T = type(r)
    below, above, middle = horner(a, s), horner(z, s), horner(b, s)
    tail = r * ((T(1) - r) * (above if upper else below) + r * middle)
    # Sums that are 0 or 1 but for rounding.
    return T(0) if tail < T(0) else T(1) if tail > T(1) else tail


@scalar
def deep_tail(t, a0):
    """p where r is about to underflow, and p = r a(0) can be larger."""
    return type(t)(math.exp(np.float64(t)) * a0)


@summing
def add_node(over, under, r, edge, square, plain):
    """Add a node to the fraction over/under of `core_tails`; edge: Re(c w), or Re(c/w) above."""
    rest = 1.0 - r
    share = 1.0 - square * (r * rest)
    value = rest * edge + r * plain
    return over * share + value * under, under * share


@summing
def core_tails(minor, crowd, table, used, over, under):
    """Write over/under = p/r below 1/2, (1 - p)/r above (Theorem thm-grad-marginals).

    `minor`: r of `crowd` entries, negative where pi >= 1/2. The fractions of the nodes are added
    over a common denominator, a division for each entry and not for each node of it.
    """
    for i in range(crowd):
        over[i], under[i] = 0.0, 1.0
    for j in range(used):
        square, below, plain, above = table[0, j], table[1, j], table[2, j], table[3, j]
        for i in range(crowd):
            edge = above if minor[i] < 0.0 else below
            over[i], under[i] = add_node(over[i], under[i], abs(minor[i]), edge, square, plain)


@summing
def core_marginal(r, upper, over, under):
    """p of an entry of the core, from `core_tails`."""
    tail = r * (over / under)
    tail = 0.0 if tail < 0.0 else 1.0 if tail > 1.0 else tail
    return 1.0 - tail if upper else tail


@summing
def marginals(x, c, inv, d, cut, table, used, coefficient, work, out):
    """Write p (Theorem thm-grad-marginals) with the table and polynomials of `coefficients`.

    `work`: arrays of BLOCK numbers to work in, one of x's type, three of float64, one of integers.
    """
    T = x.dtype.type
    signed, minor, over, under, at = work
    floor = T(DEEP * math.log(limits(inv)[1]))
    limit = T(cut)
    a, b, z = coefficient[0], coefficient[1], coefficient[2]
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    z0, z1, z2, z3, z4, z5, z6, z7 = z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7]
    for start in range(0, x.shape[0], BLOCK):
        part, p = x[start : start + BLOCK], out[start : start + BLOCK]
        near, deep = T(0), T(0)
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            upper = t >= T(0)
            lower = a0, a1, a2, a3, a4, a5, a6, a7
            middle = b0, b1, b2, b3, b4, b5, b6, b7
            tail = tail_away(r, s, upper, lower, middle, (z0, z1, z2, z3, z4, z5, z6, z7))
            p[i] = T(1) - tail if upper else tail
            signed[i] = -r if upper else r
            near += T(1) if s > limit else T(0)
            deep += T(1) if t < floor else T(0)
        if deep > T(0):
            for i in range(part.shape[0]):
                t = (part[i] - c) * inv - d
                if t < floor:
                    p[i] = deep_tail(t, a0)
        if near == T(0):
            continue
        crowd = 0
        for i in range(part.shape[0]):
            r = abs(signed[i])
            if r * (T(1) - r) > limit:
                minor[crowd], at[crowd] = signed[i], i
                crowd += 1
        core_tails(minor, crowd, table, used, over, under)
        for i in range(crowd):
            over[i] = core_marginal(abs(minor[i]), minor[i] < 0.0, over[i], under[i])
        for i in range(crowd):
            p[at[i]] = T(over[i])
