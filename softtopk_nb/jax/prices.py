"""`thretopk` of JAX arrays with costs, by a callback, with first derivatives in reverse mode."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._api import arguments as common
from .._api import array_calls
from . import arguments, calls


def value(
    op: Any,
    options: Mapping[str, Any],
    x: Any,
    k: Any,
    temperature: Any,
    cost: Any,
    axis: Any,
    largest: Any,
    where: Any,
) -> jax.Array:
    """The value, with costs that broadcast to x."""
    x = arguments.check_array(x, "x")
    layout = arguments.laid_out(x, axis, largest, where)
    own = {name: each for name, each in options.items() if name != "cost"}
    op.priced.check_options(own)
    dtype = arguments.computed_in(x.dtype)
    rows = layout.rows(x, where, dtype)
    if (given := arguments.known(cost, "cost")) is not None:
        common.check_costs(common.real_array(given, "cost"))
    common.check_broadcast(np.broadcast_to(False, np.shape(cost)), x.shape, "cost")
    costs = jnp.moveaxis(jnp.broadcast_to(jnp.asarray(cost, dtype), x.shape), layout.axis, -1)
    batch = x.shape[: layout.axis] + x.shape[layout.axis + 1 :]
    for name, given in (("k", k), ("temperature", temperature)):
        like = np.broadcast_to(False, np.shape(given))
        common.check_per_row(like, batch, layout.axis, name)
        if (found := arguments.known(given, name)) is not None and name == "temperature":
            common.check_positive(found, batch, name, layout.axis)
    numbers = arguments.numbers(op, rows, layout, k, temperature)
    call = calls.call(op.__name__, tuple(sorted(own.items())))
    p = _solved(rows, *numbers, costs, call)
    return jnp.asarray(layout.back(p, x.dtype))


def _called(compute: Any, like: Any, *arrays: Any) -> Any:
    """A function of NumPy's arrays on those of JAX, with results like these."""
    kinds = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like]

    def on_host(*given: Any) -> Any:
        found = compute(*map(np.asarray, given))
        return [np.asarray(f, kind.dtype) for f, kind in zip(found, kinds, strict=True)]

    return jax.pure_callback(on_host, kinds, *arrays, vmap_method="broadcast_all")


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _value(x: Any, k: Any, temperature: Any, cost: Any, call: calls.Call) -> Any:
    """The value of rows, within a gradient."""

    def compute(x: Any, k: Any, temperature: Any, cost: Any) -> Any:
        return (array_calls.value(call.op, {**call.options, "cost": cost}, (x, k, temperature)),)

    return _called(compute, (x,), x, k, temperature, cost)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _solved(x: Any, k: Any, temperature: Any, cost: Any, call: calls.Call) -> Any:
    """The value of rows."""
    return _value(x, k, temperature, cost, call)


def _forward(x: Any, k: Any, temperature: Any, cost: Any, call: calls.Call) -> Any:
    problem = x, k, temperature, cost
    return _value(*problem, call), problem


@functools.partial(jax.custom_jvp, nondiff_argnums=(5,))
def _gradients(x: Any, k: Any, temperature: Any, cost: Any, g: Any, call: calls.Call) -> Any:
    """The gradients of <g, value>; the rows are solved again, which keeps no state."""

    def compute(x: Any, k: Any, temperature: Any, cost: Any, g: Any) -> Any:
        own, problem = {**call.options, "cost": cost}, (x, k, temperature)
        _, state = array_calls.solve(call.op, own, problem)
        return array_calls.vjp(call.op, own, problem, state, g)

    problem = x, k, temperature, cost
    return tuple(_called(compute, problem, *problem, g))


@_value.defjvp
@_gradients.defjvp
def _no_second(call: calls.Call, given: Any, moves: Any) -> Any:
    call.op.priced.check_second()


def _backward(call: calls.Call, problem: Any, g: Any) -> Any:
    return _gradients(*problem, g, call)


_solved.defvjp(_forward, _backward)
