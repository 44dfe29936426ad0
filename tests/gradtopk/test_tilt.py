"""The tilt of GradTopK: near enough from the moments of a row, a few steps on, or by a search."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

import softtopk_nb as stk
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold import records
from softtopk_nb._threshold.cpu import order_statistics
from softtopk_nb._threshold.newton import UNKNOWN, newton_step
from softtopk_nb.gradtopk.cpu import rows, with_core
from softtopk_nb.gradtopk.records import FLAGS, NONE_SHORT, SOLUTION

both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


def tilts(x, k, tau):
    """(solutions, which rows were left open) of `rows.solve`."""
    tilt = np.full((len(x), records.SOLUTION), records.UNSOLVED)
    solution, flags = np.empty((len(x), SOLUTION)), np.zeros(FLAGS, np.bool_)
    problem = x, np.full(len(x), k), np.full(len(x), tau)
    given = *problem, tilt, NONE_SHORT, np.empty((len(x), 0), x.dtype), solution, flags
    rows.solve(0, len(x), *given)
    if flags[records.SOME_BAD_MOMENTS]:
        order_statistics.distributions(0, len(x), x, problem[1] - 0.5, problem[2], tilt)
        flags[records.BY_DISTRIBUTION] = True
        rows.solve(0, len(x), *given)
    with_core.solve(0, len(x), *problem, tilt, *given[5:7])
    still = tilt[:, records.CODE] == records.UNSOLVED
    assert flags[records.SOME_UNSOLVED] == still.any()
    return solution, still


@both_dtypes
def test_most_rows_need_no_search(dtype, rng):
    """What is accepted: a mean that lies within 0.59 standard deviations of k - 1/2."""
    off = []
    for n, k in ((600, 20), (1500, 750), (5000, 30), (40_000, 39_000)):
        normal = rng.normal(size=(4, n))
        for x in (normal, rng.standard_t(2, size=(4, n)), np.round(3 * normal), 1e4 + normal):
            x = x.astype(dtype)
            solution, still = tilts(x, k, 1.0)
            assert not still.any()
            t = x.astype(np.float64) - solution[:, [rows.C]] - solution[:, [rows.D]]
            pi = special.expit(t)
            deviation = np.sqrt((pi * special.expit(-t)).sum(axis=1))
            off.extend(abs(pi.sum(axis=1) - (k - 0.5)) / deviation)
    assert 0.3 < max(off) < 0.59


@both_dtypes
@pytest.mark.parametrize("kind", ["huge", "skewed"])
def test_rows_that_their_moments_mislead(kind, dtype, rng):
    """By the order of their entries, or by way of the threshold, if that does not come near."""
    n, k, tau = 700, 30, 1.0 if kind == "huge" else 0.01
    if kind == "huge":
        x, large = rng.normal(size=(6, n)), 1e30 if dtype is np.float32 else 1e200
        x[:3, :2] = large, -3 * large  # squares overflow
    else:
        x = rng.exponential(size=(20, n)) ** 3
    x = x.astype(dtype)
    _, still = tilts(x, k, tau)
    assert still.any() == (kind == "skewed")
    p, dp = stk.gradtopk.jvp(x, k, np.ones_like(x), temperature=tau, method="contour")
    expected = stk.gradtopk(x.astype(np.float64), k, temperature=tau, method="dp")
    near = np.sort(x.astype(np.float64), axis=1)[:, n // 2 : -2]
    reach = np.ptp(near, axis=1).max() / tau
    loose = (1e-12 if dtype is np.float64 else 1e-5) + 4 * np.finfo(dtype).eps * reach
    np.testing.assert_allclose(p, expected, rtol=0, atol=loose)
    np.testing.assert_allclose(tau * dp, np.zeros_like(dp), atol=loose)
    for i in range(len(x)):  # the same bits alone
        assert np.array_equal(stk.gradtopk(x[i], k, temperature=tau, method="contour"), p[i])


@pytest.mark.parametrize("n", [130, 256, 1024, 65536, 10**8])
def test_what_a_search_leaves(n):
    """After a step of the length that ends a search: the mean is off by at most 0.59 sqrt(v).

    The worst n is 130, where the length begins to fall.
    """
    length = rows.step_of_tilt(n)
    most = length + 0.3613 * length**2  # prop-solver
    left = 0.3613 * length**2 * (length + 0.1807 * length**2)
    left += most**3 * np.exp(most) / 6 + length**3 * np.exp(length) / 6
    # v is at least W e^-most, and W at most n/4.
    off = left**2 * np.exp(most) * n / 4
    assert off <= rows.NEAR_ENOUGH
    assert off < 0.24
    assert left * np.exp(most) < 0.11
    if n == 130:
        assert off > 0.22
        assert left * np.exp(most) > 0.1


def test_what_a_step_of_third_order_leaves():
    """prop-solver: |V - V_model| <= 0.723 W, and 1.04 |s|^3 W is left of a step up to 0.4.

    Rows of up to five different entries, of all shapes: the bounds are linear in the rest.
    """
    rng = np.random.default_rng(17)
    curve, lacks, left, off = CURVES["sigmoid"], [], [], []
    for _ in range(20_000):
        n = int(rng.integers(2, 6))
        t = rng.uniform(-1, 1, n) * rng.choice([1.0, 3.0, 8.0, 20.0])
        weight, p, rest = rng.dirichlet(np.full(n, 0.5)), special.expit(t), special.expit(-t)
        up, tail, slope = t >= 0, np.minimum(p, rest), p * rest
        m, a, b = weight[up].sum(), (weight * tail)[up].sum(), (weight * tail)[~up].sum()
        w, v = (weight * slope).sum(), (weight * slope * (rest - p)).sum()
        lacks.append(abs(v - (w / (a + b)) ** 2 * (b - a)) / w)
        k = (weight * special.expit(t - rng.uniform(-0.5, 0.5))).sum()
        plain = abs(newton_step(curve, k, (m, a, b, w, *UNKNOWN), 0.0, 0.0, 1.0, True, 0.0)[1])
        if 1e-3 < plain <= 0.4:
            sums = m, a, b, w, v, *UNKNOWN[1:]
            step = newton_step(curve, k, sums, 0.0, 0.0, 1.0, True, 0.0)[1]
            there = special.expit(t - step)
            residual = abs((weight * there).sum() - k)
            left.append(residual / (plain**3 * w))
            off.append(residual / (weight * there * (1 - there)).sum())
    assert 0.65 < max(lacks) < 0.723
    assert 0.2 < max(left) < 1.04
    assert 0.01 < max(off) < 0.02
