"""Formulas for one entry, and at one node, shared by the CPU and a device."""

from __future__ import annotations

import math

from .._compile.decorators import scalar, summing
from .._math.elementary import circular, exp_neg, fma, limits, quotient
from .._math.special import log_of_one_and
from .nodes import DEGREE
from .records import EVEN_SUM, ODD_SUM, ORDER, POWERS

# The series' truncation error is below 1e-14, in float32 below 2e-7 (Proposition prop-grad-series).
RATIO, RATIO_32 = 1 / 64, 1 / 8  # largest g s, the ratio of the truncated geometric series
DEEP = 0.98  # of the log of the smallest normal number: for smaller t p is not r times a polynomial


@scalar
def exponent(variance, inv):
    """L: the nodes' sum is exact to e^-L, and nodes of modulus below e^-L are left out.

    It is log(2/eps) plus more than -log P(N = k), but for tilts far off (Proposition
    prop-grad-level).
    """
    return math.log(2.0 / limits(inv)[0]) + math.log(16.0 * math.sqrt(variance) + 4.0)


@scalar
def bernstein_radius(level, variance):
    """The distance from the mean that the count exceeds with probability <= e^-level, per side."""
    return level / 3.0 + math.sqrt(level * level / 9.0 + 2.0 * level * variance)


@scalar
def ratio_of(inv):
    """RATIO for the type of inv."""
    return RATIO if limits(inv)[0] < 1e-10 else RATIO_32


@scalar
def core_limit(weight, inv):
    """The s above which an entry is of the core, from a sum of s at a tilt nearby."""
    variance = 0.9 * weight if weight > 0.25 else 0.2
    largest = 2.0 * exponent(variance, inv) / variance
    return ratio_of(inv) / (largest if largest < 4.0 else 4.0)


@scalar
def minority_probability(t):
    """r = min(pi, 1 - pi) of log-odds t: the sigmoid of -|t|."""
    e = exp_neg(-abs(t))
    return quotient(e, type(t)(1) + e)


@scalar
def node_count(n, variance, excess, inv, most):
    """(nodes on the circle, nodes used, at most `most`); `excess`: the mean of the count less k."""
    # The tilt need not be exact: its distance from k - 1/2 costs a node or two. For counts farther
    # out than the standard deviation the probability is exact to e^-L, and not relative to itself.
    off = excess + 0.5
    level = exponent(variance, inv) + (off * off / variance if off * off < variance else 1.0)
    wanted = bernstein_radius(level, variance) + abs(excess)
    # n + 1 nodes are exact. An odd number avoids w = -1, where a factor can vanish.
    size = (int(wanted) + 1 if wanted < n else n + 1) | 1
    used = size // 2 + 1
    if 2.0 * variance > level:
        reach = math.asin(math.sqrt(0.5 * level / variance))
        used = min(used, int(size * reach / math.pi) + 1)
    return size, min(used, most)


@scalar
def node_weight(j, size, square, sine, order, winding, sums):
    """The product of the factors of entries outside the core and w^-k, at node j and its conjugate.

    `winding`: number of entries with pi >= 1/2, less k: the power of w. `order`: number of power
    sums.
    """
    ur, ui = -0.5 * square, sine
    # log(1 + r u) = sum of (-1)^(m+1) (r u)^m / m.
    log_modulus, angle = 0.0, 2.0 * math.pi * j / size * winding
    power_r, power_i = ur, ui
    for m in range(order):
        below, above = sums[POWERS + m], sums[POWERS + ORDER + m]
        log_modulus += power_r * (below + above) / (m + 1)
        angle += power_i * (below - above) / (m + 1)
        power_r, power_i = power_i * ui - power_r * ur, -(power_r * ui + power_i * ur)
    scale = exp_neg(log_modulus) * (1.0 if j == 0 else 2.0)
    cosine, sine = circular(angle)
    return scale * cosine, scale * sine


@scalar
def smoothed(value, tau, c, d):
    """(tau log(1 + e^-|t|), the entry itself if t >= 0 else 0, whether t >= 0).

    For t >= 0, tau log(1 + e^t) + c + tau d is x plus a tail: summing t would only cancel again.
    """
    t = (value - c) / tau - d
    above = t >= 0.0
    return tau * log_of_one_and(exp_neg(-abs(t))), value if above else 0.0, above


@scalar
def weighted_q_by_powers(g, sine, re, im, odd, even, sums):
    """`weighted_q` from power sums of the direction; odd, even: those of the core at node j."""
    power = 1.0
    for m in range(DEGREE):
        odd += power * sums[ODD_SUM + m]
        even += power * sums[EVEN_SUM + m]
        power *= g
    return weighted_q(g, sine, re, im, odd, even)


@scalar
def product(re, im, a, b):
    """(re + i im) (a + i b)."""
    return re * a - im * b, re * b + im * a


@scalar
def weighted_q(g, sine, re, im, odd, even):
    """c_j Q_j (Theorem thm-grad-jacobian), from the sums over the row at node j."""
    return product(re, im, 0.5 * g * odd, sine * even)


@scalar
def derivative_coefficients(m, even, odd, last):
    """Coefficients m of p' = A + z B, from those of h = even + z odd; last: odd's before it."""
    # p' = 1 - z h + s h', with z' = 2, s' = -z, z^2 = 1 - 4 s.
    return (1.0 if m == 0 else (4 * m + 2) * last) - (m + 1) * odd, -(m + 1) * even


@summing
def add_node_tangent(h, slope, others, share, z, g, sine, re, im, q_re, q_im):
    """Add a node to h, its slope and the third term of an entry; `share` is 1/(1 - g s)."""
    yr, yi = 0.5 * g * z * share, sine * share
    h += re * yr - im * yi
    slope -= re * (yr * yr - yi * yi) - 2.0 * im * yr * yi
    return h, slope, others + q_re * yr - q_im * yi


@summing
def tangent_in_core(s, z, move, h, slope, others):
    """tau (J v)_i of an entry of the core, from all nodes."""
    return s * (move * (1.0 - z * h + s * slope) + others)


@summing
def tangent_away(move, s, side, inv, a, b, w, z):
    """(J v)_i of an entry outside the core; a, b, w, z: the polynomials of the derivative."""
    own = horner(a, s)
    own += side * horner(b, s)
    others = horner(w, s)
    others += side * horner(z, s)
    return s * inv * (move * own + others)


@scalar
def tilted_fraction(g, sine, s, z):
    """y = u/(1 + pi u) at a node: the indicator's mean there is pi + s y."""
    share = 1.0 / (1.0 - g * s)
    return 0.5 * g * z * share, sine * share


@scalar
def variance_share(s, z, yr, yi):
    """rho = 1 - z y - s y^2: the indicator's variance at a node is s rho."""
    return 1.0 - z * yr - s * (yr * yr - yi * yi), -(z + 2.0 * s * yr) * yi


@scalar
def cumulant_at_node(s, z, yr, yi, moved, of_node):
    """The terms of an entry in its third cumulant at a node (Theorem thm-grad-second), over s.

    `moved`: its derivatives along two directions, and the second-order term of the temperature's
    directions. `of_node`: c, and c times the deviations of the sums along the two.
    """
    v, a, b = moved
    re, im, vr, vi, ar, ai = of_node
    rho, tho = variance_share(s, z, yr, yi)
    # c rho ((1 - 2 q) v a - b) + c rho (v A' + a V').
    skew_re, skew_im = -(z + 2.0 * s * yr) * v * a - b, -2.0 * s * yi * v * a
    in_re = re * skew_re - im * skew_im + v * ar + a * vr
    in_im = re * skew_im + im * skew_re + v * ai + a * vi
    return rho * in_re - tho * in_im


LIFT, LIFT_32 = 512.0, 64.0  # added to an exponent, so that it does not underflow


@scalar
def node_terms(g, sine, re, im):
    """Re(c w), Re c and Re(c / w)."""
    even, odd = re * (1.0 - 0.5 * g), im * sine
    return even - odd, re, even + odd


@scalar
def horner(c, s):
    """The polynomial of DEGREE coefficients c at s."""
    high = fma(fma(fma(c[7], s, c[6]), s, c[5]), s, c[4])
    return fma(fma(fma(fma(high, s, c[3]), s, c[2]), s, c[1]), s, c[0])


@summing
def tail_probability(r, upper, below, middle, above):
    """p below 1/2, 1 - p above, from the polynomials at its s."""
    T = type(r)
    tail = r * ((T(1) - r) * (above if upper else below) + r * middle)
    # Sums that are outside [0, 1] by rounding alone.
    return T(0) if tail < T(0) else T(1) if tail > T(1) else tail


@scalar
def deep_tail(t, a0):
    """p where r nearly underflows, and p = r a(0) can be larger.

    e^t is a product of two normal numbers; t and its exponent have the same digits after the point.
    """
    T = type(t)
    lift = LIFT if limits(t)[0] < 1e-10 else LIFT_32
    return exp_neg(t + T(lift)) * T(a0 * math.exp(-lift))


@summing
def add_node(over, under, r, edge, square, plain):
    """Add a node to the fraction over/under of `core_tails`; edge: Re(c w), or Re(c/w) above."""
    rest = 1.0 - r
    share = 1.0 - square * (r * rest)
    value = rest * edge + r * plain
    return over * share + value * under, under * share


@summing
def core_marginal(r, upper, over, under):
    """p of an entry of the core, from `core_tails`."""
    tail = r * (over / under)
    tail = 0.0 if tail < 0.0 else 1.0 if tail > 1.0 else tail
    return 1.0 - tail if upper else tail


FARTHEST = 1000.0  # e^-t is 0 in every type from there on


@scalar
def within_reach(t):
    """t, and 0 where it is so far, or infinite, that no derivative is left of its entry."""
    T = type(t)
    return t if abs(t) < T(FARTHEST) else T(0)


@summing
def combined_direction(t, s, v, drift):
    """v - t dtau; v where s underflows or t is far, even infinite."""
    return v - drift * (within_reach(t) if s > type(t)(0) else type(t)(0))
