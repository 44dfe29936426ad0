"""From a call to rows and back, for functions without a k, and the one step they share.

The shared step is `shifted`: scores seen from the largest of their row, in temperatures. All that
follows is a function of these numbers, none of which is positive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, host_arrays, scaling
from .._api.operator import Array
from .._threads import pool
from .cpu import rows


class Call(NamedTuple):
    """A checked call: one row of `x` for each entry of `tau`, and how to give a result back."""

    x: Array  # (rows, n), contiguous, float32 or float64; an absent entry is -inf
    tau: Array  # (rows,), float64
    given: Any  # x as it came
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result
    where: Array | None  # broadcast to `shape`
    temperature: Array  # as given
    shift: Array | None = None  # `x` and `tau` are 2^shift times what was given (`_api.scaling`)


def check(x: Any, temperature: Any, axis: Any, where: Any = None) -> Call:
    """Check the arguments that every function of the room has."""
    values = host_arrays.as_numpy(x, "x")
    if values.ndim == 0:
        raise ValueError(f"x is 0-dimensional ({x!r}); expected at least one axis")
    compute, dtype = host_arrays.compute_dtype(values.dtype, "x")
    axis = arguments.check_axis(axis, values.ndim)
    shape = values.shape
    check_nonempty(shape, axis)
    batch = shape[:axis] + shape[axis + 1 :]
    given = arguments.check_temperature(temperature, batch)
    mask = None if where is None else arguments.check_where(where, shape)
    x_rows = host_arrays.to_rows(values, axis, compute)
    if mask is not None:
        # An absent entry is one at -inf, as in the operators.
        x_rows = np.where(host_arrays.to_rows(mask, axis, bool), x_rows, compute(-np.inf))
    tau = arguments.per_row(given, batch)
    return Call(x_rows, tau, x, shape, axis, batch, dtype, mask, given)


def at_moderate_temperature(call: Call) -> Call:
    """The call, brought where its temperatures are not near the ends of their range."""
    if scaling.is_moderate(call.temperature, call.x.dtype.type):
        return call
    x, tau, shift = scaling.rescaled(call.x, call.tau)
    return call._replace(x=x, tau=tau, shift=shift)


def check_nonempty(shape: tuple[int, ...], axis: int) -> None:
    """Refuse a row without entries: it has no largest one."""
    if shape[axis] == 0:
        raise ValueError(f"x has shape {shape}; expected at least one entry along axis {axis}")


def shifted(x: Array, tau: Array) -> tuple[Array, Array]:
    """The largest entry m of each row, and z = (x - m)/tau, 0 at the largest entry.

    The rules are those of `formulas.z_of`. A row with a NaN has m NaN, and z NaN at every
    entry above -inf.
    """
    m, z = np.empty((len(x), 1), x.dtype), np.empty_like(x)
    pool.over(len(x), x.size, rows.shift, x, tau, m[:, 0], z)
    return m, z


def tangent(call: Call, v: Any, name: str) -> Array:
    """A direction or cotangent of x's shape as rows, 0 where the entry is masked out."""
    return arguments.rows_of(v, name, call.shape, call.axis, call.x.dtype.type, call.where)


def give_back(call: Call, values: Array) -> Any:
    """Rows as an array of x's shape, type and kind."""
    result = host_arrays.from_rows(values, call.shape, call.axis)
    return host_arrays.like(call.given, host_arrays.cast(result, call.dtype))


def give_back_batch(call: Call, values: Array) -> Any:
    """One number for each row."""
    result = host_arrays.cast(values, call.dtype).reshape(call.batch)
    return host_arrays.like(call.given, result) if call.batch else result[()]
