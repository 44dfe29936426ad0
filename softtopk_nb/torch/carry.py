"""From tensors to the operators and back: no graph is recorded here.

Tensors come with the scores along the last axis; k, the temperature and what goes with them have
the shape of the batch before it. What derivatives need of a solved call is a tensor too, `state`,
so that it goes wherever saved tensors go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._api import host_arrays
from .._api.base import Call
from ..losses import fenchel_young

Tensor = torch.Tensor
Numbers = tuple[Tensor, Tensor]  # k and the temperature, or directions in them


def array(value: Any) -> Any:
    """The memory of a tensor as an array; a number is left as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.requires_grad:  # which few do, and it takes its time
        value = value.detach()
    if value._is_zerotensor():  # zeros without a memory, which forward mode makes
        return torch.zeros(value.shape, dtype=value.dtype).numpy()
    return (value.resolve_neg() if value.is_neg() else value).numpy()


def detached(*values: Any) -> list[Any]:
    """Tensors without their graph; numbers are left as they are."""
    return [v.detach() if isinstance(v, Tensor) else v for v in values]


def tensor(value: Any) -> Tensor:
    """An array as a tensor that shares its memory."""
    return torch.from_numpy(np.asarray(value))


def state_width(op: Any, options: dict[str, Any], x: Tensor) -> int:
    """How many numbers of each row a state has; on a device none is kept."""
    width: int = 0 if x.is_cuda else op.cpu.state_width(x.shape[-1], op._plan(options))
    return width


def no_state(x: Tensor) -> Tensor:
    """The state where none is kept."""
    return x.new_empty((*x.shape[:-1], 0), dtype=torch.float64)


def arguments(x: Tensor, k: Any, temperature: Any, layout: Any) -> tuple[Any, ...]:
    """What an operator of NumPy is given of these, up to its own options."""
    given = array(x), array(k), array(temperature)
    return *given, layout.dim, layout.largest, array(layout.where), None


def value(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any, layout: Any = None
) -> Tensor:
    """The value alone; on a device as well, of rows. Without a layout x is rows."""
    if x.is_cuda:
        x, k, temperature = detached(x, k, temperature)
        result: Tensor = op(x, k, temperature=temperature, **options)
        return result
    if layout is None:
        return tensor(op(array(x), array(k), temperature=array(temperature), **options))
    return tensor(op._evaluate(*arguments(x, k, temperature, layout), options))


def solve(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any
) -> tuple[Tensor, Tensor]:
    """(value, state)."""
    if x.is_cuda:
        return value(op, options, x, k, temperature), no_state(x)
    given = array(x), array(k), array(temperature), -1, True, None, None, options
    p, call, state = op._solved(*given)
    return tensor(p), packed(op, call, state)


def packed(op: Any, call: Call, state: Any) -> Tensor:
    """What `_solved` has given, as one tensor."""
    numbers = op.cpu.pack(call.rows, call.plan, state)
    return tensor(numbers.reshape((*call.batch, numbers.shape[1])))


def _solved(op: Any, options: dict[str, Any], problem: tuple[Any, ...], state: Tensor) -> Any:
    """The call and the state that `solve` had."""
    call = op._check(*map(array, problem), -1, True, None, None, options)
    rows = len(call.rows.x)
    packed = np.ascontiguousarray(array(state)).reshape(rows, state.shape[-1])
    return call, op.cpu.unpack(call.rows, call.plan, packed)


def _in_tensors(gradients: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in x, k and the temperature; 0 in a k that is an integer."""
    in_k = gradients.k
    if in_k is None:
        in_k = np.zeros_like(gradients.temperature)
    return tensor(gradients.x), tensor(in_k), tensor(gradients.temperature)


def push(
    op: Any,
    options: dict[str, Any],
    problem: tuple[Tensor, Tensor, Tensor],
    state: Tensor,
    direction: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """The derivative along a direction in x, k and the temperature."""
    if problem[0].is_cuda:
        x, k, temperature = detached(*problem)
        dx, dk, dtau = detached(*direction)
        moves = {"dtemperature": dtau, **({"dk": dk} if op.real_k else {})}
        result: Tensor = op.jvp(x, k, dx, temperature=temperature, **moves, **options)[1]
        return result
    dx, *numbers = map(array, direction)
    return tensor(op._move(*_solved(op, options, problem, state), dx, tuple(numbers)))


def pull(
    op: Any,
    options: dict[str, Any],
    problem: tuple[Tensor, Tensor, Tensor],
    state: Tensor,
    g: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of <g, value>, row by row."""
    x = problem[0]
    if x.is_cuda:
        x, k, temperature = detached(*problem)
        found = op.vjp(x, k, temperature=temperature, **options)[1](g.detach())
        in_k = torch.zeros_like(found.temperature) if found.k is None else found.k
        return found.x, in_k, found.temperature
    call, solved = _solved(op, options, problem, state)
    return _in_tensors(op._pull_back(call, solved, array(g)))


def pull_kept(
    op: Any, call: Call, state: Any, g: Tensor, with_numbers: bool
) -> tuple[Tensor | None, ...]:
    """The gradients of a call that was kept, those in k and the temperature if wanted."""
    if with_numbers:
        gx, *others = op._pull_back(call, state, array(g))
        return _beside(call, gx), *(None if each is None else tensor(each) for each in others)
    gx = op._give_back(call, op._pulled(call, state, array(g))[0], is_value=False)
    return _beside(call, gx), None, None


def _beside(call: Call, gx: Any) -> Tensor:
    """A gradient in x, in memory as x is: else autograd copies that of a leaf, and slowly."""
    if gx.flags.c_contiguous or not call.given.flags.c_contiguous:
        return tensor(gx)
    same = np.empty(call.shape, gx.dtype)
    rows = np.moveaxis(gx, call.axis, -1).reshape(call.rows.x.shape)
    host_arrays.write_rows(rows, call.axis, same)
    return tensor(same)


def second(
    op: Any,
    options: dict[str, Any],
    problem: tuple[Tensor, Tensor, Tensor],
    state: Tensor,
    direction: tuple[Tensor, Tensor, Tensor],
    other: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative along two directions; of a cotangent without numbers, gradients."""
    op._check_second()
    if problem[0].is_cuda:
        raise NotImplementedError(f"{op.__name__} has no second derivative on a device here")
    (v, *moves), (a, *others) = map(array, direction), map(array, other)
    call, solved = _solved(op, options, problem, state)
    return _in_tensors(op._second(call, solved, v, tuple(moves), a, tuple(others)))


def potential(
    op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor
) -> Tensor:
    """The smoothed sum of the k largest, of each row."""
    return _of_rows(op.potential, options, x, k, temperature)


def threshold(
    op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor
) -> Tensor:
    """The derivative of the potential in k, of each row."""
    return _of_rows(op.threshold, options, x, k, temperature)


def _of_rows(
    function: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor
) -> Tensor:
    if x.is_cuda:
        x, k, temperature = detached(x, k, temperature)
        result: Tensor = function(x, k, temperature=temperature, **options)
        return result
    given = array(x), array(k)
    return tensor(function(*given, temperature=array(temperature), **options))


def loss(
    op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor, y: Tensor
) -> Tensor:
    """The Fenchel-Young loss of each row against the target y; `options` say if it is constant."""
    if x.is_cuda:
        raise NotImplementedError("fenchel_young takes no tensors on a device here")
    theta, k, temperature, target = map(array, (x, k, temperature, y))
    return tensor(fenchel_young(op, theta, target, k, temperature=temperature, **options))
