"""GradTopK of short rows: the count's distribution multiplied out, each variable divided out.

The theorems of docs/math/gradtopk.md, section "Short rows", in exact arithmetic, then the kernels
beside the contour, which shares nothing with them but the tilt.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp

import softtopk_nb as stk
from softtopk_nb.gradtopk.cpu import poisson_binomial as counts
from softtopk_nb.gradtopk.formulas import exponent
from softtopk_nb.gradtopk.records import SHORT, SHORT_32

both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


def distribution_of(chances):
    """P(m of the coins come up), exactly."""
    distribution = [Fraction(1)]
    for p in chances:
        distribution = [
            (1 - p) * a + p * b
            for a, b in zip([*distribution, Fraction(0)], [Fraction(0), *distribution], strict=True)
        ]
    return distribution


def rows_of_coins(count, most):
    """Coins whose mean count is about k - 1/2, the fair and the nearly certain among them."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        n = int(rng.integers(3, most))
        k = int(rng.integers(1, n))
        scores = rng.normal(size=n) * rng.choice([0.3, 2.0, 10.0])
        scores[: n // 4] = scores[0]
        low, high = scores.min() - 40, scores.max() + 40
        for _ in range(80):
            middle = 0.5 * (low + high)
            mean = (1 / (1 + np.exp(middle - scores))).sum()
            low, high = (middle, high) if mean > k - 0.5 else (low, middle)
        odds = [Fraction(float(np.exp(s - low))) for s in scores]
        yield k, [o / (1 + o) for o in odds]


def test_a_variable_is_divided_out():
    """Theorem thm-grad-division, part 1."""
    for k, chances in rows_of_coins(30, 14):
        distribution = distribution_of(chances)
        for i, chance in enumerate(chances):
            others = distribution_of(chances[:i] + chances[i + 1 :])
            p = chance * others[k - 1] / distribution[k]
            if chance < Fraction(1, 2):
                e = chance / (1 - chance)
                assert p == e / distribution[k] * sum(
                    (-e) ** j * distribution[k - 1 - j] for j in range(k)
                )
            else:
                e = (1 - chance) / chance
                rest = range(len(distribution) - k - 1)
                assert 1 - p == e / distribution[k] * sum(
                    (-e) ** j * distribution[k + 1 + j] for j in rest
                )


def test_the_division_is_stable():
    """Theorem thm-grad-division, part 2: how much larger the terms are than their sum."""
    largest = 0.0
    for k, chances in rows_of_coins(60, 40):
        distribution = distribution_of(chances)
        root = float(1 + 12 * sum(c * (1 - c) for c in chances)) ** 0.5
        for chance in chances:
            e = min(chance, 1 - chance) / max(chance, 1 - chance)
            if chance < Fraction(1, 2):
                terms = [(-e) ** j * distribution[k - 1 - j] for j in range(k)]
                ratio = float(sum(map(abs, terms)) / sum(terms))
                assert ratio <= 1 + 18 * root
                largest = max(largest, ratio)
            else:
                terms = [
                    e ** (j + 1) * distribution[k + 1 + j] for j in range(len(distribution) - k - 1)
                ]
                assert float(sum(terms) / distribution[k]) <= 3 * root
    assert largest > 3  # the bound is put to the test at all


def test_what_is_left_out():
    """Theorem thm-grad-division, part 3: the remainder is at most the first term left out."""
    for k, chances in rows_of_coins(20, 30):
        distribution = distribution_of(chances)
        for chance in chances:
            if chance < Fraction(1, 2):
                e = chance / (1 - chance)
                terms = [(-e) ** j * distribution[k - 1 - j] for j in range(k)]
                least = max(range(k + 1), key=lambda m: distribution[m])
                for j in range(max(0, k - 1 - least), k):
                    assert abs(sum(terms[j:])) <= abs(terms[j])


def test_counts_out_of_reach_do_not_matter():
    """Theorem thm-grad-division, part 4."""
    for one, eps in ((np.float64(1), 2.0**-52), (np.float32(1), 2.0**-23)):
        level = exponent(0.25 * SHORT.most, one)
        for k, chances in rows_of_coins(40, 60):
            distribution, n = distribution_of(chances), len(chances)
            far = counts.radius(level, n, k)
            assert float(sum(distribution[k + far + 1 :])) <= 0.5 * eps * float(distribution[k])


def scores(rng, rows, n, dtype):
    x = rng.normal(size=(rows, n)) * rng.choice([0.01, 0.5, 3.0, 40.0], size=(rows, 1))
    x[:, : n // 5] = x[:, :1]
    return x.astype(dtype)


@both_dtypes
@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, 127, 129, 255, 256]
)
def test_beside_the_contour(n, dtype, rng):
    x = scores(rng, 11, n, dtype)
    k = rng.integers(0, n + 1, size=11)
    tau = rng.choice([0.5, 1.0, 2.0], size=11)
    v = rng.normal(size=x.shape).astype(dtype) + dtype(2)
    options = {"temperature": tau, "method": "contour"}
    wide = x.astype(np.float64)
    reach = (wide.max(axis=1) - wide.min(axis=1)) / tau
    loose = ((1e-13 if dtype is np.float64 else 1e-6) + 8 * np.finfo(dtype).eps * reach)[:, None]
    p, dp = stk.gradtopk.jvp(x, k, v, temperature=tau)
    exact_p, exact_dp = stk.gradtopk.jvp(wide, k, v.astype(np.float64), **options)
    assert (abs(p - exact_p) <= loose).all()
    assert (abs(dp - exact_dp) <= 20 * loose).all()
    gradients = stk.gradtopk.vjp(x, k, temperature=tau)[1](v)
    exact = stk.gradtopk.vjp(wide, k, **options)[1](v.astype(np.float64))
    assert (abs(gradients.x - exact.x) <= 20 * loose).all()
    slack = 20 * loose[:, 0] * (1 + reach) * max(n, 1)
    assert (abs(gradients.temperature - exact.temperature) <= slack).all()


@both_dtypes
def test_the_longest_short_rows_and_the_shortest_others(dtype, rng):
    limits = SHORT if dtype is np.float64 else SHORT_32
    for n in (limits.always, limits.always + 1, limits.most, limits.most + 1):
        x = scores(rng, 9, n, dtype)
        few = max(k for k in range(n // 2 + 1) if k * (n - k) <= limits.variance * n)
        k = np.array([1, 2, few, few + 1, n // 2, n - few - 1, n - few, n - 2, n - 1])
        p = stk.gradtopk(x, k)
        exact = stk.gradtopk(x.astype(np.float64), k, method="dp")
        reach = (x.max(axis=1) - x.min(axis=1)).astype(np.float64)
        loose = (1e-13 if dtype is np.float64 else 1e-6) + 4 * np.finfo(dtype).eps * reach
        assert (abs(p - exact) <= loose[:, None]).all()


@both_dtypes
def test_no_row_leaves_anything_to_its_neighbours(dtype, rng):
    """Rows of every kind and k in groups: the bits of each alone, in any company."""
    x = scores(rng, 61, 50, dtype)
    x[3, 7], x[9] = np.nan, 2.0
    for i in range(12, 60, 3):  # excluded entries and certain ones, so that lengths differ
        x[i, rng.permutation(50)[: rng.integers(1, 49)]] = -np.inf
        x[i, rng.integers(50)] = np.inf
    k = rng.integers(0, 51, size=61)
    tau = rng.choice([1e-30, 0.1, 1.0, 1e4], size=61)
    v = rng.normal(size=x.shape).astype(dtype)
    alone = [
        (
            *stk.gradtopk.jvp(x[i], k[i], v[i], temperature=tau[i]),
            stk.gradtopk.vjp(x[i], k[i], temperature=tau[i])[1](v[i]).x,
        )
        for i in range(61)
    ]
    for order in (np.arange(61), np.arange(61)[::-1], rng.permutation(61)):
        p, dp = stk.gradtopk.jvp(x[order], k[order], v[order], temperature=tau[order])
        gx = stk.gradtopk.vjp(x[order], k[order], temperature=tau[order])[1](v[order]).x
        for at, i in enumerate(order):
            for got, expected in zip((p, dp, gx), alone[i], strict=True):
                np.testing.assert_array_equal(got[at], expected)
    assert np.isnan(alone[3][0]).all()
    assert not any(np.isnan(alone[i][0]).all() for i in range(61) if k[i] < 2 and i != 3)


def test_ties_have_the_same_bits(rng):
    x = rng.integers(0, 6, size=(40, 37)).astype(np.float64)
    p = stk.gradtopk(x, 9)
    for row, values in zip(x, p, strict=True):
        assert all(len(set(values[row == score])) == 1 for score in set(row))


@both_dtypes
def test_the_potential_is_told_by_the_distribution(dtype, rng):
    """prop-grad-short-potential, beside the elementary symmetric polynomial of e^(x/tau)."""
    for n, k, tau in ((1, 1, 1.0), (5, 2, 0.01), (60, 59, 3.0), (200, 20, 0.3), (256, 128, 100.0)):
        x = rng.normal(size=n).astype(dtype)
        sums = [mp.mpf(1), *[mp.mpf(0)] * k]
        for value in x:
            weight = mp.exp(mp.mpf(float(value)) / tau)
            sums = [a + weight * b for a, b in zip(sums, [0, *sums[:-1]], strict=True)]
        exact = float(tau * mp.log(sums[k]))
        bound = 1e-13 if dtype == np.float64 else 1e-6
        scale = np.sort(abs(x))[-k:].sum() + tau * n
        assert abs(stk.gradtopk.potential(x, k, temperature=tau) - exact) <= bound * scale


@both_dtypes
@pytest.mark.parametrize("tau", [0.02, 0.06, 0.12])
def test_weights_set_to_0_change_nothing(tau, dtype, rng):
    """Where counts far from k have chances below any number: p, small ones too, and derivatives."""
    n, k = 96, np.array([1, 7, 48, 90])
    x = rng.normal(size=(4, n)).astype(dtype)
    v = rng.normal(size=x.shape).astype(dtype)
    wide = x.astype(np.float64)
    p, dp = stk.gradtopk.jvp(x, k, v, temperature=tau)
    exact = stk.gradtopk(wide, k, temperature=tau, method="dp")
    _, moved = stk.gradtopk.jvp(wide, k, v.astype(np.float64), temperature=tau, method="contour")
    reach = np.ptp(wide, axis=1, keepdims=True) / tau
    loose = (1e-13 if dtype is np.float64 else 1e-6) + 8 * np.finfo(dtype).eps * reach
    assert (abs(p - exact) <= loose * np.maximum(exact, np.finfo(dtype).tiny / loose)).all()
    assert (tau * abs(dp - moved) <= 20 * loose).all()
    assert abs(moved).max() > 0.1
