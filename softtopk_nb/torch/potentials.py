"""Potentials and losses: one number for each row, whose gradients are the operators' values."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function, forward_ad

from .._api.homogeneous import with_derivatives
from ..losses import check_labels, no_vectors
from . import calls, functions
from .calls import Tensor
from .custom_ops import is_tracing, is_transformed
from .layout import Layout


def finite(x: Tensor) -> Tensor:
    """x, with 0 for its infinite entries."""
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


def distances(x: Tensor, level: Tensor, temperature: Tensor) -> Tensor:
    """(x - level)/temperature, and 0 where that is infinite, as p is flat there."""
    return finite((x - level[..., None]) / temperature[..., None])


def level_of(x: Tensor, p: Tensor) -> Tensor:
    """The entry of each row that is nearest to its threshold, without derivatives."""
    x, p = x.detach(), p.detach()
    return x.gather(-1, (p * (1 - p)).argmax(-1, keepdim=True))[..., 0]


def in_temperature(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The derivative of the potential in the temperature, with its own derivatives."""
    still = [each.detach() for each in (x, k, temperature)]
    traced = is_tracing(x)
    h = (calls.surplus if traced else Surplus.apply)(op, options, *still) / still[-1]
    p = functions.value(op, options, x, k, temperature)
    level = _threshold(op, options, *still) if op.real_k else level_of(x, p)
    t = distances(x, level, temperature)
    result: Tensor = with_derivatives(h, t, p, torch.Tensor.detach)
    return result


def _gradients(ctx: Any, g: Tensor | None, gradient: Tensor, slope: Any) -> tuple[Any, ...]:
    """Gradients in x, k and the temperature of a number per row, from its gradient in x.

    `slope` is a function of the saved tensors for its derivative in the temperature.
    """
    if g is None:
        return (None,) * 5
    problem = ctx.saved_tensors[:3]
    _, _, _, in_k, in_tau = ctx.needs_input_grad[:5]
    gk = g * _in_k(ctx.op, ctx.options, *problem) if in_k else None
    gtau = g * slope(ctx.op, ctx.options, *ctx.saved_tensors) if in_tau else None
    return None, None, g[..., None] * gradient, gk, gtau


def _along(
    op: Any, options: dict[str, Any], saved: Any, gradient: Tensor, slope: Any, tangents: Any
) -> Tensor:
    """The derivative along a direction of a number per row; `slope` as for `_gradients`."""
    x, k, temperature, *_, scalar = saved
    dx, dk, dtau = tangents[:3]
    total = torch.where(scalar.isnan(), scalar, 0.0)
    if dx is not None:
        total = total + (gradient * dx).sum(-1)
    if dk is not None:
        total = total + _in_k(op, options, x, k, temperature) * dk
    if dtau is not None:
        total = total + slope(op, options, *saved) * dtau
    return total


def _in_k(op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
    """The potential's derivative in k: the threshold, and 0 at the ends of k, where it has none."""
    threshold = _threshold(op, _own(options), x, k, temperature)
    return threshold.masked_fill(threshold.isinf(), 0.0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep the problem and the output for derivatives."""
    ctx.op, ctx.options, *tensors = inputs
    ctx.save_for_backward(*tensors, output)


class Number(Function):
    """(x, k, temperature) -> a number of each row."""

    setup_context = staticmethod(_keep)


class ForwardNumber(functions.Rowwise):
    """The same with forward mode, whose functions a compiler refuses."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and the number, for forward mode as well."""
        _keep(ctx, inputs, output)
        ctx.save_for_forward(*inputs[2:], output)
        ctx.set_materialize_grads(False)  # so that a k that does not move has no direction


class Potential(Number):
    """(x, k, temperature) -> the potential, the smoothed sum of each row's k largest entries."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """The potential of each row."""
        return calls.potential(op, options, x, k, temperature)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """The gradients; the one in x is the operator's value."""
        p = functions.value(ctx.op, ctx.options, *ctx.saved_tensors[:3])
        return _gradients(ctx, g, p, _slope_of_potential)


def _slope_of_potential(op: Any, options: Any, *saved: Tensor) -> Tensor:
    """The potential's derivative in the temperature."""
    return in_temperature(op, options, *saved[:3])


class ForwardPotential(ForwardNumber):
    """The potential with forward mode."""

    forward = Potential.forward
    backward = Potential.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along a direction."""
        return _along_potential(ctx.op, ctx.options, ctx.saved_tensors, tangents)


def _along_potential(op: Any, options: Any, saved: Any, tangents: Any) -> Tensor:
    """The derivative of the potential; its gradient in x is the operator's value."""
    p = functions.value(op, options, *saved[:3])
    return _along(op, options, saved, p, _slope_of_potential, tangents)


class Surplus(ForwardNumber):
    """(x, k, temperature) -> the potential of each row less <x, p>, of tensors that do not move."""

    forward = staticmethod(calls.surplus)


class Threshold(Number):
    """(x, k, temperature) -> the threshold of each row, the derivative of the potential in k."""

    @staticmethod
    def forward(op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor) -> Tensor:
        """The threshold of each row."""
        return calls.threshold(op, options, x, k, temperature)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """The gradients; the one in x is the value's derivative in k: derivatives commute."""
        _check_still(ctx.needs_input_grad[3])
        in_x = functions.along_k(ctx.op, ctx.options, *ctx.saved_tensors[:3])
        return _gradients(ctx, g, in_x, _slope_of_threshold)


def _slope_of_threshold(
    op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor, lam: Tensor
) -> Tensor:
    """The threshold's derivative in the temperature: it is homogeneous, and its slopes sum to 1."""
    t = distances(x, lam, temperature)
    return -(t * functions.along_k(op, options, x, k, temperature)).sum(-1)


class ForwardThreshold(ForwardNumber):
    """The threshold with forward mode."""

    forward = Threshold.forward
    backward = Threshold.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along a direction."""
        return _along_threshold(ctx.op, ctx.options, ctx.saved_tensors, tangents)


def _along_threshold(op: Any, options: Any, saved: Any, tangents: Any) -> Tensor:
    """The derivative of the threshold; its gradient in x is the value's derivative in k."""
    _check_still(tangents[1] is not None)
    in_x = functions.along_k(op, options, *saved[:3])
    return _along(op, options, saved, in_x, _slope_of_threshold, tangents)


def _check_still(moved: bool) -> None:
    """Refuse a k in which the threshold would be differentiated."""
    if moved:
        raise NotImplementedError(
            "the threshold has no derivative in k here: the potential has no second derivative "
            "along k twice"
        )


def _threshold(op: Any, options: dict[str, Any], *problem: Tensor) -> Tensor:
    """The threshold of each row; if a compiler traces, without its derivatives."""
    function = calls.threshold if is_tracing(problem[0]) else ForwardThreshold.apply
    result: Tensor = function(op, options, *problem)
    return result


class Loss(Number):
    """(x, k, temperature, target) -> the Fenchel-Young loss of each row."""

    @staticmethod
    def forward(
        op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor, y: Tensor
    ) -> Tensor:
        """The loss of each row."""
        return calls.loss(op, options, x, k, temperature, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """The gradients; the one in x is p - y, and NaN with the loss, whose target was none."""
        *problem, loss = ctx.saved_tensors
        difference = _difference(ctx.op, ctx.options, *problem)
        if loss.is_cuda:
            g = torch.where(loss.isnan(), torch.nan, g)
        return *_gradients(ctx, g, difference, _slope_of_loss), None


def _slope_of_loss(
    op: Any, options: Any, x: Tensor, k: Tensor, temperature: Tensor, y: Tensor, _: Tensor
) -> Tensor:
    """The derivative in the temperature: the potential's, and the conjugate if `constant`."""
    own = _own(options)
    slope = in_temperature(op, own, x, k, temperature)
    if not (options["constant"] and op.has_conjugate):
        return slope
    # The conjugate is the same for any scores; near equal ones nothing large cancels.
    still, one = torch.where(x.isfinite(), 0.0, x).detach(), torch.ones_like(slope).detach()
    loss_of = calls.loss if is_tracing(x) else ForwardLoss.apply
    with_it, without = (
        loss_of(op, {**own, "constant": each}, still, k.detach(), one, y) for each in (True, False)
    )
    return slope + (with_it - without)


class ForwardLoss(ForwardNumber):
    """The loss with forward mode."""

    forward = Loss.forward
    backward = Loss.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along a direction; the gradient in x is p - y."""
        difference = _difference(ctx.op, ctx.options, *ctx.saved_tensors[:4])
        return _along(ctx.op, ctx.options, ctx.saved_tensors, difference, _slope_of_loss, tangents)


def _own(options: dict[str, Any]) -> dict[str, Any]:
    """The operator's own options, from those of a loss."""
    return {name: each for name, each in options.items() if name != "constant"}


def _difference(
    op: Any, options: dict[str, Any], x: Tensor, k: Tensor, temperature: Tensor, y: Tensor
) -> Tensor:
    """p - y."""
    return functions.value(op, _own(options), x, k, temperature) - y


def potential(op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any) -> Tensor:
    """The potential of each row."""
    given = op, options, x, k, temperature
    return _number(Potential, ForwardPotential, _along_potential, *given)


def threshold(op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any) -> Tensor:
    """The threshold of each row."""
    given = op, options, x, k, temperature
    return _number(Threshold, ForwardThreshold, _along_threshold, *given)


def _number(
    plain: Any, with_forward_mode: Any, along: Any, op: Any, options: Any, x: Tensor, *numbers: Any
) -> Tensor:
    """A number of each row, by a function of each kind and the derivative along a direction."""
    result: Tensor
    problem = x, *(functions.rowwise(each, x) for each in numbers)
    if not is_tracing(x):
        result = with_forward_mode.apply(op, options, *problem)
        return result
    primals, tangents = functions.unpacked(problem)
    if tangents is None:
        result = plain.apply(op, options, *primals)
        return result
    scalar = plain.forward(op, options, *primals)
    return forward_ad.make_dual(scalar, along(op, options, (*primals, scalar), tangents))


def loss(
    op: Any, options: dict[str, Any], x: Tensor, k: Any, temperature: Any, y: Tensor
) -> Tensor:
    """The loss of each row."""
    if isinstance(k, Tensor) and k.requires_grad:
        raise TypeError("k requires a gradient; expected none, for the target's sum fixes it")
    problem = x, functions.rowwise(k, x), functions.rowwise(temperature, x)
    if not is_tracing(x):
        return ForwardLoss.apply(op, options, *problem, y)
    primals, tangents = functions.unpacked(problem)
    if tangents is None:
        return Loss.apply(op, options, *primals, y)
    x, k, temperature = primals
    scalar = calls.loss(op, options, *primals, y)
    difference = _difference(op, options, x, k, temperature, y)
    saved = *primals, y, scalar
    moved = _along(op, options, saved, difference, _slope_of_loss, tangents)
    return forward_ad.make_dual(scalar, moved)


def vectors(target: Any, rows: Tensor, layout: Layout) -> Tensor:
    """A target as vectors along the last dimension, as the rows are."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target is a {type(target).__name__}; expected a torch.Tensor")
    if target.requires_grad:
        raise TypeError("target requires a gradient; expected none: it is not differentiated")
    if target.device != rows.device:
        raise RuntimeError(f"target is on {target.device}; expected theta's device {rows.device}")
    dtype = rows.dtype if rows.is_cuda else torch.float64
    whole = (*layout.batch[: layout.dim], rows.shape[-1], *layout.batch[layout.dim :])
    if tuple(target.shape) == whole:
        if _is_read(rows):
            _check_vectors(target, whole, layout.dim)
        return target.movedim(layout.dim, -1).to(dtype)
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
    return _of_labels(labels.to(torch.int64), rows, dtype)


def _is_read(rows: Tensor) -> bool:
    """Whether there are numbers to look at, without a wait for a device or within a transform."""
    return not (rows.is_cuda or is_tracing(rows) or is_transformed())


def _check_vectors(target: Tensor, shape: tuple[int, ...], dim: int) -> None:
    """Refuse integers other than 0 and 1: they may be labels, as many as there are scores."""
    if target.dtype.is_floating_point or target.dtype == torch.bool:
        return
    outside = target[(target < 0) | (target > 1)]
    if outside.numel():
        raise ValueError(no_vectors(int(outside[0]), shape, dim))


def _of_labels(labels: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """0/1 vectors with ones at the labels."""
    n = rows.shape[-1]
    if _is_read(rows) and labels.numel():
        check_labels(labels.reshape(-1, labels.shape[-1]).numpy(), n)
    empty = torch.zeros((*rows.shape[:-1], n + 1), dtype=dtype, device=rows.device)
    # The last column is dropped. A wrong label, which on a device nobody has looked at, goes there
    # too, for a target with fewer ones than k; elsewhere PyTorch raises for it.
    last = (labels < 0) | (labels >= n) if rows.is_cuda else labels < 0
    places = torch.where(last, n, labels)
    return empty.scatter_add(-1, places, torch.ones_like(places, dtype=dtype))[..., :n]
