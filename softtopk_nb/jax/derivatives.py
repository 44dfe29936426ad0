"""The JVP and transposition rules of the primitives.

A linear primitive is differentiated in its direction by itself and in the problem by a primitive
that is quadratic; the Jacobian along a direction and its transpose are `jvp` and `vjp`, and
likewise `jvp_of_jvp` and `vjp_of_jvp`, which are linear in each of two operands.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from . import primitives
from .arguments import computed_in
from .calls import Call

# Positions of operands: the problem (x, k, temperature), its state, and the linear operands.
PROBLEM = slice(0, 3)
SOLVED = slice(0, 4)
DIRECTION, OTHER_DIRECTION = slice(4, 7), slice(7, 10)
COTANGENT, COTANGENT_AFTER = slice(4, 5), slice(7, 8)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is a symbolic zero."""
    return type(tangent) is ad.Zero


def unmoved(array: Any) -> Any:
    """The symbolic zero that is the tangent of an array."""
    return ad.Zero(jax.typeof(array).to_tangent_aval())


def _moves(tangents: Any, like: Any) -> list[Any]:
    """Tangents with symbolic zeros instantiated; for integers, zeros of the type to compute in."""
    dtype = like[0].dtype
    kinds = dtype, *[computed_in(dtype)] * len(like[1:])
    return [
        jnp.zeros_like(each, dtype=kind) if is_zero(t) or each.dtype != kind else t
        for t, each, kind in zip(tangents, like, kinds, strict=True)
    ]


def _solve_jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    p, state = primitives.solve.bind(*primals, call=call)
    still = unmoved(state)
    if all(map(is_zero, tangents)):
        return [p, state], [unmoved(p), still]
    (dp,) = primitives.jvp.bind(*primals, state, *_moves(tangents, primals), call=call)
    return [p, state], [dp, still]


def _jvp(
    primitive: Any, groups: Any, of_problem: Any, primals: Any, tangents: Any, *, call: Call
) -> Any:
    """The JVP of a primitive that is linear in each of these groups of operands."""
    results = primitive.bind(*primals, call=call)
    terms = []
    for group in groups:
        if not all(map(is_zero, tangents[group])):
            given = [*primals]
            given[group] = _moves(tangents[group], primals[group])
            terms.append(primitive.bind(*given, call=call))
    if not all(map(is_zero, tangents[PROBLEM])):
        moves = _moves(tangents[PROBLEM], primals[PROBLEM])
        terms.append(of_problem(call, primals, moves))
    if not terms:
        return results, [unmoved(each) for each in results]
    return results, [sum(each[1:], each[0]) for each in zip(*terms, strict=True)]


def _jvp_of_problem(call: Call, primals: Any, moves: Any) -> Any:
    call.op.check_second()
    return primitives.jvp_of_jvp.bind(*primals, *moves, call=call)


def _vjp_of_problem(call: Call, primals: Any, moves: Any) -> Any:
    call.op.check_second()
    solved, cotangent = primals[SOLVED], primals[COTANGENT]
    return primitives.vjp_of_jvp.bind(*solved, *moves, *cotangent, call=call)


def _no_third(call: Call, primals: Any, moves: Any) -> Any:
    raise NotImplementedError(f"{call.name} has no third derivative here")


def _transposed(groups: Any, cotangents: Any, *operands: Any, call: Call) -> Any:
    """Cotangents of the group of operands that is unknown here, and in which it is linear."""
    given = [ad.instantiate_zeros(each) if is_zero(each) else each for each in cotangents]
    unknown = [ad.is_undefined_primal(each) for each in operands]
    group, transpose = next(each for each in groups if any(unknown[each[0]]))
    found = transpose(call, operands, given)
    results: list[Any] = [None] * len(operands)
    results[group] = [
        each if wanted else None for each, wanted in zip(found, unknown[group], strict=True)
    ]
    return results


def _jvp_transposed(call: Call, operands: Any, given: Any) -> Any:
    return primitives.vjp.bind(*operands[SOLVED], *given, call=call)


def _vjp_transposed(call: Call, operands: Any, given: Any) -> Any:
    return primitives.jvp.bind(*operands[SOLVED], *given, call=call)


def _jvp_of_jvp_transposed(other: slice, call: Call, operands: Any, given: Any) -> Any:
    return primitives.vjp_of_jvp.bind(*operands[SOLVED], *operands[other], *given, call=call)


def _vjp_of_jvp_transposed(call: Call, operands: Any, given: Any) -> Any:
    """The transpose in the direction: the directions of a second derivative may be exchanged."""
    cotangent = operands[COTANGENT_AFTER]
    return primitives.vjp_of_jvp.bind(*operands[SOLVED], *given, *cotangent, call=call)


def _vjp_of_jvp_transposed_after(call: Call, operands: Any, given: Any) -> Any:
    """The transpose in the cotangent."""
    solved, direction = operands[SOLVED], operands[DIRECTION]
    return primitives.jvp_of_jvp.bind(*solved, *direction, *given, call=call)


def _linear(primitive: Any, of_problem: Any, *groups: Any) -> None:
    """Register a primitive's rules: `groups` of operands in which it is linear, with transposes."""
    slices = [group for group, _ in groups]
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive, slices, of_problem)
    ad.primitive_transposes[primitive] = functools.partial(_transposed, groups)


def register() -> None:
    """Register all rules with JAX."""
    ad.primitive_jvps[primitives.solve] = _solve_jvp
    _linear(primitives.jvp, _jvp_of_problem, (DIRECTION, _jvp_transposed))
    _linear(primitives.vjp, _vjp_of_problem, (COTANGENT, _vjp_transposed))
    to_first = functools.partial(_jvp_of_jvp_transposed, OTHER_DIRECTION)
    to_other = functools.partial(_jvp_of_jvp_transposed, DIRECTION)
    _linear(primitives.jvp_of_jvp, _no_third, (DIRECTION, to_first), (OTHER_DIRECTION, to_other))
    _linear(
        primitives.vjp_of_jvp,
        _no_third,
        (DIRECTION, _vjp_of_jvp_transposed),
        (COTANGENT_AFTER, _vjp_of_jvp_transposed_after),
    )
