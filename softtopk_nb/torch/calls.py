"""The verbs on tensors; no graph is recorded here.

Each calls the operators of arrays, and compilers see it as a custom operator. Tensors have the
scores along the last axis; k, the temperature and directions in them have the shape of the batch
before it. The state of a solved call for derivatives is a tensor too, so that it can be saved and
transformed like others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._api import array_calls, host_arrays, verbs
from .._api.array_calls import known_to
from .._api.call import Call
from ..losses import check_constant, fenchel_young
from .custom_ops import opaque

Tensor = torch.Tensor
Options = dict[str, Any]
Three = tuple[Tensor, Tensor, Tensor]


def array(value: Tensor) -> Any:
    """The memory of a tensor as an array."""
    value = _plain(value)
    return (value.resolve_neg() if value.is_neg() else value).numpy()


def _plain(value: Any) -> Any:
    """A tensor without its graph, in memory; a number as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.requires_grad:  # few do, and the call takes time
        value = value.detach()
    if value._is_zerotensor():  # zeros without memory, which forward mode makes
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    return value


def tensor(value: Any) -> Tensor:
    """An array as a tensor that shares its memory."""
    return torch.from_numpy(np.asarray(value))


def _arrays(*tensors: Any) -> Any:
    return [array(v) if isinstance(v, Tensor) else v for v in tensors]  # or a number, or None


def given(x: Tensor, *others: Any) -> Any:
    """What an operator takes of these: arrays; on a device tensors without their graph."""
    return [_plain(v) for v in (x, *others)] if x.is_cuda else _arrays(x, *others)


def _tensor(x: Tensor, result: Any) -> Any:
    """What an operator has returned for x, as a tensor."""
    return result if x.is_cuda else tensor(result)


# For tensors in any layout.


def arguments(op: Any, x: Tensor, k: Any, temperature: Any, layout: Any) -> tuple[Any, ...]:
    """What an operator is given of these, up to its own options."""
    x, k, temperature, where = given(x, k, temperature, layout.where)
    return x, *known_to(op, k, temperature), layout.dim, layout.largest, where, None


def value(op: Any, options: Options, x: Tensor, k: Any, temperature: Any, layout: Any) -> Tensor:
    """The value of x as it lies."""
    found = verbs.value(op, *arguments(op, x, k, temperature, layout), options)
    result: Tensor = _tensor(x, found)
    return result


def solve_kept(
    op: Any, options: Options, x: Tensor, k: Any, temperature: Any, layout: Any
) -> tuple[Tensor, Any, Any]:
    """(value, checked call, its state), to be kept as they are."""
    p, call, state = verbs.solve(op, *arguments(op, x, k, temperature, layout), options)
    return _tensor(x, p), call, state


def vjp_kept(call: Any, state: Any, g: Tensor, *, with_numbers: bool) -> tuple[Tensor | None, ...]:
    """The gradients of a call that was kept, those in k and the temperature if wanted."""
    of_numbers: list[Any] = [None, None]
    cotangent = _plain(g) if g.is_cuda else array(g)
    if with_numbers:
        gx, *of_numbers = call.vjp(state, cotangent)
    else:
        gx = call.vjp_in_x(state, cotangent)
    if g.is_cuda:
        return gx, *of_numbers
    return _beside(call, gx), *(None if each is None else tensor(each) for each in of_numbers)


def _beside(call: Call, gx: Any) -> Tensor:
    """A gradient in x in x's memory order: otherwise autograd copies that of a leaf, slowly."""
    if gx.flags.c_contiguous or not call.given.flags.c_contiguous:
        return tensor(gx)
    same = np.empty(call.shape, gx.dtype)
    rows = np.moveaxis(gx, call.axis, -1).reshape(call.rows.x.shape)
    host_arrays.write_rows(rows, call.axis, same)
    return tensor(same)


def packed(x: Tensor, call: Any, state: Any) -> Tensor:
    """The state of a kept call of x as a tensor."""
    return _tensor(x, call.packed(state))


# For rows. There is a k for each, also where the operator has none and does not look at it.


def _like_value(op: Any, options: Options, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[:-1] if op.reduces else x.shape)


def _like_x(op: Any, options: Options, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _like_problem(op: Any, options: Options, x: Tensor, *_: Any) -> Three:
    batch = x.shape[:-1]
    return x.new_empty(x.shape), x.new_empty(batch), x.new_empty(batch)


def _like_batch(op: Any, options: Options, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[:-1])


def _with_state(op: Any, options: Options, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    width = array_calls.state_width(op, options, x.shape[-1], on_device=x.is_cuda)
    state = x.new_empty((*x.shape[:-1], width), dtype=torch.float64)
    return _like_value(op, options, x), state


@opaque(_with_state, returns="(Tensor, Tensor)")
def solve(
    op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """The value and the state of rows."""
    p, state = array_calls.solve(op, options, given(x, k, temperature))
    return _tensor(x, p), _tensor(x, state)


@opaque(_like_value)
def constant(op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The value alone."""
    result: Tensor = _tensor(x, array_calls.value(op, options, given(x, k, temperature)))
    return result


@opaque(_like_value)
def jvp(
    op: Any,
    options: Options,
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    dx: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
) -> Tensor:
    """The derivative along a direction in x, k and the temperature."""
    *problem, solved, dx, dk, dtau = given(x, k, temperature, state, dx, dk, dtemperature)
    moved = array_calls.jvp(op, options, problem, solved, (dx, dk, dtau))
    result: Tensor = _tensor(x, moved)
    return result


@opaque(_like_problem, returns="(Tensor, Tensor, Tensor)")
def vjp(
    op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor, state: Tensor, g: Tensor
) -> Three:
    """The gradients of <g, value>, row by row."""
    *problem, solved, cotangent = given(x, k, temperature, state, g)
    return _all_three(x, array_calls.vjp(op, options, problem, solved, cotangent))


def _all_three(x: Tensor, gradients: Any) -> Three:
    """Gradients in x, k and the temperature; 0 in a k that is an integer."""
    gtau = _tensor(x, gradients.temperature)
    gk = torch.zeros_like(gtau) if gradients.k is None else _tensor(x, gradients.k)
    return _tensor(x, gradients.x), gk, gtau


@opaque(_like_problem, returns="(Tensor, Tensor, Tensor)")
def hvp(
    op: Any,
    options: Options,
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    v: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
    g: Tensor,
) -> Three:
    """The gradients of <g, `jvp`>, row by row."""
    op.check_second()
    *problem, solved, v, dk, dtau, a = given(x, k, temperature, state, v, dk, dtemperature, g)
    other = a, None, None
    return _all_three(x, array_calls.second(op, options, problem, solved, (v, dk, dtau), other))


@opaque(_like_x)
def second(
    op: Any,
    options: Options,
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    v: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
    a: Tensor,
    other_dk: Tensor,
    other_dtemperature: Tensor,
) -> Tensor:
    """The derivative along two directions."""
    op.check_second()
    if x.is_cuda:
        raise NotImplementedError(
            f"{op.__name__} has no derivative along two directions on a device here: take reverse "
            "mode over forward mode or the other way round, or copy x to the CPU"
        )
    problem, first = _arrays(x, k, temperature), _arrays(v, dk, dtemperature)
    other = _arrays(a, other_dk, other_dtemperature)
    return tensor(array_calls.second(op, options, problem, array(state), first, other)[0])


@opaque(_like_batch)
def potential(op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The potential of each row, the smoothed sum of its k largest entries."""
    return _number("potential", op, options, x, k, temperature)


@opaque(_like_batch)
def threshold(op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The threshold of each row, the derivative of the potential in k."""
    return _number("threshold", op, options, x, k, temperature)


@opaque(_like_batch)
def surplus(op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The potential of each row less <x, value>."""
    return _number("surplus", op, options, x, k, temperature)


def _number(name: str, op: Any, options: Options, x: Tensor, *numbers: Tensor) -> Tensor:
    found = array_calls.number(op, options, name, given(x, *numbers))
    result: Tensor = _tensor(x, found)
    return result


@opaque(_like_batch)
def loss(op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor, y: Tensor) -> Tensor:
    """The Fenchel-Young loss of each row against the target y; `options` include `constant`."""
    *problem, target = given(x, k, temperature, y)
    if x.is_cuda:
        own = dict(options)
        with_constant = check_constant(own.pop("constant"))
        found: Tensor = array_calls.check(op, own, problem).losses(target, with_constant)
        return found
    theta, k, temperature = problem
    return tensor(fenchel_young(op, theta, target, k, temperature=temperature, **options))
