"""The chosen entries of arrays on a device, against those of arrays in memory."""

from __future__ import annotations

import numpy as np
import pytest
import standin
from device_rows import fewer
from numba import config, cuda

import softtopk_nb as stk

pytestmark = pytest.mark.device


def same(x, k, where=None, **options):
    """Both have the same indices, and weights within the budget of the operator."""
    there = None if where is None else cuda.to_device(where)
    found = stk.topk(cuda.to_device(x), k, where=there, **options)
    expected = stk.topk(x, k, where=where, **options)
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
    if expected.indices.size:
        np.testing.assert_array_equal(found.indices.copy_to_host(), expected.indices)
        bound = {2: 2e-3, 4: 2e-5, 8: 1e-12}[x.dtype.itemsize]
        values = found.values.copy_to_host()
        np.testing.assert_allclose(values, expected.values, rtol=0, atol=bound)


@pytest.mark.parametrize("sorted", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
@pytest.mark.parametrize("n", fewer([5, 127, 128, 129, 300], [5, 129]))
def test_entries_are_those_of_memory(n, dtype, sorted, rng):
    x = (3 * rng.normal(size=(3, n))).round(1).astype(dtype)  # with ties
    if x.dtype.kind == "f":
        x[1, n // 2], x[2, 0] = np.nan, np.inf
    for k in {0, 1, n // 3, n}:
        same(x, k, sorted=sorted)


@pytest.mark.parametrize("options", [{"op": "gradtopk"}, {"curve": "clip", "temperature": 2.0}])
def test_axes_masks_and_what_rows_lack(options, rng):
    x, where = rng.normal(size=(2, 9, 5)), rng.random((9, 5)) < 0.6
    where[:, 1], where[2:, 2] = False, False
    for largest in (True, False):
        for sorted in (True, False):
            given = {"axis": 1, "largest": largest, "sorted": sorted, "where": where, **options}
            same(x, 4, clamp_k=True, **given)
            same(x, 2, **given)
    same(x[:, :3].copy(), 9, axis=1, clamp_k=True, **options)


@pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="stands in for CuPy in simulation")
def test_another_librarys_arrays_and_bad_arguments(rng, monkeypatch):
    standin.install(monkeypatch)
    x = rng.normal(size=(4, 12)).astype(np.float32)
    found = stk.topk(standin.Array(x), 2)
    np.testing.assert_array_equal(found.indices.get(), stk.topk(x, 2).indices)
    with pytest.raises(ValueError, match=r"k is 13; expected 0 <= k <= n = 12"):
        stk.topk(standin.Array(x), 13)
    with pytest.raises(TypeError, match=r"k is 2\.0; expected one whole number"):
        stk.topk(standin.Array(x), 2.0)
