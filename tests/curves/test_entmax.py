"""The curve entmax towards alpha = 1, where it is exp, and above 2, where it is steep.

Towards 1 the upper end of f, 1/(alpha - 1), takes all digits of t unless t is counted from there.
Above 2 the slope is infinite at the lower end: one entry there can outweigh all others.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference import mp, thretopk, thretopk_jvp, to_float64
from worst_place import largest

import softtopk_nb as stk

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
NEAR_ONE = (np.nextafter(1, 2), 1 + 1e-12, 1 + 1e-8, 1.0001, 1.05, 1.3, np.nextafter(1.5, 1))
STEEP = (np.nextafter(2, 3), 2.1, 3.0, 10.0, 100.0)


def within_contract(p, exact, x, k, tau):
    """The accuracy that the contract promises, of p and of its sum."""
    single = p.dtype == np.float32
    eps = float(np.finfo(p.dtype).eps)
    reach = (float(x.max()) - float(x.min())) / tau
    assert np.abs(p - exact).max() <= (1e-6 if single else 1e-13) + 4 * eps * reach
    assert abs(math.fsum(p.astype(float)) - k) <= (1e-6 if single else 1e-12) * max(1, k)


@dtypes
@pytest.mark.parametrize("alpha", NEAR_ONE)
def test_values_near_one(alpha, dtype):
    """Digits of t lost to its origin: p, threshold and potential against 60 digits."""
    rng = np.random.default_rng(0)
    eps = float(np.finfo(dtype).eps)
    for n, offset, tau in ((2, 0, 1.0), (5, -1e3, 30.0), (17, 1e4, 0.3), (40, 0, 0.02)):
        x = (rng.normal(size=n) + offset).astype(dtype)
        for k in (1e-20, 0.7, rng.uniform(0, n), n - 1e-3):
            exact = thretopk(x, k, "entmax", tau, alpha)
            options = {"curve": "entmax", "alpha": alpha, "temperature": tau}
            for method in ("newton", "bisect"):
                p = stk.thretopk(x, k, method=method, **options)
                within_contract(p, to_float64(exact.p), x, k, tau)
            lam = stk.thretopk.threshold(x, k, **options)
            phi = stk.thretopk.potential(x, k, **options)
            unit = 8 * eps * (abs(offset) + 3 + tau / (alpha - 1))
            if 0.1 < k < n - 0.1:
                assert abs(lam - float(exact.threshold)) <= unit * (1 + n)
            assert abs(phi - float(exact.potential)) <= unit * n


@dtypes
@pytest.mark.parametrize("alpha", NEAR_ONE)
def test_derivatives_near_one(alpha, dtype):
    rng = np.random.default_rng(1)
    eps = float(np.finfo(dtype).eps)
    for n, k, tau in ((3, 1.4, 0.5), (20, 7.0, 2.0)):
        x, dx = rng.normal(size=(2, n)).astype(dtype)
        options = {"curve": "entmax", "alpha": alpha, "temperature": tau}
        _, dp = stk.thretopk.jvp(x, k, dx, dk=0.3, dtemperature=0.7, **options)
        exact = to_float64(thretopk_jvp(x, k, dx, "entmax", tau, alpha, 0.3, 0.7))
        np.testing.assert_allclose(dp, exact, rtol=0, atol=100 * eps)
        _, pullback = stk.thretopk.vjp(x, k, **options)
        g = rng.normal(size=n).astype(dtype)
        back = pullback(g)
        assert g @ dp == pytest.approx(
            back.x @ dx + 0.3 * back.k + 0.7 * back.temperature, abs=200 * eps
        )


@pytest.mark.parametrize("n", [3, 60, 5000, 1_000_001])
def test_towards_one_it_is_exp(n):
    """prop-entmax-exp, part 2: p = p_exp + beta p (m - u^2)/2 + O(beta^2), beta = alpha - 1.

    m is the mean of u^2 by p. log p = u - beta u^2/2 + O(beta^2 u^3) where u = t - 1/beta < 0, and
    the threshold moves so that the sum stays. By float64 rows of few and of many entries, and by
    one shared out in parts.
    """
    rng = np.random.default_rng(n)
    x, k = rng.normal(size=n), 0.3 * n
    limit = stk.thretopk(x, k, curve="exp")
    u = np.log(limit)
    w = np.where(u < 0, limit, 0.0)
    first = 0.5 * w * ((w @ u**2) / w.sum() - u**2)
    assert np.abs(first).max() > 0.01
    for beta in (2.0**-10, 2.0**-20, 2.0**-30, 2.0**-52):
        p = stk.thretopk(x, k, curve="entmax", alpha=1 + beta)
        # An entry as near to the corner as the threshold moves is off to first order.
        off = np.where((u > -2 * beta) & (u < 0), beta, 0.0) + 2 * beta**2 + 1e-13
        assert (np.abs(p - limit - beta * first)[u < 0] <= off[u < 0]).all()
        assert (np.abs(p - limit)[u == 0] <= 2 * beta).all()
        assert abs(math.fsum(p) - k) <= 1e-12 * max(1, k)


def test_distance_from_exp():
    """prop-entmax-exp, part 3: both p differ by 1.09 n beta at most, and g_b by 4 beta/e^2.

    By the worst u, which is -2; and by rows with entries at the corner.
    """
    for beta in (1e-3, 0.1, 0.5, 1.0):

        def apart(u, beta=beta):
            return math.exp(-u) - max(0.0, 1 - beta * u) ** (1 / beta)

        most, _ = largest(apart, 1e-6, 1 / beta)
        assert 0 < most <= 4 * beta / math.e**2
        bound, place = largest(lambda u, b=beta: b * u * u * math.exp(-u), 1e-6, 50.0)
        assert bound == pytest.approx(4 * beta / math.e**2)
        assert place == pytest.approx(2.0, rel=1e-3)
    assert 1.08 < 8 / math.e**2 < 1.09
    rng, nearest = np.random.default_rng(8), 0.0
    for beta in (1e-3, 0.05, 0.4):
        for n, k in ((2, 1), (10, 1), (40, 7.5), (40, 1)):
            x = np.round(3 * rng.normal(size=n))
            x = np.where(rng.random(n) < 0.8, x.max() - 4, x)
            limit = stk.thretopk(x, k, curve="exp")
            p = stk.thretopk(x, k, curve="entmax", alpha=1 + beta)
            distance = abs(p - limit).sum() / (n * beta)
            assert distance <= 8 / math.e**2
            nearest = max(nearest, distance)
    assert nearest > 0.01


def just_above(rng, alpha, share, dtype):
    """(x, k, tau, p, w): the threshold so far below one entry, or equal ones, that p is `share`."""
    n = int(rng.integers(2, 30))
    beta = mp.mpf(float(alpha)) - 1
    tau, offset = float(10.0 ** rng.uniform(-2, 2)), float(rng.choice([0.0, 50.0]))
    x = (rng.normal(size=n) * tau * 10.0 ** rng.uniform(-2, 1) + offset).astype(dtype)
    x[1 : rng.integers(1, 4)] = x[0]
    s = [
        beta * (mp.mpf(float(v)) - mp.mpf(float(x[0]))) / mp.mpf(tau) + mp.mpf(share) ** beta
        for v in x
    ]
    p = [min(max(v, mp.mpf(0)), mp.mpf(1)) ** (1 / beta) for v in s]
    w = [q / v if 0 < v < 1 else mp.mpf(0) for q, v in zip(p, s, strict=True)]
    return x, float(mp.fsum(p)), tau, p, w


@dtypes
@pytest.mark.parametrize("alpha", STEEP)
def test_values_just_above_a_threshold(alpha, dtype):
    """A step by the slope where that changes by orders of magnitude; a share with no t left."""
    rng = np.random.default_rng(2)
    for share in 10.0 ** -np.array([0.1, 1, 2, 3, 4, 5, 6, 8, 10]):
        for _ in range(3):
            x, k, tau, p, _ = just_above(rng, alpha, share, dtype)
            for method in ("newton", "bisect"):
                options = {"curve": "entmax", "alpha": alpha, "temperature": tau}
                got = stk.thretopk(x, k, method=method, **options)
                within_contract(got, to_float64(p), x, k, tau)


@dtypes
@pytest.mark.parametrize("alpha", STEEP)
def test_derivatives_just_above_a_threshold(alpha, dtype):
    """A weight that rounding would magnify, or that no float can hold: its entry takes the rest."""
    rng = np.random.default_rng(3)
    for share in (0.1, 1e-2, 1e-4):
        x, k, tau, _, w = just_above(rng, alpha, share, dtype)
        v = rng.normal(size=len(x)).astype(dtype)
        v[x == x[0]] = v[0]  # else the derivative is as large as the weight
        moves = [mp.mpf(float(b)) - mp.mpf(float(v[0])) for b in v]  # 80 digits are not enough
        mean = mp.fsum(a * b for a, b in zip(w, moves, strict=True)) / mp.fsum(w)
        exact = [a * (b - mean) / tau for a, b in zip(w, moves, strict=True)]
        options = {"curve": "entmax", "alpha": alpha, "temperature": tau}
        bound = (1e-6 if dtype == np.float32 else 1e-8) * float(max(map(abs, exact)))
        _, dp = stk.thretopk.jvp(x, k, v, **options)
        _, pullback = stk.thretopk.vjp(x, k, **options)
        for got in (dp, pullback(v).x):
            np.testing.assert_allclose(got, to_float64(exact), rtol=0, atol=bound)
        assert pullback(v).k == pytest.approx(float(mean + mp.mpf(float(v[0]))), abs=1e-6)


@dtypes
def test_derivatives_beyond_the_range_of_the_type(dtype):
    """Of equal entries that get different ways, the difference times a weight of 1e45 or 1e295."""
    x, v = np.array([2.0, 2.0, 1.0], dtype), np.array([1.0, -1.0, 0.5], dtype)
    _, pullback = stk.thretopk.vjp(x, 1e-3, curve="entmax", alpha=100.0)
    for dp in (stk.thretopk.jvp(x, 1e-3, v, curve="entmax", alpha=100.0)[1], pullback(v).x):
        assert np.isfinite(dp).all()
        assert dp[0] == -dp[1] > 1e37
        assert dp[2] == 0


@dtypes
@pytest.mark.parametrize("alpha", STEEP)
def test_equal_entries(alpha, dtype):
    """Shares that (alpha - 1) t = p^(alpha - 1) has no number for."""
    for n, k in ((5, 1e-20), (5, 1e-3), (1000, 1.0), (3000, 2999.999)):
        x = np.full(n, 3.7, dtype)
        for method in ("newton", "bisect"):
            p = stk.thretopk(x, k, curve="entmax", alpha=alpha, method=method)
            within_contract(p, k / n, x, k, 1.0)


@pytest.mark.parametrize("alpha", [1, 1 - 1e-9, 100.5, 10**400, np.inf])
def test_range_of_alpha(alpha):
    with pytest.raises(ValueError, match=r"alpha is .*above 1, at most 100"):
        stk.thretopk([1.0, 2.0], 1, curve="entmax", alpha=alpha)
