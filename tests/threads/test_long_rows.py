"""Rows that are shared out in parts: the same rules and answers as the row in one piece."""

from __future__ import annotations

import inspect
import math
import sys

import numpy as np
import pytest
from numba.core.typing.templates import builtin_registry
from operators import each_op

import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threads import long_rows, pool
from softtopk_nb._threshold.cpu import long
from softtopk_nb._threshold.cpu.rows import solve
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb._threshold.records import SOLUTION, UNSOLVED
from softtopk_nb.gradtopk.cpu import long as long_subsets
from softtopk_nb.gradtopk.cpu import rows as subset_rows
from softtopk_nb.thretopk.cpu import rows

N = long_rows.LONG + 4321
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture
def row(rng):
    return rng.normal(size=N)


@pytest.fixture(autouse=True)
def hard_rows_in_parts(monkeypatch):
    """hardtopk shares out longer rows only; here every row of N entries is."""
    monkeypatch.setattr(sys.modules["softtopk_nb.hardtopk.cpu"], "SHARED_OUT", long_rows.LONG)


def in_one_piece(kernel, x, *args):
    """Call a kernel over rows on this one row."""
    return kernel(0, 1, x[None], *args)


@dtypes
@pytest.mark.parametrize("curve", CURVES)
def test_value_threshold_and_potential(row, curve, dtype):
    x, k = row.astype(dtype), 1234.5
    p, one, solution = (
        stk.thretopk(x, k, curve=curve),
        np.empty((1, N), dtype),
        np.full((1, SOLUTION), UNSOLVED),
    )
    args = np.array([k]), np.array([1.0]), CURVES[curve]
    in_one_piece(solve, x, *args, METHODS["newton"], one, solution)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(p, one[0], rtol=100 * eps, atol=4 * eps)
    assert abs(math.fsum(p.astype(float)) - k) <= (1e-6 if dtype == np.float32 else 1e-12) * k
    phi = np.empty(1)
    in_one_piece(rows.potential, x, *args, solution, phi)
    potential = stk.thretopk.potential(x, k, curve=curve)
    assert potential == pytest.approx(phi[0], rel=1e-6 if dtype == np.float32 else 1e-12)


@dtypes
@pytest.mark.parametrize("curve", CURVES)
def test_p_of_the_last_pass_is_moved_or_found_anew(row, curve, dtype, monkeypatch):
    """The same but for rounding, whether a pass has kept it (of a row not too long) or not."""
    x, eps, called = row.astype(dtype), np.finfo(dtype).eps, []

    def over(count, work, kernel, *args):
        called.append(kernel)
        pool.over(count, work, kernel, *args)

    monkeypatch.setattr(long_rows, "over", over)
    for k in (3.5, 1234.5, N / 2):
        called.clear()
        moved = stk.thretopk(x, k, curve=curve)
        assert long.correct_parts in called
        called.clear()
        with monkeypatch.context() as patch:
            patch.setattr(long, "CACHED", 0)
            found = stk.thretopk(x, k, curve=curve)
        assert long.fill_parts in called
        assert long.correct_parts not in called
        np.testing.assert_allclose(moved, found, rtol=100 * eps, atol=4 * eps)


@dtypes
@pytest.mark.parametrize("k", [1, 40, 1234, N - 1])
def test_gradtopk(row, k, dtype, rng, monkeypatch):
    """Value, potential and derivatives, against the same row in one piece."""
    x, v = row.astype(dtype), rng.normal(size=N).astype(dtype)
    p, dp = stk.gradtopk.jvp(x, k, v, dtemperature=0.3)
    q, pullback = stk.gradtopk.vjp(x, k)
    gradients, phi = pullback(v), stk.gradtopk.potential(x, k)
    np.testing.assert_array_equal(p, stk.gradtopk(x, k))
    np.testing.assert_array_equal(p, q)
    assert abs(math.fsum(p.astype(float)) - k) <= (1e-6 if dtype == np.float32 else 1e-12) * k

    for module in ("_threshold", "gradtopk.cpu.solving"):
        monkeypatch.setattr(sys.modules[f"softtopk_nb.{module}"], "LONG", 10 * N)
    eps = float(np.finfo(dtype).eps)
    r, dr = stk.gradtopk.jvp(x, k, v, dtemperature=0.3)
    np.testing.assert_allclose(p, r, rtol=100 * eps, atol=4 * eps)
    np.testing.assert_allclose(dp, dr, rtol=1e4 * eps, atol=10 * eps)
    whole = stk.gradtopk.vjp(x, k)[1](v)
    np.testing.assert_allclose(gradients.x, whole.x, rtol=1e4 * eps, atol=10 * eps)
    assert gradients.temperature == pytest.approx(whole.temperature, rel=1e4 * eps, abs=1e3 * eps)
    expected = float(stk.gradtopk.potential(x, k))
    assert abs(float(phi) - expected) <= eps * np.abs(x).sum(dtype=float)


@dtypes
@pytest.mark.parametrize("n", [long_rows.LONG - 1, long_rows.LONG, long_rows.LONG + 1])
def test_gradtopk_of_a_row_that_is_all_but_hard(n, dtype):
    """Entries one apart: those far below the threshold do not matter."""
    x = np.arange(n, dtype=dtype)
    p, short = stk.gradtopk(x, 10), stk.gradtopk(np.arange(200, dtype=dtype), 10)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(p[-200:], short, rtol=100 * eps, atol=4 * eps)
    assert abs(math.fsum(p.astype(float)) - 10) <= 40 * eps


@dtypes
@pytest.mark.parametrize("kind", ["normal", "ties", "skewed"])
def test_gradtopk_at_every_temperature(row, kind, dtype):
    x = {"normal": row, "ties": np.round(row, 1), "skewed": np.exp(3 * row)}[kind].astype(dtype)
    order, eps = np.argsort(x), float(np.finfo(dtype).eps)
    for temperature in (1.0, 1e-2, 1e-4, 1e-20, 4 * float(np.finfo(dtype).tiny)):
        for k in (1, 1000, N // 2, N - 1):
            p = stk.gradtopk(x, k, temperature=temperature)
            assert abs(math.fsum(p.astype(float)) - k) <= (1e-6 if eps > 1e-8 else 1e-12) * k
            assert (np.diff(p[order]) >= -4 * eps).all()
            gx, _, gtau = stk.gradtopk.vjp(x, k, temperature=temperature)[1](x)
            assert not np.isnan(gx).any()
            assert not np.isnan(gtau)


@pytest.mark.parametrize("curve", ["laplace", "clip"])
def test_derivatives(row, curve, rng):
    k, tau, dx, g = 999.5, 0.7, *rng.normal(size=(2, N))
    kw = {"curve": curve, "temperature": tau}
    _, dp = stk.thretopk.jvp(row, k, dx, dk=2.0, dtemperature=0.5, **kw)
    assert dp.sum() == pytest.approx(2.0, abs=1e-9)
    gradients = stk.thretopk.vjp(row, k, **kw)[1](g)
    right = gradients.x @ dx + 2.0 * gradients.k + 0.5 * gradients.temperature
    assert g @ dp == pytest.approx(right, rel=1e-10)


@dtypes
def test_infinities_and_nan(row, dtype):
    x = row.astype(dtype)
    x[::3] = -np.inf
    x[1:200:3] = np.inf
    kept, above = np.isfinite(x), int((x == np.inf).sum())
    assert above == 67
    for op in (stk.hardtopk, stk.thretopk, stk.gradtopk):
        p = op(x, 1000)
        np.testing.assert_array_equal(p[kept], op(x[kept], 1000 - above))
        np.testing.assert_array_equal(p[~kept], (x > 0)[~kept])
        assert op(x, 30).sum() == pytest.approx(30)
        assert np.isnan(op(x, N - 5)).all()
    v = np.where(kept, np.sign(x), 1.0).astype(dtype)
    for op in (stk.thretopk, stk.gradtopk):
        _, dp = op.jvp(x, 1000, v)
        assert (dp[~kept] == 0).all()
        np.testing.assert_array_equal(dp[kept], op.jvp(x[kept], 1000 - above, v[kept])[1])
        assert op.vjp(x, 1000)[1](np.ones_like(x)).x[~kept].sum() == 0
        assert op.potential(x, 1000) == np.inf
    x[5] = np.nan
    for op in (stk.hardtopk, stk.thretopk, stk.thretopk.threshold, stk.gradtopk):
        assert np.isnan(op(x, 1000)).all()
    for op in (stk.thretopk, stk.gradtopk):
        assert np.isnan(op.potential(x, 1000))
        assert np.isnan(op.jvp(x, 1000, x)[1]).all()
        assert np.isnan(op.vjp(x, 1000)[1](x).x).all()


@dtypes
def test_edges(row, dtype):
    x = row.astype(dtype)
    for op in (stk.hardtopk, stk.thretopk, stk.gradtopk):
        np.testing.assert_array_equal(op(x, 0), np.zeros(N, dtype))
        np.testing.assert_array_equal(op(x, N), np.ones(N, dtype))
    for op in (stk.thretopk, stk.gradtopk):
        assert (op.jvp(x, N, x)[1] == 0).all()
        assert op.potential(x, 0) == 0
    assert stk.gradtopk.potential(x, N) == pytest.approx(x.sum(dtype=float), rel=1e-5)
    assert stk.thretopk.threshold(x, 0) == np.inf


@dtypes
def test_hard_ties_go_to_the_lowest_index(row, dtype):
    """Ties that run across parts."""
    x = np.round(row * 2).astype(dtype)
    x[np.abs(x) == 0] *= -1  # some zeros become -0.0, which ties with 0.0
    for k in (1, 777, N // 2, N - 1):
        order = np.argsort(-x, kind="stable")[:k]
        expected = np.zeros(N, dtype)
        expected[order] = 1
        np.testing.assert_array_equal(stk.hardtopk(x, k), expected)


def test_bits_do_not_depend_on_the_threads(row, monkeypatch):
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(pool, "thread_count", lambda threads=threads: threads)
        results.append(stk.thretopk(row, 100.5).tobytes() + stk.hardtopk(row, 100).tobytes())
        results[-1] += stk.gradtopk(row, 100).tobytes()
        results[-1] += stk.gradtopk.vjp(row, 100)[1](row).x.tobytes()
    assert len(set(results)) == 1
    batch = stk.thretopk(np.stack([row[::-1], row]), 100.5)
    assert batch[1].tobytes() == stk.thretopk(row, 100.5).tobytes()


# Formulas of floats that plain Python runs: none of them divides by 0, whatever it is given.
HARMLESS = {"limits", "to_ordinal", "inverse_temperature", "centre"}
HARMLESS |= {"exponent", "radius", "bernstein_radius", "sizes_of"}  # of positive numbers


@each_op
def test_formulas_run_compiled(op, row):
    """As plain Python, which answers 1 / 0 with an error, run only those that are known here."""
    formulas = {
        function.__code__: function.__name__
        for function, _ in builtin_registry.globals
        if str(getattr(function, "__module__", "")).startswith("softtopk_nb.")
        and hasattr(function, "__code__")
    }
    found = set()

    def watch(frame, event, _):
        if event == "call" and frame.f_code in formulas:
            given = inspect.getargvalues(frame)
            if any(isinstance(given.locals[name], float) for name in given.args):
                found.add(formulas[frame.f_code])

    assert len(formulas) > 100
    for x, temperature in ((np.arange(float(N)), 1.0), (row, 1e-4), (row[:9], 1.0)):
        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            op(x, 3, temperature=temperature)
            if isinstance(op, Differentiable):
                op.jvp(x, 3, x, temperature=temperature)
                op.vjp(x, 3, temperature=temperature)[1](x)
        finally:
            sys.setprofile(before)
    assert found <= HARMLESS


@dtypes
@pytest.mark.parametrize("entry", [0.0, -np.inf, np.inf, np.nan])
def test_second_derivative_of_subsets(row, rng, dtype, entry, monkeypatch):
    """Ctrl-C: signals are handled between parts; bits are those of the row in one piece."""
    x, (v, g) = row.astype(dtype), rng.normal(size=(2, N)).astype(dtype)
    x[[3, N // 2]] = entry

    def found():
        gradients = stk.gradtopk.hvp(x, 1000, v, g, dtemperature=0.5)
        return gradients.x, gradients.temperature

    def whole(x, tau, *one):
        in_one_piece(subset_rows.second, x, np.array([tau]), *(each[None] for each in one))

    def noted(first, last, *args):
        sizes.append(last - first)
        return add_entries(first, last, *args)

    sizes, add_entries = [], long_subsets._add_entries
    monkeypatch.setattr(long_subsets, "_add_entries", noted)
    monkeypatch.setattr(long_subsets, "AT_ONCE", 1 << 18)
    in_parts = found()
    monkeypatch.setattr(long_subsets, "second", whole)
    for part, alone in zip(in_parts, found(), strict=True):
        np.testing.assert_array_equal(part, alone)
    assert np.isnan(entry) or max(sizes) <= 1 << 18 < sum(sizes)
