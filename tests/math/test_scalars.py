"""The scalar functions that kernels are made of: error bounds over their whole range."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numba import njit

from softtopk_nb._math.elementary import circular, exp_neg, from_ordinal, half_exp_neg, to_ordinal


@njit
def exp_all(t, out):
    for i in range(t.shape[0]):
        out[i] = exp_neg(t[i])


@njit
def ordinals(x, out):
    for i in range(x.shape[0]):
        out[i] = to_ordinal(x[i])


@njit
def floats(o, out):
    for i in range(o.shape[0]):
        out[i] = from_ordinal(o[i])


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -87.3), (np.float64, -708.3)])
def test_exp_neg_is_within_two_units(dtype, lowest, rng):
    """Relative error at most 2 eps/2 * 2 down to the smallest normal number, 0 below."""
    t = np.concatenate(
        [
            -np.geomspace(1e-300 if dtype == np.float64 else 1e-38, -lowest, 20_000),
            np.linspace(lowest, 0, 20_001),
            -np.arange(1, 700) * math.log(2) * 0.5,  # where the reduction changes its integer
        ]
    ).astype(dtype)
    t = t[(t >= dtype(lowest)) & (t <= 0)]
    if dtype == np.float64:
        t = rng.choice(t, 6000)
    assert len(np.unique(t)) > 5000
    got = np.empty_like(t)
    exp_all(t, got)
    assert got.dtype == dtype
    with mpmath.workdps(30):
        exact = [mpmath.exp(mpmath.mpf(float(v))) for v in t]
        error = max(abs(mpmath.mpf(float(g)) / e - 1) for g, e in zip(got, exact, strict=True))
    assert error <= np.finfo(dtype).eps


@njit
def circle(t, cosine, sine):
    for i in range(t.shape[0]):
        cosine[i], sine[i] = circular(t[i])


def test_circular_is_within_two_to_the_minus_52(rng):
    """Also a float away from a multiple of pi/2, where all of its digits are at stake."""
    crossings = np.arange(-50, 51) * math.pi / 2
    t = np.concatenate(
        [
            rng.uniform(-7, 7, 4000),
            rng.uniform(-1e6, 1e6, 2000),
            crossings,
            np.nextafter(crossings, np.inf),
            10.0 ** np.linspace(-300, 0, 100),
            [0.0, 1e6, -1e6],
        ]
    )
    assert len(np.unique(t)) > 6000
    cosine, sine = np.empty_like(t), np.empty_like(t)
    circle(t, cosine, sine)
    with mpmath.workdps(40):
        exact = [(mpmath.cos(mpmath.mpf(v)), mpmath.sin(mpmath.mpf(v))) for v in t]
        off = [
            max(abs(c - mpmath.mpf(a)), abs(s - mpmath.mpf(b)))
            for a, b, (c, s) in zip(cosine, sine, exact, strict=True)
        ]
    assert max(off) <= 2.0**-52
    small = abs(t) < 1e-9
    np.testing.assert_allclose(sine[small], t[small], rtol=1e-15)
    assert circular(1.0) == (math.cos(1.0), math.sin(1.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_neg_at_the_ends(dtype):
    t = np.array(
        [0.0, -0.0, -np.inf, -1e30, -800, np.finfo(dtype).min, -np.finfo(dtype).tiny], dtype
    )
    got = np.empty_like(t)
    exp_all(t, got)
    np.testing.assert_array_equal(got, np.array([1, 1, 0, 0, 0, 0, 1], dtype))


@njit
def half_exp_all(t, out):
    for i in range(len(t)):
        out[i] = half_exp_neg(t[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_half_of_an_exponential_is_never_subnormal(dtype):
    """Half of `exp_neg` to the bit, while that is a normal number."""
    tiny = np.finfo(dtype).tiny
    t = np.linspace(1.01 * np.log(float(tiny)), 0, 20_001).astype(dtype)
    got, whole = np.empty_like(t), np.empty_like(t)
    half_exp_all(t, got)
    exp_all(t, whole)
    assert got[(got != 0) & (got < tiny)].size == 0
    np.testing.assert_array_equal(got, np.where(got > 0, dtype(0.5) * whole, dtype(0)))
    assert whole[got == 0].max() < 2.3 * tiny
    assert half_exp_neg(-1.0) == 0.5 * math.exp(-1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ordinals_order_as_the_floats_do(dtype, rng):
    info = np.finfo(dtype)
    special = [0.0, info.smallest_subnormal, info.tiny, 1.0, info.max, np.inf]
    x = np.concatenate([special, rng.normal(size=100) * 10.0 ** rng.integers(-30, 30, 100)])
    x = np.unique(np.concatenate([x, -x]).astype(dtype))
    o = np.empty(len(x), np.int32 if dtype == np.float32 else np.int64)
    ordinals(x, o)
    assert (np.diff(o.astype(object)) > 0).all()
    back = np.empty_like(x)
    floats(o, back)
    np.testing.assert_array_equal(back, x)
    nan = np.array([np.nan, -np.nan], dtype)
    outer = np.empty(2, o.dtype)
    ordinals(nan, outer)
    assert ((outer > o.max()) | (outer < o.min())).all()
    neighbours = np.empty(2, o.dtype)
    ordinals(np.array([1.0, np.nextafter(dtype(1), dtype(2))], dtype), neighbours)
    assert neighbours[1] - neighbours[0] == 1
