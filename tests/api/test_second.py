"""Second derivatives: by the definition at 60 digits, and the rules that hold for all operators."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from reference import to_float64
from test_vectors import Problem, both_dtypes, cases_with_tangent

NEAR_KINK = 1e-9  # temperatures: there a kink of f' counts, which the derivative leaves out
KINKS = {"exp": [0.0], "laplace": [0.0], "clip": [0.0, 1.0]}


def at_kink(problem):
    """Whether an entry lies where f' or f'' jumps."""
    kinks = KINKS.get(problem.case.get("curve"), [])
    if not kinks:
        return False
    lam = float(problem.exactly()().threshold)
    t = (problem.x.astype(np.float64) - lam) / problem.tau
    return any(abs(t - kink).min() < NEAR_KINK for kink in kinks)


def directions(problem):
    """Two of them, and a cotangent; those in k only where k may move."""
    v = problem.tangent()
    moves = (0.25 if problem.operator.real_k else 0.0, -0.5)
    others = (-0.75 if problem.operator.real_k else 0.0, 0.375)
    return (v, *moves), (np.roll(v, 1), *others), v[::-1].copy()


@both_dtypes
@cases_with_tangent
def test_second_derivative(case, method, dtype):
    """Along two directions, entry by entry; and as a gradient, paired with the second of them."""
    problem = Problem(case, method, dtype)
    op = problem.operator
    if not op.has_second:
        with pytest.raises(NotImplementedError, match=case["op"]):
            op.hvp(problem.x, problem.k, problem.tangent(), problem.tangent())
        return
    first, second, g = directions(problem)
    given = problem.x, problem.k, first, second, problem.tau
    options = {"curve": case["curve"]} if "curve" in case else {}
    expected = to_float64(
        reference.second_by_difference(getattr(reference, case["op"]), *given, **options)
    )
    tolerance = 1e30 if at_kink(problem) else problem.tangent_tolerance(expected)
    in_k = None if not op.real_k else first[1]
    everything = {**problem.options, **problem.method}
    moved = {"dk": in_k, "dtemperature": first[2], **everything}
    gradients = op.hvp(problem.x, problem.k, first[0], g, **moved)
    assert gradients.x.dtype == dtype
    paired = float(gradients.x.astype(np.float64) @ second[0].astype(np.float64))
    paired += float(gradients.temperature) * second[2]
    paired += float(gradients.k) * second[1] if op.real_k else 0.0
    assert np.isfinite(paired)
    size = np.abs(g).sum() + np.abs(second[0]).sum()
    assert abs(paired - float(g.astype(np.float64) @ expected)) <= 2 * tolerance * size

    arguments = problem.x, problem.k, problem.tau, -1, True, None, None
    own = {key: value for key, value in everything.items() if key != "temperature"}
    _, call, state = op._solved(*arguments, own)
    along = (in_k, first[2]), second[0], (second[1] if op.real_k else None, second[2])
    result = op._second(call, state, first[0], *along).x
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=tolerance)
