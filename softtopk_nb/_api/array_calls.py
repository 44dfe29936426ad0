"""Calls for fronts that know arrays alone: the verbs on arrays, with the state as an array too.

Arrays are in memory or on a device. Scores are along the last axis; k, the temperature and
directions in them have the shape of the batch before it. A problem is (x, k, temperature), a
direction (dx, dk, dtemperature); an operator without a k does not look at it. The state, with which
derivatives need not solve again, is float64 of shape (*batch, `state_width`).
"""

from __future__ import annotations

from typing import Any

from . import verbs

Options = dict[str, Any]
Problem = tuple[Any, ...]


def state_width(op: Any, options: Options, n: int, *, on_device: bool = False) -> int:
    """Number of float64 in the state of a row of n entries."""
    engine = verbs.device_call().engine_of(op.cpu.__name__) if on_device else op.cpu
    width: int = engine.state_width(n, op.check_options(options))
    return width


def known_to(op: Any, *numbers: Any) -> tuple[Any, ...]:
    """Of k and the temperature, or what belongs to them, those that the operator has."""
    return numbers[-len(op.names) :]


def check(op: Any, options: Options, problem: Problem, out: Any = None) -> Any:
    """The checked call of rows."""
    x, *numbers = problem
    return verbs.check(op, x, *known_to(op, *numbers), -1, True, None, out, options)


def value(op: Any, options: Options, problem: Problem) -> Any:
    """The value alone, which every operator has."""
    x, *numbers = problem
    return verbs.value(op, x, *known_to(op, *numbers), -1, True, None, None, options)


def solve(op: Any, options: Options, problem: Problem, out: Any = None) -> tuple[Any, Any]:
    """(value, state); the value is written to `out` if it is given."""
    call = check(op, options, problem, out).kept()
    p, state = call.solve()
    return call.give_back(p), call.packed(state)


def _direction(call: Any, direction: Problem, name: str) -> Any:
    """A checked direction; an integer k does not move."""
    dx, *numbers = direction
    fixed, known = call.op.fixed, known_to(call.op, *numbers)
    return call.direction(dx, (*(None,) * fixed, *known[fixed:]), name)


def jvp(op: Any, options: Options, problem: Problem, state: Any, direction: Problem) -> Any:
    """The derivative along a direction."""
    call = check(op, options, problem)
    return call.jvp(call.unpacked(state), _direction(call, direction, "dx"))


def vjp(op: Any, options: Options, problem: Problem, state: Any, g: Any) -> Any:
    """The gradients of <g, value> in x, k (None if it is an integer) and the temperature."""
    call = check(op, options, problem)
    return call.vjp(call.unpacked(state), g)


def second(
    op: Any, options: Options, problem: Problem, state: Any, first: Problem, other: Problem
) -> Any:
    """The derivative along two directions, as the first of three arrays.

    If the other is a cotangent, with None for its numbers, the three are the gradients of <other,
    derivative along the first>. On a device it must be one.
    """
    call = check(op, options, problem)
    along = _direction(call, first, "v"), _direction(call, other, "a")
    return call.second(call.unpacked(state), *along)


def number(op: Any, options: Options, name: str, problem: Problem) -> Any:
    """The potential, the threshold or the surplus of each row, as `name` says."""
    return check(op, options, problem).number(name)
