"""The curve cauchy, whose threshold can lie far from all entries: small tails, and long ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit
from reference import mp, thretopk, to_float64
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb._curves.base import cdf_after_shift, excess, quantile, split
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold.policy import CUBE_64, FIFTH_32

CAUCHY = CURVES["cauchy"]
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def tails(s, tail, density):
    for i in range(s.shape[0]):
        _, _, tail[i], density[i] = split(CAUCHY, -s[i])


@njit
def shifted(t, step, out):
    for i in range(t.shape[0]):
        _, _, b, w = split(CAUCHY, t[i])
        out[i] = cdf_after_shift(CAUCHY, b, w, t[i], step, step)


@njit
def quantiles(u, out):
    for i in range(u.shape[0]):
        out[i] = quantile(CAUCHY, u[i])


@njit
def excesses(t, out):
    for i in range(t.shape[0]):
        out[i] = excess(CAUCHY, t[i])


def tail_of(s):
    return mp.atan2(1, mp.mpf(float(s))) / mp.pi


def units(got, exact, eps):
    return max(abs(float(mp.mpf(float(g)) / e - 1)) / eps for g, e in zip(got, exact, strict=True))


@dtypes
def test_tails_and_densities(dtype):
    """To 2 units, however small."""
    eps = float(np.finfo(dtype).eps)
    s = np.concatenate([np.linspace(1e-3, 3, 2000), np.geomspace(1, 1e16, 1000)]).astype(dtype)
    tail, density = np.empty_like(s), np.empty_like(s)
    tails(s, tail, density)
    assert units(tail, map(tail_of, s), eps) <= 2
    assert units(density, [1 / (mp.pi * (1 + mp.mpf(float(v)) ** 2)) for v in s], eps) <= 2
    tails(np.array([np.inf], dtype), tail[:1], density[:1])
    assert tail[0] == density[0] == 0


@dtypes
def test_a_last_step(dtype):
    """The series that `cdf_after_shift` ends leaves nothing beyond rounding."""
    eps = float(np.finfo(dtype).eps)
    longest = 1.07 * (FIFTH_32 if dtype == np.float32 else CUBE_64)
    t = -np.concatenate([np.linspace(0.2, 30, 1000), np.geomspace(1, 1e10, 1000)]).astype(dtype)
    out = np.empty_like(t)
    for step in (dtype(longest), dtype(-longest)):
        shifted(t, step, out)
        exact = [tail_of(mp.mpf(float(step)) - mp.mpf(float(v))) for v in t]
        assert units(out, exact, eps) <= 3


def test_constants_of_the_last_step():
    """What is left by a step of fifth order: from the derivatives of f and the steps before."""

    def over_slope(t):  # the second, third and fifth derivative, over the first
        h = 1 / (1 + t * t)
        return 2 * t * h, (6 * t * t - 2) * h * h, 24 * (5 * t**4 - 10 * t * t + 1) * h**4

    for at, most in ((0, 1.0), (1, 2.0), (2, 24.0)):
        found, _ = largest(lambda t, at=at: abs(over_slope(t)[at]), 1e-6, 1e3)
        assert 0.999 * most < found <= most
    rate, _ = largest(lambda t: 1 / ((1 + t * t) * math.atan2(1, t)), 1e-6, 1e3)
    assert 0.72 < rate < 0.73  # rho = W/(A + B) at most
    s = FIFTH_32
    d = 0.5 * (1 + rate) * s * s
    third = 0.5 * d * (2 * s + d) + (s + d) ** 3 * math.exp(s + d) / 3 + rate**2 * s**3 / 5
    to_root = third / (0.9 * s)  # the slope there is at least 0.9 W
    moved = 1 + d / s + to_root
    assert 1.06 < moved < 1.07
    assert 4.8e-7 < (1.07 * s) ** 5 * math.exp(1.07 * s) / 5 < 5e-7


def test_quantiles_and_the_antiderivative():
    u = np.concatenate([np.geomspace(1e-300, 0.499, 500), 1 - np.geomspace(1e-15, 0.499, 500)])
    out = np.empty_like(u)
    quantiles(u, out)
    assert units(out, [-mp.cot(mp.pi * mp.mpf(v)) for v in u.tolist()], 2.0**-52) <= 4
    t = np.geomspace(1e-8, 1e200, 1000)
    out = np.empty((2, len(t)))
    excesses(t, out[0])
    excesses(-t, out[1])
    exact = [-v * tail_of(v) - (mp.log1p(v * v) / mp.pi) / 2 for v in map(mp.mpf, t.tolist())]
    assert units(out[0], exact, 2.0**-52) <= 4
    np.testing.assert_array_equal(out[0], out[1])


@dtypes
@pytest.mark.parametrize("n", [3, 300, 5000])
def test_a_threshold_far_from_all_entries(dtype, n, rng):
    """Where all of a row lies in one tail, float32 has not the digits for a float64 row."""
    x = rng.normal(size=n).astype(dtype)
    for k in (1e-8, 1e-4, 0.01, 1.0, n - 0.01, n - 1e-5):
        p = stk.thretopk(x, k, curve="cauchy", temperature=0.7)
        if k <= 1 and n < 1000:
            exact = to_float64(thretopk(x, k, "cauchy", 0.7).p)
            np.testing.assert_allclose(p, exact, rtol=2e-6 if dtype == np.float32 else 1e-13)
        mass = 1e-6 if dtype == np.float32 else 1e-12
        assert abs(math.fsum(p.astype(float)) - k) <= mass * max(1, k)


def test_gradients_do_not_vanish(rng):
    """thm-convergence: an entry d away has the weight tau^2/(pi (tau^2 + d^2))."""
    x = np.array([1e6, 3.0, 1.0, -1e6])
    p, pullback = stk.thretopk.vjp(x, 2, curve="cauchy")
    gradient = pullback(np.array([1.0, 0.0, 0.0, 0.0])).x
    assert gradient[0] == pytest.approx(1e-12 / math.pi, rel=1e-3)
    assert 1 - p[0] == pytest.approx(1e-6 / math.pi, rel=1e-3)
    _, pullback = stk.thretopk.vjp(x, 2)
    assert pullback(np.array([1.0, 0.0, 0.0, 0.0])).x[0] == 0
