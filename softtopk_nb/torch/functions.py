"""Autograd functions: the derivatives of every operator, by the verbs of `calls`.

`EagerValue` is for backward passes alone, and keeps the solved call as an object. The others work
under every transform of `torch.func`, three levels deep: the value, its derivatives along
directions and cotangents, and theirs. They have forward mode, except those that a compiler traces,
as it refuses functions with forward mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function, forward_ad

from . import calls
from .calls import Tensor
from .custom_ops import is_tracing, is_transformed
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
    """The value of x in its layout; k and the temperature: numbers, or tensors of the batch shape.

    Without a layout x must be rows. An operator without a k is given any.
    """
    traced, transformed = is_tracing(x), is_transformed()
    if layout is not None and (traced or transformed):
        p = value(op, options, layout.rows(x), k, temperature)
        return p if op.reduces else layout.back(p)
    result: Tensor
    if traced:
        return traced_value(op, options, (x, rowwise(k, x), rowwise(temperature, x)))
    if transformed:
        problem = x, rowwise(k, x), rowwise(temperature, x)
        result, _ = Value.apply(op, options, *problem)
        return result
    layout = of_rows(x) if layout is None else layout
    of_any = x.requires_grad or _requires_grad(k) or _requires_grad(temperature)
    if of_any and torch.is_grad_enabled():
        result = EagerValue.apply(x, k, temperature, (layout, op, options))
        return result
    return calls.value(op, options, x, k, temperature, layout)


def along_k(op: Any, options: dict[str, Any], *problem: Tensor) -> Tensor:
    """The derivative of the value of rows in each row's k."""
    x, _, temperature = problem
    direction = torch.zeros_like(x), torch.ones_like(temperature), torch.zeros_like(temperature)
    return along(op, options, problem, direction)[1]


def along(op: Any, options: dict[str, Any], problem: Any, direction: Any) -> tuple[Tensor, Tensor]:
    """The value of rows, and its derivative along a direction, both differentiable."""
    solve = calls.solve if is_tracing(problem[0]) else Value.apply
    p, state = solve(op, options, *problem)
    return p, Jvp.of(op, options, *problem, state, *direction)


def constant(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any, *, layout: Layout
) -> Tensor:
    """The value of an operator without derivatives."""
    x = x.detach()
    if is_tracing(x) or is_transformed():
        rows = layout.rows(x)
        problem = rows, rowwise(k, rows), rowwise(temperature, rows)
        return layout.back(Constant.apply(op, options, *problem))
    return calls.value(op, options, x, k, temperature, layout)


def traced_value(op: Any, options: dict[str, Any], problem: tuple[Tensor, ...]) -> Tensor:
    """The value of a problem that a compiler traces."""
    p: Tensor
    primals, tangents = unpacked(problem)
    if tangents is None:
        p, _ = Solve.apply(op, options, *primals)
        return p
    p, state = calls.solve(op, options, *primals)
    moves = _moves(tangents, primals)
    return forward_ad.make_dual(p, calls.jvp(op, options, *primals, state, *moves))


def unpacked(tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Any] | None]:
    """(primals, tangents) of traced tensors; tangents are None without forward mode."""
    duals = [forward_ad.unpack_dual(each) for each in tensors]
    if any(dual.tangent is not None for dual in duals):
        return [dual.primal for dual in duals], [dual.tangent for dual in duals]
    # The compiler assumes that a tensor needs no gradient if it did not when it was made, as an
    # argument of `torch.func.grad` did not: so a view of it is made here.
    return [each.view_as(each) for each in tensors], None


def rowwise(number: Any, x: Tensor) -> Tensor:
    """A number as a tensor of the batch shape; a tensor already has that shape."""
    if isinstance(number, Tensor):
        return number
    dtype = torch.int64 if isinstance(number, int) else torch.float64
    return torch.full(x.shape[:-1], number, dtype=dtype, device=x.device)


def _requires_grad(given: Any) -> bool:
    return isinstance(given, Tensor) and given.requires_grad


class EagerValue(Function):
    """The value with its backward pass, for tensors that no transform sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Any, temperature: Any, of_call: Any) -> Tensor:
        """Solve, and keep the call."""
        layout, op, options = ctx.of_call = of_call  # one argument: PyTorch looks at each
        ctx.numbers = [None if isinstance(v, Tensor) else v for v in (k, temperature)]
        tensors = [v if isinstance(v, Tensor) else None for v in (k, temperature)]
        # The mask is kept for PyTorch alone, which refuses a backward pass after it was changed.
        ctx.save_for_backward(x, *tensors, layout.where)
        p, *ctx.solved = calls.solve_kept(op, options, x, k, temperature, layout)
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """The gradients, by differentiable steps if a graph of them is wanted."""
        x, k, temperature, _ = ctx.saved_tensors
        in_x, in_k, in_tau, _ = ctx.needs_input_grad
        if not torch.is_grad_enabled():
            call, solved = ctx.solved
            with_numbers = in_k or in_tau
            gradients = calls.vjp_kept(call, solved, g, with_numbers=with_numbers)
        else:
            layout, op, options = ctx.of_call
            rows = layout.rows(x)
            k, temperature = (
                rowwise(n if v is None else v, rows)
                for n, v in zip(ctx.numbers, (k, temperature), strict=True)
            )
            state = calls.packed(x, *ctx.solved)
            problem = rows, k, temperature, state, g if op.reduces else layout.turned(g)
            gx, *others = Vjp.of(op, options, *problem)
            gx = layout.back(gx if layout.largest else -gx)
            gradients = gx, *others
        gx, gk, gtau = gradients
        return gx if in_x else None, gk if in_k else None, gtau if in_tau else None, None


class Rowwise(Function):
    """A function of tensors that share their leading axes, to which `vmap` adds one.

    Where `forward` is applied while a compiler traces, it names all its arguments, with None for
    those not given. PyTorch's compiler counts them to see that `forward` takes no context.
    """

    @classmethod
    def of(cls, op: Any, options: Any, *tensors: Tensor) -> Any:
        """Apply the function; if a compiler traces, without its derivatives."""
        apply = cls.forward if is_tracing(tensors[0]) else cls.apply
        return apply(op, options, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep all input tensors."""
        ctx.op, ctx.options, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        """Apply the function with one more leading axis."""
        op, options, *tensors = inputs
        moved = [
            each
            if each is None
            else each.expand(info.batch_size, *each.shape)
            if dim is None
            else each.movedim(dim, 0)
            for each, dim in zip(tensors, in_dims[2:], strict=True)
        ]
        result = cls.apply(op, options, *moved)
        return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0


class Solve(Function):
    """(x, k, temperature) -> (value, state), without forward mode."""

    @staticmethod
    def forward(
        op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Solve the rows."""
        return calls.solve(op, options, x, k, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and its state, which is not differentiable."""
        ctx.op, ctx.options, *problem = inputs
        _, state = output
        ctx.mark_non_differentiable(state)
        ctx.save_for_backward(*problem, state)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Any, ...]:
        """The gradients in x, k and the temperature."""
        gradients = Vjp.of(ctx.op, ctx.options, *ctx.saved_tensors, g)
        return None, None, *_of_reals(ctx.op, gradients)


class Value(Rowwise):
    """(x, k, temperature) -> (value, state), with forward mode."""

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
        moves = _moves(tangents, ctx.saved_tensors[:3])
        return Jvp.of(ctx.op, ctx.options, *ctx.saved_tensors, *moves), None


class Jvp(Rowwise):
    """(problem, state, direction) -> the derivative along the direction."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """The derivative along the direction."""
        return calls.jvp(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Gradients in the direction as the value's; in the problem by the second derivative."""
        solved, direction = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        linear = Vjp.of(ctx.op, ctx.options, *solved, g)
        return None, None, *_seconds(ctx, solved, direction, g), None, *_of_reals(ctx.op, linear)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along a direction in the problem and in the direction."""
        solved, direction = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        linear = Jvp.of(ctx.op, ctx.options, *solved, *_moves(tangents[4:], direction))
        if not any(v is not None for v in tangents[:3]):
            return linear
        moves = _moves(tangents[:3], solved[:3])
        return linear + _second(Along, ctx.op, ctx.options, *solved, *direction, *moves)


class Vjp(Rowwise):
    """(problem, state, cotangent) -> the gradients in x, k and the temperature."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of <cotangent, value>."""
        return calls.vjp(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, *direction: Tensor) -> tuple[Any, ...]:
        """Gradients in the problem and the cotangent: <direction, gradients> = <g, jvp>."""
        *solved, g = ctx.saved_tensors
        linear = Jvp.of(ctx.op, ctx.options, *solved, *direction)
        return None, None, *_seconds(ctx, solved, direction, g), None, linear

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """The derivative along a direction; in the problem by the symmetric second derivative."""
        *solved, g = ctx.saved_tensors
        linear: tuple[Tensor, ...] = Vjp.of(
            ctx.op, ctx.options, *solved, *_moves(tangents[4:], (g,))
        )
        if not any(v is not None for v in tangents[:3]):
            return linear
        moves = _moves(tangents[:3], solved[:3])
        moved = _second(Second, ctx.op, ctx.options, *solved, *moves, g)
        return tuple(a + b for a, b in zip(linear, moved, strict=True))


class Second(Rowwise):
    """(problem, state, direction, cotangent) -> the gradients of <cotangent, `Jvp`>."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By the verb."""
        return calls.hvp(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, *other: Tensor) -> tuple[Any, ...]:
        """Gradients in the direction and in the cotangent, in both of which it is linear."""
        solved, direction, g = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7]
        to_direction = Second.apply(ctx.op, ctx.options, *solved, *other, g)
        to_g = Along.apply(ctx.op, ctx.options, *solved, *direction, *other)
        return *(None,) * 6, *_of_reals(ctx.op, to_direction), to_g

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Tensor, ...]:
        """The derivative along changes of the direction and of the cotangent."""
        solved, direction, g = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7]
        moves, moved_g = _moves(tangents[4:7], direction), _moves(tangents[7:], (g,))
        one = Second.apply(ctx.op, ctx.options, *solved, *moves, g)
        other = Second.apply(ctx.op, ctx.options, *solved, *direction, *moved_g)
        return tuple(a + b for a, b in zip(one, other, strict=True))


class Along(Rowwise):
    """(problem, state, two directions) -> the second derivative along both."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """The second derivative."""
        return calls.second(op, options, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Gradients in each direction, along the other one."""
        solved, pair = ctx.saved_tensors[:4], (ctx.saved_tensors[4:7], ctx.saved_tensors[7:])
        one, other = (
            _of_reals(ctx.op, Second.apply(ctx.op, ctx.options, *solved, *each, g))
            for each in pair[::-1]
        )
        return *(None,) * 6, *one, *other

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along changes of each direction."""
        solved, one, other = ctx.saved_tensors[:4], ctx.saved_tensors[4:7], ctx.saved_tensors[7:]
        moves, more = _moves(tangents[4:7], one), _moves(tangents[7:], other)
        moved = Along.apply(ctx.op, ctx.options, *solved, *moves, *other)
        result: Tensor = moved + Along.apply(ctx.op, ctx.options, *solved, *one, *more)
        return result


class NoThirdDerivative(Rowwise):
    """The identity on a problem, which raises when a third derivative needs its derivative."""

    @staticmethod
    def forward(op: Any, options: Any, *problem: Tensor) -> tuple[Tensor, ...]:
        """Views of the tensors."""
        return tuple(each.view_as(each) for each in problem)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(f"{ctx.op.__name__} has no third derivative here")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(f"{ctx.op.__name__} has no third derivative here")


class Constant(Rowwise):
    """(x, k, temperature) -> a value that is constant almost everywhere."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """The value of rows."""
        return calls.constant(op, options, x, k, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Mark the value as not differentiable."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, ...]:
        """No gradients."""
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        """No derivative."""
        return None


def _second(function: Any, op: Any, options: Any, *tensors: Tensor) -> Any:
    """Apply `Second` or `Along`, which are differentiable in all arguments but the problem."""
    return function.apply(
        op, options, *NoThirdDerivative.apply(op, options, *tensors[:3]), *tensors[3:]
    )


def _seconds(ctx: Any, solved: Any, direction: Any, g: Tensor) -> tuple[Any, ...]:
    """Gradients in the problem by the second derivative, None where none is wanted."""
    if not any(ctx.needs_input_grad[2:5]):
        return None, None, None
    found = _second(Second, ctx.op, ctx.options, *solved, *direction, g)
    return _of_reals(ctx.op, found)


def _of_reals(op: Any, gradients: Any) -> tuple[Any, ...]:
    """Gradients in x, k and the temperature, with None for a k that is an integer."""
    gx, gk, gtau = gradients
    return gx, gk if op.real_k else None, gtau


def _moves(tangents: Any, like: Any) -> list[Tensor]:
    """Tangents, with zeros in place of None."""
    return [
        torch.zeros_like(each) if v is None else v for v, each in zip(tangents, like, strict=True)
    ]
