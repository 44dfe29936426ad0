"""The hard top-k against its definition: a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
import reference

import softtopk_nb as stk


def by_sorting(x, k):
    p = np.zeros_like(x)
    p[np.argsort(-x, kind="stable")[:k]] = 1
    return p


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 70_001])
def test_it_is_what_a_stable_sort_gives(dtype, n, rng):
    rows = {
        "distinct": rng.normal(size=n),
        "ties": np.round(rng.normal(size=n) * 2),
        "constant": np.full(n, -3.5),
        "signed zeros": rng.choice([0.0, -0.0, 1.0, -1.0], n),
        "wide": rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
        "subnormal": rng.integers(-3, 4, n) * np.finfo(dtype).smallest_subnormal,
        "sorted": np.sort(rng.normal(size=n)),
    }
    for name, values in rows.items():
        x = values.astype(dtype)
        for k in {0, 1, n // 3, n - 1, n}:
            np.testing.assert_array_equal(stk.hardtopk(x, k), by_sorting(x, k), err_msg=name)


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
