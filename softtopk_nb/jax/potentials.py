"""Potentials and losses: one number for each row, whose gradients are the operators' values."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .._api.homogeneous import in_temperature
from . import calls, primitives
from .arguments import Layout


def _along(scalar: Any, problem: Any, gradient: Any, moves: Any, call: calls.Call) -> Any:
    """The derivative of a number per row along a direction in x and the temperature."""
    (x, _, temperature), (dx, dtau) = problem, moves
    moved = jnp.zeros_like(scalar)
    if not _is_still(dx):
        moved += jnp.where(gradient == 0, 0, gradient * dx).sum(-1)
    if not _is_still(dtau):
        finite = jnp.where(jnp.isfinite(x), x, 0)
        moved += in_temperature(scalar, finite, gradient, temperature) * dtau
    return moved


def _is_still(move: Any) -> bool:
    return isinstance(move, SymbolicZero)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def potential(x: Any, k: Any, temperature: Any, call: calls.Call) -> Any:
    """The potential of each row, the smoothed sum of its k largest entries."""
    return primitives.potential.bind(x, k, temperature, call=call)[0]


@functools.partial(potential.defjvp, symbolic_zeros=True)
def _potential_jvp(call: calls.Call, problem: Any, moves: Any) -> Any:
    """The gradient in x is the operator's value, the derivative in k is the threshold."""
    dx, dk, dtau = moves
    scalar = potential(*problem, call)
    p, _ = primitives.solve.bind(*problem, call=call)
    moved = _along(scalar, problem, p, (dx, dtau), call)
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
    return scalar, _along(scalar, problem, in_x, (dx, dtau), call)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def loss(x: Any, k: Any, temperature: Any, y: Any, call: calls.Call, constant: bool) -> Any:
    """The Fenchel-Young loss of each row against y."""
    with_constant = calls.call(call.name, (*call.settings, ("constant", constant)))
    return primitives.loss.bind(x, k, temperature, y, call=with_constant)[0]


@functools.partial(loss.defjvp, symbolic_zeros=True)
def _loss_jvp(call: calls.Call, constant: bool, given: Any, moves: Any) -> Any:
    """The gradient in x is p - y; the target's sum fixes k."""
    *problem, y = given
    dx, dk, dtau, _ = moves
    if not _is_still(dk) and dk.dtype == dx.dtype:
        raise TypeError("k is differentiated; expected not, for the target's sum fixes it")
    scalar = loss(*given, call, constant)
    p, _ = primitives.solve.bind(*problem, call=call)
    return scalar, _along(scalar, problem, p - y, (dx, dtau), call)


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
