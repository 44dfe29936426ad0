"""itertopk and wsoftmaxtopk on a device beside the CPU: groups, edges of k, infinities, ties.

Both work in float64, so that the two differ by rounding that the steps magnify (Proposition
prop-iter-error): the tolerance of values is api.md's, that of derivatives grows with their size.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import softtopk_nb as stk

pytestmark = pytest.mark.device

OPERATORS = {"itertopk": stk.itertopk, "wsoftmaxtopk": stk.wsoftmaxtopk}
EPS = 2.0**-52
both = pytest.mark.parametrize("name", OPERATORS)
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f8", "f4"])


@pytest.fixture
def group(monkeypatch):
    """Let a group of another size take all rows."""
    from softtopk_nb._cuda.thread_groups import ThreadGroup
    from softtopk_nb.iterative import cuda as room

    def force(lanes):
        monkeypatch.setattr(room, "_choose", lambda n, most: ThreadGroup(lanes, 2))

    return force


@pytest.fixture
def in_parts(monkeypatch):
    """Cut every row into parts of 128 entries, or into at most `most`; none has a single block."""
    from softtopk_nb._cuda import long_rows
    from softtopk_nb._cuda.thread_groups import ThreadGroup
    from softtopk_nb.iterative import cuda as room

    def one_block(*arguments):
        raise AssertionError("a long row has one block")

    def use(most=1024):
        for name, value in {"LONG": 1, "PIECES": 1, "MOST": most}.items():
            monkeypatch.setattr(long_rows, name, value)
        monkeypatch.setattr(long_rows, "choose", lambda n, T: ThreadGroup(64, 2, streams=True))
        for name in ("make_solve", "make_jvp", "make_vjp"):
            monkeypatch.setattr(room, name, one_block)

    return use


def close(got, expected, dtype, spread=0.0, factor=1.0):
    """Compare with the CPU, to rounding; `spread` of the rows in temperatures."""
    expected = np.asarray(expected, np.float64)
    size = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    floor = 1e-13 if dtype is np.float64 else 1e-6
    atol = factor * size * (floor + 16 * EPS * spread)
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def check(name, x, k, tau, rng, alike=()):
    """Value, tangent and pullback of a batch against the CPU's; some entries move `alike`."""
    op, dtype = OPERATORS[name], x.dtype.type
    v, g = rng.normal(size=(2, *x.shape)).astype(dtype)
    v[:, alike] = g[:, alike] = 1.5
    on_device = cuda.to_device(x)
    there = {"temperature": cuda.to_device(np.asarray(tau, np.float64)) if np.ndim(tau) else tau}
    k_there = cuda.to_device(np.asarray(k)) if np.ndim(k) else k
    here = {"temperature": np.broadcast_to(tau, x.shape[:-1])}
    p, dp = op.jvp(on_device, k_there, cuda.to_device(v), dtemperature=0.3, **there)
    q, pullback = op.vjp(on_device, k_there, **there)
    gradients = pullback(cuda.to_device(g))
    expected, tangent = op.jvp(x, k, v, dtemperature=0.3, **here)
    reference = op.vjp(x, k, **here)[1](g)
    finite = x[np.isfinite(x)].astype(float)
    spread = np.ptp(finite) / np.min(tau)
    assert p.copy_to_host().dtype == dtype
    close(p.copy_to_host(), expected, dtype, spread)
    np.testing.assert_array_equal(q.copy_to_host(), p.copy_to_host())
    # A step magnifies what rounding does to the slopes as it magnifies errors of p.
    slopes = 10 * (1 + spread)
    close(dp.copy_to_host(), tangent, dtype, spread, slopes)
    close(gradients.x.copy_to_host(), reference.x, dtype, spread, slopes)
    gtau = reference.temperature if np.ndim(tau) else reference.temperature.sum()
    close(gradients.temperature.copy_to_host(), gtau, dtype, spread, 10 * slopes)
    return p.copy_to_host(), dp.copy_to_host(), gradients.x.copy_to_host()


@both
@both_dtypes
@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_as_on_the_cpu(name, dtype, n, rng):
    x = rng.normal(size=(3, n)).astype(dtype)
    check(name, x, min(n, 4), np.array([0.5, 1.0, 2.0]), rng)
    assert n == 1 or np.ptp(x) > 0.5


@both
@both_dtypes
def test_number_of_steps_per_row(name, dtype, group, rng):
    """k from the device, 0 to n; the pullback's segments are of every length."""
    group(8)
    x = rng.normal(size=(6, 12)).astype(dtype)
    check(name, x, np.array([0, 1, 2, 5, 8, 12]), np.full(6, 2.0), rng)


@both
@pytest.mark.parametrize("lanes", [8, 64, 128])
def test_other_groups(name, lanes, group, rng):
    group(lanes)
    x = rng.normal(size=(3, 150))
    x[1, ::3] = -np.inf
    x[2, 7], x[2, 9] = np.inf, -np.inf
    check(name, x, 3, 1.0, rng)


@both
@both_dtypes
def test_infinities_and_nan(name, dtype, rng):
    x = rng.normal(size=(7, 9)).astype(dtype)
    x[0, ::2] = -np.inf
    x[1, 3], x[1, 5] = np.inf, -np.inf
    x[2, :4] = np.inf  # more than k
    x[3, :3] = np.inf  # all of k
    x[4, 2] = np.nan
    x[5, 2:] = -np.inf  # fewer than k
    x[6, 3:] = -np.inf  # as many as k
    p, dp, gx = check(name, x, 3, np.full(7, 0.8), rng)
    assert np.isnan(p).all(axis=1).tolist() == [False, False, False, False, True, True, False]
    assert (dp[2:4] == 0).all()
    assert (gx[0, ::2] == 0).all()
    np.testing.assert_array_equal(p[2], np.where(np.arange(9) < 4, 0.75, 0).astype(dtype))


@both
def test_masked_entries_are_as_if_excluded(name, rng):
    x, where = rng.normal(size=(2, 40)), rng.random((2, 40)) < 0.5
    where[:, :5] = True
    p = OPERATORS[name](cuda.to_device(x), 3, where=cuda.to_device(where)).copy_to_host()
    close(p, OPERATORS[name](x, 3, where=where), np.float64)
    assert (p[~where] == 0).all()


@both
def test_ties_and_maxima(name, rng):
    """Proposition prop-iter-maxima: settled maxima, maxima far ahead, and equal minima."""
    far = 1e4 if name == "wsoftmaxtopk" else 60.0  # itertopk magnifies errors by the spread
    x = np.array(
        [
            [1.0, 1.0, 0.0, -0.5, 0.5, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [50.0, 50.0, 0.0, -1.0, -1.0, 0.5],
            [far, 1.0, 0.5, far, 0.0, -1.0],
            [3.0, 3.0 - 2.0**-51, 1.0, 0.0, 0.0, 0.0],
        ]
    )
    for k in (3, 4):
        p, dp, _ = check(name, x, k, 1.0, rng)
        np.testing.assert_allclose(p.sum(axis=1), k, rtol=0, atol=1e-12)
        assert np.abs(dp).max() > 0.01


@both
@both_dtypes
def test_overflow_is_held(name, dtype, rng):
    big = np.finfo(dtype).max
    x = np.array([[-big, big, 0.0, 1.0], [big, big, -big, 2.0], [0.0, 1.0, 2.0, 3.0]], dtype)
    for tau in (1e-320, 1e-30, 1e30, 1.7e308):
        op, v = OPERATORS[name], rng.normal(size=x.shape).astype(dtype)
        p, dp = op.jvp(cuda.to_device(x), 2, cuda.to_device(v), dtemperature=1.0, temperature=tau)
        # One temperature for each row: the sum of an infinite gradient and its opposite is NaN.
        _, pullback = op.vjp(cuda.to_device(x), 2, temperature=cuda.to_device(np.full(3, tau)))
        gradients = pullback(cuda.to_device(v))
        close(p.copy_to_host(), op(x, 2, temperature=tau), dtype)
        for derivative in (dp, gradients.x, gradients.temperature):
            assert not np.isnan(derivative.copy_to_host()).any()


@both
def test_what_the_host_cannot_see_is_nan(name):
    x = np.tile(np.arange(4.0), (7, 1))
    k = np.array([2, -1, 5, 2, 2, 2, 2])
    tau = np.array([1.0, 1.0, 1.0, 0.0, -1.0, np.nan, np.inf])
    op, on_device = OPERATORS[name], cuda.to_device(x)
    kw = {"temperature": cuda.to_device(tau)}
    p, dp = op.jvp(on_device, cuda.to_device(k), on_device, **kw)
    gradients = op.vjp(on_device, cuda.to_device(k), **kw)[1](on_device)
    for values in (p, dp, gradients.x):
        rows = values.copy_to_host()
        assert np.isfinite(rows[0]).all()
        assert np.isnan(rows[1:]).all()
    assert np.isnan(gradients.temperature.copy_to_host()[1:]).all()


@both
@pytest.mark.parametrize("limit", ["MOST_BLOCKS", "MEMORY"])
def test_more_rows_than_groups(name, limit, rng, monkeypatch):
    """A row has the same bits whichever group takes it, and whatever that group did before."""
    from softtopk_nb.iterative import cuda as room

    x, g = rng.normal(size=(2, 9, 12))
    x[2, 3] = np.nan
    x[4, 1:4] = np.inf
    op = OPERATORS[name]

    def results(those):
        on_device, v = cuda.to_device(x[those]), cuda.to_device(g[those])
        p, dp = op.jvp(on_device, 3, v)
        return [a.copy_to_host() for a in (p, dp, op.vjp(on_device, 3)[1](v).x)]

    each = [np.concatenate(parts) for parts in zip(*(results([i]) for i in range(9)), strict=True)]
    monkeypatch.setattr(room, limit, 1)
    for one, all_of_them in zip(each, results(slice(None)), strict=True):
        np.testing.assert_array_equal(one, all_of_them)


@both
@both_dtypes
@pytest.mark.parametrize("k", [0, 1, 5])
def test_rows_in_parts(name, dtype, k, rng, in_parts):
    """With a part of one entry; the pullback's segments are not all of one length."""
    in_parts()
    x = rng.normal(size=(3, 129)).astype(dtype)
    x[1, ::3] = -np.inf
    check(name, x, k, np.array([0.5, 1.0, 2.0]), rng)


@both
def test_one_row_in_parts(name, rng, in_parts):
    in_parts()
    check(name, rng.normal(size=(1, 257)), 3, 0.7, rng)


@both
@both_dtypes
def test_infinities_and_nan_in_parts(name, dtype, rng, in_parts):
    """What counts as one row is spread over its parts; +inf entries leave a row fewer steps."""
    in_parts(most=2)
    n = 300
    x = rng.normal(size=(8, n)).astype(dtype)
    x[0, 7], x[0, 290], x[0, ::2] = np.inf, -np.inf, -np.inf
    x[1, 7], x[1, 290] = np.inf, np.inf
    x[2, [3, 130, 131, 260]] = np.inf  # all of k
    x[3, ::40] = np.inf  # more than k
    x[4, 299] = np.nan
    x[5, 3:] = -np.inf  # fewer than k
    x[6] = -np.inf
    x[6, [1, 140, 260, 299]] = 1.0, 1.0, 0.5, 2.0  # as many as k
    x[7, [0, 150, 260]] = np.inf
    p, dp, gx = check(name, x, 4, np.linspace(0.5, 1.0, 8), rng)
    assert np.isnan(p).all(axis=1).tolist() == [i in (4, 5) for i in range(8)]
    assert (dp[2:4] == 0).all()
    assert (gx[2:4] == 0).all()
    np.testing.assert_array_equal(p[3], np.where(np.arange(n) % 40, 0, 0.5).astype(dtype))


@both
@pytest.mark.parametrize("k", [3, 5])
def test_ties_and_maxima_in_parts(name, k, rng, in_parts):
    """Maxima of a row in different parts: before, at and after the step at which they settle.

    Each row by itself, since derivatives of one are many times those of another; and with maxima
    that do not move apart, whose derivatives are small once what they share is taken off.
    """
    in_parts()
    far = 1e4 if name == "wsoftmaxtopk" else 60.0
    x = rng.normal(size=(3, 140))
    x[0, [5, 130, 139]] = 50.0
    x[1, [5, 130, 139]] = far, far, np.inf
    x[2, [0, 127, 128, 139]] = -5.0  # equal minima
    x[2, [1, 2, 129, 130]] = 40.0
    for row, alike in ((x[0], []), (x[0], [5, 130, 139]), (x[1], []), (x[2], [1, 2, 129, 130])):
        p, dp, _ = check(name, row[None], k, 1.0, rng, alike)
        np.testing.assert_allclose(p.sum(), k, rtol=0, atol=1e-11)
        assert alike or np.abs(dp).max() > 1e-3


@both
def test_what_the_host_cannot_see_in_parts(name, rng, in_parts):
    in_parts()
    x, tau = rng.normal(size=(3, 130)), np.array([1.0, -1.0, 0.5])
    op, kw = OPERATORS[name], {"temperature": cuda.to_device(tau)}
    p, dp = op.jvp(cuda.to_device(x), 3, cuda.to_device(x), **kw)
    gradients = op.vjp(cuda.to_device(x), 3, **kw)[1](cuda.to_device(x))
    for values in (p, dp, gradients.x):
        rows = values.copy_to_host()
        assert np.isnan(rows[1]).all()
        assert np.isfinite(rows[[0, 2]]).all()
    assert np.isnan(gradients.temperature.copy_to_host()).tolist() == [False, True, False]


@both
def test_rows_in_parts_do_not_know_of_each_other(name, rng, in_parts, monkeypatch):
    """A row has the same bits alone, in a batch, and in one that memory does not hold at once."""
    from softtopk_nb.iterative import cuda as room

    in_parts()
    x, v = rng.normal(size=(2, 3, 140))
    x[1, 3], x[2, 7] = np.inf, np.nan
    tau, op = cuda.to_device(np.array([0.5, 1.0, 2.0])), OPERATORS[name]

    def results(those):
        kw = {"temperature": tau[those]}
        there, along = cuda.to_device(x[those]), cuda.to_device(v[those])
        gradients = op.vjp(there, 3, **kw)[1](along)
        all_of_them = (*op.jvp(there, 3, along, **kw), gradients.x, gradients.temperature)
        return [a.copy_to_host() for a in all_of_them]

    each = [results(slice(i, i + 1)) for i in range(3)]
    at_once = results(slice(None))
    monkeypatch.setattr(room, "MEMORY", 1)
    for alone, together, in_turn in zip(
        zip(*each, strict=True), at_once, results(slice(None)), strict=True
    ):
        np.testing.assert_array_equal(np.concatenate(alone), together)
        np.testing.assert_array_equal(together, in_turn)


@both
def test_steps_that_only_the_device_knows_are_taken_by_one_block(name, rng, monkeypatch):
    from softtopk_nb._cuda import long_rows

    monkeypatch.setattr(long_rows, "LONG", 1)
    x = rng.normal(size=(3, 40))
    check(name, x, np.array([1, 2, 5]), 1.0, rng)
