"""Bounds of GradTopK's errors at one variance of the count: functions of docs/math/gradtopk.md.

They are sums over the nodes that the code chooses. `Budget` is for rows in Chebyshev series
(thm-grad-budget), `CoreBudget` for rows of which some entries are summed exactly
(prop-grad-budget-exact), both also in float32 (prop-grad-budget-32).
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.polynomial import chebyshev
from worst_place import largest

from softtopk_nb.gradtopk import formulas, nodes
from softtopk_nb.gradtopk.cpu import contour, marginals, moments

U, U_32 = 2.0**-53, 2.0**-24  # a rounding
ANY_LENGTH = 1 << 40
FARTHEST = 0.34  # squared error of the mean count, in variances, of a tilt that is accepted
LEAST_VARIANCE = 0.25 / (1 + FARTHEST)  # v >= 1/4 - off^2


def unit_of(one):
    """A rounding in the type of `one`."""
    return U_32 if isinstance(one, np.float32) else U


@functools.cache
def least_mass(v, a, parts=2000):
    """prop-grad-near: P(N = k) at least, at variance v and a mean within a of k."""
    top = min(0.5 * math.pi, 6.0 / math.sqrt(v))
    angle = (np.arange(parts) + 0.5) * top / parts
    off = 2 * a * angle + 4 * v * (np.tan(angle) - angle)
    most = np.exp(-2 * v * np.sin(angle) ** 2)
    inner = np.cos(angle) ** (4 * v) * np.cos(off)
    integrand = np.where(off <= 0.5 * math.pi, inner, most * np.cos(np.minimum(off, math.pi)))
    return 2 / math.pi * integrand.sum() * top / parts


def loss_of_tilt(v, off):
    """thm-grad-mass, part 4, for a mean that is off < v away from k - 1/2."""
    return off + (0.5 - v + off) * math.log(v / (v - off))


def rarest(v, off):
    """prop-grad-level: 1/P(N = k) at most, at variance v and a mean off k - 1/2 by so much."""
    bounds = [np.inf, np.inf]
    if off < 0.5:
        a = 0.5 - off
        bounds[0] = (1 + a) / a * math.sqrt(1 + 12 * v)
    if off < v:
        bounds[1] = 3 * math.sqrt(1 + 12 * (v + off)) * math.exp(loss_of_tilt(v, off))
    return min(bounds)


def rarest_of_all(v, off):
    """The smaller of the bounds of prop-grad-level and of prop-grad-near."""
    near = least_mass(v, 0.5 + off)
    return min(rarest(v, off), 1 / near if near > 0 else np.inf)


def accepted(v, parts=40):
    """The errors of the mean that a tilt of variance v may have."""
    return [o for o in np.linspace(0, math.sqrt(FARTHEST * v), parts + 1) if v >= 0.25 - o * o]


def local_errors(steps):
    """Errors of the recurrences, in roundings and multiples of s, at most.

    Each step adds 16 of the last value, 4 of 16 s and 2 of the value before, which are bounded by
    the squares of their degrees; an error grows no faster than Chebyshev's second polynomials.
    """
    even = [0.0] + [128.0 * m * m + 64 + 16 * (m - 1) ** 2 for m in range(1, steps + 1)]
    odd = [64.0 * (2 * m + 1) ** 2 + 64 + 8 * (2 * m - 1) ** 2 for m in range(steps + 1)]
    in_even = [16.0 * m + sum((m - i) * even[i] for i in range(1, m)) for m in range(1, steps + 2)]
    in_odd = [sum((m - i) * odd[i] for i in range(m)) for m in range(min(steps + 1, contour.ORDER))]
    return np.array(in_even)[:, None], np.array(in_odd)[:, None]


class Circle:
    """The nodes at variance v and a mean off k - 1/2 by `off`, and what every budget needs of them.

    `n`: the length of the row; `extra`: nodes more than needed, an even number.
    """

    def __init__(self, v, off, rarity, n, extra, one):
        size, used = formulas.node_count(n, v, off - 0.5, one, nodes.NODES)
        size, used = size + extra, min(used + extra // 2, nodes.NODES)
        level, off = float(formulas.exponent(v, one)) + off * off / v, abs(off)
        j = np.arange(used)
        self.angle = angle = math.pi * j / size
        self.sine, self.cosine, self.tangent = np.sin(angle), np.cos(angle), np.tan(angle)
        self.share = np.where(j > 0, 2.0, 1.0) * np.exp(-2 * v * self.sine**2) / size * rarity
        self.turned = np.minimum(1.0, (1 + 2 * off) * angle + 4 * v * (self.tangent - angle))
        both = 0.5 * self.turned + 0.2 * self.tangent
        self.other = (self.share * self.tangent * both).sum()
        self.dropped = 13.7 * math.exp(-level) * rarity


class Budget(Circle):
    """thm-grad-budget, and prop-grad-budget-32 with `one` a float32, for rows in Chebyshev series.

    `rest` is A of the theorem, and `sums` is B; in float32 B of the sums that are float32.
    """

    def __init__(self, v, off, steps, extra=0, one=1.0):
        super().__init__(v, off, 1 / least_mass(v, 0.5 + abs(off)), ANY_LENGTH, extra, one)
        unit, off = unit_of(one), abs(off)
        angle, sine, cosine, tangent = self.angle, self.sine, self.cosine, self.tangent
        root = np.tan(angle / 2)
        rho = root * root
        of_cosine = (7 * tangent**2 + 1.5) * U
        of_root = 10 * U + 0.5 * of_cosine
        m = np.arange(1, steps + 2)[:, None]
        q = np.arange(min(steps + 1, contour.ORDER))[:, None]
        even, odd = 8 * m * rho**m * v, 8 * (2 * q + 1) * root * rho**q * v
        first = 0 if unit == U else 1  # in float32 the first powers are added in float64
        self.sums = self.moved(even.sum(axis=0), odd[first:].sum(axis=0))
        in_even, in_odd = local_errors(steps)
        modulus = (even * (2 * m * of_root + (2 * m + steps + 5) * U)).sum(axis=0)
        modulus += (rho**m / m * in_even).sum(axis=0) * v * unit + 9 * U
        turn = (odd * ((2 * q + 1) * of_root + (2 * q + steps + 6) * U)).sum(axis=0)
        turn += (2 * root * rho**q / (2 * q + 1) * in_odd).sum(axis=0) * v * unit
        turn += (steps + 6) * U * 2 * angle * (2 * v + 0.5 + off)
        self.rounding = self.moved(modulus, turn)
        m = np.arange(steps + 2, steps + 200)[:, None]
        q = np.arange(min(steps + 1, contour.ORDER), steps + 200)[:, None]
        lost = (8 * m * rho**m).sum(axis=0) * v, (8 * (2 * q + 1) * root * rho**q).sum(axis=0) * v
        self.series = self.moved(*(each * np.exp(lost[0] + lost[1]) for each in lost))
        # The polynomials in s: what they leave out, and their rounding at s = 1/4.
        r = np.linspace(0, 0.5, 201)[:, None]
        size_of = (r * np.sqrt(1 - 4 * sine**2 * r * (1 - r))).max(axis=0)
        terms = nodes.terms_of(steps)
        self.polynomials = (size_of * self.share * 2 * rho**terms / (1 - rho) / cosine).sum()
        m = np.arange(terms)[:, None]
        sizes = np.array([[chebyshev.chebval(3.0, np.eye(terms)[i])] for i in range(terms)])
        weight = np.where(m > 0, 2.0, 1.0) * rho**m * sizes / cosine
        at_node = (28 * sine**2 + 31 * sine + 3 + 68) * U
        own = of_cosine + 2 * m * of_root + (2 * m + 10) * U
        if unit != U:
            own += (6 + 4 * m) * unit
        self.written = 0.5 * (self.share * (weight * (at_node + own)).sum(axis=0)).sum()
        self.written += 31 * U * self.share.sum() + (6 * U if unit == U else 4.8 * unit)

    def moved(self, modulus, turn):
        """What errors of the logarithms of c_j, in modulus and argument, change in p at most."""
        both = 0.5 * self.tangent * (modulus + turn)
        return (self.share * (both + self.other * (modulus + self.turned * turn))).sum()

    def rest(self):
        """A of the theorem."""
        parts = self.rounding, self.series, self.polynomials, self.written, self.dropped
        return float(sum(parts))


class CoreBudget(Circle):
    """prop-grad-budget-exact, and prop-grad-budget-32 with `one` a float32.

    `rest` is A of the proposition, and `sums` is B.
    """

    def __init__(self, v, off, n=ANY_LENGTH, extra=0, one=1.0):
        super().__init__(v, off, rarest_of_all(v, abs(off)), n, extra, one)
        unit, share = unit_of(one), self.share
        self.other = min(1.0, self.other)
        self.without = np.exp(0.5 * self.sine**2)  # a product of factors grows without one of them
        cut, _ = moments.choose_series(v, one)
        size, r = 2 * self.sine, 0.5 - math.sqrt(0.25 - cut)  # r of the other entries, at most
        in_core, away = min(v / cut, n), self.sine > 0
        of_factors = (3.21 * (in_core + 1) + 34 * v * size) * U
        of_weight = (9 + 32 * self.angle * (2 * v + 0.5 + abs(off))) * U
        self.rounding = self.moved(of_weight * away) + self.moved_by_factors(of_factors * away)
        self.rounding += self.moved_by_own((0.8 + 17 * self.sine) * U)
        # The power series: sums of the powers, those above the first, and what is left out.
        q, total = 2 * r, size * v / (1 - r)
        all_powers = -math.log(1 - q) / q
        self.sums = self.moved(all_powers * total)
        self.higher = self.moved((all_powers - 1) * total * size / 2)
        order = contour.ORDER if unit == U else contour.ORDER_32
        self.left_out = self.moved((r * size) ** order * total / (order + 1) / (1 - q))
        # The polynomials in s.
        faint = marginals.FAINT if unit == U else marginals.FAINT_32
        for top, terms in ((cut, nodes.DEGREE), (faint, nodes.FEW)):
            self.left_out += 2 * top * (share * (top * size**2) ** terms).sum() / (1 - 4 * top)
        self.written = self.fractions() + 31 * U * share.sum() + 6 * U
        if unit != U:
            self.written += 1030 * unit * self.higher + (8 * r * share.sum() + 4.8) * unit

    def moved(self, errors):
        """What relative errors of c_j change in p at most."""
        return (self.share * (0.5 * self.sine * self.without + self.other) * errors).sum()

    def moved_by_factors(self, errors):
        """What absolute errors of the factors of other entries change in p at most."""
        return self.moved(self.without * errors)

    def moved_by_own(self, errors):
        """What an absolute error of an entry's own factor changes in its p at most."""
        return 0.5 * (self.share * self.tangent * self.without * errors).sum()

    def fractions(self):
        """The rounding of a fraction over the common denominator of all nodes, at s = 1/4."""
        of_over, of_under = 6 + 34 * self.sine, 1 + 15 * self.sine**2
        each = of_over / self.cosine + of_under / self.cosine**2 + 100
        return 0.5 * U * (self.share * self.without * each).sum()

    def rest(self):
        """A of the proposition."""
        return float(self.rounding + self.left_out + self.written + self.dropped)


def series_of(v, one):
    """The numbers of steps that Chebyshev series of variance v may have."""
    most, enough = (
        (moments.STEPS, moments.ENOUGH)
        if unit_of(one) == U
        else (moments.STEPS_32, moments.ENOUGH_32)
    )
    upper = enough * math.exp(2 * 0.094)  # the tilt may have moved since the choice
    return [steps for steps, serves in ((most, v <= upper), (most - 4, v >= enough)) if serves]


def worst(what, least, one=1.0):
    """The largest of what(`Budget`) from a variance on, over what a tilt may be off by."""

    def at(v):
        offs = math.sqrt(FARTHEST * v) * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
        budgets = (
            Budget(v, off, steps, extra, one)
            for steps in series_of(v, one)
            for off in offs
            for extra in (0, 2)
        )
        return max(map(what, budgets))

    enough = moments.ENOUGH if unit_of(one) == U else moments.ENOUGH_32
    also = enough, enough * math.exp(2 * 0.094)
    return largest(at, least, 1e9, points=60, zooms=1, also=also)


def worst_with_core(what, low, high, one=1.0):
    """The largest of what(`CoreBudget`) between two variances, also over the lengths of rows."""

    def at(v):
        lengths = [n for n in range(2, 70, 2) if n >= 4 * v]
        budgets = (
            CoreBudget(v, off, n, extra, one)
            for each in accepted(v, 4)
            for off in {each, -each}
            for n, extra in (*((n, 0) for n in lengths), (ANY_LENGTH, 0), (ANY_LENGTH, 2))
        )
        return max(map(what, budgets))

    return largest(at, low, np.nextafter(high, 0.0), points=30, zooms=1)
