"""softmax, log_softmax, logsumexp, energy_score and gradual: the theorems of docs/math/softmax.md.

Values are judged against 80-digit arithmetic at the accuracy of the operators: with
R = (max x - min x)/temperature, 1e-13 + 4 eps R in float64 and 1e-6 + 4 eps R in float32.
"""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import exact, mp, to_float64
from scipy import special
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb._threads import pool
from softtopk_nb._threads.long_rows import LONG
from softtopk_nb.softmax.cpu import long

SMOOTH = {"softmax": stk.softmax, "log_softmax": stk.log_softmax, "logsumexp": stk.logsumexp}
every = pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in SMOOTH.items()])
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])
EPS = {np.float64: 2.0**-52, np.float32: 2.0**-23}


def tolerance(x, tau, dtype=np.float64):
    spread = (float(np.max(x)) - float(np.min(x))) / tau
    return (1e-13 if dtype is np.float64 else 1e-6) + 4 * EPS[dtype] * spread


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=atol)


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def reference_row(x, tau):
    """p, log p and logsumexp in `mp`, from the formulas as they stand."""
    z = [v / mp.mpf(float(tau)) for v in exact(x)]
    top = max(z)
    total = mp.fsum(mp.exp(v - top) for v in z)
    log_s = mp.log(total) + top
    return [mp.exp(v - log_s) for v in z], [v - log_s for v in z], log_s * mp.mpf(float(tau))


def random_rows(rng):
    """(x, temperature) of many sizes, scales and offsets."""
    for n, scale, offset in itertools.product((1, 2, 3, 10, 57), (1e-6, 1.0, 1e5), (0.0, -1e4)):
        x = scale * rng.normal(size=n) + offset
        assert n == 1 or np.unique(x).size == n
        yield x, scale * 10.0 ** rng.uniform(-2, 2)


# --------------------------------------------------------------------------------------- values


@dtypes
def test_values_against_80_digits(dtype, rng):
    for x, tau in random_rows(rng):
        x = x.astype(dtype)
        p, log_p, lse = reference_row(x, tau)
        atol = tolerance(x, tau, dtype)
        assert_close(stk.softmax(x, temperature=tau), to_float64(p), atol)
        log_p = to_float64(log_p)
        np.testing.assert_allclose(
            stk.log_softmax(x, temperature=tau), log_p, rtol=8 * EPS[dtype], atol=atol
        )
        value = stk.logsumexp(x, temperature=tau)
        assert value.dtype == dtype
        size = max(abs(float(lse)), np.abs(x).max())
        assert abs(float(value) - float(lse)) <= 4 * EPS[dtype] * size + tau * atol


def test_agrees_with_scipy(rng):
    x = rng.normal(size=(4, 5, 6)) * 3
    for axis in (0, 1, -1):
        assert_close(stk.softmax(x, axis=axis), special.softmax(x, axis=axis), 1e-14)
        assert_close(stk.log_softmax(x, axis=axis), special.log_softmax(x, axis=axis), 1e-13)
        assert_close(stk.logsumexp(x, axis=axis), special.logsumexp(x, axis=axis), 1e-13)


def test_softmax_is_thretopk_exp(rng):
    """The operator of one curve at k = 1 (id-softmax) and this function are one."""
    x = rng.normal(size=(7, 20)) * 4
    tau = rng.uniform(0.1, 3, size=7)
    p = stk.thretopk(x, 1, curve="exp", temperature=tau)
    assert_close(stk.softmax(x, temperature=tau), p, 4e-13)
    lam = stk.thretopk.threshold(x, 1, curve="exp", temperature=tau)
    assert_close(stk.logsumexp(x, temperature=tau), lam, 1e-11)


def test_extreme_scales():
    """prop-stable: scores of 1e300 and temperatures of 1e-3, without a warning."""
    x = np.array([1e300, 1e300, 1e300 * (1 - 2**-52), -1e300])
    same(stk.softmax(x, temperature=1e-3), np.array([0.5, 0.5, 0.0, 0.0]))
    same(stk.log_softmax(x, temperature=1e-3)[:2], np.full(2, -np.log(2)))
    assert -2.1e303 < stk.log_softmax(x, temperature=1e-3)[3] < -1.9e303
    assert stk.logsumexp(x, temperature=1e-3) == 1e300

    # Differences that overflow are the lowest finite number: excluded entries alone have -inf.
    lowest = np.finfo(np.float64).min
    y = np.array([1.7e308, -1.7e308, -np.inf])
    same(stk.log_softmax(y), np.array([0.0, lowest, -np.inf]))
    same(stk.log_softmax(y, temperature=2.0**99), np.array([0.0, lowest / 2.0**99, -np.inf]))
    same(stk.log_softmax([0.0, -1e300], temperature=1e-300), np.array([0.0, lowest]))
    same(stk.softmax(y), np.array([1.0, 0.0, 0.0]))
    assert stk.logsumexp(y) == 1.7e308

    same(stk.softmax(np.float32([3e38, -3e38]), temperature=1e-30), np.float32([1, 0]))
    same(stk.softmax(np.float32([1, 2]), temperature=1e-300), np.float32([0, 1]))
    same(stk.softmax(np.float32([1, 2]), temperature=1e300), np.float32([0.5, 0.5]))
    same(stk.softmax(np.float16([6e4, -6e4])), np.float16([1, 0]))
    assert stk.log_softmax(np.float16([6e4, -6e4]))[1] == -np.inf
    assert_close(stk.softmax(np.array([0.0, 1.0]) + 1e9), special.softmax([0.0, 1.0]), 1e-13)

    for f in SMOOTH.values():
        value, tangent = f.jvp(x, np.ones(4), dtemperature=1.0, temperature=1e-3)
        assert np.isfinite(tangent).all()
        gradients = f.vjp(x, temperature=1e-3)[1](np.ones_like(value))
        assert np.isfinite(gradients.x).all()
        assert np.isfinite(gradients.temperature)
    # Entries that underflow do not move, even where z dtau overflows.
    dp = stk.softmax.jvp(y, [1.0, np.inf, np.inf], dtemperature=-3.0)[1]
    same(dp, np.zeros(3))
    assert stk.softmax.vjp(y)[1]([1.0, 2.0, 3.0]).temperature == 0


def test_log_softmax_where_p_is_nearly_one():
    """prop-stable: log p keeps its relative accuracy where p rounds to 1, and where it is 0."""
    for gap in (20.0, 50.0, 300.0, 700.0):
        x = np.array([0.0, gap, 0.5])
        top = -mp.log1p(mp.exp(-gap) + mp.exp(0.5 - gap))
        log_p = to_float64([top - gap, top, top + 0.5 - gap])
        np.testing.assert_allclose(stk.log_softmax(x), log_p, rtol=1e-14, atol=0)
        assert stk.log_softmax(x)[1] < 0


def test_an_error_of_the_sum_is_no_larger_in_the_logarithm():
    """prop-stable: E/(1 + E) <= log(1 + E), by the worst E, which is a small one; 1 + E <= n."""
    share, place = largest(lambda e: e / (1 + e) / math.log1p(e), 1e-6, 1e6)
    assert 1 - 1e-5 < share <= 1
    assert place == pytest.approx(1e-6)
    for n in (1, 2, 50):
        assert stk.logsumexp(np.zeros(n)) == pytest.approx(math.log(n), rel=1e-15)


# -------------------------------------------------------------------------------------- theorems


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.floats(-3, 3))
def test_logsumexp_bounds(seed, n, log_tau):
    """thm-lse-bounds: max x < value <= max x + tau log n, the right side for constant rows."""
    x, tau = np.random.default_rng(seed).normal(size=n), 10.0**log_tau
    value, rounding = stk.logsumexp(x, temperature=tau), 1e-15 * (1 + tau)
    assert x.max() <= value <= x.max() + tau * np.log(n) + rounding
    ordered = np.sort(x)
    if ordered[-1] - ordered[-2] < 30 * tau:
        assert x.max() < value or tau < 1e-2
    if tau > 0.1:
        assert value < x.max() + tau * np.log(n)
    constant = stk.logsumexp(np.full(n, x[0]), temperature=tau)
    assert constant == pytest.approx(x[0] + tau * np.log(n), rel=1e-14)
    assert stk.logsumexp(x, temperature=2 * tau) >= value


def test_logsumexp_is_a_maximum_over_the_simplex(rng):
    """thm-lse-variational: value = max_q <q, x> + tau H(q), attained at softmax only."""
    for n in (2, 5, 30):
        x, tau = rng.normal(size=n), 0.7
        value, p = stk.logsumexp(x, temperature=tau), stk.softmax(x, temperature=tau)
        assert value == pytest.approx(p @ x + tau * special.entr(p).sum(), abs=1e-13)
        q = rng.dirichlet(np.ones(n), size=200)
        assert np.unique(q[:, 0]).size == 200
        # What another q falls short by is tau KL(q, p).
        short = value - (q @ x + tau * special.entr(q).sum(axis=1))
        assert_close(short, tau * special.rel_entr(q, p).sum(axis=1), 1e-12)
        assert short.min() > 0


def test_softmax_is_the_gradient_of_logsumexp(rng):
    """thm-lse-gradient: the gradient is softmax, the derivative in tau its entropy, J as stated."""
    for x, tau in random_rows(rng):
        h = tau * 1e-5
        p = stk.softmax(x, temperature=tau)
        value, pullback = stk.logsumexp.vjp(x, temperature=tau)
        same(value, stk.logsumexp(x, temperature=tau))
        gradients = pullback(1.0)
        same(gradients.x, p)
        assert gradients.k is None
        assert gradients.temperature == pytest.approx(special.entr(p).sum(), abs=1e-11)
        dx = rng.normal(size=x.size)
        up, down = (reference_row(x + s * h * dx, tau)[2] for s in (1, -1))
        expected = float(up - down) / (2 * h)
        rounding = 1e-15 * np.abs(x).max() / h
        assert stk.logsumexp.jvp(x, dx, temperature=tau)[1] == pytest.approx(
            expected, abs=1e-8 * np.abs(dx).max() + rounding
        )
        jacobian = stk.softmax.jvp(
            np.broadcast_to(x, (x.size, x.size)), np.eye(x.size), temperature=tau
        )[1]
        assert_close(jacobian * tau, np.diag(p) - np.outer(p, p), 1e-15)


# ----------------------------------------------------------------------------------- derivatives


def by_difference(name, x, tau, dx, dtau):
    """Central difference in `mp`."""
    h = mp.mpf(10) ** -25
    ends = []
    for s in (1, -1):
        moved = [a + s * h * b for a, b in zip(exact(x), exact(dx), strict=True)]
        width = mp.mpf(float(tau)) + s * h * mp.mpf(float(dtau))
        z = [v / width for v in moved]
        top = max(z)
        log_s = top + mp.log(mp.fsum(mp.exp(v - top) for v in z))
        ends.append(
            {
                "softmax": lambda z=z, log_s=log_s: [mp.exp(v - log_s) for v in z],
                "log_softmax": lambda z=z, log_s=log_s: [v - log_s for v in z],
                "logsumexp": lambda w=width, log_s=log_s: [w * log_s],
            }[name]()
        )
    return to_float64([(a - b) / (2 * h) for a, b in zip(*ends, strict=True)])


@pytest.mark.parametrize("name", SMOOTH)
@dtypes
def test_derivatives_against_differences(name, dtype, rng):
    f, moved = SMOOTH[name], 0
    for x, tau in random_rows(rng):
        x = x.astype(dtype)
        dx, dtau = rng.normal(size=x.size).astype(dtype), rng.normal()
        expected = by_difference(name, x, tau, dx, dtau)
        value, tangent = f.jvp(x, dx, dtemperature=dtau, temperature=tau)
        same(value, f(x, temperature=tau))
        assert tangent.dtype == dtype
        z = float(np.ptp(x)) / tau
        size = (np.abs(dx).max() + abs(dtau) * z) / (1 if name == "logsumexp" else tau)
        moved += np.abs(expected).max() > 1e-3 * size
        atol = 50 * tolerance(x, tau, dtype) * (1 + size)
        assert_close(np.atleast_1d(tangent), expected, atol)
        # Forward and reverse mode are transposes of each other.
        _, pullback = f.vjp(x, temperature=tau)
        g = rng.normal(size=np.shape(value)).astype(dtype)
        gradients = pullback(g)
        assert gradients.x.dtype == dtype
        left = np.sum(np.float64(g) * np.float64(tangent))
        right = np.sum(np.float64(gradients.x) * dx) + float(gradients.temperature) * dtau
        assert left == pytest.approx(right, abs=float(atol * x.size))
    assert moved >= 10


@every
def test_gradients_have_the_shape_of_their_arguments(f, rng):
    x = rng.normal(size=(2, 6, 3))
    tau = np.array([[0.5], [2.0]])
    value, pullback = f.vjp(x, temperature=tau, axis=1)
    g = rng.normal(size=value.shape)
    gradients = pullback(g)
    assert gradients.x.shape == x.shape
    assert gradients.temperature.shape == tau.shape
    assert np.shape(f.vjp(x, axis=1)[1](g).temperature) == ()
    in_tau = np.zeros((2, 1))
    for i, j in itertools.product(range(2), range(3)):
        cotangent = g[i, :, j] if g.ndim == 3 else g[i, j]
        each = f.vjp(x[i, :, j], temperature=tau[i, 0])[1](cotangent)
        same(gradients.x[i, :, j], each.x)
        in_tau[i] += each.temperature
    assert_close(gradients.temperature, in_tau, 1e-13)
    same(pullback(g).x, gradients.x)
    # A cotangent is broadcast.
    same(pullback(1.0).x, pullback(np.ones(value.shape)).x)


# ------------------------------------------------------------------- arrays, types, infinities


@every
@dtypes
def test_bits_do_not_depend_on_where_the_arrays_lie(f, dtype, rng):
    for n in (10, 57, 1500):
        x = rng.normal(size=n).astype(dtype)
        expected = f(x), f.jvp(x, x)[1], f.vjp(x)[1](1.0).x
        for start in rng.integers(0, 64, size=20):
            room = np.empty(n + 64, dtype)[start : start + n]
            room[...] = x
            for found, there in zip(
                (f(room), f.jvp(room, room)[1], f.vjp(room)[1](1.0).x), expected, strict=True
            ):
                same(found, there)


@every
@dtypes
@pytest.mark.parametrize("end", [0.0, np.inf, np.nan])
def test_long_rows_are_cut_in_parts(f, dtype, end, rng, monkeypatch):
    """The same as uncut to rounding, and to the bit with any number of threads."""
    x, dx = rng.normal(size=(2, 2, LONG + 3)).astype(dtype)
    x[1, -1] = end
    g = rng.normal(size=2) if f is stk.logsumexp else dx

    def results():
        value, tangent = f.jvp(x, dx, dtemperature=0.3, temperature=0.7)
        pulled = f.vjp(x, temperature=0.7)[1](g)
        return value, tangent, pulled.x, pulled.temperature

    several = results()
    monkeypatch.setattr(pool, "thread_count", lambda: 1)
    alone = results()
    monkeypatch.setattr(long, "LONG", LONG + 4)
    whole = results()
    # Sums of that many terms: of a float32 each block is added in float32.
    bound = 1e-4 if dtype is np.float32 else 1e-11
    for a, b, c in zip(several, alone, whole, strict=True):
        same(a, b)
        np.testing.assert_allclose(a, c, rtol=bound, atol=bound)


@every
@dtypes
def test_layouts_and_rows(f, dtype, rng):
    x = rng.normal(size=(6, 70)).astype(dtype)
    x[2, 5] = np.nan
    expected = f(x)
    readonly = x.copy()
    readonly.flags.writeable = False
    for y in (
        readonly,
        np.asfortranarray(x),
        np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        x[::-1, ::-1].copy()[::-1, ::-1],
        x.astype(x.dtype.newbyteorder()),
    ):
        before = y.copy()
        same(f(y), expected)
        np.testing.assert_array_equal(y, before)
    same(f(x.T, axis=0), expected.T)
    for i in range(6):
        same(f(x[i]), expected[i])
    assert np.isnan(expected[2]).all()
    assert np.isfinite(np.delete(expected, 2, 0)).all()
    dx = rng.normal(size=x.shape).astype(dtype)
    assert np.isnan(f.jvp(x, dx)[1][2]).all()
    assert np.isnan(f.vjp(x)[1](1.0).x[2]).all()
    assert np.isfinite(np.delete(f.vjp(x)[1](1.0).x, 2, 0)).all()


@every
def test_types(f):
    x = [[3, 0, 1], [0, 1, 1]]
    for given_type, result in (
        (np.float16, np.float16),
        (np.float32, np.float32),
        (">f8", np.float64),
        (np.int8, np.float64),
        (np.bool_, np.float64),
    ):
        assert f(np.array(x).astype(given_type)).dtype == result
    same(f(np.float16(x)), f(np.float32(x)).astype(np.float16))
    same(f(x), f(np.array(x, float)))
    for wrong in (np.ones(3, complex), np.array([1, None]), np.array(["a"])):
        with pytest.raises(TypeError, match=r"^x has dtype"):
            f(wrong)
    assert f(np.empty((0, 4))).shape in ((0, 4), (0,))


@every
@dtypes
def test_excluded_entries(f, dtype, rng):
    """-inf and masked entries count as excluded."""
    x = rng.normal(size=(5, 9)).astype(dtype)
    x[:, [2, 4]] = -np.inf
    kept = np.delete(np.arange(9), [2, 4])
    dx = rng.normal(size=x.shape).astype(dtype)
    dx[:, 2] = np.inf
    value, tangent = f.jvp(x, dx, dtemperature=0.3)
    gradients = f.vjp(x)[1](np.ones_like(value))
    alone, alone_tangent = f.jvp(x[:, kept], dx[:, kept], dtemperature=0.3)
    atol = 1e-14 if dtype is np.float64 else 1e-6
    pick = (slice(None),) if f is stk.logsumexp else (slice(None), kept)
    assert_close(value[pick], alone, atol)
    assert_close(tangent[pick], alone_tangent, 10 * atol)
    assert_close(gradients.x[:, kept], f.vjp(x[:, kept])[1](np.ones_like(alone)).x, 10 * atol)
    same(gradients.x[:, [2, 4]], np.zeros((5, 2), dtype))
    if f is not stk.logsumexp:
        excluded = 0 if f is stk.softmax else -np.inf
        same(value[:, [2, 4]], np.full((5, 2), excluded, dtype))
        same(tangent[:, [2, 4]], np.zeros((5, 2), dtype))
    # A mask says the same, whatever lies under it.
    y, mask = x.copy(), np.ones((5, 9), bool)
    mask[:, [2, 4]] = False
    y[~mask] = np.nan
    same(f(y, where=mask), value)
    same(f.jvp(y, np.where(mask, dx, np.nan), dtemperature=0.3, where=mask)[1], tangent)
    same(f.vjp(y, where=mask[0])[1](np.ones_like(value)).x, gradients.x)


@dtypes
def test_plus_infinity_and_empty_rows(dtype):
    x = np.array([[np.inf, 1, np.inf, -np.inf], [-np.inf] * 4], dtype)
    p, log_p, lse = (f(x) for f in SMOOTH.values())
    same(p, np.array([[0.5, 0, 0.5, 0], [np.nan] * 4], dtype))
    half = -np.log(2)
    same(log_p, np.array([[half, -np.inf, half, -np.inf], [np.nan] * 4], dtype))
    same(lse, np.array([np.inf, -np.inf], dtype))
    for f in SMOOTH.values():
        tangent = f.jvp(x, np.arange(4, dtype=dtype), dtemperature=1.0)[1]
        g = np.ones(()) if f is stk.logsumexp else np.arange(1, 5, dtype=dtype)
        gradients = f.vjp(x)[1](g)
        assert np.all(tangent[0] == 0)
        assert f.vjp(x[0])[1](g if g.ndim else 1.0).temperature == 0
        assert np.all(gradients.x[0] == 0)
        lost = f is not stk.logsumexp
        assert np.all(np.isnan(tangent[1]) == lost)
        assert np.all(np.isnan(gradients.x[1]) == lost)
    assert stk.energy_score(x[1]) == np.inf
    same(stk.logsumexp([1.0, np.nan], where=False), np.float64(-np.inf))


@every
def test_bad_arguments(f):
    x = np.zeros((2, 3))
    for error, match, call in (
        (ValueError, "^x is 0-dimensional", lambda: f(1.0)),
        (ValueError, r"^x has shape \(2, 0\).*at least one", lambda: f(np.empty((2, 0)))),
        (ValueError, "^temperature is 0.*positive", lambda: f(x, temperature=0)),
        (ValueError, "^temperature is nan", lambda: f(x, temperature=np.nan)),
        (ValueError, r"^temperature has shape \(3,\)", lambda: f(x, temperature=np.ones(3))),
        (TypeError, "^temperature is True", lambda: f(x, temperature=True)),
        (ValueError, "axis is 2; expected -2", lambda: f(x, axis=2)),
        (TypeError, "^axis is 0.5", lambda: f(x, axis=0.5)),
        (TypeError, "^where has dtype", lambda: f(x, where=[0, 1, 1])),
        (ValueError, r"^where has shape \(2,\)", lambda: f(x, where=[True, False])),
        (ValueError, r"^dx has shape \(2,\)", lambda: f.jvp(x, np.ones(2))),
        (TypeError, "^dx has dtype complex", lambda: f.jvp(x, np.ones(3, complex))),
        (ValueError, "^dtemperature has shape", lambda: f.jvp(x, x, dtemperature=np.ones(3))),
        (ValueError, "^the cotangent has shape", lambda: f.vjp(x)[1](np.ones((4, 2, 3)))),
        (TypeError, "^the cotangent has dtype", lambda: f.vjp(x)[1](1j)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_out_of_one_number_for_each_row(rng):
    """`out` of logsumexp and energy_score; that of softmax has the tests of the contract."""
    x, dx, tau = rng.normal(size=(4, 9)), rng.normal(size=(4, 9)), rng.uniform(0.5, 2, size=4)
    value, tangent = stk.logsumexp.jvp(x, dx, temperature=tau)
    for out in (np.empty(4), np.empty(8)[::2], np.empty(4, ">f8"), x.copy()[:, 3]):
        assert stk.logsumexp(x, temperature=tau, out=out) is out
        np.testing.assert_array_equal(out, value)
        assert stk.energy_score(x, temperature=tau, out=out) is out
        np.testing.assert_array_equal(out, -value)
        got, moved = stk.logsumexp.jvp(x, dx, temperature=tau, out=out)
        assert got is out
        same(moved, tangent)
    # An argument may lie where the result is written.
    for name in ("x", "dx", "temperature"):
        given = {"x": x.copy(), "dx": dx.copy(), "temperature": tau.copy()}
        out = given[name].reshape(-1)[:4]
        got, moved = stk.logsumexp.jvp(given.pop("x"), **given, out=out)
        np.testing.assert_array_equal(got, value)
        same(moved, tangent)
    inplace = x.copy()
    _, pullback = stk.logsumexp.vjp(inplace, temperature=tau, out=inplace[0, :4])
    same(pullback(1.0).x, stk.softmax(x, temperature=tau))
    one = np.empty(())
    assert stk.logsumexp(x[0], temperature=tau[0], out=one) is one
    assert one == value[0]
    half = np.empty(1, np.float16)
    assert stk.logsumexp(np.full((1, 2), 65504, np.float16), temperature=100, out=half) == np.inf
    for wrong, error, match in (
        (np.empty(9), ValueError, r"^out has shape \(9,\); expected the batch shape \(4,\)"),
        (np.empty(4, np.float32), TypeError, "^out has dtype float32; expected float64"),
        ([0.0] * 4, TypeError, "^out is a list"),
    ):
        with pytest.raises(error, match=match):
            stk.logsumexp(x, out=wrong)


@every
def test_a_bad_argument_leaves_out_as_it_was(f):
    x = np.zeros((2, 3))
    out = np.full(np.shape(f(x)), 7.0)
    for bad in ({"temperature": 0.0}, {"axis": 2}, {"where": [1, 0, 1]}):
        for call in (f, f.vjp, lambda x, **kw: f.jvp(x, x, **kw)):
            with pytest.raises((ValueError, TypeError)):
                call(x, out=out, **bad)
    with pytest.raises(ValueError, match=r"^dx has shape"):
        f.jvp(x, np.ones(2), out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("f", [*SMOOTH.values(), stk.gradual])
def test_objects(f):
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.deepcopy(f) is f
    assert f.__name__ in repr(f)
    assert "Parameters" in f.__doc__


# ---------------------------------------------------------------------------------------- energy


def test_energy_keeps_what_softmax_forgets(rng):
    """prop-energy: a common offset moves the energy alone; log p = (x + energy)/tau."""
    x, tau = rng.normal(size=(4, 9)), 0.6
    energy = stk.energy_score(x, temperature=tau)
    same(energy, -stk.logsumexp(x, temperature=tau))
    assert_close(stk.energy_score(x - 5, temperature=tau), energy + 5, 1e-14)
    assert_close(stk.softmax(x - 5, temperature=tau), stk.softmax(x, temperature=tau), 1e-14)
    log_p = (x + energy[:, None]) / tau
    assert_close(stk.log_softmax(x, temperature=tau), log_p, 1e-13)
    assert np.unique(energy).size == 4
    same(stk.energy_score(x.T, axis=0), stk.energy_score(x))
    with pytest.raises(ValueError, match=r"^temperature"):
        stk.energy_score(x, temperature=-1)


# --------------------------------------------------------------------------------------- gradual


def reference_gradual(x, power):
    top = max(x)
    return [1 - (1 - v) ** power if v == top else v**power for v in x]


@dtypes
def test_gradual_values(dtype, rng):
    for n in (1, 2, 9):
        for power in (0.25, 1.0, 2.0, 7.5, 300.0):
            x = rng.uniform(size=n).astype(dtype)
            assert np.unique(x).size == n
            y = stk.gradual(x, power)
            assert y.dtype == dtype
            expected = to_float64(reference_gradual(exact(x), mp.mpf(power)))
            tiny = float(np.finfo(dtype).tiny)
            rtol = 4 * EPS[dtype] * (1 + power)
            np.testing.assert_allclose(y, expected, rtol=rtol, atol=tiny)
            assert np.all((y >= 0) & (y <= 1))
    x = rng.uniform(size=(3, 5)).astype(dtype)
    same(stk.gradual(x.T, 2.0, axis=0), stk.gradual(x, 2.0).T)
    per_row = stk.gradual(x, [1.0, 2.0, 3.0])
    for i in range(3):
        same(per_row[i], stk.gradual(x[i], i + 1))
    assert_close(stk.gradual(x, 1), x, EPS[dtype])


def test_gradual_of_small_and_extreme_values():
    """No difference from 1 is taken, so that tiny largest entries keep their relative accuracy."""
    np.testing.assert_allclose(stk.gradual([1e-20, 1e-30], 3.0), [3e-20, 1e-90], rtol=1e-14, atol=0)
    same(stk.gradual([0.0, 1.0, 0.5], 1e300), np.array([0.0, 1.0, 0.0]))
    same(stk.gradual([0, 1], 2), np.array([0.0, 1.0]))
    same(stk.gradual([0.0, 0.0], 5.0), np.zeros(2))
    p = stk.gradual([[np.nan, 0.5, 0.2], [0.1, 0.5, 0.2]], 2.0)
    assert np.isnan(p[0]).all()
    same(p[1], stk.gradual([0.1, 0.5, 0.2], 2.0))
    assert np.isnan(stk.gradual.jvp([np.nan, 0.5], 2.0, [0.0, 1.0])[1]).all()
    assert np.isnan(stk.gradual.vjp([np.nan, 0.5], 2.0)[1]([0.0, 1.0]).x).all()


def test_gradual_tends_to_one_hot_unless_tied(rng):
    """prop-gradual-limit: one-hot for a unique largest entry; all of several; a row of 0 stays."""
    x = rng.uniform(0.05, 0.95, size=(20, 6))
    one_hot = np.eye(6)[x.argmax(axis=1)]
    distance = [
        np.abs(stk.gradual(x, power) - one_hot).max() for power in (1, 10, 100, 1000, 10_000)
    ]
    assert np.all(np.diff(distance) < 0)
    assert distance[-1] < 1e-3
    same(stk.gradual([0.8, 0.3, 0.8], 1e4), np.array([1.0, 0.0, 1.0]))
    same(stk.gradual([0.0, 0.0], 1e4), np.zeros(2))
    # It is neither a probability vector nor invariant under shifts.
    y = stk.gradual([0.2, 0.4, 0.6], 2.0)
    assert abs(y.sum() - 1) > 0.03
    assert np.abs(stk.gradual([0.3, 0.5, 0.7], 2.0) - y).max() > 0.01


def test_gradual_keeps_the_order_from_power_one_on(rng):
    """prop-gradual-order: order is kept for power >= 1; below 1 the largest may be overtaken."""
    x = np.sort(rng.uniform(size=(50, 7)), axis=1)
    for power in (1.0, 1.5, 4.0, 40.0):
        assert np.all(np.diff(stk.gradual(x, power), axis=1) >= -1e-15)
    y = stk.gradual([0.49, 0.5], 0.5)
    assert y[0] > 0.69
    assert y[1] < 0.3


def test_gradual_is_differentiable_where_the_maximum_is_unique(rng):
    """thm-gradual: each entry by itself; a jump at ties, from x^p to 1 - (1 - x)^p."""
    h = mp.mpf(10) ** -25
    for power in (0.5, 1.0, 2.0, 6.5):
        x = rng.uniform(0.05, 0.95, size=8)
        dx, dpower = rng.normal(size=8), rng.normal()
        y, dy = stk.gradual.jvp(x, power, dx, dpower=dpower)
        same(y, stk.gradual(x, power))
        up, down = (
            reference_gradual(
                [a + s * h * b for a, b in zip(exact(x), exact(dx), strict=True)],
                mp.mpf(power) + s * h * mp.mpf(dpower),
            )
            for s in (1, -1)
        )
        expected = to_float64([(a - b) / (2 * h) for a, b in zip(up, down, strict=True)])
        assert_close(dy, expected, 1e-13 * (1 + np.abs(expected).max()))
        _, pullback = stk.gradual.vjp(x, power)
        g = rng.normal(size=8)
        gradients = pullback(g)
        assert g @ dy == pytest.approx(
            gradients.x @ dx + gradients.power * dpower, abs=1e-12 * (1 + np.abs(expected).max())
        )
        jacobian = stk.gradual.jvp(np.broadcast_to(x, (8, 8)), power, np.eye(8))[1]
        assert np.all(jacobian[~np.eye(8, dtype=bool)] == 0)
    # At a tie the smallest step down changes the branch.
    a, power = 0.6, 3.0
    tied, apart = stk.gradual([a, a], power), stk.gradual([np.nextafter(a, 0), a], power)
    assert tied[0] - apart[0] == pytest.approx(1 - (1 - a) ** power - a**power, rel=1e-12)
    # What the thread prints for the mean over the powers 1 to 19, as its gradient.
    x = np.array([0.2, 0.4, 0.6, 0.8])
    total = sum(stk.gradual.vjp(x, power)[1](np.ones(4)).x for power in range(1, 20))
    assert_close(total / 76, [0.0206, 0.0365, 0.0822, 0.0206], 6e-5)


def test_gradual_slopes_at_the_ends():
    y, dy = stk.gradual.jvp([0.0, 0.5, 1.0], 0.5, [0.0, 0.0, 0.0])
    same(dy, np.zeros(3))
    gradient = stk.gradual.vjp([0.0, 0.5, 1.0], 0.5)[1](np.ones(3))
    same(gradient.x[[0, 2]], np.full(2, np.inf))
    assert np.isfinite(gradient.power)
    x = np.full((2, 3, 4), 0.5)
    power = np.array([[1.0], [2.0]])
    gradient = stk.gradual.vjp(x, power)[1](1.0)
    assert gradient.power.shape == (2, 1)
    assert gradient.power[1, 0] == pytest.approx(12 * 0.25 * np.log(2))
    assert y.shape == (3,)


def test_gradual_with_where_and_out(rng):
    x, dx = rng.uniform(0.1, 0.9, size=(2, 3, 6))
    mask = np.array([True, True, False, True, True, True])
    masked = np.where(mask, x, np.nan)
    expected = stk.gradual.jvp(x[:, mask], 2.5, dx[:, mask], dpower=0.3)
    y, dy = stk.gradual.jvp(masked, 2.5, dx, dpower=0.3, where=mask)
    for got, wanted in zip((y, dy), expected, strict=True):
        same(got[:, mask], wanted)
        same(got[:, ~mask], np.zeros((3, 1)))
    gradients = stk.gradual.vjp(masked, 2.5, where=mask)[1](dx)
    same(gradients.x[:, mask], stk.gradual.vjp(x[:, mask], 2.5)[1](dx[:, mask]).x)
    expected, pullback = stk.gradual.vjp(x, 2.5)
    inplace = x.copy()
    y, again = stk.gradual.vjp(inplace, 2.5, out=inplace)
    assert y is inplace
    same(y, expected)
    same(again(dx).x, pullback(dx).x)
    same(stk.gradual.jvp(x, 2.5, y, out=y)[1], stk.gradual.jvp(x, 2.5, expected)[1])
    out = np.full((3, 6), 7.0)
    for call in (lambda: stk.gradual(x + 1, 2, out=out), lambda: stk.gradual(x, 0, out=out)):
        with pytest.raises(ValueError, match=r"holds|power"):
            call()
    assert (out == 7).all()


def test_gradual_bad_arguments():
    x = np.full((2, 3), 0.5)
    for error, match, call in (
        (ValueError, "^x holds 1.5.*between 0 and 1", lambda: stk.gradual([0.5, 1.5], 2)),
        (ValueError, "^x holds -inf", lambda: stk.gradual([0.5, -np.inf], 2)),
        (ValueError, "^power is 0.*positive", lambda: stk.gradual(x, 0)),
        (ValueError, "^power is nan", lambda: stk.gradual(x, np.nan)),
        (ValueError, "^power is inf", lambda: stk.gradual(x, np.inf)),
        (ValueError, r"^power has shape \(3,\)", lambda: stk.gradual(x, [1, 2, 3])),
        (TypeError, "^power is", lambda: stk.gradual(x, "2")),
        (TypeError, "^x has dtype", lambda: stk.gradual(x * 1j, 2)),
        (ValueError, "^x has shape", lambda: stk.gradual(np.empty((2, 0)), 2)),
        (ValueError, "^dx has shape", lambda: stk.gradual.jvp(x, 2, np.ones(2))),
        (ValueError, "^dpower has shape", lambda: stk.gradual.jvp(x, 2, x, dpower=np.ones(3))),
        (ValueError, "^the cotangent has shape", lambda: stk.gradual.vjp(x, 2)[1](np.ones(2))),
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("f", [stk.softmax, stk.log_softmax, stk.logsumexp])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_directions_beyond_the_range_of_the_type(f, dtype):
    """Overflow: numbers that float32 has no room for, without a warning and without a NaN."""
    rng = np.random.default_rng(31)
    x, v, far = rng.normal(size=(3, 20)).astype(dtype), rng.normal(size=(3, 20)), 2.0**600
    near = f.jvp(x, v, dtemperature=0.3)[1]
    same = np.sign(near) * dtype(np.inf)
    np.testing.assert_array_equal(f.jvp(x, v * far, dtemperature=0.3 * far)[1], same)
    g = v[:, 0] if f is stk.logsumexp else v
    near, found = f.vjp(x)[1](g), f.vjp(x)[1](g * far)
    np.testing.assert_array_equal(found.x, np.sign(near.x) * dtype(np.inf))
    assert found.temperature == np.sign(near.temperature) * dtype(np.inf)
