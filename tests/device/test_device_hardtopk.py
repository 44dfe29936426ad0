"""The hard top-k on a device against a stable sort and the CPU, and the sorting it stands on."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from device_rows import rows_of
from numba import cuda

import softtopk_nb as stk

pytestmark = pytest.mark.device

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
room = importlib.import_module("softtopk_nb.hardtopk.cuda")
parts = importlib.import_module("softtopk_nb._cuda.long_rows")
sorting = importlib.import_module("softtopk_nb._cuda.sorting")
ThreadGroup = sorting.ThreadGroup

# ThreadGroups in part of a warp, a warp and a block, that hold a row or read it again in each pass.
GROUPS = [
    ThreadGroup(16, 4, True),
    ThreadGroup(32, 4),
    ThreadGroup(64, 4),
    ThreadGroup(64, 4, True),
]


def by_sorting(x, k):
    p = np.zeros_like(x)
    np.put_along_axis(p, np.argsort(-x, axis=1, kind="stable")[:, :k], 1, axis=1)
    return p


def rows(rng, n, dtype):
    x = rng.normal(size=(6, n))
    x[1] = np.round(x[1])
    x[2] = rng.choice([0.0, -0.0, 1.0, -1.0], n)
    x[3] = -3.5
    x[4] = rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)
    x[5] = rng.integers(-3, 4, n) * float(np.finfo(dtype).smallest_subnormal)
    assert np.unique(x).size >= n
    return x.astype(dtype)


def numbers(n):
    return sorted({0, 1, n // 3, n - 1, n})


@both_dtypes
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 100])
def test_it_is_what_a_stable_sort_gives(n, dtype, rng):
    x = rows(rng, n, dtype)
    there = cuda.to_device(x)
    for k in numbers(n):
        got = stk.hardtopk(there, k).copy_to_host()
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, by_sorting(x, k), err_msg=str(k))


@both_dtypes
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_any_group_gives_it(group, dtype, rng, monkeypatch):
    monkeypatch.setattr(room, "choose", lambda n, T: group)
    monkeypatch.setattr(room, "SORTED", 0)
    for n in (33, 300 if group.streams else 100):
        x = rows(rng, n, dtype)
        got = stk.hardtopk(cuda.to_device(x), n // 3).copy_to_host()
        np.testing.assert_array_equal(got, by_sorting(x, n // 3), err_msg=str(n))


@pytest.fixture
def in_parts(monkeypatch):
    """Cut every row into parts of 16 bytes for each of 64 threads, or into at most `most`."""

    def use(dtype, most=1024):
        for name, value in {"LONG": 1, "PIECES": 1, "MOST": most}.items():
            monkeypatch.setattr(parts, name, value)
        group = ThreadGroup(64, 16 // np.dtype(dtype).itemsize, streams=True)
        monkeypatch.setattr(parts, "choose", lambda n, T: group)

    return use


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 9), (np.float64, 9), (np.float64, 2)])
def test_rows_in_parts(dtype, most, rng, in_parts):
    """Of the parts that hold ties, some are ones throughout, one has to choose, some are zeros."""
    in_parts(dtype, most)
    n = 300
    x, k = rows(rng, n, dtype)[[1, 2, 5]], np.array([n // 3, n // 4, 2 * n // 3])
    got = stk.hardtopk(cuda.to_device(x), cuda.to_device(k)).copy_to_host()
    assert got.dtype == dtype
    for i in range(3):
        np.testing.assert_array_equal(got[i], by_sorting(x[i : i + 1], k[i])[0], err_msg=str(i))


def test_what_is_not_finite_or_not_allowed_in_parts(rng, in_parts):
    in_parts(np.float32)
    n = 300
    x = rng.normal(size=(8, n)).astype(np.float32)
    x[0, ::2] = np.inf
    x[1:3, ::2] = -np.inf
    x[3] = -np.inf
    x[4:, n - 1] = np.nan, 0, 0, 0
    k = np.array([n // 3, n // 2, n // 2 + 1, 0, 3, n + 1, 2, 0])
    tau = np.array([1.0] * 6 + [np.nan, 1.0])
    got = stk.hardtopk(
        cuda.to_device(x), cuda.to_device(k), temperature=cuda.to_device(tau)
    ).copy_to_host()
    for i in (0, 1, 3, 7):
        np.testing.assert_array_equal(got[i], stk.hardtopk(x[i], k[i]), err_msg=str(i))
    assert np.isnan(got[[2, 4, 5, 6]]).all()


@both_dtypes
def test_any_float_can_be_found_in_parts(dtype, in_parts):
    """The bracket starts with all finite numbers, and closes on one of them or on an infinity."""
    in_parts(dtype)
    limits = np.finfo(dtype)
    x = np.array([limits.max, limits.tiny, limits.smallest_subnormal, 0.0, 1.0], dtype)
    x = np.tile(np.concatenate((x, -x, [np.inf])).astype(dtype), (4, 2))
    k = np.array([1, 3, 11, 22])
    got = stk.hardtopk(cuda.to_device(x), cuda.to_device(k)).copy_to_host()
    for i in range(4):
        np.testing.assert_array_equal(got[i], by_sorting(x[i : i + 1], k[i])[0], err_msg=str(i))


@both_dtypes
@pytest.mark.parametrize("n", [7, 32, 100])
def test_infinities_and_nan_are_as_on_the_cpu(n, dtype, rng):
    x = rng.normal(size=(6, n)).astype(dtype)
    x[0, ::2] = np.inf
    x[1, ::2] = -np.inf
    x[2] = -np.inf
    x[3] = np.inf
    x[4, n // 2] = np.nan
    x[5, :3] = np.inf, -np.inf, np.inf
    there = cuda.to_device(x)
    for k in (0, 2, n // 2, n // 2 + 1, n):
        expected = stk.hardtopk(x, k)
        assert np.isnan(expected[4]).all()
        np.testing.assert_array_equal(stk.hardtopk(there, k).copy_to_host(), expected)


@pytest.mark.parametrize("n", [20, 50])
def test_a_number_for_each_row_and_numbers_that_are_not_allowed(n, rng):
    x = rng.normal(size=(6, n))
    k = np.array([0, n, 3, -1, n + 1, 5])
    tau = np.array([1.0, 2.0, 1.0, 1.0, 1.0, np.nan])
    got = stk.hardtopk(
        cuda.to_device(x), cuda.to_device(k), temperature=cuda.to_device(tau)
    ).copy_to_host()
    for i in range(3):
        np.testing.assert_array_equal(got[i], by_sorting(x[i : i + 1], k[i])[0])
    assert np.isnan(got[3:]).all()


@pytest.mark.parametrize("n", [32, 100])
def test_a_row_has_the_same_bits_in_any_batch(n, rng):
    x = np.round(rng.normal(size=(7, n)), 1).astype(np.float32)
    together = stk.hardtopk(cuda.to_device(x), 9).copy_to_host()
    for i in range(7):
        alone = stk.hardtopk(cuda.to_device(x[i]), 9).copy_to_host()
        np.testing.assert_array_equal(alone, together[i])


@both_dtypes
@pytest.mark.parametrize(
    ("n", "chunk"),
    [(n, None) for n in (1, 2, 31, 32, 33, 100)]
    + [(n, chunk) for n in (2, 33, 64, 100, 260) for chunk in (16, 64)],
)
def test_sorted_rows(n, chunk, dtype, rng, monkeypatch):
    """In registers, and in chunks of shared memory that are merged."""
    if chunk is not None:
        monkeypatch.setattr(sorting, "CHUNK", chunk)
        monkeypatch.setattr(sorting, "choose", lambda n, T: ThreadGroup(64, 4))
    x = np.round(rng.normal(size=(3, n)), 1).astype(dtype)
    x[0, 0], x[1, n // 2] = -np.inf, np.inf
    problem, allocated = rows_of(x)
    sorting.descending(problem)
    (found,) = allocated
    np.testing.assert_array_equal(found.copy_to_host().reshape(x.shape), -np.sort(-x, axis=1))
