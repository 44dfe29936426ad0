"""The hard top-k against its definition: a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import reference

import softtopk_nb as stk
from softtopk_nb.hardtopk.cpu import long


def by_sorting(x, k):
    p = np.zeros_like(x)
    p[np.argsort(-x, kind="stable")[:k]] = 1
    return p


def families(n, dtype, rng):
    """Rows by name, with values that an order of floats by their bits could get wrong."""
    rows = {
        "distinct": rng.normal(size=n),
        "ties": np.round(rng.normal(size=n) * 2),
        "constant": np.full(n, -3.5),
        "signed zeros": rng.choice([0.0, -0.0, 1.0, -1.0], n),
        "wide": rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
        "opposite ends": rng.choice([-1.0, 1.0], n) * np.finfo(dtype).max * (1 - rng.random(n) / 2),
        "subnormal": rng.integers(-3, 4, n) * np.finfo(dtype).smallest_subnormal,
        "sorted": np.sort(rng.normal(size=n)),
    }
    return {name: values.astype(dtype) for name, values in rows.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 70_001])
def test_it_is_what_a_stable_sort_gives(dtype, n, rng):
    for name, x in families(n, dtype, rng).items():
        for k in {0, 1, n // 3, n - 1, n}:
            np.testing.assert_array_equal(stk.hardtopk(x, k), by_sorting(x, k), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_of_a_long_row_find_the_same(dtype, rng):
    n = 2 * long.PART + 1001
    for name, x in families(n, dtype, rng).items():
        for k in {0, 1, int((x > 0).sum()), n // 3, n}:
            p = np.empty_like(x)
            long.solve(x, k, p)
            np.testing.assert_array_equal(p, by_sorting(x, k), err_msg=f"{name}, {k}")
    x = rng.choice([-np.inf, np.inf, 1.0, 2.0], n).astype(dtype)
    present = int((x > -np.inf).sum())
    for k in (1, present // 2, present):
        long.solve(x, k, p)
        np.testing.assert_array_equal(p, by_sorting(x, k))
    for row, k in ((x, present + 1), (np.where(np.arange(n) == 7, np.nan, x), 3)):
        long.solve(row.astype(dtype), k, p)
        assert np.isnan(p).all()


def test_it_is_the_reference(rng):
    x = np.round(rng.normal(size=(20, 9)), 1)
    for k in range(10):
        expected = [np.asarray(reference.hardtopk(row, k), float) for row in x]
        np.testing.assert_array_equal(stk.hardtopk(x, k), expected)


def test_ties_at_infinity_go_to_the_lowest_index():
    x = np.array([1.0, np.inf, -np.inf, np.inf, np.inf])
    np.testing.assert_array_equal(stk.hardtopk(x, 2), [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(stk.hardtopk(x, 4), [1, 1, 0, 1, 1])
    assert np.isnan(stk.hardtopk(x, 5)).all()
