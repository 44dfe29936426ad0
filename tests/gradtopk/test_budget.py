"""The error budget of GradTopK: Theorem thm-grad-budget of docs/math/gradtopk.md, term by term.

The bounds are sums over the nodes that the code chooses, at the worst variance and error of the
mean; then errors of rows, beside 80-digit arithmetic.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
from budgets import U_32, Budget, U, least_mass, local_errors, rarest_of_all, worst
from mpmath import mp
from numba import njit
from scipy import special
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb.gradtopk.cpu import contour, moments, rows
from softtopk_nb.gradtopk.records import SHORT

STEPS, FEWER = moments.STEPS, moments.STEPS - 4


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


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_recurrences(dtype):
    """thm-grad-budget: errors of the polynomials of one entry, by their distances from 1."""
    steps, unit = (STEPS, U) if dtype is np.float64 else (moments.STEPS_32, U_32)
    in_even, in_odd = local_errors(steps)
    sums, nearest = np.empty(contour.SUMS), 0.0
    rng = np.random.default_rng(3)
    several = *rng.uniform(0.05, 1, 60), *np.exp(rng.uniform(-30, -3, 20)), 1.0, 0.5
    for y in np.array(several, dtype):
        sums_of(np.array([y]), steps, sums)
        y = float(y)
        s = y * (2 - y) / 4
        with mp.workdps(50):
            even, odd = mp.acos(1 - 2 * mp.mpf(y) * (2 - mp.mpf(y))), mp.acos(1 - mp.mpf(y))
            for m in range(2, steps + 2):
                off = abs(float(sums[contour.EVEN + m - 2] - (1 - mp.cos(m * even))))
                nearest = max(nearest, off / (in_even[m - 1, 0] * s * unit))
            for m in range(1, min(steps + 1, contour.ORDER)):
                off = abs(float(sums[contour.ODD + m] - (1 - mp.cos((2 * m + 1) * odd))))
                nearest = max(nearest, off / (in_odd[m, 0] * s * unit))
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

    def bound(n, v, off, rarity):
        roundings = 3 * n + 9 + 2 * math.sqrt(v + (0.5 + off) ** 2)
        return roundings * U * rarity + (10 + n / 8) * U

    def proved(n):
        # A tilt is off by less than 0.11 v and 0.49 sqrt(v); by that v may exceed 27.5.
        most = n / 4 if n <= SHORT.always else 30.3
        offs = np.linspace(0, 1, 6)
        return largest(
            lambda v: max(
                bound(n, v, off, rarest_of_all(v, off))
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
