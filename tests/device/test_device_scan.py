"""The analytic scan on a device: the published vectors, every group, and that it lands at once."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from device_rows import fewer, rows_of
from numba import cuda
from test_vectors import CASES, SCANNED, Problem

import softtopk_nb as stk
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb._threshold.records import SOLUTION, TAKEN

pytestmark = pytest.mark.device

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
each_curve = pytest.mark.parametrize("curve", SCANNED)
room = importlib.import_module("softtopk_nb.thretopk.cuda")
sorting = importlib.import_module("softtopk_nb._cuda.sorting")
ThreadGroup = sorting.ThreadGroup


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


VECTORS = [case for case in CASES if case["op"] == "thretopk" and case["curve"] in SCANNED]


@both_dtypes
@pytest.mark.parametrize("case", fewer(VECTORS, VECTORS[::4]), ids=lambda case: case["name"])
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
@pytest.mark.parametrize(
    "group", [ThreadGroup(16, 4, True), ThreadGroup(64, 4), ThreadGroup(64, 4, True)], ids=str
)
def test_any_group(group, curve, dtype, rng, monkeypatch):
    for module in (room, sorting):
        monkeypatch.setattr(module, "choose", lambda n, T: group)
    if group.lanes <= 32:
        monkeypatch.setattr(sorting, "choose", lambda n, T: ThreadGroup(64, 4))
    monkeypatch.setattr(sorting, "CHUNK", 32)
    x = rng.normal(size=(2, 70)).astype(dtype)
    x[1] = np.round(x[1])
    check(x, 20.5, 0.3, curve)


def solved(x, k, curve):
    """The solutions, and all that is in memory by the length of a row's share."""
    problem, allocated = rows_of(x, k, 0.05)
    plan = SimpleNamespace(curve=CURVES[curve], method=METHODS["scan"])
    out = problem.empty(x.size, np.float64)
    room.linearize(problem, plan, out)
    memory = [a.copy_to_host().reshape(len(x), -1) for a in allocated]
    return memory[1], {a.shape[1]: a for a in memory}  # solutions have room first, after p


@each_curve
def test_the_scan_lands_on_the_threshold(curve, rng):
    """Proposition prop-scan: no search is left to do, so its first passes end it."""
    solution, _ = solved(rng.normal(size=(4, 60)), 17.25, curve)
    assert solution.shape == (4, SOLUTION)
    taken = solution[:, TAKEN]
    assert np.all(taken >= 1)
    assert np.all(taken <= 3)


# Rows in parts


@pytest.fixture
def in_parts(monkeypatch):
    """Cut every row into parts of 256 entries, or into at most `most`."""

    def use(most=1024):
        parts = importlib.import_module("softtopk_nb._cuda.long_rows")
        for name, value in {"LONG": 1, "PIECES": 1, "MOST": most}.items():
            monkeypatch.setattr(parts, name, value)
        for module in (room, parts):
            monkeypatch.setattr(module, "choose", lambda n, T: ThreadGroup(64, 4, True))
            if module is room:
                monkeypatch.setattr(module, "choose_for_two", lambda n, T: ThreadGroup(64, 4, True))
        long = importlib.import_module("softtopk_nb._threshold.cuda.long")
        monkeypatch.setattr(long, "rounds_of", lambda n, method: 3)

    return use


CUTS = [(256, 1024), (257, 1024), (600, 2)]
TYPES = [np.float32, np.float64]


@each_curve
@pytest.mark.parametrize(
    ("cut", "dtype"),
    # How a row is cut does not depend on what is done with its entries.
    fewer([*itertools.product(CUTS, TYPES)], [*zip(CUTS, [*TYPES, np.float32], strict=True)]),
)
def test_rows_in_parts(cut, dtype, curve, rng, in_parts):
    """One part and two, a last one of a single entry, parts of several pieces."""
    n, most = cut
    in_parts(most)
    x = rng.normal(size=(3, n)).astype(dtype)
    x[1] = np.round(2 * x[1])
    x[2, [0, n - 1]], x[2, 1], x[2, n // 2 : n // 2 + 9] = np.inf, -np.inf, -np.inf
    check(x, 0.3 * n, 0.1, curve)


@each_curve
def test_hostile_rows_in_parts(curve, rng, in_parts):
    in_parts()
    x = rng.normal(size=(4, 300))
    x[0] = 2.5
    x[1, :150] += 1000
    x[2, :296] = -np.inf  # all that is left of it lies in the second part
    x[3, 270] = np.nan
    check(x, 2.75, 0.3, curve)


@each_curve
@pytest.mark.parametrize("k", [0.0, 1e-3, 1.0, 149.5, 300 - 1e-3, 299.0, 300.0])
def test_edges_of_k_in_parts(k, curve, rng, in_parts):
    in_parts()
    check(rng.normal(size=(1, 300)), k, 0.02, curve)


@each_curve
@pytest.mark.parametrize("k", [0.25, 128.2, 255.75])
def test_there_are_enough_launches_in_parts(k, curve, rng, in_parts):
    """A bisection for the last of 256 places takes as many steps as any."""
    start = importlib.import_module("softtopk_nb._threshold.cuda.long_start")
    in_parts()
    solution, left = solved(rng.normal(size=(1, 256)), k, curve)
    assert np.all(solution[:, TAKEN] <= 3)
    record = left[start.record_of(CURVES[curve], METHODS["scan"])]
    bisections = record[:, start.RECORD :].reshape(-1, start.BISECTION)
    assert len(bisections) == (2 if curve == "clip" else 1)
    np.testing.assert_array_equal(bisections[:, start.HI] - bisections[:, start.LO], 1)


@pytest.mark.parametrize(
    ("curve", "dtype"),
    fewer([*itertools.product(SCANNED, TYPES)], [*zip(SCANNED, itertools.cycle(TYPES))]),
)
def test_all_that_the_operator_computes_in_parts(curve, dtype, rng, in_parts):
    """One number for each row, on the device, and derivatives and heights from the solution."""
    in_parts()
    x = rng.normal(size=(3, 300)).astype(dtype)
    x[1, [4, 280]] = np.inf, -np.inf
    v = rng.normal(size=x.shape).astype(dtype)
    k, tau = np.array([70.0, 30.5, 301.0]), np.array([0.3, 0.2, 0.5])
    options = {"curve": curve, "method": "scan"}

    def results(to, back):
        d, u, some = to(x), to(v), {"temperature": to(tau), **options}
        p, dp = stk.thretopk.jvp(d, to(k), u, dk=0.5, dtemperature=-0.2, **some)
        gradients = stk.thretopk.vjp(d, to(k), **some)[1](u)
        phi = stk.thretopk.potential(d, to(k), **some)
        lam = stk.thretopk.threshold(d, to(k), **some)
        return [np.asarray(back(a))[:2] for a in (p, dp, *gradients, phi, lam)], back(p)

    got, p = results(cuda.to_device, lambda a: a.copy_to_host())
    assert np.isnan(p[2]).all()  # k > n, which the host cannot see
    k[2] = 3
    x, v = x.astype(np.float64), v.astype(np.float64)
    expected, _ = results(lambda a: a, lambda a: a)
    rough = 1e-9 if dtype is np.float64 else 2e-3
    for one, other in zip(got, expected, strict=True):
        scale = np.abs(other[np.isfinite(other)]).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=rough * scale)
