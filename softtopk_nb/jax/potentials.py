"""Potentials and losses: one number for each row, whose gradients are the operators' values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .._api.homogeneous import with_derivatives
from ..losses import check_labels
from . import calls, primitives
from .arguments import Layout


def distances(x: Any, level: Any, temperature: Any) -> Any:
    """(x - level)/temperature, and 0 where that is infinite, as p is flat there."""
    level, temperature = level[..., None], temperature[..., None]
    there = jnp.isfinite((x - level) / temperature)
    # Neither branch may be infinite, whose derivative times 0 would be NaN.
    return jnp.where(there, jnp.where(there, x, level) - level, 0) / temperature


def in_temperature(x: Any, k: Any, temperature: Any, call: calls.Call) -> Any:
    """The derivative of the potential in the temperature, with its own derivatives."""
    still = [jax.lax.stop_gradient(each) for each in (x, k, temperature)]
    h = primitives.surplus.bind(*still, call=call)[0] / still[-1]
    p, _ = primitives.solve.bind(x, k, temperature, call=call)
    if call.op.real_k:
        level = primitives.threshold.bind(*still, call=call)[0]
    else:  # the entry of each row that is nearest to its threshold
        nearest = jnp.argmax(jax.lax.stop_gradient(p * (1 - p)), -1, keepdims=True)
        level = jnp.take_along_axis(still[0], nearest, -1)[..., 0]
    return with_derivatives(h, distances(x, level, temperature), p, jax.lax.stop_gradient)


def _along(scalar: Any, gradient: Any, dx: Any, slope: Callable[[], Any], dtau: Any) -> Any:
    """The derivative of a number per row along a direction; slope(): that in the temperature."""
    moved = jnp.zeros_like(scalar)
    if not _is_still(dx):
        moved += jnp.where(gradient == 0, 0, gradient * dx).sum(-1)
    return moved if _is_still(dtau) else moved + slope() * dtau


def _is_still(move: Any) -> bool:
    return isinstance(move, SymbolicZero)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def potential(x: Any, k: Any, temperature: Any, call: calls.Call) -> Any:
    """The potential of each row, the smoothed sum of its k largest entries."""
    return primitives.potential.bind(x, k, temperature, call=call)[0]


@functools.partial(potential.defjvp, symbolic_zeros=True)
def _potential_jvp(call: calls.Call, problem: Any, moves: Any) -> Any:
    """The gradient in x is the operator's value, the derivative in k is the threshold."""
    (x, k, temperature), (dx, dk, dtau) = problem, moves
    scalar = potential(*problem, call)
    p, _ = primitives.solve.bind(*problem, call=call)
    moved = _along(scalar, p, dx, lambda: in_temperature(x, k, temperature, call), dtau)
    return scalar, moved if _is_still(dk) else moved + threshold(*problem, call) * dk


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def threshold(x: Any, k: Any, temperature: Any, call: calls.Call) -> Any:
    """The threshold of each row, the derivative of the potential in k."""
    return primitives.threshold.bind(x, k, temperature, call=call)[0]


@functools.partial(threshold.defjvp, symbolic_zeros=True)
def _threshold_jvp(call: calls.Call, problem: Any, moves: Any) -> Any:
    """The gradient in x is the value's derivative in k: mixed derivatives commute."""
    dx, dk, dtau = moves
    if not _is_still(dk):
        raise NotImplementedError(
            "the threshold has no derivative in k here: the potential has no second derivative "
            "along k twice"
        )
    x, k, temperature = problem
    scalar = threshold(*problem, call)
    _, state = primitives.solve.bind(*problem, call=call)
    along_k = jnp.zeros_like(x), jnp.ones_like(k), jnp.zeros_like(temperature)
    (in_x,) = primitives.jvp.bind(*problem, state, *along_k, call=call)

    def slope() -> Any:  # the threshold is homogeneous, and its slopes sum to 1
        return -(distances(x, scalar, temperature) * in_x).sum(-1)

    return scalar, _along(scalar, in_x, dx, slope, dtau)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def loss(x: Any, k: Any, temperature: Any, y: Any, call: calls.Call, constant: bool) -> Any:
    """The Fenchel-Young loss of each row against y."""
    with_constant = calls.call(call.name, (*call.settings, ("constant", constant)))
    return primitives.loss.bind(x, k, temperature, y, call=with_constant)[0]


@functools.partial(loss.defjvp, symbolic_zeros=True)
def _loss_jvp(call: calls.Call, constant: bool, given: Any, moves: Any) -> Any:
    """The gradient in x is p - y; the target's sum fixes k."""
    x, k, temperature, y = given
    dx, dk, dtau, _ = moves
    if not _is_still(dk) and dk.dtype == dx.dtype:
        raise TypeError("k is differentiated; expected not, for the target's sum fixes it")
    scalar = loss(*given, call, constant)
    problem = x, k, temperature
    p, _ = primitives.solve.bind(*problem, call=call)
    return scalar, _along(
        scalar, p - y, dx, lambda: _slope_of_loss(*problem, y, call, constant), dtau
    )


def _slope_of_loss(
    x: Any, k: Any, temperature: Any, y: Any, call: calls.Call, constant: bool
) -> Any:
    """The derivative in the temperature: the potential's, and the conjugate if `constant`."""
    slope = in_temperature(x, k, temperature, call)
    if not (constant and call.op.has_conjugate):
        return slope
    # The conjugate is the same for any scores; near equal ones nothing large cancels.
    level = jax.lax.stop_gradient(jnp.where(jnp.isfinite(x), 0, x))
    flat = level, jax.lax.stop_gradient(k), jnp.ones_like(temperature), y, call
    return slope + (loss(*flat, True) - loss(*flat, False))


def check_target(target: Any, theta: Any, layout: Layout) -> Any:
    """The target as an array: of theta's shape, or labels."""
    array = target if isinstance(target, jax.Array) else np.asarray(target)
    if array.dtype.kind not in "biuf" and array.dtype != jnp.bfloat16:
        raise TypeError(f"target has dtype {array.dtype}; expected bool, integers or real numbers")
    axis, shape = layout.axis, theta.shape
    if array.shape == shape:
        return array
    batch = shape[:axis] + shape[axis + 1 :]
    labels = jnp.expand_dims(array, axis) if array.shape == batch else array
    fits = labels.ndim == len(shape) and labels.shape[:axis] + labels.shape[axis + 1 :] == batch
    if not fits or labels.dtype.kind not in "iu":
        raise ValueError(
            f"target has shape {array.shape} and dtype {array.dtype}; expected theta's shape "
            f"{shape}, or integer labels in place of its axis {axis}"
        )
    if not isinstance(labels, jax.core.Tracer):
        moved = np.moveaxis(np.asarray(labels), axis, -1)
        check_labels(moved.reshape(-1, moved.shape[-1]), shape[axis])
    return labels


def vectors(target: Any, rows: Any, layout: Layout) -> Any:
    """A checked target as vectors along the last axis, as the rows are."""
    moved = jnp.moveaxis(target, layout.axis, -1)
    if moved.shape == rows.shape:
        return moved.astype(rows.dtype)
    n = rows.shape[-1]
    # A label out of range is ignored: then the target's sum is not k, which is an error.
    places = jnp.where((moved < 0) | (moved >= n), n, moved)
    marked = places[..., None] == jnp.arange(n)
    return marked.sum(-2, dtype=rows.dtype)
