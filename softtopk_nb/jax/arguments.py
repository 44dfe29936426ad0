"""Validation of arguments, and errors for invalid ones, as far as it is possible while tracing.

Shapes and types are checked while JAX traces, and so are numbers that are known then. Other numbers
are checked when the compiled program runs: it raises the operator's own message.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .._api import arguments as _arguments
from .._api import call as _call

Array = jax.Array


#: What is expected of a k that must be known while JAX traces.
KNOWN = "one whole number for all rows, known while JAX traces; thretopk takes any k"


class Layout(NamedTuple):
    """The parts of a call that are known while it is traced; hashable."""

    axis: int
    largest: bool
    clamp_k: bool

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
    """The type to compute in, for x of this type."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def kept_in(dtype: Any) -> Any:
    """The type of x and similar arguments of primitives, which convert bfloat16 themselves."""
    return dtype if dtype == jnp.bfloat16 else computed_in(dtype)


def check_array(x: Any, name: str) -> Any:
    """x as a JAX array of real numbers."""
    array = x
    if not isinstance(x, (jax.Array, np.ndarray)):
        try:
            array = jnp.asarray(x)
        except (TypeError, ValueError):
            raise TypeError(f"{name} is a {type(x).__name__}; expected an array") from None
    if array.dtype.kind in "biu":
        array = jnp.asarray(array, float)  # JAX's default type
    if array.dtype not in (jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16):
        raise TypeError(
            f"{name} has dtype {array.dtype}; expected float32, float64, float16, bfloat16, "
            "integers or bool"
        )
    if array.ndim == 0:
        raise ValueError(f"{name} is 0-dimensional; expected at least one axis")
    return array


def laid_out(x: Any, axis: Any, largest: Any, where: Any, clamp_k: Any = False) -> Layout:
    """The layout of a checked x."""
    _arguments.check_largest(largest)
    axis = _arguments.check_axis(axis, x.ndim)
    if not isinstance(x.shape[axis], int):
        raise ValueError(f"x has size {x.shape[axis]} along axis {axis}; expected a known number")
    if where is not None:
        check_where(where, x.shape)
    _arguments.check_bool(clamp_k, "clamp_k")
    return Layout(axis, bool(largest), bool(clamp_k))


def check_where(where: Any, shape: tuple[int, ...]) -> None:
    """Refuse what is no mask for this shape."""
    dtype = getattr(where, "dtype", None)
    if dtype is None:
        dtype = np.asarray(where).dtype
    if dtype != np.bool_:
        raise TypeError(f"where has dtype {dtype}; expected bool")
    _check_broadcast(where, shape, "where")


def broadcast(value: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """A number or an array in this shape and type."""
    _check_broadcast(value, shape, name)
    return jnp.broadcast_to(jnp.asarray(value, dtype), shape)


def _check_broadcast(given: Any, shape: tuple[int, ...], name: str) -> None:
    _arguments.check_broadcast(np.broadcast_to(False, np.shape(given)), shape, name)


def check_numbers(op: Any, x: Any, layout: Layout, k: Any, temperature: Any) -> None:
    """Refuse an invalid k or temperature; numbers that are not known yet pass."""
    axis = layout.axis
    n, batch = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    of_k, of_tau = known(k, "k", op.real_k), known(temperature, "temperature")
    for name, value, found in (("k", k, of_k), ("temperature", temperature, of_tau)):
        if found is None:
            _check_broadcast(value, _arguments.shape_of_rows(value.ndim, batch, axis), name)
    k, temperature = 0 if of_k is None else of_k, 1.0 if of_tau is None else of_tau
    k = _arguments.clamped(k, layout.clamp_k)
    _call.check_numbers(op, n, batch, axis, k, temperature)


def known(value: Any, name: str, real: bool = True) -> Any:
    """A number or an array as NumPy takes it; None if JAX traces it, with its type checked."""
    if isinstance(value, jax.core.Tracer):
        kinds = (jnp.floating, jnp.integer) if real else (jnp.integer,)
        if not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
            expected = "real numbers" if real else "integers"
            raise TypeError(f"{name} has dtype {value.dtype}; expected {expected}")
        return None
    if getattr(value, "dtype", None) == jnp.bfloat16:
        return np.asarray(value, np.float32)  # NumPy does not know it as a real number
    if value is None:
        _arguments.real_array(value, name)  # raises
    return np.asarray(value) if isinstance(value, jax.Array) else value


def numbers(op: Any, x: Any, layout: Layout, k: Any, temperature: Any) -> tuple[Any, Any]:
    """k and the temperature as arrays of the batch shape of the rows x, which have this layout."""
    dtype = computed_in(x.dtype)
    of_k = _number(k, x, layout.axis, dtype if op.real_k else jnp.int32)
    if layout.clamp_k:
        count = (x != -math.inf).sum(-1).astype(of_k.dtype)
        of_k = jnp.where(of_k > count, count, of_k)  # with the gradient 0 where this is count
    return of_k, _number(temperature, x, layout.axis, dtype)


def _number(value: Any, x: Any, axis: int, dtype: Any) -> Any:
    """An array with a number for each row, on the devices that the row is on."""
    given = jnp.asarray(value, dtype)
    given = given.squeeze(axis) if given.ndim == x.ndim else given
    each = jnp.broadcast_to(given, x.shape[:-1])
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
    """The mesh axes along which x differs, in a program written for one device."""
    kind = jax.typeof(x)
    # Until JAX 0.9 it has the first of these names.
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying
