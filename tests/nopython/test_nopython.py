"""The row functions in a user's own compiled code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit, prange
from operators import slow_unless

import softtopk_nb as stk
from softtopk_nb import nopython as stkn
from softtopk_nb._curves.registry import CURVES


@njit(parallel=True)
def parallel_rows(x, k, tau, out, dx, dout, gx, gk, gtau):
    for i in prange(x.shape[0]):
        stkn.thretopk_jvp(x[i], k[i], tau, stkn.laplace, dx[i], 0.5, 0.25, out[i], dout[i])
        gk[i], gtau[i] = stkn.thretopk_vjp(x[i], k[i], tau, stkn.laplace, dx[i], out[i], gx[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inside_njit_parallel(dtype, rng):
    x, dx = rng.normal(size=(2, 40, 33)).astype(dtype)
    k = rng.uniform(1, 30, 40)
    out, dout, gx = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    gk, gtau = np.empty((2, 40))
    # One type in compiled code is enough: in the other one, what Python calls is compiled alone.
    rows = parallel_rows if dtype == np.float32 else parallel_rows.py_func
    rows(x, k, 0.4, out, dx, dout, gx, gk, gtau)
    kw = {"temperature": np.full(40, 0.4)}
    p, dp = stk.thretopk.jvp(x, k, dx, dk=0.5, dtemperature=0.25, **kw)
    gradients = stk.thretopk.vjp(x, k, **kw)[1](dx)
    close = {"rtol": 50 * np.finfo(dtype).eps, "atol": 50 * np.finfo(dtype).eps}
    np.testing.assert_allclose(out, p, **close)
    np.testing.assert_allclose(dout, dp, **close)
    np.testing.assert_allclose(gx, gradients.x, **close)
    np.testing.assert_allclose(gk, gradients.k, **close)
    np.testing.assert_allclose(gtau, gradients.temperature, **close)


@pytest.mark.slow
@pytest.mark.parametrize("curve", CURVES)
def test_every_curve_from_python(curve, rng):
    x = rng.normal(size=50)
    out = np.empty(50)
    lam = stkn.thretopk(x, 7, 0.5, getattr(stkn, curve), out)
    p = stk.thretopk(x, 7, curve=curve, temperature=0.5)
    np.testing.assert_array_equal(out, p)  # one by one or side by side, rows are searched alike
    assert lam == stk.thretopk.threshold(x, 7, curve=curve, temperature=0.5)


@pytest.mark.slow
def test_entmax_and_own_curves_inside_njit(rng):
    own = stk.Curve(lambda t: 0.5 + math.atan(t) / math.pi, lambda t: 1 / (math.pi * (1 + t * t)))
    curve = own.compiled

    @njit
    def both(x, a, b):
        stkn.thretopk(x, 3, 0.5, stkn.entmax(1.5), a)
        stkn.thretopk(x, 3, 0.5, curve, b)

    x = rng.normal(size=20)
    a, b = np.empty((2, 20))
    both(x, a, b)
    np.testing.assert_allclose(a, stk.thretopk(x, 3, curve="entmax", alpha=1.5, temperature=0.5))
    np.testing.assert_allclose(b, stk.thretopk(x, 3, curve=own, temperature=0.5))


def test_hardtopk(rng):
    @njit
    def hard(x, out):
        stkn.hardtopk(x, 3, out)

    x, out = rng.normal(size=20), np.empty(20)
    hard(x, out)
    np.testing.assert_array_equal(out, stk.hardtopk(x, 3))


@pytest.mark.parametrize(
    ("k", "tau"),
    [(-1, 1.0), (6, 1.0), (math.nan, 1.0), (2, 0.0), (2, -1.0), (2, math.nan), (2, math.inf)],
)
def test_what_cannot_be_is_nan(k, tau):
    x, out, gx = np.arange(5.0), np.zeros(5), np.zeros(5)
    assert math.isnan(stkn.thretopk(x, k, tau, stkn.laplace, out))
    assert np.isnan(out).all()
    assert all(map(math.isnan, stkn.thretopk_vjp(x, k, tau, stkn.laplace, x, out, gx)))
    assert np.isnan(gx).all()
    stkn.thretopk_jvp(x, k, tau, stkn.laplace, x, 0.0, 0.0, out, gx)
    assert np.isnan(gx).all()
    if tau == 1.0:
        out[:] = 0
        stkn.hardtopk(x, k, out)
        assert np.isnan(out).all()


def test_strided_rows(rng):
    x = rng.normal(size=(10, 6))
    out = np.empty((10, 6))
    stkn.thretopk(x[:, 2], 3, 0.5, stkn.sigmoid, out[:, 2])
    np.testing.assert_allclose(
        out[:, 2], stk.thretopk(x[:, 2].copy(), 3, curve="sigmoid", temperature=0.5)
    )


def each_subset(x, k, tau, out, dx, dout, gx, gtau, iterated, weighted):
    for i in range(x.shape[0]):
        stkn.gradtopk_jvp(x[i], k[i], tau, dx[i], 0.25, out[i], dout[i])
        gtau[i] = stkn.gradtopk_vjp(x[i], k[i], tau, dx[i], out[i], gx[i])
        stkn.gradtopk(x[i], k[i], tau, out[i])
        stkn.itertopk(x[i], k[i], tau, iterated[i])
        stkn.wsoftmaxtopk(x[i], k[i], tau, weighted[i])


@pytest.mark.parametrize("dtype", slow_unless([np.float32], [np.float32, np.float64]))
def test_integer_operators(dtype, rng):
    x, dx = rng.normal(size=(2, 30, 41)).astype(dtype)
    x[3, 5], x[4, 6] = -np.inf, np.inf
    k = rng.integers(2, 40, 30)
    out, dout, gx, iterated, weighted = (np.empty_like(x) for _ in range(5))
    gtau, kw = np.empty(30), {"temperature": np.full(30, 0.8)}
    each_subset(x, k, 0.8, out, dx, dout, gx, gtau, iterated, weighted)
    p, dp = stk.gradtopk.jvp(x, k, dx, dtemperature=0.25, **kw)
    gradients = stk.gradtopk.vjp(x, k, **kw)[1](dx)
    # Sums are taken in another order there.
    close = {"rtol": 100 * np.finfo(dtype).eps, "atol": 100 * np.finfo(dtype).eps}
    np.testing.assert_allclose(out, p, **close)
    np.testing.assert_allclose(dout, dp, **close)
    np.testing.assert_allclose(gx, gradients.x, **close)
    np.testing.assert_allclose(gtau, gradients.temperature, **close)
    np.testing.assert_array_equal(iterated, stk.itertopk(x, k, **kw))
    np.testing.assert_array_equal(weighted, stk.wsoftmaxtopk(x, k, **kw))


@njit(parallel=True)
def parallel_subsets(x, k, tau, out, iterated):
    for i in prange(x.shape[0]):
        stkn.gradtopk(x[i], k[i], tau, out[i])
        stkn.itertopk(x[i], k[i], tau, iterated[i])


@pytest.mark.slow
def test_integer_operators_inside_njit_parallel(rng):
    x = rng.normal(size=(30, 41)).astype(np.float32)
    k, out, iterated = rng.integers(2, 40, 30), np.empty_like(x), np.empty_like(x)
    parallel_subsets(x, k, 0.8, out, iterated)
    alone, close = np.empty(41, np.float32), 100 * np.finfo(np.float32).eps
    for i in range(30):
        stkn.gradtopk(x[i], k[i], 0.8, alone)
        np.testing.assert_allclose(out[i], alone, rtol=close, atol=close)
        stkn.itertopk(x[i], k[i], 0.8, alone)
        np.testing.assert_allclose(iterated[i], alone, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [np.float32])  # as in test_integer_operators, by the same worker
def test_integer_operators_on_bad_arguments(dtype):
    x, out, other = np.arange(4, dtype=dtype), *np.zeros((2, 4), dtype)
    for k, tau in ((5, 1.0), (-1, 1.0), (2, 0.0), (2, np.inf), (2, np.nan)):
        for function in (stkn.gradtopk, stkn.itertopk, stkn.wsoftmaxtopk):
            out[:] = 0
            function(x, k, tau, out)
            assert np.isnan(out).all()
        stkn.gradtopk_jvp(x, k, tau, x, 0.0, out, other)
        assert np.isnan(other).all()
        assert np.isnan(stkn.gradtopk_vjp(x, k, tau, x, out, other))
        assert np.isnan(other).all()


def test_a_literal_number_compiles_nothing_anew():
    """Numba types a number that is written out as itself, and would compile a kernel for each."""

    @njit
    def twice(x, out):
        stkn.hardtopk(x, 2, out)
        stkn.hardtopk(x, 3, out)

    x = np.arange(5.0)
    out = np.empty(5)
    stkn.hardtopk(x, 2, out)
    compiled = list(stkn.hardtopk.overloads)
    twice(x, out)
    np.testing.assert_array_equal(out, [0, 0, 1, 1, 1])
    assert list(stkn.hardtopk.overloads) == compiled
