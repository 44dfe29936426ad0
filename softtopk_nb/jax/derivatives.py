"""Derivatives of the primitives, as JAX asks for them: along a direction, and transposed.

A linear primitive is differentiated in its direction by itself and in the problem by one that is
quadratic; the Jacobian along a direction and its transpose are `push` and `pull`, and likewise
`push_twice` and `pull_push`, which are linear in each of two.
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

# Where operands are: the problem (x, k, temperature), its state, and what a primitive is linear in.
PROBLEM = slice(0, 3)
SOLVED = slice(0, 4)
DIRECTION, OTHER_DIRECTION = slice(4, 7), slice(7, 10)
COTANGENT, COTANGENT_AFTER = slice(4, 5), slice(7, 8)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _unmoved(array: Any) -> Any:
    return ad.Zero(jax.typeof(array).to_tangent_aval())


def _moves(tangents: Any, like: Any) -> list[Any]:
    """Tangents with their zeros written out: of integers, as numbers of the type computed in."""
    dtype = like[0].dtype
    kinds = dtype, *[computed_in(dtype)] * len(like[1:])
    return [
        jnp.zeros_like(each, dtype=kind) if _is_zero(t) or each.dtype != kind else t
        for t, each, kind in zip(tangents, like, kinds, strict=True)
    ]


def _solve_jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    p, state = primitives.solve.bind(*primals, call=call)
    still = _unmoved(state)
    if all(map(_is_zero, tangents)):
        return [p, state], [_unmoved(p), still]
    (dp,) = primitives.push.bind(*primals, state, *_moves(tangents, primals), call=call)
    return [p, state], [dp, still]


def _jvp(
    primitive: Any, groups: Any, of_problem: Any, primals: Any, tangents: Any, *, call: Call
) -> Any:
    """The derivative of what is linear in each of these groups of operands."""
    results = primitive.bind(*primals, call=call)
    terms = []
    for group in groups:
        if not all(map(_is_zero, tangents[group])):
            given = [*primals]
            given[group] = _moves(tangents[group], primals[group])
            terms.append(primitive.bind(*given, call=call))
    if not all(map(_is_zero, tangents[PROBLEM])):
        moves = _moves(tangents[PROBLEM], primals[PROBLEM])
        terms.append(of_problem(call, primals, moves))
    if not terms:
        return results, [_unmoved(each) for each in results]
    return results, [sum(each[1:], each[0]) for each in zip(*terms, strict=True)]


def _push_of_problem(call: Call, primals: Any, moves: Any) -> Any:
    call.op._check_second()
    return primitives.push_twice.bind(*primals, *moves, call=call)


def _pull_of_problem(call: Call, primals: Any, moves: Any) -> Any:
    call.op._check_second()
    solved, cotangent = primals[SOLVED], primals[COTANGENT]
    return primitives.pull_push.bind(*solved, *moves, *cotangent, call=call)


def _no_third(call: Call, primals: Any, moves: Any) -> Any:
    raise NotImplementedError(f"{call.name} has no third derivative here")


def _transposed(groups: Any, cotangents: Any, *operands: Any, call: Call) -> Any:
    """Cotangents of the group of operands that is linear now, which is not known."""
    given = [ad.instantiate_zeros(each) if _is_zero(each) else each for each in cotangents]
    unknown = [ad.is_undefined_primal(each) for each in operands]
    group, transpose = next(each for each in groups if any(unknown[each[0]]))
    found = transpose(call, operands, given)
    results: list[Any] = [None] * len(operands)
    results[group] = [
        each if wanted else None for each, wanted in zip(found, unknown[group], strict=True)
    ]
    return results


def _push_transposed(call: Call, operands: Any, given: Any) -> Any:
    return primitives.pull.bind(*operands[SOLVED], *given, call=call)


def _pull_transposed(call: Call, operands: Any, given: Any) -> Any:
    return primitives.push.bind(*operands[SOLVED], *given, call=call)


def _push_twice_transposed(other: slice, call: Call, operands: Any, given: Any) -> Any:
    return primitives.pull_push.bind(*operands[SOLVED], *operands[other], *given, call=call)


def _pull_push_transposed(call: Call, operands: Any, given: Any) -> Any:
    """To the direction: the two directions of a second derivative may change places."""
    cotangent = operands[COTANGENT_AFTER]
    return primitives.pull_push.bind(*operands[SOLVED], *given, *cotangent, call=call)


def _pull_push_transposed_after(call: Call, operands: Any, given: Any) -> Any:
    """To the cotangent."""
    solved, direction = operands[SOLVED], operands[DIRECTION]
    return primitives.push_twice.bind(*solved, *direction, *given, call=call)


def _linear(primitive: Any, of_problem: Any, *groups: Any) -> None:
    """Give a primitive its rules: `groups` of operands in which it is linear, and transposes."""
    slices = [group for group, _ in groups]
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive, slices, of_problem)
    ad.primitive_transposes[primitive] = functools.partial(_transposed, groups)


def register() -> None:
    """Tell JAX all derivatives."""
    ad.primitive_jvps[primitives.solve] = _solve_jvp
    _linear(primitives.push, _push_of_problem, (DIRECTION, _push_transposed))
    _linear(primitives.pull, _pull_of_problem, (COTANGENT, _pull_transposed))
    to_first = functools.partial(_push_twice_transposed, OTHER_DIRECTION)
    to_other = functools.partial(_push_twice_transposed, DIRECTION)
    _linear(primitives.push_twice, _no_third, (DIRECTION, to_first), (OTHER_DIRECTION, to_other))
    _linear(
        primitives.pull_push,
        _no_third,
        (DIRECTION, _pull_push_transposed),
        (COTANGENT_AFTER, _pull_push_transposed_after),
    )
