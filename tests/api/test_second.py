"""Second derivatives: by the definition at 60 digits, and the rules that hold for all operators."""

from __future__ import annotations

import itertools

import answers
import numpy as np
import pytest
from operators import OF_EVERY_KIND, VARIANTS, dtypes, same
from test_vectors import Problem, both_dtypes, cases_with_tangent

import softtopk_nb as stk
from softtopk_nb._api.call import check
from softtopk_nb._api.operator import registry

second = pytest.mark.parametrize(
    ("op", "options"),
    [
        pytest.param(
            op,
            options,
            id="-".join([name, *map(str, options.values())]),
            marks=[pytest.mark.slow] * (options.get("curve", "laplace") not in OF_EVERY_KIND),
        )
        for name, op in registry.items()
        if op.has_second
        for options in VARIANTS[name]
    ],
)

NEAR_KINK = 1e-9  # temperatures: there a kink of f' counts, which the derivative leaves out
KINKS = {"exp": [0.0], "laplace": [0.0], "clip": [0.0, 1.0]}


def at_kink(problem):
    """Whether an entry lies where f' or f'' jumps."""
    kinks = KINKS.get(problem.case.get("curve"), [])
    if not kinks:
        return False
    t = (problem.x.astype(np.float64) - problem.exact("threshold")) / problem.tau
    return any(abs(t - kink).min() < NEAR_KINK for kink in kinks)


@both_dtypes
@cases_with_tangent
def test_second_derivative(case, method, dtype):
    """thm-second-derivative, thm-grad-second: along two directions, and as a gradient in one."""
    problem = Problem(case, method, dtype)
    op = problem.operator
    if not op.has_second:
        with pytest.raises(NotImplementedError, match=case["op"]):
            op.hvp(problem.x, problem.k, problem.tangent(), problem.tangent())
        return
    first, second = answers.directions(case["op"], problem.tangent())
    g, expected = problem.tangent()[::-1].copy(), problem.exact("second")
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
    call = check(op, *arguments, own)
    along = call.direction(first[0], (in_k, first[2]), "v")
    other = call.direction(second[0], (second[1] if op.real_k else None, second[2]), "a")
    result = call.second(call.state(), along, other).x
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=tolerance)


@second
@dtypes
def test_rows_are_independent_and_the_axis_is_any(op, options, dtype, rng):
    x, v, g = rng.normal(size=(3, 5, 12)).astype(dtype)
    x[1, 3], x[2, 4], x[3, 5] = np.nan, np.inf, -np.inf
    k, tau = np.array([1, 3, 4, 5, 11]), np.array([0.5, 1.0, 2.0, 0.1, 1.0])
    moves = {"dtemperature": np.arange(5.0), **({"dk": np.ones(5)} if op.real_k else {})}
    found = op.hvp(x, k, v, g, temperature=tau, **moves, **options)
    assert found.x.dtype == dtype
    assert np.isnan(found.x[1]).all()
    assert np.isfinite(found.x[[0, 2, 3, 4]]).all()
    assert found.temperature.shape == (5,)
    for i in range(5):
        alone = {name: each[i] for name, each in moves.items()}
        one = op.hvp(x[i], k[i], v[i], g[i], temperature=tau[i], **alone, **options)
        same(one.x, found.x[i])
        same(one.temperature, found.temperature[i])
    in_columns = op.hvp(x.T, k, v.T, g.T, temperature=tau, axis=0, **moves, **options)
    same(in_columns.x.T, found.x)
    turned = op.hvp(-x, k, -v, g, temperature=tau, largest=False, **moves, **options)
    same(-turned.x, found.x)
    same(turned.temperature, found.temperature)


@second
def test_masked_entries_are_removed(op, options, rng):
    x, v, g = rng.normal(size=(3, 4, 12))
    there = np.arange(12) % 4 != 2
    removed = op.hvp(x[:, there], 3, v[:, there], g[:, there], dtemperature=0.5, **options)
    masked = op.hvp(x, 3, v, g, dtemperature=0.5, where=there, **options)
    same(masked.x[:, there], removed.x)
    same(masked.temperature, removed.temperature)
    assert not masked.x[:, ~there].any()


@second
def test_extreme_temperatures(op, options, rng):
    """Everything scales with x and the temperature, to the ends of float64's range."""
    x, v, g = rng.normal(size=(3, 12))
    moves = {"dk": 0.5} if op.real_k else {}
    for exponent in (-600, 600):
        given = np.ldexp(x, exponent), 3, np.ldexp(v, exponent), g
        scale = {"temperature": np.ldexp(0.5, exponent), "dtemperature": np.ldexp(0.25, exponent)}
        found = op.hvp(*given, **scale, **moves, **options)
        expected = op.hvp(x, 3, v, g, temperature=0.5, dtemperature=0.25, **moves, **options)
        np.testing.assert_allclose(np.ldexp(found.x, exponent), expected.x, rtol=1e-12, atol=1e-14)
        in_tau = np.ldexp(found.temperature, exponent)
        assert in_tau == pytest.approx(expected.temperature, rel=1e-12)
        assert found.k is None or found.k == pytest.approx(expected.k, rel=1e-12)


@second
def test_a_packed_state_is_as_good(op, options, rng):
    """What derivatives need of a solved call, as one array, for rows of every kind."""
    for n, dtype in itertools.product((12, 110, 200, 300), (np.float32, np.float64)):
        x, v = rng.normal(size=(2, 6, n)).astype(dtype)
        x[1, 3], x[2, 5], x[3, 0] = np.inf, -np.inf, np.nan
        k = np.array([1, 3, 3, 5, n // 2, 0])
        call = check(op, x, k, 0.5, -1, True, None, None, options)
        state = call.state()
        packed = op.cpu.pack(call.rows, call.options, state)
        assert packed.shape == (6, op.cpu.state_width(n, call.options))
        again = op.cpu.unpack(call.rows, call.options, packed.copy())
        along = call.direction(v, (None, 0.25))
        same(call.jvp(again, along), call.jvp(state, along))
        same(call.vjp(again, v).x, call.vjp(state, v).x)


def test_bad_directions_are_refused():
    x = np.zeros((2, 4))
    for name, given in (("v", (np.zeros(3), x)), ("g", (x, np.zeros(3)))):
        with pytest.raises(ValueError, match=rf"{name} has shape \(3,\); expected one that"):
            stk.thretopk.hvp(x, 2, *given)
    with pytest.raises(TypeError, match="v has dtype complex128"):
        stk.gradtopk.hvp(x, 2, x * 1j, x)
    with pytest.raises(TypeError, match="dk was given, but gradtopk takes an integer k"):
        stk.gradtopk.hvp(x, 2, x, x, dk=1.0)
