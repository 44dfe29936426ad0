"""Vectors spelled out: each operation against NumPy's, wherever the numbers lie."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from softtopk_nb._compile.simd import (
    LANES,
    between,
    constant,
    fused,
    load,
    magnitude,
    product,
    spread,
    store,
    total,
    turn,
    where_less,
)

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def each(x, y, z, at, out):
    a, b, c = load(x, at), load(y, at), load(z, at)
    store(out, 0, a)
    store(out, LANES, product(a, b))
    store(out, 2 * LANES, fused(a, b, c))
    store(out, 3 * LANES, magnitude(a))
    store(out, 4 * LANES, between(a, constant(-0.5), constant(0.25)))
    store(out, 5 * LANES, where_less(a, b, c, a))
    store(out, 6 * LANES, total(a, b))


@both_dtypes
@pytest.mark.parametrize("at", [0, 1, 5])
def test_lane_by_lane(at, dtype, rng):
    # Few digits, so that a fused product has the bits of one that is not.
    x, y, z = (rng.integers(-64, 64, (3, 20)) / 64).astype(dtype)
    x[at], y[at + 1] = -0.0, np.inf
    out = np.empty(7 * LANES, dtype)
    each(x, y, z, at, out)
    a, b, c = (v[at : at + LANES] for v in (x, y, z))
    with np.errstate(invalid="ignore"):
        expected = a, a * b, a * b + c, abs(a), np.clip(a, -0.5, 0.25), np.where(a < b, c, a), a + b
    np.testing.assert_array_equal(out.reshape(7, LANES), expected)


@njit
def spread_out(x, at, out):
    store(out, 1, spread(x, at))


def test_spread(rng):
    x, out = rng.normal(size=5), np.zeros(LANES + 2)
    spread_out(x, 3, out)
    np.testing.assert_array_equal(out, [0, *[x[3]] * LANES, 0])


@njit
def turned(source, at, stride, target, to, apart):
    turn(source, at, stride, target, to, apart)


@both_dtypes
def test_turn(dtype, rng):
    source, target = rng.normal(size=200).astype(dtype), np.zeros(200)
    turned(source, 3, 17, target, 5, 21)
    square = np.array([source[3 + 17 * i :][:LANES] for i in range(LANES)])
    written = np.array([target[5 + 21 * i :][:LANES] for i in range(LANES)])
    np.testing.assert_array_equal(written, square.T)
    assert np.count_nonzero(target) == LANES * LANES  # nothing but the square


@pytest.mark.parametrize("wrong", [np.zeros((4, 8)), np.zeros(99)[::3], np.zeros(9, np.int64)])
def test_only_flat_arrays_of_floats(wrong):
    with pytest.raises(TypingError):
        spread_out(wrong, 0, np.zeros(LANES + 2))
