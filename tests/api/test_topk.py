"""The k chosen entries of each row with their weights."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from operators import every

import softtopk_nb as stk


@every
@pytest.mark.parametrize("largest", [True, False])
def test_it_is_what_sorting_gives(op, options, largest, rng):
    x = rng.integers(-3, 4, size=(4, 9, 5)) / 2.0  # with ties
    where = rng.random((9, 5)) < 0.8
    where[:3] = True  # k take part at least
    common = {"axis": 1, "largest": largest, "where": where, "op": op}
    values, indices = stk.topk(x, 3, **common, **options)
    common.pop("op")
    p = op(x, 3, **common, **options)
    scores = np.where(where, x if largest else -x, -np.inf)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(p, expected, 1))
    plain = stk.topk(x, 3, **common, op=op.__name__, sorted=False, **options).indices
    np.testing.assert_array_equal(plain, np.sort(expected, axis=1))


@hypothesis.given(
    strategies.lists(strategies.floats(-5, 5, width=16), min_size=1, max_size=12),
    strategies.data(),
)
def test_weights_descend_and_sum_to_less_than_k(row, data):
    k = data.draw(strategies.integers(0, len(row)))
    values, indices = stk.topk(row, k)
    assert indices.shape == (k,)
    assert len({*indices.tolist()}) == k
    assert np.all(np.diff(values) <= 0)
    assert values.sum() <= k + 1e-12
    assert np.all(np.diff(np.asarray(row)[indices]) <= 0)


def test_a_row_without_an_answer_harms_no_other(rng):
    x = rng.normal(size=(3, 6))
    x[1, 4] = np.nan
    values, indices = stk.topk(x, 2)
    np.testing.assert_array_equal(indices[1], [0, 1])
    assert np.isnan(values[1]).all()
    for row in (0, 2):
        alone = stk.topk(x[row], 2)
        np.testing.assert_array_equal(values[row], alone.values)
        np.testing.assert_array_equal(indices[row], alone.indices)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": 2.0}, TypeError, "k is 2.0; expected one whole number for all rows"),
        ({"k": True}, TypeError, "k is True; expected one whole number"),
        ({"k": np.array([1, 2])}, TypeError, r"k is array\(\[1, 2\]\); expected one whole number"),
        ({"k": 5}, ValueError, "k is 5; expected 0 <= k <= n = 4"),
        ({"k": -1}, ValueError, "k is -1; expected 0 <= k <= n = 4"),
        ({"op": "top"}, ValueError, "op is 'top'; expected an operator or its name: gradtopk"),
        ({"op": "softmax"}, ValueError, "op is 'softmax'; expected an operator or its name"),
        ({"op": np.sort}, TypeError, "op is <.*; expected an operator or its name"),
        ({"sorted": 1}, TypeError, "sorted is 1; expected True or False"),
        ({"largest": None}, TypeError, "largest is None; expected True or False"),
        ({"clamp_k": "yes"}, TypeError, "clamp_k is 'yes'; expected True or False"),
        ({"where": np.ones(3, bool)}, ValueError, r"where has shape \(3,\); .* \(2, 4\)"),
        ({"axis": 2}, np.exceptions.AxisError, "axis is 2; expected"),
        ({"curve": "sharp"}, ValueError, "curve is 'sharp'; expected one of"),
        ({"op": "gradtopk", "curve": "exp"}, TypeError, "gradtopk got an unexpected .* 'curve'"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    with pytest.raises(error, match=message):
        stk.topk(np.zeros((2, 4)), **{"k": 2, **change})
