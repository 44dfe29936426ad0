"""Rows that their moments mislead: the distribution by their order, and the search from there."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

import softtopk_nb as stk
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold import records
from softtopk_nb._threshold.cpu import batch, order_statistics
from softtopk_nb._threshold.methods import METHODS

ROWS = 256


def rows_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(size=(ROWS, n))
    if kind == "outlier":
        x[:, n // 3] = 1e6
    elif kind == "two outliers":
        x[:, :2] = 1e6, -1e6
    elif kind == "skewed":
        x = rng.exponential(size=x.shape) ** 3
    elif kind == "Cauchy":
        x = rng.standard_cauchy(size=x.shape)
    elif kind == "sorted":
        x = np.sort(rng.exponential(size=x.shape) ** 3, axis=1)
    elif kind == "nearly all 0":
        x = np.where(rng.random(x.shape) < 0.9, 0.0, x)
    else:
        low = {"padded": -1e9, "padded by the least number": np.finfo(np.float32).min}[kind]
        x[:, n - n // 3 :] = low
    return x.astype(np.float32)


KINDS = (
    "outlier",
    "two outliers",
    "skewed",
    "Cauchy",
    "sorted",
    "nearly all 0",
    "padded",
    "padded by the least number",
)


def left_by_fast_search(monkeypatch, x, k, tau, curve):
    """(share of rows left to the robust search, passes over the others)."""
    monkeypatch.setattr(batch, "solve_open", lambda *problem: None)
    solution = np.full((len(x), records.SOLUTION), np.nan)
    problem = x, np.full(len(x), float(k)), np.full(len(x), tau), curve, METHODS["newton"]
    batch.solve(*problem, np.empty_like(x), solution)
    still = solution[:, records.CODE] == records.UNSOLVED
    return still.mean(), solution[~still, records.TAKEN].mean()


@pytest.mark.parametrize("n", [64, 1000, 4096])
@pytest.mark.parametrize("kind", KINDS)
def test_hardly_a_row_is_left_to_the_robust_search(monkeypatch, kind, n, rng):
    x = rows_of(kind, n, rng)
    for curve, tau, k in (
        ("sigmoid", 0.01, n // 16),
        ("laplace", 0.1, n // 3),
        ("clip", 1.0, 1),
        ("exp", 0.1, n // 16),
    ):
        left, passes = left_by_fast_search(monkeypatch, x, k, tau, CURVES[curve])
        assert left <= 0.05
        assert passes <= 13


@pytest.mark.parametrize("n", [50, 3000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_such_a_row_has_the_same_bits_alone_and_masked(n, dtype, rng):
    """Beside rows of other kinds, as rows of their own, and with entries that take no part."""
    x = rng.normal(size=(40, n))
    x[::3, n // 2], x[1::3] = 1e6, rng.exponential(size=x[1::3].shape) ** 3
    x = x.astype(dtype)
    where = rng.random(x.shape) < 0.8
    for curve in ("laplace", "sigmoid"):
        p = stk.thretopk(x, 5, curve=curve, temperature=0.05)
        masked = stk.thretopk(x, 5, curve=curve, temperature=0.05, where=where)
        for i in range(0, len(x), 7):
            assert np.array_equal(p[i], stk.thretopk(x[i], 5, curve=curve, temperature=0.05))
            some = stk.thretopk(x[i][where[i]], 5, curve=curve, temperature=0.05)
            assert np.array_equal(masked[i][where[i]], some)


@njit
def _sorted(values):
    ranks, ordered = np.empty_like(values), np.empty_like(values)
    order_statistics.sort(values, ranks, ordered)
    return ordered


@pytest.mark.parametrize("n", [1, 2, order_statistics.SAMPLE])
def test_sort(n, rng):
    for values in (
        rng.normal(size=n),
        np.ones(n),
        np.round(rng.normal(size=n)),
        np.arange(n) * 1.0,
    ):
        assert np.array_equal(_sorted(values), -np.sort(-values))


@njit
def _distribution(x, k):
    return order_statistics.distribution_by_order(
        x,
        k,
        x.dtype.type(1),
        np.empty((order_statistics.SCRATCH, order_statistics.SAMPLE), x.dtype),
    )


@pytest.mark.parametrize("n", [64, 1000, 100_000])
def test_distribution_by_order_of_normal_rows_is_nearly_their_own(n, rng):
    """Where it counts: around the k-th largest entry, whose rank it knows to a factor of 3."""
    for k in {1, 5, n // 16, n // 2, n - 5}:
        off = []
        for _ in range(40):
            x = rng.normal(size=n)
            pivot, mean, square, _ = _distribution(x, float(k))
            assert square - mean**2 >= -1e-9
            rank = np.count_nonzero(x > pivot)
            few, found = (k, rank) if 2 * k <= n else (n - k, n - rank)
            off.append(abs(np.log((found + 1) / (few + 1))))
        assert np.median(off) <= np.log(2)
        assert max(off) <= np.log(8)
