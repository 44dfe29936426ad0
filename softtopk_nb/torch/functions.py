"""Autograd: the derivatives of every operator, by what `leaves` carries.

The plain function is for backward passes alone, and keeps the solved call as it is. The others
work under every transform of `torch.func`, three deep: value, its derivatives along directions and
cotangents, and theirs. With forward mode, but for those that a compiler traces: it takes none that
have it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function, forward_ad

from . import carry, leaves
from .carry import Tensor
from .layout import Layout, of_rows


def value(
    op: Any,
    options: dict[str, Any],
    x: Tensor,
    k: Any,
    temperature: Any,
    *,
    layout: Layout | None = None,
) -> Tensor:
    """The value of x, as it lies; k and the temperature are numbers or tensors of the batch shape.

    Without a layout x is rows.
    """
    traced, transformed = leaves.is_wanted(x), leaves.is_transformed()
    if layout is not None and (traced or transformed or x.is_cuda):
        return layout.back(value(op, options, layout.rows(x), k, temperature))
    result: Tensor
    if traced:
        return traced_value(op, options, (x, rowwise(k, x), rowwise(temperature, x)))
    if transformed:
        problem = x, rowwise(k, x), rowwise(temperature, x)
        result, _ = Value.apply(op, options, *problem)
        return result
    layout = of_rows(x) if layout is None else layout
    if torch.is_grad_enabled() and any(map(_requires_grad, (x, k, temperature))):
        result = Plain.apply(x, k, temperature, layout.where, layout, op, options)
        return result
    return carry.value(op, options, x, k, temperature, layout)


def constant(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any, *, layout: Layout
) -> Tensor:
    """The same of an operator without derivatives."""
    x = x.detach()
    if x.is_cuda or leaves.is_wanted(x) or leaves.is_transformed():
        rows = layout.rows(x)
        problem = rows, rowwise(k, rows), rowwise(temperature, rows)
        return layout.back(Constant.apply(op, options, *problem))
    return carry.value(op, options, x, k, temperature, layout)


def traced_value(op: Any, options: dict[str, Any], problem: tuple[Tensor, ...]) -> Tensor:
    """The value of what a compiler traces."""
    p: Tensor
    primals, tangents = unpacked(problem)
    if tangents is None:
        p, _ = Solve.apply(op, options, *primals)
        return p
    p, state = leaves.solve(op, options, *primals)
    moves = _moves(tangents, primals)
    return forward_ad.make_dual(p, leaves.push(op, options, *primals, state, *moves))


def unpacked(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Any] | None]:
    """What a compiler traces, apart from its directions in forward mode, if there are any."""
    duals = [forward_ad.unpack_dual(each) for each in tensors]
    if any(dual.tangent is not None for dual in duals):
        return [dual.primal for dual in duals], [dual.tangent for dual in duals]
    # The compiler takes a tensor to need no gradient that has come to need one since it was made,
    # as an argument of `torch.func.grad` has: a view of it is made now.
    return [each.view_as(each) for each in tensors], None


def rowwise(number: Any, x: Tensor) -> Tensor:
    """A number as a tensor of the batch shape; a tensor has it already."""
    if isinstance(number, Tensor):
        return number
    dtype = torch.int64 if isinstance(number, int) else torch.float64
    return torch.full(x.shape[:-1], number, dtype=dtype, device=x.device)


def _is_tensor(given: Any) -> bool:
    return isinstance(given, Tensor)


def _requires_grad(given: Any) -> bool:
    return isinstance(given, Tensor) and given.requires_grad


class Plain(Function):
    """Value and backward pass of tensors that no transform sees."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        k: Any,
        temperature: Any,
        where: Any,
        layout: Layout,
        op: Any,
        options: Any,
    ) -> Tensor:
        """Solve, and keep the call."""
        ctx.op, ctx.options, ctx.layout, ctx.solved = op, options, layout, None
        ctx.numbers = tuple(None if _is_tensor(v) else v for v in (k, temperature))
        ctx.save_for_backward(x, *(v if _is_tensor(v) else None for v in (k, temperature)), where)
        if x.is_cuda:
            return carry.value(op, options, x, k, temperature, layout)
        p, *ctx.solved = op._solved(*carry.arguments(x, k, temperature, layout), options)
        return carry.tensor(p)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Pull back, by differentiable steps if a graph of it is wanted."""
        x, k, temperature, _ = ctx.saved_tensors
        if ctx.solved is not None and not torch.is_grad_enabled():
            call, solved = ctx.solved
            with_numbers = any(ctx.needs_input_grad[1:3])
            gradients = carry.pull_kept(ctx.op, call, solved, g, with_numbers)
        else:
            rows = ctx.layout.rows(x)
            k, temperature = (
                rowwise(n if v is None else v, rows)
                for n, v in zip(ctx.numbers, (k, temperature), strict=True)
            )
            if ctx.solved is None:
                state = carry.no_state(rows)
            else:
                state = carry.packed(ctx.op, *ctx.solved)
            problem = rows, k, temperature, state, ctx.layout.turned(g)
            gx, *others = _pull(ctx.op, ctx.options, *problem)
            gx = ctx.layout.back(gx if ctx.layout.largest else -gx)
            gradients = gx, *others
        wanted = zip(gradients, ctx.needs_input_grad, strict=False)
        return *(v if wants else None for v, wants in wanted), None, None, None, None


class Rowwise(Function):
    """A function of tensors that share their leading axes, which `vmap` adds to."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep all tensors that came."""
        ctx.op, ctx.options, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """The same with one more leading axis."""
        op, options, *tensors = inputs
        moved = [
            each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in zip(tensors, in_dims[2:], strict=True)
        ]
        result = cls.apply(op, options, *moved)
        return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0


class Solve(Function):
    """(x, k, temperature) to the value and its state, without forward mode."""

    @staticmethod
    def forward(
        op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Solve."""
        return leaves.solve(op, options, x, k, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and its state, which is no function of it."""
        ctx.op, ctx.options, *problem = inputs
        _, state = output
        ctx.mark_non_differentiable(state)
        ctx.save_for_backward(*problem, state)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        """Pull back."""
        gradients = _pull(ctx.op, ctx.options, *ctx.saved_tensors, g)
        return None, None, *_of_reals(ctx.op, gradients)


class Value(Rowwise):
    """(x, k, temperature) to the value and its state."""

    forward = Solve.forward
    backward = Solve.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """As `Solve`, for forward mode as well."""
        Solve.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:], output[1])

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Any, None]:
        """Push forward."""
        moves = _moves(tangents, ctx.saved_tensors[:3])
        return _push(ctx.op, ctx.options, *ctx.saved_tensors, *moves), None


class Push(Rowwise):
    """(problem, state, direction) to the derivative along it."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """Push."""
        return leaves.push(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """To the direction as the value's; to the problem by the second derivative."""
        solved, direction = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        linear = _pull(ctx.op, ctx.options, *solved, g)
        return None, None, *_seconds(ctx, solved, direction, g), None, *_of_reals(ctx.op, linear)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """Along the problem's direction as well."""
        solved, direction = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        linear = _push(ctx.op, ctx.options, *solved, *_moves(tangents[4:], direction))
        if not any(v is not None for v in tangents[:3]):
            return linear
        moves = _moves(tangents[:3], solved[:3])
        return linear + _second(Along, ctx.op, ctx.options, *solved, *direction, *moves)


class Pull(Rowwise):
    """(problem, state, cotangent) to the gradients in x, k and the temperature."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pull."""
        return leaves.pull(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, *direction: Tensor) -> tuple[Any, ...]:
        """The cotangents of gradients are a direction: <direction, gradients> = <g, push>."""
        *solved, g = ctx.saved_tensors
        linear = _push(ctx.op, ctx.options, *solved, *direction)
        return None, None, *_seconds(ctx, solved, direction, g), None, linear

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """The second derivative is symmetric: the problem's direction takes the place of v."""
        *solved, g = ctx.saved_tensors
        linear: tuple[Tensor, ...] = _pull(
            ctx.op, ctx.options, *solved, *_moves(tangents[4:], (g,))
        )
        if not any(v is not None for v in tangents[:3]):
            return linear
        moves = _moves(tangents[:3], solved[:3])
        moved = _second(Second, ctx.op, ctx.options, *solved, *moves, g)
        return tuple(a + b for a, b in zip(linear, moved, strict=True))


class Second(Rowwise):
    """(problem, state, direction, cotangent) to gradients: of <cotangent, `Push`>."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both readings of the second derivative at once, as `RowOperator._second` has them."""
        *given, g = tensors
        return leaves.second(op, options, *given, g, *_still(g))

    @staticmethod
    def backward(ctx: Any, *other: Tensor) -> tuple[Any, ...]:
        """To the direction, and to the cotangent: it is linear in both."""
        solved, direction, g = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7]
        to_direction = Second.apply(ctx.op, ctx.options, *solved, *other, g)
        to_g = Along.apply(ctx.op, ctx.options, *solved, *direction, *other)
        return *(None,) * 6, *_of_reals(ctx.op, to_direction), to_g

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """Along both."""
        solved, direction, g = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7]
        moves, moved_g = _moves(tangents[4:7], direction), _moves(tangents[7:], (g,))
        one = Second.apply(ctx.op, ctx.options, *solved, *moves, g)
        other = Second.apply(ctx.op, ctx.options, *solved, *direction, *moved_g)
        return tuple(a + b for a, b in zip(one, other, strict=True))


class Along(Rowwise):
    """(problem, state, two directions) to the derivative along both."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """The second derivative."""
        return leaves.second(op, options, *tensors)[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """To each direction, from the other one."""
        solved, pair = ctx.saved_tensors[:4], (ctx.saved_tensors[4:7], ctx.saved_tensors[7:])
        one, other = (
            _of_reals(ctx.op, Second.apply(ctx.op, ctx.options, *solved, *each, g))
            for each in pair[::-1]
        )
        return *(None,) * 6, *one, *other

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """Along each."""
        solved, one, other = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7:]
        moves, more = _moves(tangents[4:7], one), _moves(tangents[7:], other)
        moved = Along.apply(ctx.op, ctx.options, *solved, *moves, *other)
        result: Tensor = moved + Along.apply(ctx.op, ctx.options, *solved, *one, *more)
        return result


class Last(Rowwise):
    """The problem as it is, where a third derivative would be wanted of it."""

    @staticmethod
    def forward(op: Any, options: Any, *problem: Tensor) -> tuple[Tensor, ...]:
        """The same tensors."""
        return tuple(each.view_as(each) for each in problem)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """There is no third derivative."""
        raise NotImplementedError(f"{ctx.op.__name__} has no third derivative here")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """There is no third derivative."""
        raise NotImplementedError(f"{ctx.op.__name__} has no third derivative here")


class Constant(Rowwise):
    """(x, k, temperature) to a value that is constant almost everywhere."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """Solve."""
        return leaves.constant(op, options, x, k, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing of it is differentiable."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, ...]:
        """It has no gradient."""
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        """It does not move."""
        return None


def _push(*args: Any) -> Any:
    return leaves.push(*args) if leaves.is_wanted(args[2]) else Push.apply(*args)


def _pull(*args: Any) -> Any:
    return leaves.pull(*args) if leaves.is_wanted(args[2]) else Pull.apply(*args)


def _second(function: Any, op: Any, options: Any, *tensors: Tensor) -> Any:
    """By `Second` or `Along`, which are differentiated in all but the problem."""
    return function.apply(op, options, *Last.apply(op, options, *tensors[:3]), *tensors[3:])


def _seconds(ctx: Any, solved: Any, direction: Any, g: Tensor) -> tuple[Any, ...]:
    """Gradients in the problem by the second derivative, where any is wanted."""
    if not any(ctx.needs_input_grad[2:5]):
        return None, None, None
    found = _second(Second, ctx.op, ctx.options, *solved, *direction, g)
    return _of_reals(ctx.op, found)


def _of_reals(op: Any, gradients: Any) -> tuple[Any, ...]:
    """Gradients in x, k and the temperature, None in a k that is an integer."""
    gx, gk, gtau = gradients
    return gx, gk if op.real_k else None, gtau


def _moves(tangents: Any, like: Any) -> list[Tensor]:
    """Tangents, 0 where there is none."""
    return [
        torch.zeros_like(each) if v is None else v for v, each in zip(tangents, like, strict=True)
    ]


def _still(g: Tensor) -> tuple[Tensor, Tensor]:
    """No motion in k and in the temperature."""
    nothing = torch.zeros(g.shape[:-1], dtype=g.dtype, device=g.device)
    return nothing, nothing
