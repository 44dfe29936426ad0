"""Potentials and losses: one number for each row, whose gradients are the operators' values."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function, forward_ad

from .._api.homogeneous import in_temperature
from ..losses import NO_LABEL, no_vectors
from . import functions, leaves
from .carry import Tensor
from .layout import Layout


def finite(x: Tensor) -> Tensor:
    """x, with 0 for its infinite entries."""
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


def _pulled(ctx: Any, g: Tensor, gradient: Tensor) -> tuple[Any, ...]:
    """Gradients in x, k and the temperature, from that of each row's number in x."""
    x, k, temperature, *_, height = ctx.saved_tensors
    _, _, _, in_k, in_tau = ctx.needs_input_grad[:5]
    gk = g * _threshold(ctx.op, ctx.options, x, k, temperature) if in_k else None
    gtau = g * in_temperature(height, finite(x), gradient, temperature) if in_tau else None
    return None, None, g[..., None] * gradient, gk, gtau


def _pushed(
    op: Any, options: dict[str, Any], saved: Any, gradient: Tensor, tangents: Any
) -> Tensor:
    """The derivative along a direction, likewise; saved: the problem, and last the number."""
    x, k, temperature, *_, height = saved
    dx, dk, dtau = tangents[:3]
    total = torch.zeros_like(height)
    if dx is not None:
        total = total + (gradient * dx).sum(-1)
    if dk is not None:
        total = total + _threshold(op, options, x, k, temperature) * dk
    if dtau is not None:
        total = total + in_temperature(height, finite(x), gradient, temperature) * dtau
    return total


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep the problem and the number."""
    ctx.op, ctx.options, *tensors = inputs
    ctx.save_for_backward(*tensors, output)


class Potential(Function):
    """The smoothed sum of the k largest, of (x, k, temperature)."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """By the operator."""
        return leaves.height(op, options, x, k, temperature)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and the sum."""
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """In x it is the operator's value."""
        return _pulled(ctx, g, functions.value(ctx.op, ctx.options, *ctx.saved_tensors[:3]))


class ForwardPotential(functions.Rowwise):
    """The same with forward mode, which a compiler takes no functions with."""

    forward = Potential.forward
    backward = Potential.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and the sum."""
        _keep(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:], output)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """In x it is the operator's value."""
        gradient = functions.value(ctx.op, ctx.options, *ctx.saved_tensors[:3])
        return _pushed(ctx.op, ctx.options, ctx.saved_tensors, gradient, tangents)


class Threshold(functions.Rowwise):
    """The derivative of the potential in k."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """By the operator."""
        return leaves.threshold(op, options, x, k, temperature)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """It is not known here."""
        raise NotImplementedError("the potential has no second derivative along k here")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """It is not known here."""
        raise NotImplementedError("the potential has no second derivative along k here")


def _threshold(*args: Any) -> Any:
    return leaves.threshold(*args) if leaves.is_wanted(args[2]) else Threshold.apply(*args)


class Loss(Function):
    """The Fenchel-Young loss, of (x, k, temperature, target)."""

    @staticmethod
    def forward(
        op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor, y: Tensor
    ) -> Tensor:
        """By the loss of arrays."""
        return leaves.height(op, options, x, k, temperature, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem, the target and the loss."""
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """In x it is what is, less what should be."""
        missed = _missed(ctx.op, ctx.options, *ctx.saved_tensors[:4])
        return *_pulled(ctx, g, missed), None


class ForwardLoss(functions.Rowwise):
    """The same with forward mode."""

    forward = Loss.forward
    backward = Loss.backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem, the target and the loss."""
        _keep(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:], output)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """In x it is what is, less what should be."""
        missed = _missed(ctx.op, ctx.options, *ctx.saved_tensors[:4])
        return _pushed(ctx.op, _own(ctx.options), ctx.saved_tensors, missed, tangents)


def _own(options: dict[str, Any]) -> dict[str, Any]:
    """The operator's own options, of those of a loss."""
    return {name: each for name, each in options.items() if name != "constant"}


def _missed(
    op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor, y: Tensor
) -> Tensor:
    """By how much the value misses the target."""
    return functions.value(op, _own(options), x, k, temperature) - y


def potential(op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any) -> Tensor:
    """The potential of each row."""
    problem = x, functions.rowwise(k, x), functions.rowwise(temperature, x)
    if not leaves.is_wanted(x):
        return ForwardPotential.apply(op, options, *problem)
    primals, tangents = functions.unpacked(problem)
    if tangents is None:
        return Potential.apply(op, options, *primals)
    height, gradient = leaves.height(op, options, *primals), functions.value(op, options, *primals)
    moved = _pushed(op, options, (*primals, height), gradient, tangents)
    return forward_ad.make_dual(height, moved)


def loss(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any, y: Tensor
) -> Tensor:
    """The loss of each row."""
    if isinstance(k, Tensor) and k.requires_grad:
        raise TypeError("k requires a gradient; expected none, for the target's sum fixes it")
    problem = x, functions.rowwise(k, x), functions.rowwise(temperature, x)
    if not leaves.is_wanted(x):
        return ForwardLoss.apply(op, options, *problem, y)
    primals, tangents = functions.unpacked(problem)
    if tangents is None:
        return Loss.apply(op, options, *primals, y)
    x, k, temperature = primals
    height, missed = (
        leaves.height(op, options, *primals, y),
        _missed(op, options, x, k, temperature, y),
    )
    moved = _pushed(op, _own(options), (*primals, height), missed, tangents)
    return forward_ad.make_dual(height, moved)


def vectors(target: Any, rows: Tensor, layout: Layout) -> Tensor:
    """A target as vectors, along the last dimension as the rows are."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target is a {type(target).__name__}; expected a torch.Tensor")
    if target.requires_grad:
        raise TypeError("target requires a gradient; expected none: it is not differentiated")
    if target.device != rows.device:
        raise RuntimeError(f"target is on {target.device}; expected theta's device {rows.device}")
    whole = (*layout.batch[: layout.dim], rows.shape[-1], *layout.batch[layout.dim :])
    if tuple(target.shape) == whole:
        if not leaves.is_wanted(rows) and not leaves.is_transformed():
            _check_vectors(target, whole, layout.dim)
        return target.movedim(layout.dim, -1).to(torch.float64)
    labels = target
    if tuple(target.shape) == layout.batch:
        labels = target[..., None]
    elif target.ndim == len(whole):
        labels = target.movedim(layout.dim, -1)
    real = labels.dtype.is_floating_point or labels.dtype == torch.bool
    if real or labels.shape[:-1] != rows.shape[:-1]:
        raise ValueError(
            f"target has shape {tuple(target.shape)} and dtype {target.dtype}; expected theta's "
            f"shape {whole}, or integer labels in place of its dimension {layout.dim}"
        )
    return _of_labels(labels.to(torch.int64), rows)


def _check_vectors(target: Tensor, shape: tuple[int, ...], dim: int) -> None:
    """Refuse integers other than 0 and 1: they may be labels, as many of them as scores."""
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        return
    outside = target[(target < 0) | (target > 1)]
    if outside.numel():
        raise ValueError(no_vectors(int(outside[0]), shape, dim))


def _of_labels(labels: Tensor, rows: Tensor) -> Tensor:
    """0/1 vectors with ones at the labels."""
    n = rows.shape[-1]
    # Under a transform there may be no numbers to look at; a wrong label is PyTorch's error then.
    if not leaves.is_wanted(rows) and not leaves.is_transformed() and labels.numel():
        least, most = int(labels.min()), int(labels.max())
        if least < NO_LABEL or most >= n:
            wrong = least if least < NO_LABEL else most
            raise ValueError(f"target has the label {wrong}; expected 0 to {n - 1}, or -1")
    empty = torch.zeros((*rows.shape[:-1], n + 1), dtype=torch.float64, device=rows.device)
    places = torch.where(labels < 0, n, labels)  # the last place is taken off again
    return empty.scatter_add(-1, places, torch.ones_like(places, dtype=torch.float64))[..., :n]
