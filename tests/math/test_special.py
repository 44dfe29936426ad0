"""The normal tail, logarithms and powers: their error over the whole range, against 50 digits."""

from __future__ import annotations

import numpy as np
import pytest
from fused import units_without_fma
from numba import njit
from reference import mp

from softtopk_nb._math.special import (
    cheap_normal_tail,
    log_of_sum,
    natural_log,
    normal_tail,
    power_of_fraction,
)

dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def tails(t, tail, density):
    for i in range(t.shape[0]):
        tail[i], density[i] = normal_tail(t[i])


@njit
def tails_in_brief(t, tail, density):
    for i in range(t.shape[0]):
        tail[i], density[i] = cheap_normal_tail(t[i])


@njit
def logs(s, out):
    for i in range(s.shape[0]):
        out[i] = natural_log(s[i])


@njit
def logs_of_sums(s, rest, out):
    for i in range(s.shape[0]):
        out[i] = log_of_sum(s[i], rest[i])


@njit
def powers(s, q, out):
    for i in range(s.shape[0]):
        out[i] = power_of_fraction(s[i], s.dtype.type(0), q)


def units(got, exact, dtype):
    """Largest relative error in units of eps."""
    eps = float(np.finfo(dtype).eps)
    return max(
        float(abs(mp.mpf(float(g)) / e - 1)) / eps for g, e in zip(got, exact, strict=True) if e
    )


@dtypes
def test_normal_tail(dtype):
    """Where products are rounded before they are added the square's error counts as well."""
    most = 12.9375 if dtype == np.float32 else 37.5 - 2.0**-40
    t = np.concatenate([np.linspace(0, most, 2001), 10.0 ** np.linspace(-8, 0, 100)]).astype(dtype)
    tail, density = np.empty_like(t), np.empty_like(t)
    tails(t, tail, density)
    exact = [mp.mpf(float(v)) for v in t]
    for at in (t <= 1, t <= 4, t <= most):
        some, more = (
            [v for v, take in zip(exact, at, strict=True) if take],
            units_without_fma(t[at]),
        )
        tails_there = [mp.erfc(v / mp.sqrt(2)) / 2 for v in some]
        assert units(tail[at], tails_there, dtype) <= 4 + more.max()
        densities = [mp.exp(-v * v / 2) / mp.sqrt(2 * mp.pi) for v in some]
        assert units(density[at], densities, dtype) <= 3 + more.max()
    # From where Phi(-t) would be subnormal both are 0.
    assert tail.min() >= np.finfo(dtype).tiny
    far = np.array([12.95 if dtype == np.float32 else 37.52, 40, 60, 1e30, np.inf], dtype)
    tails(far, tail[:5], density[:5])
    assert (tail[:5] == 0).all()
    assert (density[:5] == 0).all()


def test_cheap_normal_tail():
    """Near enough for passes that only lead on."""
    t = np.concatenate([np.linspace(0, 12.9375, 2001), 10.0 ** np.linspace(-8, 0, 100)])
    t = t.astype(np.float32)
    tail, density = np.empty_like(t), np.empty_like(t)
    tails_in_brief(t, tail, density)
    exact = [mp.mpf(float(v)) for v in t]
    eps = float(np.finfo(np.float32).eps)
    assert units(tail, [mp.erfc(v / mp.sqrt(2)) / 2 for v in exact], np.float32) * eps <= 2e-4
    assert (
        units(density, [mp.exp(-v * v / 2) / mp.sqrt(2 * mp.pi) for v in exact], np.float32) * eps
        <= 1e-4
    )
    far = np.array([14, 1e30, np.inf], np.float32)
    tails_in_brief(far, tail[:3], density[:3])
    assert (tail[:3] == 0).all()
    assert (density[:3] == 0).all()


@dtypes
def test_natural_log(dtype, rng):
    most = 37 if dtype == np.float32 else 307
    near = 10.0 ** np.linspace(-6, -1, 50)
    s = [rng.random(2000), 10.0 ** np.linspace(-most, most, 1000), 1 - near, 1 + near]
    s = np.concatenate(s).astype(dtype)
    edges = [0.5, np.sqrt(0.5), np.sqrt(2), np.nextafter(dtype(1), dtype(0))]
    info = np.finfo(dtype)
    s = np.append(s, np.array([*edges, info.tiny, info.max, 1 + info.eps], dtype))
    s = s[s != 1]
    out = np.empty_like(s)
    logs(s, out)
    assert units(out, [mp.log(mp.mpf(float(v))) for v in s], dtype) <= 3
    logs(np.ones(1, dtype), out[:1])
    assert out[0] == 0


@dtypes
def test_log_of_sum(dtype, rng):
    """log(1 + y) from 1 + y rounded and what rounding took: also where y is next to nothing."""
    most = 37 if dtype == np.float32 else 300
    y = np.concatenate([-rng.random(2000), -(10.0 ** -np.linspace(0.01, most, 1000))])
    y = y.astype(dtype)
    s = 1 + y
    s, y = s[s > 0], y[s > 0]
    out = np.empty_like(s)
    logs_of_sums(s, y - (s - 1), out)
    assert units(out, [mp.log1p(mp.mpf(float(v))) for v in y], dtype) <= 3


@dtypes
@pytest.mark.parametrize("q", [0.01, 0.5, 1.0, 2.0, 20.0])
def test_power_of_fraction(dtype, q, rng):
    s = np.concatenate([rng.random(1000), 10.0 ** np.linspace(-30, 0, 300)]).astype(dtype)
    out = np.empty_like(s)
    powers(s, dtype(q), out)
    exact = [mp.mpf(float(v)) ** mp.mpf(float(dtype(q))) for v in s]
    info = np.finfo(dtype)
    checked = 0
    for got, e in zip(out, exact, strict=True):
        if e > 4 * float(info.tiny):
            bound = (3 + abs(float(mp.log(e)))) * float(info.eps)
            assert abs(mp.mpf(float(got)) / e - 1) <= bound
            checked += 1
    assert checked > 500
    edges = np.array([0, info.tiny / 2, 1], dtype)
    powers(edges, dtype(q), out[:3])
    np.testing.assert_array_equal(out[:3], np.array([0, 0, 1], dtype))
    assert power_of_fraction(dtype(0.25), dtype(0), dtype(2)) == 0.0625  # the definition, in Python


def test_definitions_in_python():
    assert natural_log(np.float64(0.5)) == pytest.approx(np.log(0.5))
    assert log_of_sum(np.float64(1), np.float64(-1e-20)) == pytest.approx(-1e-20)
    tail, density = normal_tail(np.float64(1.0))
    assert (tail, density) == pytest.approx((0.15865525393145707, 0.24197072451914337))
