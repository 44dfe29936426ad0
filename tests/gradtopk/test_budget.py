"""The error budget of GradTopK: Theorem thm-grad-budget of docs/math/gradtopk.md, term by term.

The bounds are sums over the nodes that the code chooses, at the worst variance and error of the
mean; then errors of rows, beside 80-digit arithmetic.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import reference
from mpmath import mp
from numba import njit
from numpy.polynomial import chebyshev
from scipy import special
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb.gradtopk import formulas, nodes
from softtopk_nb.gradtopk.cpu import contour, moments, rows
from softtopk_nb.gradtopk.records import SHORT

U = 2.0**-53  # a rounding
STEPS, FEWER = moments.STEPS, moments.STEPS - 4
UPPER = moments.ENOUGH * math.exp(2 * 0.094)  # the largest variance at which STEPS may serve


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


def test_mass_near_the_mean():
    """prop-grad-near, on sums of coins; and 3/4 of a normal density at the tilts accepted."""
    rng, nearest = np.random.default_rng(62), 0.0
    for n, scale in ((40, 0.1), (150, 1.0), (400, 3.0)):
        z = scale * rng.normal(size=n)
        for level in np.linspace(-1.5, 1.5, 7):
            pi = special.expit(z - level)
            v, mean = float((pi * (1 - pi)).sum()), float(pi.sum())
            chance = np.ones(1)
            for each in pi:
                chance = np.convolve(chance, [1 - each, each])
            for k in range(int(mean) - 3, int(mean) + 5):
                nearest = max(nearest, least_mass(v, abs(mean - k)) / chance[k])
    assert 0.95 < nearest <= 1.0

    def beside_normal(v):
        off = math.sqrt(rows.NEAR_ENOUGH * v)
        return 1 / (least_mass(v, 0.5 + off) * math.sqrt(2 * math.pi * v))

    assert 0.74 < 1 / largest(beside_normal, moments.LEAST, 1e9, points=100)[0] < 0.76


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


class Budget:
    """The bounds at variance v, a mean off k - 1/2 by `off`, and `extra` nodes more than needed."""

    def __init__(self, v, off, steps, extra=0):
        size, used = formulas.node_count(1 << 40, v, off - 0.5, 1.0, nodes.NODES)
        size += extra
        level, off = float(formulas.exponent(v, 1.0)) + off * off / v, abs(off)
        j = np.arange(used)
        angle = math.pi * j / size
        sine, cosine, tangent = np.sin(angle), np.cos(angle), np.tan(angle)
        mass = least_mass(v, 0.5 + off)
        both = np.where(j > 0, 2.0, 1.0)
        self.share = share = both * np.exp(-2 * v * sine**2) / size / mass
        self.turned = np.minimum(1.0, (1 + 2 * off) * angle + 4 * v * (tangent - angle))
        self.angle, self.tangent = angle, tangent
        self.other = (share * tangent * (0.5 * self.turned + 0.2 * tangent)).sum()
        root = np.tan(angle / 2)
        rho = root * root
        of_cosine = (7 * tangent**2 + 1.5) * U
        of_root = 10 * U + 0.5 * of_cosine
        m = np.arange(1, steps + 2)[:, None]
        q = np.arange(min(steps + 1, contour.ORDER))[:, None]
        even, odd = 8 * m * rho**m * v, 8 * (2 * q + 1) * root * rho**q * v
        self.sums = self.moved(even.sum(axis=0), odd.sum(axis=0))
        in_even, in_odd = local_errors(steps)
        modulus = (even * (2 * m * of_root + (2 * m + steps + 5) * U)).sum(axis=0)
        modulus += (rho**m / m * in_even).sum(axis=0) * v * U + 9 * U
        turn = (odd * ((2 * q + 1) * of_root + (2 * q + steps + 6) * U)).sum(axis=0)
        turn += (2 * root * rho**q / (2 * q + 1) * in_odd).sum(axis=0) * v * U
        turn += (steps + 6) * U * 2 * angle * (2 * v + 0.5 + off)
        self.rounding = self.moved(modulus, turn)
        m = np.arange(steps + 2, steps + 200)[:, None]
        q = np.arange(min(steps + 1, contour.ORDER), steps + 200)[:, None]
        lost = (8 * m * rho**m).sum(axis=0) * v, (8 * (2 * q + 1) * root * rho**q).sum(axis=0) * v
        self.series = self.moved(*(each * np.exp(lost[0] + lost[1]) for each in lost))
        # The polynomials in s: what they leave out, and their rounding at s = 1/4.
        r = np.linspace(0, 0.5, 201)[:, None]
        size_of = (r * np.sqrt(1 - 4 * sine**2 * r * (1 - r))).max(axis=0)
        terms = nodes.DEGREE
        self.polynomials = (size_of * share * 2 * rho**terms / (1 - rho) / cosine).sum()
        m = np.arange(terms)[:, None]
        sizes = np.array([[chebyshev.chebval(3.0, np.eye(terms)[i])] for i in range(terms)])
        weight = np.where(m > 0, 2.0, 1.0) * rho**m * sizes / cosine
        at_node = (28 * sine**2 + 31 * sine + 3 + 68) * U
        own = of_cosine + 2 * m * of_root + (2 * m + 10) * U
        self.written = 0.5 * (share * (weight * (at_node + own)).sum(axis=0)).sum()
        self.written += 31 * U * share.sum() + 6 * U
        self.dropped = 13.7 * math.exp(-level) / mass

    def moved(self, modulus, turn):
        """What errors of the logarithms of c_j, in modulus and argument, change in p at most."""
        both = 0.5 * self.tangent * (modulus + turn)
        return (self.share * (both + self.other * (modulus + self.turned * turn))).sum()

    def rest(self):
        """A of the theorem."""
        parts = self.rounding, self.series, self.polynomials, self.written, self.dropped
        return float(sum(parts))


def test_errors_of_the_weights():
    """thm-grad-budget: what errors of the logarithms of c_j change, against the sums themselves."""
    rng, nearest = np.random.default_rng(11), 0.0
    for scale, level in ((0.5, 0.0), (1.0, 1.0), (2.0, -2.0)):
        pi = special.expit(scale * rng.normal(size=400) - level)
        v, mean = float((pi * (1 - pi)).sum()), float(pi.sum())
        for k in (math.ceil(mean), math.ceil(mean - 0.4 * math.sqrt(v))):
            off = mean - k + 0.5
            budget, steps = Budget(v, off, FEWER), 1e-6
            w = np.exp(2j * budget.angle)
            u, both = w - 1, np.where(budget.angle > 0, 2.0, 1.0)
            c = both * np.exp(np.log1p(np.outer(pi, u)).sum(axis=0)) / w**k

            def p_of(c, u=u, pi=pi):
                c = c / c.real.sum()
                return pi + pi * (1 - pi) * (c * u / (1 + np.outer(pi, u))).real.sum(axis=1)

            for size in (budget.angle, budget.angle**2, budget.angle > 0.3):
                for sign in (1.0, rng.choice([-1.0, 1.0], len(c))):
                    for unit, most in (
                        (1.0, budget.moved(size, 0.0)),
                        (1j, budget.moved(0.0, size)),
                    ):
                        moved = p_of(c * np.exp(steps * unit * sign * size)) - p_of(c)
                        nearest = max(nearest, abs(moved).max() / steps / most)
    assert 0.2 < nearest <= 1.0


def worst(what, least):
    """The largest of what(budget) from a variance on, over what a tilt may be off by."""

    def at(v):
        steps = [n for n, serves in ((STEPS, v <= UPPER), (FEWER, v >= moments.ENOUGH)) if serves]
        offs = math.sqrt(rows.NEAR_ENOUGH * v) * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
        return max(what(Budget(v, o, n, e)) for n in steps for o in offs for e in (0, 2))

    return largest(at, least, 1e9, points=60, zooms=1, also=(moments.ENOUGH, UPPER))


def test_constants():
    """thm-grad-budget: A and B, from v = 24 and from v = 30 on; they are largest where v is."""
    for least, rest, sums in ((24.0, 3.5e-14, 1.2), (30.0, 2.1e-14, 1.14)):
        most, place = worst(Budget.rest, least)
        assert place < 1.1 * least
        assert 0.95 * rest < most < rest
        most, place = worst(lambda budget: budget.sums, least)
        assert place < 1.1 * least
        assert 0.95 * sums < most < sums
    assert (moments.LEAST, moments.STEP) == (24.0, 512)

    def proved(n, v):
        rest, sums = (2.1e-14, 1.14) if v >= 30 else (3.5e-14, 1.2)
        return rest + sums * (520 + n / 512) * U + 2 * U * math.log(n / v)

    assert 0.9e-13 < proved(30_000, 30) + 10 * 2 * U < 1e-13
    assert 3.4e-13 < proved(1e6, 24) < 3.8e-13


@njit
def sums_of(y, steps, sums):
    sums[:] = 0.0
    moments.add_series(y, steps, sums)


def test_recurrences():
    """thm-grad-budget: errors of the polynomials of one entry, by their distances from 1."""
    in_even, in_odd = local_errors(STEPS)
    sums, nearest = np.empty(contour.SUMS), 0.0
    rng = np.random.default_rng(3)
    for y in (*rng.uniform(0.05, 1, 60), *np.exp(rng.uniform(-30, -3, 20)), 1.0, 0.5):
        sums_of(np.array([y]), STEPS, sums)
        s = y * (2 - y) / 4
        with mp.workdps(50):
            even, odd = mp.acos(1 - 2 * mp.mpf(y) * (2 - mp.mpf(y))), mp.acos(1 - mp.mpf(y))
            for m in range(2, STEPS + 2):
                off = abs(float(sums[contour.EVEN + m - 2] - (1 - mp.cos(m * even))))
                nearest = max(nearest, off / (in_even[m - 1, 0] * s * U))
            for m in range(1, contour.ORDER):
                off = abs(float(sums[contour.ODD + m] - (1 - mp.cos((2 * m + 1) * odd))))
                nearest = max(nearest, off / (in_odd[m, 0] * s * U))
    assert 0.01 < nearest <= 1.0


@pytest.mark.parametrize("shape", ["normal", "two values", "cubes", "constant"])
def test_rows(shape):
    """thm-grad-budget: errors of rows beside 80 digits, which also are not all far below it."""
    rng, n, nearest = np.random.default_rng(9), 260, 0.0
    for k, tau in ((130, 0.6), (60, 1.0), (200, 2.0)):
        normal = rng.normal(size=n)
        x = {
            "normal": normal + 7.0,
            "two values": np.where(normal > 0.3, 0.4, -0.4),
            "cubes": np.tanh(normal) ** 3,
            "constant": np.zeros(n),
        }[shape]
        answer = reference.to_float64(reference.gradtopk(x, k, tau).p)
        p = stk.gradtopk(x, k, temperature=tau, method="contour")
        v = (answer * (1 - answer)).sum()
        assert v > 30
        reach = (x.max() - x.min()) / tau + abs(math.log(k / (n - k))) + 0.1
        bound = 2 * U * reach + 2.1e-14 + 1.14 * (520 + n / 512) * U
        assert abs(p - answer).max() <= bound
        nearest = max(nearest, abs(p - answer).max() / bound)
    assert nearest > 1e-4


def test_short_rows():
    """prop-grad-short-budget: what it proves for rows of every length; errors of rows below it."""

    def rarity(v, off):
        bounds = [least_mass(v, 0.5 + off)]
        if off < 0.5:  # thm-grad-mass, parts 2 and 3
            bounds.append((0.5 - off) / (1.5 - off) / math.sqrt(1 + 12 * v))
        return 1 / max(bounds)

    def bound(n, v, off, rarity):
        roundings = 3 * n + 9 + 2 * math.sqrt(v + (0.5 + off) ** 2)
        return roundings * U * rarity + (10 + n / 8) * U

    def proved(n):
        # A tilt is off by less than 0.11 v and 0.49 sqrt(v); by that v may exceed 27.5.
        most = n / 4 if n <= SHORT.always else 30.3
        offs = np.linspace(0, 1, 6)
        return largest(
            lambda v: max(
                bound(n, v, off, rarity(v, off))
                for off in offs * min(0.11 * v, 0.49 * math.sqrt(v))
            ),
            0.25,
            most,
            points=30,
            zooms=1,
        )[0]

    assert 30.3 - 0.49 * math.sqrt(30.3) >= SHORT.variance + 0.5
    for n, most in ((28, 1e-13), (SHORT.always, 8e-13), (SHORT.most, 3e-12)):
        slack = 2 * U * (math.log(n / 0.25) + 10)
        assert 0.9 * most < proved(n) + slack < most
    rng, nearest = np.random.default_rng(10), 0.0
    for n, k, tau in ((5, 2, 1.0), (28, 14, 5.0), (100, 50, 1.0), (128, 3, 0.3), (400, 20, 0.5)):
        x = rng.normal(size=n) - 3.0
        answer = reference.to_float64(reference.gradtopk(x, k, tau).p)
        p = stk.gradtopk(x, k, temperature=tau)
        chance = np.ones(1)
        tilt = stk.thretopk.threshold(x, k - 0.5, curve="sigmoid", temperature=tau)
        pi = special.expit((x - tilt) / tau)
        for each in pi:
            chance = np.convolve(chance, [1 - each, each])
        reach = (x.max() - x.min()) / tau + abs(math.log((k - 0.5) / (n - k + 0.5))) + 0.1
        most = bound(n, float((pi * (1 - pi)).sum()), 1.0, 1 / chance[k]) + 2 * U * reach
        assert abs(p - answer).max() <= most
        nearest = max(nearest, abs(p - answer).max() / most)
    assert nearest > 1e-3
