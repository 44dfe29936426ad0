"""The rules of test_contract.py for arrays on a device: the same kind back, equal to the CPU's.

On a GPU these run as they are; without one, in Numba's simulator (NUMBA_ENABLE_CUDASIM=1).
"""

from __future__ import annotations

import numpy as np
import operators
import pytest
import standin
from device_rows import fewer
from numba import config, cuda

import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable, registry

pytestmark = pytest.mark.device
simulated = pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="stands in for CuPy in simulation")

ALL = operators.VARIANTS["thretopk"]
VARIANTS = fewer(ALL, [options for options in ALL if options["curve"] in operators.OF_EVERY_KIND])
#: Rules of arrays and rows know no curve: they are tried with one.
ONE = fewer(ALL, [{"curve": "laplace"}])


def _cases(variants, kind=object):
    for name, op in sorted(registry.items()):
        for options in variants if name == "thretopk" else [{}]:
            if isinstance(op, kind):
                yield pytest.param(op, options, id="-".join([name, *map(str, options.values())]))


def _each(cases):
    return pytest.mark.parametrize(("op", "options"), list(cases))


every, smooth = _each(_cases(ONE)), _each(_cases(ONE, Differentiable))
every_curve, smooth_curve = _each(_cases(VARIANTS)), _each(_cases(VARIANTS, Differentiable))
each_op = pytest.mark.parametrize("op", [pytest.param(o, id=n) for n, o in registry.items()])
with_potential = _each(c for c in _cases(VARIANTS) if hasattr(c.values[0], "potential"))


def on(x):
    return cuda.to_device(np.array(x, order="C"))


def back(d):
    assert not isinstance(d, (np.ndarray, np.generic))
    return d.copy_to_host()


def close(d, expected, x=None, tau=1.0, scale=1.0):
    """A device result equals the CPU's to api.md's accuracy."""
    got = back(d)
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype == np.float16:
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6)
        return
    double = expected.dtype == np.float64
    spread = 0.0
    if x is not None and np.isfinite(x).any():
        finite = np.asarray(x, np.float64)[np.isfinite(x)]
        spread = (finite.max() - finite.min()) / np.min(tau)
    bound = (1e-13 if double else 1e-6) + 4 * np.finfo(expected.dtype).eps * spread
    np.testing.assert_allclose(got, expected, rtol=0, atol=2 * bound * scale)


# Arrays


@every
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8, np.bool_]
)
def test_dtypes(op, options, dtype, rng):
    x = rng.integers(0, 2 if dtype is np.bool_ else 7, size=(3, 11)).astype(dtype)
    close(op(on(x), 3, **options), op(x, 3, **options), x)


@every
def test_layouts(op, options, rng):
    big = rng.normal(size=(10, 33)).astype(np.float32)
    x = big[::2, ::3]
    expected = op(x, 3, **options)
    close(op(on(big)[::2, ::3], 3, **options), expected, x)
    close(op(on(np.asfortranarray(x)), 3, **options), expected, x)
    close(op(on(x.T).T, 3, **options), expected, x)
    close(op(on(x)[1], 3, **options), expected[1], x)
    # A row that does not begin at a multiple of 16 bytes.
    flat = rng.normal(size=129).astype(np.float32)
    close(op(on(flat)[1:], 3, **options), op(flat[1:], 3, **options), flat)


@every
def test_axis(op, options, rng):
    x = rng.normal(size=(2, 9, 3))
    for axis in (0, 1, -2):
        close(op(on(x), 2, axis=axis, **options), op(x, 2, axis=axis, **options), x)
    with pytest.raises(np.exceptions.AxisError):
        op(on(x), 2, axis=3, **options)


@every
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 4)])
def test_empty(op, options, shape):
    x = on(np.empty(shape, np.float32))
    assert back(op(x, 0, **options)).shape == shape
    if isinstance(op, Differentiable):
        p, dp = op.jvp(x, 0, x, **options)
        assert back(p).shape == back(dp).shape == shape
        assert back(op.vjp(x, 0, **options)[1](x).x).shape == shape


@every_curve
@pytest.mark.parametrize("n", fewer([1, 31, 32, 33, 100], [1, 33]))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lengths(op, options, n, dtype, rng):
    x = rng.normal(size=(3, n)).astype(dtype)
    k = min(n, 5)
    close(op(on(x), k, temperature=0.5, **options), op(x, k, temperature=0.5, **options), x, 0.5)


def _long_rows():
    """Lengths about the ends of groups; an iteration takes long for each of its k steps."""
    for name, op in registry.items():
        iterates = name in ("itertopk", "wsoftmaxtopk")
        # 16385 is five pieces, the last of one entry: 70001 is more of them.
        for n in (1023, 1025, 5001, 16384, 16385, *fewer([70001], [])):
            k = n // 3 if not iterates else 3 if n < 10_000 else 2
            yield pytest.param(op, k, n, id=f"{name}-{n}")


@pytest.mark.parametrize(("op", "k", "n"), list(_long_rows()))
def test_groups_of_long_rows(op, k, n, rng):
    x = rng.normal(size=(1, n)).astype(np.float32)
    close(op(on(x), k), op(x, k), x)


# k and temperature


@every
def test_k_and_temperature_per_row(op, options, rng):
    x = rng.normal(size=(3, 4, 11)).astype(np.float32)
    k = rng.integers(0, 12, size=(3, 4))
    tau = rng.uniform(0.3, 2, size=(4,))
    expected = op(x, k, temperature=tau, **options)
    close(op(on(x), on(k), temperature=on(tau), **options), expected, x, 0.3)
    small = on(k.astype(np.int8)), on(tau.astype(np.float32))
    expected = op(x, k, temperature=tau.astype(np.float32), **options)
    close(op(on(x), small[0], temperature=small[1], **options), expected, x, 0.3)
    expected = op(x, k[:, :1], **options)
    close(op(on(x), on(k[:, :1]), **options), expected, x)
    close(op(on(x[0, 0]), on(np.array(4)), **options), op(x[0, 0], 4, **options), x)


@each_op
def test_what_only_the_device_knows_makes_nan_rows(op, rng):
    x = rng.normal(size=(6, 9))
    good = op(x, 2)
    k = np.array([2, -1, 10, 2, 2, 2])
    tau = np.array([1.0, 1.0, 1.0, 0.0, -1.0, 1.0])
    p = back(op(on(x), on(k), temperature=on(tau)))
    bad = (k < 0) | (k > 9) | (tau <= 0)
    assert np.isnan(p[bad[: len(p)]]).all()
    np.testing.assert_allclose(p[~bad], good[~bad], atol=1e-12)
    if op.real_k:
        nan = np.array([2, np.nan, 2, 2, 2, 2])
        p = back(op(on(x), on(nan)))
        assert np.isnan(p[1]).all()
        assert not np.isnan(p[[0, 2]]).any()
        tau[2], tau[5] = np.inf, np.nan
        p = back(op(on(x), 2, temperature=on(tau)))
        assert np.isnan(p[[2, 5]]).all()


@each_op
def test_bad_arguments(op, rng):
    x = on(rng.normal(size=(3, 5)))
    host = np.ones((3, 5))

    def refused(kind, pattern, *args, **kwargs):
        with pytest.raises(kind, match=pattern):
            op(*args, **kwargs)

    refused(ValueError, r"^k is 6; expected 0 <= k <= n = 5", x, 6)
    refused(ValueError, r"^k is -1", x, -1)
    refused(TypeError, r"^k .*bool", x, True)
    refused(
        TypeError,
        r"^k is a ndarray of shape \(3,\) on the host.*expected k there",
        x,
        np.array([1, 2, 3]),
    )
    refused(
        TypeError,
        r"^temperature is a ndarray of shape .* on the host",
        x,
        1,
        temperature=np.ones(3),
    )
    refused(ValueError, r"^temperature is 0", x, 1, temperature=0.0)
    refused(TypeError, r"^where is a ndarray of shape .* on the host", x, 1, where=host > 0)
    refused(TypeError, r"^where has dtype float64; expected bool", x, 1, where=on(host))
    refused(ValueError, r"^where has shape \(4,\)", x, 1, where=on(np.ones(4, bool)))
    refused(ValueError, r"^k has shape \(4,\)", x, on(np.ones(4, np.int64)))
    refused(TypeError, r"^k has dtype bool", x, on(np.ones(3, bool)))
    refused(
        TypeError, r"^temperature has dtype complex128", x, 1, temperature=on(np.ones(3, "c16"))
    )
    refused(TypeError, r"^out is .*on the host", x, 1, out=host)
    refused(ValueError, r"^out has shape \(5, 3\)", x, 1, out=on(host.T))
    refused(TypeError, r"^out has dtype float32; expected float64", x, 1, out=on(np.float32(host)))
    refused(TypeError, r"^x has dtype complex128", on(np.ones(4, complex)), 1)
    refused(TypeError, r"^largest is 1", x, 1, largest=1)
    refused(ValueError, r"^k is -1", x, -1, clamp_k=True)
    refused(TypeError, r"^k is a ndarray of shape .* on the host", x, np.ones(3, int), clamp_k=True)
    refused(TypeError, r"^clamp_k is 1", x, 1, clamp_k=1)
    refused(TypeError, r"unexpected keyword argument 'nonsense'", x, 1, nonsense=1)
    # x on the host, and something else on the device.
    refused(TypeError, r"^k is a CUDA array", host, on(np.ones(3, np.int64)))
    refused(TypeError, r"^temperature is a CUDA array", host, 1, temperature=on(np.ones(3)))
    refused(TypeError, r"^where is a CUDA array", host, 1, where=on(host > 0))
    refused(TypeError, r"^out is a", host, 1, out=x)
    if not op.real_k:
        refused(TypeError, r"^k has dtype float64; expected integers", x, on(np.ones(3)))
        refused(TypeError, r"^k is 1.5", x, 1.5)
    if isinstance(op, Differentiable):
        with pytest.raises(TypeError, match=r"^dx is a ndarray of shape .* on the host"):
            op.jvp(x, 1, host)
        with pytest.raises(ValueError, match=r"^dx has shape \(4,\)"):
            op.jvp(x, 1, on(np.ones(4)))
        with pytest.raises(TypeError, match=r"^the cotangent is a ndarray of shape .* on the host"):
            op.vjp(x, 1)[1](host)
        with pytest.raises(TypeError, match=r"is a CUDA array"):
            stk.sinkhorn(x)


# largest, where, out


@every
def test_largest_and_where(op, options, rng):
    x = rng.normal(size=(4, 13)).astype(np.float32)
    mask = rng.random((4, 13)) < 0.7
    close(op(on(x), 3, largest=False, **options), op(x, 3, largest=False, **options), x)
    for largest in (True, False):
        expected = op(x, 3, where=mask, largest=largest, **options)
        p = op(on(x), 3, where=on(mask), largest=largest, **options)
        close(p, expected, x)
        assert (back(p)[~mask] == 0).all()
    row = mask[:1]
    close(op(on(x), 2, where=on(row), **options), op(x, 2, where=row, **options), x)
    x[~mask] = np.nan
    close(op(on(x), 3, where=on(mask), **options), op(x, 3, where=mask, **options), x)


@every
def test_k_may_be_clamped(op, options, rng):
    """With rows of nothing, and of one entry, on either side of a block's number of threads."""
    for n in (9, fewer(300, 260)):
        x, v = rng.normal(size=(2, 4, n))
        there = np.arange(n) < np.array([[0], [1], [4], [n]])
        x[2, 0], x[~there] = np.inf, np.nan
        common = {"where": there, "clamp_k": True, "temperature": 0.5, **options}
        placed = {**common, "where": on(there)}
        for k, largest in ((3, True), (np.array([3, 3, 10**6, 3]), False)):
            given = on(k) if np.ndim(k) else k
            more = {"largest": largest}
            y = np.where(there, x if largest else -x, np.nan)
            expected = op(y, k, **common, **more)
            assert not np.isnan(expected).any()
            close(op(on(y), given, **placed, **more), expected, x[3], 0.5)
            if isinstance(op, Differentiable):
                found = op.vjp(on(y), given, **placed, **more)[1](on(v))
                wanted = op.vjp(y, k, **common, **more)[1](v)
                close(found.x, wanted.x, x[3], 0.5, scale=30)
                if op.real_k:
                    close(found.k, wanted.k, x[3], 0.5, scale=300)
        close(op(on(x[3]), 10**6, clamp_k=True, **options), op(x[3], n, **options), x[3])


@every
def test_out(op, options, rng):
    x = rng.normal(size=(4, 9))
    expected = op(x, 3, **options)
    out = on(np.full((4, 9), 7.0))
    assert op(on(x), 3, out=out, **options) is out
    close(out, expected, x)
    big = on(np.full((8, 27), 7.0))
    op(on(x), 3, out=big[::2, ::3], **options)
    close(on(back(big)[::2, ::3]), expected, x)
    assert (back(big)[1::2] == 7).all()
    d = on(x)
    op(d, 3, out=d, **options)  # in place
    close(d, expected, x)
    if isinstance(op, Differentiable):
        d, g = on(x), rng.normal(size=(4, 9))
        gx = op.vjp(x, 3, **options)[1](g).x
        p, pullback = op.vjp(d, 3, out=d, **options)
        assert p is d
        close(pullback(on(g)).x, gx, x, scale=30)
        p, dp = op.jvp(on(x), 3, on(g), out=out, **options)
        assert p is out
        close(dp, op.jvp(x, 3, g, **options)[1], x, scale=30)


@smooth
def test_out_may_share_memory_with_every_argument(op, options, rng):
    """Aliasing: no argument that is needed once p has been written is read from where p lies.

    k and the temperature are float64 in the device's memory, so that they need no copy otherwise.
    """
    shape = (2, 5)
    x, g = rng.normal(size=(2, *shape))
    arguments = {
        "x": x,
        "k": np.array([2.0, 3.0] if op.real_k else [2, 3]),
        "dx": rng.normal(size=shape),
        "temperature": np.array([0.7, 1.5]),
        "dtemperature": np.array([0.4, -0.3]),
        "where": np.array([[1, 1, 1, 0, 1], [1, 1, 1, 1, 0]], bool),
    }
    arguments |= {"dk": np.array([0.5, 0.25])} if op.real_k else {}

    def jvp(x, k, dx, **kw):
        return op.jvp(x, k, dx, **kw, **options)

    def vjp(x, k, **kw):
        p, pullback = op.vjp(x, k, **kw, **options)
        return p, pullback(on(g)).x

    def of_value(given):
        return {n: a for n, a in given.items() if n not in ("dx", "dk", "dtemperature")}

    for name, value in arguments.items():
        # A mask makes copies of what it masks.
        given = {n: on(a) for n, a in arguments.items() if name == "where" or n != "where"}
        for verb, some in ((jvp, given), (vjp, of_value(given))):
            memory = on(np.zeros(80, np.uint8))
            out = memory.view(np.float64).reshape(*shape)
            here = memory[: value.nbytes].view(value.dtype).reshape(*value.shape)
            here.copy_to_device(value)
            found = verb(**some | ({name: here} if name in some else {}), out=out)
            for a, b in zip(found, verb(**some), strict=True):
                np.testing.assert_array_equal(back(a), back(b), name)


# Rows


@every
def test_rows_are_independent_to_the_bit(op, options, rng):
    x = rng.normal(size=(7, 40)).astype(np.float32)
    x[2, 3], x[4, 5] = np.nan, np.inf
    whole = back(op(on(x), 3, **options))
    for i in range(7):
        np.testing.assert_array_equal(back(op(on(x[i]), 3, **options)), whole[i])
    again = back(op(on(x[::-1].copy()), 3, **options))
    np.testing.assert_array_equal(again[::-1], whole)


@every
def test_non_finite(op, options, rng):
    x = rng.normal(size=(8, 12)).astype(np.float32)
    x[0, 3] = np.nan
    x[1, [2, 5]] = -np.inf
    x[2, 4] = np.inf
    x[3, :4] = np.inf  # more than k
    x[4, 1:] = -np.inf  # fewer left than k
    x[5, [0, 7]] = np.inf, -np.inf
    x[6, :3] = np.inf  # exactly k
    x[7] = -np.inf
    expected = op(x, 3, **options)
    close(op(on(x), 3, **options), expected, x[5])
    assert np.isnan(expected[[0, 4, 7]]).all()
    if isinstance(op, Differentiable):
        v = rng.normal(size=x.shape).astype(np.float32)
        p, dp = op.jvp(on(x), 3, on(v), **options)
        close(p, expected, x[5])
        close(dp, op.jvp(x, 3, v, **options)[1], x[5], scale=30)
        g = op.vjp(on(x), 3, **options)[1](on(v))
        h = op.vjp(x, 3, **options)[1](v)
        close(g.x, h.x, x[5], scale=30)


@every
def test_edges(op, options, rng):
    x = rng.normal(size=(2, 7))
    assert (back(op(on(x), 0, **options)) == 0).all()
    p = back(op(on(x), 7, **options))
    if op.bounded:
        assert (p == 1).all()
    close(op(on(np.full((2, 8), 1e6)), 4, **options), op(np.full((2, 8), 1e6), 4, **options))


# Derivatives


def _with_float16():
    """Every type; one of 16 bits is cast where no operator sees it: one with a real k, and one."""
    for dtype in (np.float16, np.float32, np.float64):
        for case in _cases(VARIANTS, Differentiable):
            name, options = case.id.partition("-")[0], case.values[1]
            few = options == {"curve": "laplace"} or name == "wsoftmaxtopk"
            if dtype is not np.float16 or fewer(True, few):
                yield pytest.param(*case.values, dtype, id=f"{dtype.__name__}-{case.id}")


@pytest.mark.parametrize(("op", "options", "dtype"), list(_with_float16()))
def test_derivatives(op, options, dtype, rng):
    x, v = rng.normal(size=(2, 3, 4, fewer(6, 3))).astype(dtype)
    tau = rng.uniform(0.5, 1.5, size=(4, 1)).astype(dtype)
    k = rng.integers(1, 4, size=(3, 1, 1))
    for largest in (True, False):
        common = {"largest": largest, "axis": 1, **options}
        # With a whole k an entry can lie on a corner of clip, where either slope is right.
        t, kk = tau[:, 0][:1] * 1.0, k[:, 0] + 0.5 if op.real_k else k[:, 0]
        if not largest:  # with the axis kept
            t, kk = t[:, None, None], kk[:, None]
        more = {"dk": 0.25} if op.real_k else {}
        expected = op.jvp(x, kk, v, temperature=t, dtemperature=0.5, **more, **common)
        got = op.jvp(on(x), on(kk), on(v), temperature=on(t), dtemperature=0.5, **more, **common)
        close(got[0], expected[0], x, 0.5)
        close(got[1], expected[1], x, 0.5, scale=30)
        p, pullback = op.vjp(x, kk, temperature=t, **common)
        q, device_pullback = op.vjp(on(x), on(kk), temperature=on(t), **common)
        close(q, p, x, 0.5)
        for _ in range(2):  # any number of times
            h, g = pullback(v), device_pullback(on(v))
            close(g.x, h.x, x, 0.5, scale=30)
            close(g.temperature, h.temperature, x, 0.5, scale=300)
            if op.real_k:
                close(g.k, h.k, x, 0.5, scale=300)
            else:
                assert g.k is None
    h, g = op.vjp(x, 2, **options)[1](v), op.vjp(on(x), 2, **options)[1](on(v))
    assert back(g.temperature).shape == ()
    close(g.temperature, h.temperature, x, scale=300)


@smooth_curve
def test_second_derivatives(op, options, rng):
    x, v, g = rng.normal(size=(3, 2, 6, 4))
    # Not a whole k: an entry would lie on a corner of clip, where either slope is right.
    k, tau = rng.integers(1, 4, size=(2, 1)) + (0.5 if op.real_k else 0), rng.uniform(0.5, 1.5)
    where = rng.random(x.shape) < 0.9
    common = {"temperature": tau, "dtemperature": 0.5, "axis": 1, **options}
    common |= {"dk": 0.25} if op.real_k else {}
    if not op.has_second:
        with pytest.raises(NotImplementedError):
            op.hvp(on(x), on(k), on(v), on(g), **common)
        return
    for more in ({}, {"largest": False}, {"where": where}):
        expected = op.hvp(x, k, v, g, **common, **more)
        there = {name: on(each) if name == "where" else each for name, each in more.items()}
        got = op.hvp(on(x), on(k), on(v), on(g), **common, **there)
        close(got.x, expected.x, x, 0.5, scale=300)
        close(got.temperature, expected.temperature, x, 0.5, scale=300)
        if op.real_k:
            close(got.k, expected.k, x, 0.5, scale=300)
        else:
            assert got.k is None


@smooth
def test_derivatives_with_where(op, options, rng):
    x, v = rng.normal(size=(2, 3, 10))
    mask = rng.random((3, 10)) < 0.8
    dp = op.jvp(x, 2, v, where=mask, **options)[1]
    close(op.jvp(on(x), 2, on(v), where=on(mask), **options)[1], dp, x, scale=30)
    gx = op.vjp(x, 2, where=mask, **options)[1](v).x
    close(op.vjp(on(x), 2, where=on(mask), **options)[1](on(v)).x, gx, x, scale=30)


@with_potential
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_potential_and_threshold(op, options, dtype, rng):
    x = rng.normal(size=(2, 3, 11)).astype(dtype)
    x[0, 0, 0], x[0, 1, 0], x[0, 2, 0] = np.inf, -np.inf, np.nan
    names = [name for name in ("potential", "threshold") if hasattr(op, name)]
    for name in names:
        method = getattr(op, name)
        for k, largest in ((2, True), (0, True), (11, False), (3, False)):
            expected = method(x, k, temperature=0.7, largest=largest, **options)
            got = method(on(x), k, temperature=0.7, largest=largest, **options)
            close(got, expected, x, scale=30)
        assert back(method(on(x[1, 1]), 2, **options)).shape == ()


# Libraries


@simulated
@each_op
def test_a_library_that_is_known(op, rng, monkeypatch):
    asked = standin.install(monkeypatch)
    x = rng.normal(size=(4, 12)).astype(np.float32)
    for y in (x, x.T.copy().T, x[::-1, ::-1], np.repeat(x, 2, axis=1)[:, ::2], x[:, 3:]):
        p = op(standin.Array(y), 2)
        assert type(p) is standin.Array
        np.testing.assert_allclose(p.get(), op(y, 2), atol=2e-6)
    assert set(asked) == {0}
    out = standin.Array(np.zeros_like(x)[:, ::-1])
    assert op(standin.Array(x), 2, out=out) is out
    np.testing.assert_allclose(out.get(), op(x, 2), atol=2e-6)
    locked = np.zeros_like(x)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out is read-only"):
        op(standin.Array(x), 2, out=standin.Array(locked))
    with pytest.raises(TypeError, match="native byte order"):
        op(standin.Array(x.astype(">f4")), 2)
    rows = np.broadcast_to(x[:1], (3, 12))
    np.testing.assert_allclose(op(standin.Array(rows), 2).get(), op(rows, 2), atol=2e-6)


@simulated
def test_a_library_that_is_not(rng):
    x = rng.normal(size=(4, 12)).astype(np.float32)
    p = stk.thretopk(standin.NamelessArray(x), 2)
    assert type(p) is standin.NamelessArray
    np.testing.assert_allclose(p.get(), stk.thretopk(x, 2), atol=2e-6)


@simulated
def test_the_input_is_not_written_to(rng):
    x = rng.normal(size=(4, 12)).astype(np.float32)
    d = on(x)
    stk.thretopk.vjp(d, 2)[1](on(x))
    np.testing.assert_array_equal(back(d), x)
