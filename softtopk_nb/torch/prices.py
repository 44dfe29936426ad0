"""`thretopk` of tensors with costs, with first derivatives in all of its four arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd import Function

from .._api import array_calls
from .._api.front import refuse_cost
from . import arguments, calls
from .calls import Options
from .custom_ops import is_tracing, opaque
from .functions import Rowwise, rowwise
from .layout import Layout

Tensor = torch.Tensor
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def value(
    op: Any,
    options: Mapping[str, Any],
    x: Tensor,
    layout: Layout,
    k: Any,
    temperature: Any,
    cost: Any,
    hard: Any,
    clamp_k: Any,
) -> Tensor:
    """The value of x in its layout, with costs that broadcast to it."""
    own = {name: each for name, each in options.items() if name != "cost"}
    if hard or clamp_k:
        refuse_cost(options, "a call of tensors with hard or clamp_k")
    k, temperature = arguments.numbers(k, temperature, x, layout, True)
    rows = layout.rows(x)
    problem = rows, rowwise(_real(k), rows), rowwise(temperature, rows), _costs(cost, x, layout)
    if x.is_cuda:
        raise NotImplementedError(
            "cost was given for x on a CUDA device; expected x in memory: there is no kernel with "
            "costs for a device"
        )
    function = Solve if is_tracing(x) else Value
    p, _ = function.apply(op, own, *problem)
    result: Tensor = layout.back(p)
    return result if result.dtype == layout.dtype else result.to(layout.dtype)


def _real(k: Any) -> Any:
    return k if isinstance(k, Tensor) else float(k)


def _costs(cost: Any, x: Tensor, layout: Layout) -> Tensor:
    """The costs of x's entries, as rows."""
    if not isinstance(cost, Tensor):
        cost = arguments.beside(cost, "cost", x, x.dtype)
    cost = arguments.check_tensor(cost, "cost")
    try:
        spread = cost.to(x.dtype).expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"cost has shape {tuple(cost.shape)}; expected one that broadcasts to {tuple(x.shape)}"
        ) from None
    return layout.turned(spread)


def _with_state(op: Any, options: Options, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    width = array_calls.state_width(op.priced, options, x.shape[-1])
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], width), dtype=torch.float64)


def _like_problem(op: Any, options: Options, x: Tensor, *_: Any) -> Four:
    of_rows = x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])
    return x.new_empty(x.shape), *of_rows, x.new_empty(x.shape)


def _like_x(op: Any, options: Options, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@opaque(_with_state, returns="(Tensor, Tensor)")
def priced_solve(
    op: Any, options: Options, x: Tensor, k: Tensor, temperature: Tensor, cost: Tensor
) -> tuple[Tensor, Tensor]:
    """The value and the state of rows."""
    x, k, temperature, cost = map(calls.array, (x, k, temperature, cost))
    found = array_calls.solve(op, {**options, "cost": cost}, (x, k, temperature))
    p, state = map(calls.tensor, found)
    return p, state


@opaque(_like_problem, returns="(Tensor, Tensor, Tensor, Tensor)")
def priced_vjp(
    op: Any,
    options: Options,
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    cost: Tensor,
    state: Tensor,
    g: Tensor,
) -> Four:
    """The gradients of <g, value>, row by row."""
    *problem, prices, solved, cotangent = map(calls.array, (x, k, temperature, cost, state, g))
    own = {**options, "cost": prices}
    found = array_calls.vjp(op, own, tuple(problem), solved, cotangent)
    gx, gk, gtau, gcost = map(calls.tensor, found)
    return gx.contiguous(), gk, gtau, gcost.contiguous()


@opaque(_like_x)
def priced_jvp(
    op: Any,
    options: Options,
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    cost: Tensor,
    state: Tensor,
    dx: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
    dcost: Tensor,
) -> Tensor:
    """The derivative along a direction in x, k, the temperature and the costs."""
    *problem, prices, solved = map(calls.array, (x, k, temperature, cost, state))
    direction = tuple(map(calls.array, (dx, dk, dtemperature, dcost)))
    moved = array_calls.jvp(op, {**options, "cost": prices}, tuple(problem), solved, direction)
    return calls.tensor(moved)


class Solve(Function):
    """(x, k, temperature, cost) -> (value, state), without forward mode."""

    @staticmethod
    def forward(
        op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor, cost: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Solve the rows."""
        found: tuple[Tensor, Tensor] = priced_solve(op, options, x, k, temperature, cost)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and its state, which is not differentiable."""
        ctx.op, ctx.options, *problem = inputs
        _, state = output
        ctx.mark_non_differentiable(state)
        ctx.save_for_backward(*problem, state)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        """The gradients in x, k, the temperature and the costs."""
        return None, None, *Vjp.of(ctx.op, ctx.options, *ctx.saved_tensors, g)


class Value(Rowwise):
    """(x, k, temperature, cost) -> (value, state), with forward mode."""

    forward = Solve.forward
    backward = Solve.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and its state, for forward mode as well."""
        Solve.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:], output[1])

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Any, None]:
        """The derivative of the value along a direction."""
        problem = ctx.saved_tensors[:4]
        moves = [
            torch.zeros_like(each) if v is None else v
            for v, each in zip(tangents, problem, strict=True)
        ]
        return Jvp.of(ctx.op, ctx.options, *ctx.saved_tensors, *moves), None


class Once(Rowwise):
    """A derivative, which has none itself."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        ctx.op.priced.check_second()

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        ctx.op.priced.check_second()


class Vjp(Once):
    """(problem, state, cotangent) -> the gradients in the problem."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Four:
        """The gradients of <cotangent, value>."""
        found: Four = priced_vjp(op, options, *tensors)
        return found


class Jvp(Once):
    """(problem, state, direction) -> the derivative along the direction."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """The derivative along the direction."""
        found: Tensor = priced_jvp(op, options, *tensors)
        return found
