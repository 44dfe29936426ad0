"""The analytic scan on a device: the published vectors, every team, and that it lands at once."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from device_rows import rows_of
from numba import cuda
from test_vectors import CASES, SCANNED, Problem

import softtopk_nb as stk
from softtopk_nb._threshold.curves import CURVES
from softtopk_nb._threshold.rows import METHODS, SOLUTION, TAKEN

pytestmark = pytest.mark.device

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
each_curve = pytest.mark.parametrize("curve", SCANNED)
room = importlib.import_module("softtopk_nb.thretopk.cuda")
sorting = importlib.import_module("softtopk_nb._sort")
Team = sorting.Team


def scanned(x, k, tau, curve):
    options = {"temperature": tau, "curve": curve, "method": "scan"}
    return stk.thretopk(cuda.to_device(x), k, **options).copy_to_host()


def check(x, k, tau, curve):
    """A device's result against that of float64 on the CPU, to the accuracy promised."""
    got = scanned(x, k, tau, curve)
    wide = x.astype(np.float64)
    expected = stk.thretopk(wide, k, temperature=tau, curve=curve, method="scan")
    finite = wide[np.isfinite(wide)]
    spread = (finite.max() - finite.min()) / tau
    double = x.dtype == np.float64
    bound = (1e-13 if double else 1e-6) + 4 * np.finfo(x.dtype).eps * spread
    np.testing.assert_allclose(got, expected, rtol=0, atol=2 * bound, err_msg=f"{k}, {tau}")
    off = np.abs(got.sum(axis=-1, dtype=np.float64) - k)
    assert np.all(off[np.isfinite(off)] <= (1e-12 if double else 1e-6) * max(1, k))


@both_dtypes
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["op"] == "thretopk" and case["curve"] in SCANNED
    ],
)
def test_published_vectors(case, dtype):
    problem = Problem(case, "scan", dtype)
    if dtype is np.float64:
        expected = np.array(case["p"])
    else:
        expected = problem.operator(problem.x.astype(np.float64), problem.k, **problem.options)
    got = scanned(problem.x, problem.k, problem.tau, case["curve"])
    np.testing.assert_allclose(got, expected, rtol=0, atol=problem.tolerance)


@both_dtypes
@each_curve
@pytest.mark.parametrize("n", [2, 31, 33])
def test_rows_of_any_length(n, curve, dtype, rng):
    x = rng.normal(size=(6, n)).astype(dtype)
    x[1] = np.round(x[1])
    x[2] = x[2, 0]
    x[3, : n // 2] += 1000
    if n > 5:
        x[4, [0, 3]], x[4, 1], x[5, n // 2] = np.inf, -np.inf, np.nan
    check(x, 0.3 * n, 1e-3, curve)
    check(x, 0.6 * n, 0.3, curve)
    check(x, n - 0.01, 30.0, curve)


@both_dtypes
@each_curve
@pytest.mark.parametrize("team", [Team(16, 4, True), Team(64, 4), Team(64, 4, True)], ids=str)
def test_any_team(team, curve, dtype, rng, monkeypatch):
    for module in (room, sorting):
        monkeypatch.setattr(module, "choose", lambda n, T: team)
    if team.lanes <= 32:
        monkeypatch.setattr(sorting, "choose", lambda n, T: Team(64, 4))
    monkeypatch.setattr(sorting, "CHUNK", 32)
    x = rng.normal(size=(2, 70)).astype(dtype)
    x[1] = np.round(x[1])
    check(x, 20.5, 0.3, curve)


@each_curve
def test_the_scan_lands_on_the_threshold(curve, rng):
    """Proposition prop-scan: no search is left to do, so its first passes end it."""
    x = rng.normal(size=(4, 60))
    problem, allocated = rows_of(x, 17.25, 0.05)
    plan = SimpleNamespace(curve=CURVES[curve], method=METHODS["scan"])
    out = problem.empty(x.size, np.float64)
    room.linearize(problem, plan, out)
    (solution,) = [a.copy_to_host() for a in allocated if a.size == len(x) * SOLUTION]
    taken = solution.reshape(len(x), SOLUTION)[:, TAKEN]
    assert np.all(taken >= 1)
    assert np.all(taken <= 3)
