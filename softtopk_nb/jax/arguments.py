"""Arguments: what is accepted, and the error for what is not, as far as it can be told in advance.

Shapes and types are checked while JAX traces, and so are numbers that are known then. Numbers that
are not known are checked when they are: the compiled program raises the operator's own message.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .._api import arguments as _arguments

Array = jax.Array


class Layout(NamedTuple):
    """What of a call is known while it is traced; hashable."""

    axis: int
    largest: bool

    def rows(self, x: Any, where: Any, dtype: Any) -> Any:
        """x as rows of this type along the last axis."""
        rows = x.astype(dtype)
        rows = rows if self.largest else -rows
        if where is not None:
            rows = jnp.where(where, rows, -math.inf)
        return jnp.moveaxis(rows, self.axis, -1)

    def back(self, rows: Any, dtype: Any) -> Any:
        """Rows in the shape and type of x."""
        return jnp.moveaxis(rows, -1, self.axis).astype(dtype)


def computed_in(dtype: Any) -> Any:
    """The type to compute in."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def kept_in(dtype: Any) -> Any:
    """The type in which primitives are given x and what is like it: they convert bfloat16."""
    return dtype if dtype == jnp.bfloat16 else computed_in(dtype)


def check_array(x: Any, name: str) -> Any:
    """x as an array of JAX, of real numbers."""
    array = x
    if not isinstance(x, (jax.Array, np.ndarray)):
        try:
            array = jnp.asarray(x)
        except (TypeError, ValueError):
            raise TypeError(f"{name} is a {type(x).__name__}; expected an array") from None
    if array.dtype not in (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16):
        raise TypeError(
            f"{name} has dtype {array.dtype}; expected float32, float64, float16 or bfloat16"
        )
    if array.ndim == 0:
        raise ValueError(f"{name} is 0-dimensional; expected at least one axis")
    return array


def laid_out(x: Any, axis: Any, largest: Any, where: Any) -> Layout:
    """How the rows of a checked x lie."""
    _arguments.check_largest(largest)
    axis = _arguments.check_axis(axis, x.ndim)
    if not isinstance(x.shape[axis], int):
        raise ValueError(f"x has size {x.shape[axis]} along axis {axis}; expected a known number")
    if where is not None:
        dtype = getattr(where, "dtype", None)
        if dtype is None:
            dtype = np.asarray(where).dtype
        if dtype != np.bool_:
            raise TypeError(f"where has dtype {dtype}; expected bool")
        _check_broadcast(where, x.shape, "where")
    return Layout(axis, bool(largest))


def _check_broadcast(given: Any, shape: tuple[int, ...], name: str) -> None:
    _arguments.check_broadcast(np.broadcast_to(False, np.shape(given)), shape, name)


def check_numbers(op: Any, x: Any, axis: int, k: Any, temperature: Any) -> None:
    """Refuse a k or a temperature that cannot be right: what is not known passes."""
    n, batch = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    given: list[Any] = []
    for name, value in (("k", k), ("temperature", temperature)):
        if isinstance(value, jax.core.Tracer):
            real = jnp.issubdtype(value.dtype, jnp.floating) and (name != "k" or op.real_k)
            if not real and not jnp.issubdtype(value.dtype, jnp.integer):
                expected = "real numbers" if name != "k" or op.real_k else "integers"
                raise TypeError(f"{name} has dtype {value.dtype}; expected {expected}")
            _check_broadcast(value, batch, name)
            given.append(None)
        elif getattr(value, "dtype", None) == jnp.bfloat16:
            given.append(np.asarray(value, np.float32))  # to NumPy it is no real number
        else:
            given.append(np.asarray(value) if isinstance(value, jax.Array) else value)
    k, temperature = given
    op._check_numbers(n, batch, 0 if k is None else k, 1.0 if temperature is None else temperature)


def numbers(op: Any, x: Any, k: Any, temperature: Any) -> tuple[Any, Any]:
    """k and the temperature as arrays of the shape of the batch of the rows x."""
    dtype = computed_in(x.dtype)
    return _number(k, x, dtype if op.real_k else jnp.int32), _number(temperature, x, dtype)


def _number(value: Any, x: Any, dtype: Any) -> Any:
    """One for each row, on the devices that the row is on."""
    each = jnp.broadcast_to(jnp.asarray(value, dtype), x.shape[:-1])
    apart = tuple(_varying(x) - _varying(each))
    if apart:
        if hasattr(jax.lax, "pcast"):  # from JAX 0.8 on
            each = jax.lax.pcast(each, apart, to="varying")
        else:
            each = jax.lax.pvary(each, apart)  # type: ignore[attr-defined]
    sharding = jax.typeof(x).sharding
    spec = sharding.spec[: each.ndim]
    if any(axis is not None for axis in spec):
        each = jax.sharding.reshard(each, NamedSharding(sharding.mesh, PartitionSpec(*spec)))
    return each


def _varying(x: Any) -> Any:
    """The axes of a mesh along which x differs, where a program is written for one device."""
    kind = jax.typeof(x)
    # Until JAX 0.9 by the first of these names.
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying
