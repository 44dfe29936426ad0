"""GradTopK's error budgets with entries summed exactly, and in float32.

Propositions prop-grad-budget-exact and prop-grad-budget-32 of docs/math/gradtopk.md, term by term:
local roundings, what they change in p, the constants at their worst place, and rows.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import reference
from budgets import (
    LEAST_VARIANCE,
    U_32,
    Budget,
    CoreBudget,
    U,
    unit_of,
    worst,
    worst_with_core,
)
from mpmath import mp
from numba import njit
from scipy import optimize, special

import softtopk_nb as stk
from softtopk_nb.gradtopk import nodes, records
from softtopk_nb.gradtopk.cpu import contour, marginals, moments

ADDED = 1040  # roundings of a sum of powers, but for a block more every 1024 entries


def size(x: tuple[Fraction, Fraction]) -> float:
    return math.hypot(float(x[0]), float(x[1]))


def product(x, y):
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def test_products_and_factors():
    """prop-grad-budget-exact: 1 + sqrt 2 roundings of a product, 0.8 of a factor 1 + r u."""
    rng, nearest, of_factors = np.random.default_rng(14), 0.0, 0.0
    for _ in range(20_000):
        # Beside 3/4 and 2/3 all roundings of a product can be large, and in the same direction.
        near = 1 + 2 * U * rng.integers(-16, 17, (2, 2))
        x, y = (
            tuple(map(float, middle * each))
            for middle, each in zip((0.75, 2 / 3), near, strict=True)
        )
        exact = product(*(tuple(map(Fraction, each)) for each in (x, y)))
        off = [Fraction(a) - b for a, b in zip(product(x, y), exact, strict=True)]
        nearest = max(nearest, size(off) / size(exact) / U)
        r, angle = 0.5 * float(rng.random()), math.pi * float(rng.random())
        g, sine = 4 * math.sin(0.5 * angle) ** 2, math.sin(angle)
        half = 0.5 * r
        off = [
            Fraction(1.0 - half * g) - (1 - Fraction(half) * Fraction(g)),
            Fraction(r * sine) - Fraction(r) * Fraction(sine),
        ]
        of_factors = max(of_factors, size(off) / U)
    assert 0.8 * (1 + math.sqrt(2)) < nearest <= 1 + math.sqrt(2)
    assert 0.8 * 0.8 < of_factors <= 0.8


@njit
def node(j, size):
    return nodes.node(j, size)


def test_nodes():
    """prop-grad-budget-exact: |u|^2 to 13 roundings, u to 17."""
    of_square, nearest = 0.0, 0.0
    for size in range(3, 121, 2):
        for j in range(1, size // 2 + 1):
            g, sine = node(j, size)
            with mp.workdps(40):
                angle = 2 * mp.pi * j / size
                square = 4 * mp.sin(angle / 2) ** 2
                off = mp.hypot(g / 2 - square / 2, sine - mp.sin(angle)) / mp.sqrt(square)
                of_square = max(of_square, float(abs(g / square - 1)) / U)
                nearest = max(nearest, float(off) / U)
    assert 0.2 * 13 < of_square <= 13
    assert 0.2 * 17 < nearest <= 17


def tilted(n, scale, k, rng, off=0.0):
    """Log-odds of n variables whose mean is off k - 1/2."""
    t = scale * rng.normal(size=n)
    level = optimize.brentq(lambda a: special.expit(t - a).sum() - (k - 0.5 + off), -1e3, 1e3)
    return t - level


@pytest.mark.parametrize("scale", [3.0, 10.0, 40.0])
def test_errors_of_the_weights(scale):
    """prop-grad-budget-exact: what errors of c_j and of a factor change, against the sums."""
    rng, steps = np.random.default_rng(15), 1e-7
    nearest = {"weights": 0.0, "factors": 0.0, "own": 0.0}
    for k, off in ((30, 0.0), (21, -0.3), (45, 0.3)):
        pi = special.expit(tilted(60, scale, k, rng, off))
        pi[np.abs(pi - 0.5) < 0.02] = 0.5  # where a factor can all but vanish
        s, off = pi * (1 - pi), float(pi.sum()) - k + 0.5
        budget = CoreBudget(float(s.sum()), off, 60)
        w = np.exp(2j * budget.angle)
        u, both = w - 1, np.where(budget.angle > 0, 2.0, 1.0)
        factors = 1 + np.outer(pi, u)
        c = both * np.prod(factors, axis=0) / w**k

        def p_of(c, u=u, factors=factors, pi=pi, s=s):
            c = c / c.real.sum()
            return pi + s * (c * u / factors).real.sum(axis=1)

        for size in (budget.sine, budget.sine**2, budget.sine**8):
            for turn in (1.0, 1j, np.exp(1j * rng.uniform(0, 6.3, len(c)))):
                change = abs(p_of(c * (1 + steps * turn * size)) - p_of(c)) / steps
                nearest["weights"] = max(nearest["weights"], change.max() / budget.moved(size))
                for i in np.argsort(s)[-3:]:
                    change = abs(p_of(c * (1 + steps * turn * size / factors[i])) - p_of(c)) / steps
                    others = np.delete(change, i).max() / budget.moved_by_factors(size)
                    own = change[i] - budget.other * (budget.share * budget.without * size).sum()
                    nearest["factors"] = max(nearest["factors"], others)
                    nearest["own"] = max(nearest["own"], own / budget.moved_by_own(size))
    assert all(each <= 1.0 for each in nearest.values())
    assert min(nearest["weights"], nearest["factors"]) > 0.1, nearest


def test_constants():
    """prop-grad-budget-exact: A and B, of every variance, and of those from 6 on."""
    for least, rest, sums in ((LEAST_VARIANCE, 1.13e-12, 7.0), (6.0, 2.5e-13, 0.9)):
        assert 0.95 * rest < worst_with_core(CoreBudget.rest, least, moments.LEAST)[0] < rest
        found, _ = worst_with_core(lambda budget: budget.sums, least, moments.LEAST)
        assert 0.95 * sums < found < sums
    assert (moments.LEAST, contour.BLOCK) == (24.0, 1024)

    def proved(n, rest, sums, v):
        return rest + sums * (ADDED + n / 1024) * U + 2 * U * (math.log(n / v) + 10)

    assert 2.6e-12 < proved(1e6, 1.13e-12, 7.0, LEAST_VARIANCE) < 3e-12
    assert 4.5e-13 < proved(1e6, 2.5e-13, 0.9, 6.0) < 5e-13


def test_constants_in_float32():
    """prop-grad-budget-32: the constants with entries summed exactly, and without."""
    one, blocks = np.float32(1), ADDED + 1e7 / 512

    def with_core(budget):
        return budget.rest() + budget.sums * blocks * U

    def without(budget):
        return budget.rest() + 512 * U_32 * budget.sums + 2 * blocks * U

    assert 1.15e-5 < worst_with_core(with_core, LEAST_VARIANCE, moments.LEAST_32, one)[0] < 1.2e-5
    most, place = worst(without, moments.LEAST_32, one)
    assert 7.4e-6 < most < 7.6e-6
    assert place < 1.1 * moments.LEAST_32
    assert (moments.LEAST_32, moments.STEP) == (12.0, 512)
    slack = 2 * U_32 * (math.log(1e7 / LEAST_VARIANCE) + 10)
    assert 1.5e-5 < 1.2e-5 + slack < 1.6e-5


@njit
def solved(t, k, kept, table, p):
    """Solve a row of log-odds; returns its steps and numbers of nodes, on the circle and used."""
    T = t.dtype.type
    at = T(0), T(1), T(0)
    seen = moments.tilted_probabilities(t, *at, kept)
    limit, steps = moments.choose_series(seen.variance, T(1))
    sums, core = np.empty(contour.SUMS), np.empty(contour.MOST_IN_CORE)
    if steps > 0:
        moments.chebyshev_sums(kept, seen, steps, sums)
        size, used, _ = contour.quadrature(len(t), k, T(1), steps, sums, None, 0, table)
    else:
        work = contour.power_sums_scratch(t)
        found = contour.power_sums(kept, seen, T(1), limit, work, sums, core)
        size, used, _ = contour.quadrature(len(t), k, T(1), steps, sums, core, found, table)
    polynomials = np.empty((records.MARGINAL_POLYNOMIALS, nodes.DEGREE), t.dtype)
    of_core = np.empty((records.MARGINAL_FIELDS, nodes.NODES))
    marginals.marginal_coefficients(table, used, polynomials, of_core)
    if steps > 0:
        marginals.chebyshev_marginals(t, *at, steps, polynomials, p)
    else:
        scratch = marginals.marginals_scratch(t)
        marginals.marginals(t, *at, limit, of_core, used, polynomials, scratch, p)
    return steps, size, used


def exactly_solved(y, k):
    """p of variables with y = 2 r, negative where pi >= 1/2 (thm-grad-division)."""
    below = ~np.signbit(y)
    with mp.workdps(50):
        odds = [mp.mpf(abs(each)) / (2 - mp.mpf(abs(each))) for each in map(float, y)]
        b = [mp.mpf(1)]
        for e, under in zip(odds, below, strict=True):
            low, high = ([*b, 0], [0, *b]) if under else ([0, *b], [*b, 0])
            b = [one + e * other for one, other in zip(low, high, strict=True)]
        p = []
        for e, under in zip(odds, below, strict=True):
            terms = b[:k] if under else b[k + 1 :][::-1]
            total = functools.reduce(lambda value, term: term - e * value, terms)
            tail = e * total / b[k]
            p.append(tail if under else 1 - tail)
        return np.array([mp.mpf(each) for each in p])


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
@pytest.mark.parametrize(("n", "scale"), [(3, 9.0), (60, 40.0), (200, 9.0), (90, 1.6)])
def test_rows_of_given_chances(n, scale, dtype):
    """prop-grad-budget-exact, -32: errors of p of the chances that were computed, and of a part.

    The part is p from the weights of the nodes, by fractions.
    """
    rng, one, nearest = np.random.default_rng(16), dtype(1), 0.0
    for k, away in ((max(1, n // 2), 0.0), (max(1, n // 3), 0.5), (2 * n // 3, -0.5)):
        t = tilted(n, scale, k, rng)
        s = special.expit(t) * special.expit(-t)
        t = (t + away / math.sqrt(s.sum()) * min(1.0, 0.5 * math.sqrt(s.sum()))).astype(dtype)
        kept, p, table = (
            np.empty_like(t),
            np.empty_like(t),
            np.empty((nodes.FIELDS, nodes.CAPACITY)),
        )
        steps, size, used = solved(t, k, kept, table, p)
        pi = np.where(np.signbit(kept), 1 + 0.5 * kept, 0.5 * kept).astype(np.float64)
        v, off = float((pi * (1 - pi)).sum()), float(pi.sum()) - k + 0.5
        assert off * off <= 0.34 * v
        if steps:
            budget = Budget(v, off, steps, one=one)
            most = budget.rest() + budget.sums * (520 * unit_of(one))
        else:
            budget = CoreBudget(v, off, n, one=one)
            most = budget.rest() + budget.sums * (ADDED + 1) * U
        exact = exactly_solved(kept, k)
        error = float(abs(p - exact).max())
        assert error <= most
        nearest = max(nearest, error / most)
        if steps or dtype is np.float32:
            continue
        with mp.workdps(40):
            by_weights = []
            for each in pi:
                total = mp.mpf(0)
                for j in range(used):
                    w = mp.expjpi(mp.mpf(2 * j) / size)
                    c = mp.mpc(table[nodes.RE, j], table[nodes.IM, j])
                    total += (c * each * w / (1 + each * (w - 1))).real
                by_weights.append(total)
        of_part = budget.fractions() + (31 * budget.share.sum() + 6) * U
        error = float(abs(p - np.array(by_weights)).max())
        assert 1e-4 < error / of_part <= 1.0
    assert nearest > 1e-4


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])
def test_rows(dtype):
    """prop-grad-budget-exact, -32: errors of rows beside 80 digits, not all far below the bound."""
    rng, unit, nearest = np.random.default_rng(17), unit_of(dtype(1)), 0.0
    for n, k, tau in ((300, 100, 0.05), (90, 45, 0.01), (250, 40, 0.2), (150, 148, 0.3)):
        x = (rng.normal(size=n) + 3.0).astype(dtype)
        answer = reference.to_float64(reference.gradtopk(x, k, tau).p)
        p = stk.gradtopk(x, k, temperature=tau, method="contour")
        assert 0.1 < float((answer * (1 - answer)).sum()) < 24
        reach = float(x.max() - x.min()) / tau + abs(math.log(k / (n - k))) + 0.1
        rest = 1.13e-12 + 7.0 * (ADDED + 1) * U if dtype is np.float64 else 1.2e-5
        bound, error = 2 * unit * reach + rest, abs(p - answer).max()
        assert error <= bound
        nearest = max(nearest, error / bound)
    assert nearest > 1e-4


def test_short_rows_in_float32():
    """prop-grad-budget-32: scores, 1.5 eps and what float64 leaves, in short rows."""
    rng, nearest = np.random.default_rng(18), 0.0
    for n, k, tau in ((60, 20, 0.5), (96, 50, 3.0), (250, 9, 0.2)):
        x = rng.normal(size=n).astype(np.float32)
        answer = reference.to_float64(reference.gradtopk(x, k, tau).p)
        p = stk.gradtopk(x, k, temperature=tau)
        reach = float(x.max() - x.min()) / tau + abs(math.log(k / (n - k))) + 0.1
        bound, error = 2 * U_32 * (reach + 1.5) + 3e-12, abs(p - answer).max()
        assert error <= bound
        nearest = max(nearest, error / bound)
    assert nearest > 0.01
