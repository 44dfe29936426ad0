"""What is done to whole arrays that are large: conversions and turned axes, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import softtopk_nb as stk
from softtopk_nb._api import host_arrays
from softtopk_nb._threads import halves, transposing


def same_or_nan(a, b):
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    there = ~np.isnan(a)
    np.testing.assert_array_equal(a[there].view(f"u{a.itemsize}"), b[there].view(f"u{a.itemsize}"))


def test_every_float16_is_widened():
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):  # of signalling NaNs, on ARM
        expected = x.astype(np.float32)
    same_or_nan(halves.widened(x), expected)


def test_float32_is_narrowed_to_the_nearest(rng):
    """Any bits; numbers of every size, subnormal and too large; and ties, which go to even."""
    anything = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    sizes = (rng.normal(size=1 << 16) * 10.0 ** rng.uniform(-9, 5, 1 << 16)).astype(np.float32)
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = np.float32(0.5) * (exact[1:] + exact[:-1])
    special = np.array([65519.9, 65520.0, np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    x = np.concatenate([anything, sizes, exact, ties, -ties, special])
    with np.errstate(all="ignore"):
        expected = x.astype(np.float16)
    same_or_nan(halves.narrowed(x), expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 100, 90), (3, 64, 96), (2, 5, 2000), (2, 2000, 5)])
def test_tables_are_turned(shape, dtype, rng):
    """Whole squares and what they leave over, on either side."""
    x = (100 * rng.normal(size=shape)).astype(dtype)
    np.testing.assert_array_equal(transposing.transposed(x), x.swapaxes(1, 2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", np.int32])
@pytest.mark.parametrize(("shape", "axis"), [((200, 100), 0), ((30, 41, 29), 1), ((9, 90, 20), 0)])
def test_a_large_array_along_any_axis(shape, axis, dtype, rng):
    """Value, derivative, mask and `out`: as of the array with that axis at the end."""
    x, v = (20 * rng.normal(size=(2, *shape))).astype(dtype)
    keep = rng.random(shape) < 0.8
    assert x.size >= transposing.WORTH_IT

    def at_end(array):
        return np.ascontiguousarray(np.moveaxis(array, axis, -1))

    p, dp = stk.thretopk.jvp(at_end(x), 3, at_end(v), where=at_end(keep))
    out = np.empty(shape, p.dtype)
    for given in (x, np.asfortranarray(x)):
        found, along = stk.thretopk.jvp(given, 3, v, axis=axis, where=keep, out=out)
        assert found is out
        np.testing.assert_array_equal(at_end(out), p)
        np.testing.assert_array_equal(at_end(along), dp)


def test_what_is_read_only_is_turned(rng):
    x = rng.normal(size=(200, 100))
    x.flags.writeable = False
    np.testing.assert_array_equal(host_arrays.to_rows(x, 0, np.float64, (100, 200)), x.T)
