"""Rows whose entries lie close together: their mass is modelled, not its tails (prop-solver)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit
from scipy import special
from worst_place import largest

from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threads import long_rows, sampling
from softtopk_nb._threads.long_rows import LONG, ordinals_of
from softtopk_nb._threshold import distribution, records
from softtopk_nb._threshold.cpu import batch, long
from softtopk_nb._threshold.cpu.batch import fast_search
from softtopk_nb._threshold.cpu.passes import tally
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb._threshold.newton import UNKNOWN, newton_step

NEWTON = METHODS["newton"]


@njit
def summed(x, d, curve):
    return tally(x, 0.0, 1.0, d, curve)


@njit
def step_of(curve, k, sums, clear):
    """(step, whether it ends the search)."""
    _, step, _, _, arrives = newton_step(curve, k, sums, clear, 0.0, 1.0, True, 0.0)
    return step, arrives


@pytest.mark.parametrize("name", CURVES)
def test_entries_that_get_fewer_at_a_constant_rate(name):
    """The model is exact for them, but for where the row ends."""
    curve, rate, at = CURVES[name], 0.4, 12.0
    x = -np.log((np.arange(200_000) + 0.5) / 200_000) / rate
    *sums, clear = summed(x, at, curve)
    for way in (2.0, 1.0, 0.4, -0.4, -1.0, -2.0):
        *there, _ = summed(x, at + way, curve)
        k = there[0] - there[1] + there[2]
        step, arrives = step_of(curve, k, tuple(sums), clear)
        assert step == pytest.approx(way, rel=0.03)
        assert not arrives
        # What the sums of the tails say, where nothing else is known.
        tails, _ = step_of(curve, k, (*sums[:4], *UNKNOWN), 0.0)
        if abs(way) == 2.0:
            assert not abs(tails - way) < 3 * abs(step - way)


@pytest.mark.parametrize("name", CURVES)
def test_passes_at_low_temperatures(name, rng):
    """With the tails alone, `exp` takes 25 here and `sigmoid` 5 to 7."""
    most = {"exp": 5.5, "laplace": 4.5, "sigmoid": 4.5, "normal": 5.0, "clip": 6.5}
    for draw in (rng.normal, rng.exponential):
        x = draw(size=(200, 1024)).astype(np.float32)
        assert taken(x, 300, 0.01, CURVES[name]).mean() < most.get(name, 5.5)


@pytest.mark.parametrize("name", CURVES)
def test_rows_that_are_nearly_hard(name, rng):
    """Entries many temperatures apart (eq-by-distribution): `exp` took 8.2, 5.8; `clip` 5.5, 7."""
    most = {"exp": 5.5, "laplace": 4.5, "sigmoid": 5.2, "normal": 7.0, "clip": 4.8}
    for n, k in ((64, 8), (1024, 32)):
        x = rng.normal(size=(2**18 // n, n)).astype(np.float32)
        assert taken(x, k, 0.01, CURVES[name]).mean() < most.get(name, 5.5)


@njit
def way_by_distribution(residual, k, n, spread):
    return distribution.by_distribution(residual, k, n, spread)


def test_the_way_by_the_distribution_of_a_row():
    """eq-by-distribution: for logistic rows, to second order; at least half an entry's way."""
    n, spread = 1000.0, 3.0
    for k, mass in ((300.0, 320.0), (30.0, 25.0), (5.0, 7.0), (900.0, 905.0)):
        exact = 0.55 * spread * (special.logit(mass / n) - special.logit(k / n))
        assert way_by_distribution(mass - k, k, n, spread) == pytest.approx(exact, rel=0.02)
    least = way_by_distribution(1e-9, 30.0, n, spread)
    assert least == pytest.approx(way_by_distribution(0.5, 30.0, n, spread), rel=0.02)
    assert way_by_distribution(-1e-9, 30.0, n, spread) == pytest.approx(-least, rel=0.05)
    assert math.isnan(way_by_distribution(math.nan, 30.0, n, spread))


def taken(x, k, tau, curve):
    """Passes over each row; all are found."""
    out, solution = np.empty_like(x), np.full((len(x), records.SOLUTION), np.nan)
    flags = np.zeros(records.FLAGS, np.bool_)
    problem = np.full(len(x), float(k)), np.full(len(x), tau), curve, NEWTON
    batch.search(fast_search(x), x, *problem, out, solution, flags)
    still = solution[:, records.CODE] == records.UNSOLVED
    assert still.mean() <= 0.01
    return solution[~still, records.TAKEN]


@pytest.mark.parametrize("name", CURVES)
def test_a_long_row_with_heavy_tails(name):
    """Its sample says little of a threshold among its greatest entries."""
    x = np.random.default_rng(0).standard_t(2, size=LONG).astype(np.float32)
    for row in (x, np.sort(x)):
        solution = np.full(records.SOLUTION, np.nan)
        long.solve(row, 1000.0, 1.0, CURVES[name], NEWTON, np.empty_like(x), solution)
        assert solution[records.TAKEN] <= 4


def test_what_a_step_leaves_whichever_model_is_taken():
    """prop-solver: 1.04 |s|^3 W of a step up to 0.4, where the entries are many, too.

    And 2.6 |s|^3 W of one up to 1.
    """
    rng, curve, left, longer, whole = np.random.default_rng(5), CURVES["sigmoid"], [], [], 0
    for _ in range(30_000):
        n = int(rng.integers(2, 8))
        t = rng.uniform(-1, 1, n) * rng.choice([1.0, 3.0, 8.0])
        weight = 10.0 ** rng.uniform(0, 4) * rng.dirichlet(np.full(n, 0.7))
        p, rest = special.expit(t), special.expit(-t)
        up, tail, slope = t >= 0, np.minimum(p, rest), p * rest
        m, a, b = weight[up].sum(), (weight * tail)[up].sum(), (weight * tail)[~up].sum()
        w, v = (weight * slope).sum(), (weight * slope * (rest - p)).sum()
        k = (weight * special.expit(t - rng.uniform(-0.5, 0.5) * rng.choice([1, 3]))).sum()
        step, _ = step_of(curve, k, (m, a, b, w, v, *UNKNOWN[1:]), 0.0)
        tails, _ = step_of(curve, k, (m, a, b, w, *UNKNOWN), 0.0)
        mass = m - a + b
        rho, root = w / mass, mass / w * math.log(mass / k)
        by_mass = root + (v - rho * w) * root * root / (2 * w)
        used = root if step == pytest.approx(by_mass, rel=1e-3) else tails
        whole += used is root and abs(tails - root) > 1e-3
        if 0.05 < abs(used) <= 1:
            residual = abs((weight * special.expit(t - step)).sum() - k)
            (left if abs(used) <= 0.4 else longer).append(residual / (abs(used) ** 3 * w))
    assert whole > 500
    assert min(len(left), len(longer)) > 5000
    assert 0.2 < max(left) < 1.04
    assert 0.1 < max(longer) < 2.6


def test_constants_of_a_step():
    """prop-solver: 0.3613, 1.04, 2.6 and what the logarithm lacks, as the proof adds them up."""
    chord, _ = largest(lambda r: 2 + 3 * r - 4 * r * r - 1 / r, 0.5, math.sqrt(0.75))
    line, _ = largest(lambda r: r - 1 + 1 / (2 * r), math.sqrt(0.75), 1.0)
    assert 0.3612 < 0.5 * max(chord, line) < 0.3613
    for s, most, lacking in ((0.4, 1.04, 0.0082), (1.0, 2.6, 0.014)):
        d = 0.3613 * s * s
        model = 0.5 * d * (2 * s + d)
        rest = ((s + d) ** 3 * math.exp(s + d) + s**3 * math.exp(s)) / 6
        u = (math.sqrt(36 + 12 * s * s) - 6) / (2 * s)
        assert 6 * u / (3 - u * u) == pytest.approx(s)
        root = 2 * math.atanh(u)
        lack = math.exp(root) * (root - s)
        assert 0.95 * lacking < lack / s**5 < lacking
        assert 0.97 * most < (model + rest + lack) / s**3 < most


def test_no_such_step_ends_a_search():
    """Of `clip`, far more slope than mass: the step is short of what it would have to be."""
    m, a, b, w, clear = 0.0, 0.0, 0.1, 10.0, 0.1
    k = 6.0
    step, arrives = step_of(CURVES["clip"], k, (m, a, b, w, *UNKNOWN), clear)
    assert abs(step) < clear < abs(b - k) / w
    assert not arrives


@njit
def sampled(x, out):
    sampling.sample(x, 0, x.shape[0], out.shape[0], out)


@pytest.mark.parametrize("n", [2048, 3000, 4095, 65_537, 131_071, 1_500_000, 2_097_151])
def test_a_sample_is_of_the_whole_row(n):
    """Sorted rows have their greatest entries at one end."""
    few = np.empty(sampling.sample_size(n), np.int64)
    sampled(np.arange(n), few)
    steps = np.diff(few)
    assert few[0] == 0
    assert steps.min() >= n // len(few)
    assert max(steps.max(), n - few[-1]) <= n // len(few) + 1
    x = np.arange(n, dtype=np.float64)
    if n >= LONG:  # of a long row, part by part
        again, ordinals = np.full(len(few), -1.0), ordinals_of(x)
        long_rows.look_parts(0, len(ordinals), x, 0, n, len(few), again, ordinals)
        assert np.array_equal(again, few)
