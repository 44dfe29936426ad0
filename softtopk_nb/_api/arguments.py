"""Validation of arguments, and the error messages for invalid ones.

Every message names the argument, the value given, and what was expected.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._threads.masking import masked
from . import host_arrays

Array = npt.NDArray[Any]

_ROOMY = 2.0**64  # a shorter direction can be squared in float32


def show(value: Any) -> str:
    """The value's repr, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def real_array(value: Any, name: str) -> Array:
    """`value` as an array of real numbers; refuses bools."""
    given = host_arrays.as_numpy(value, name)
    if given.dtype.kind not in "iuf" or given.dtype.itemsize > 8:
        kind = "" if given.dtype.kind in "OUS" else f" of dtype {given.dtype}"
        raise TypeError(
            f"{name} is {show(value)}{kind}; expected real numbers"
            + (" (not bool)" if given.dtype.kind == "b" else "")
        )
    return given


def check_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """The axis, of an x with `ndim` axes, as a non-negative integer."""
    index = whole(axis, name, "an integer")
    if ndim == 0:
        raise np.exceptions.AxisError("x is 0-dimensional; expected at least one axis")
    if not -ndim <= index < ndim:
        expected = f"expected {-ndim} to {ndim - 1}, as x has ndim = {ndim}"
        raise np.exceptions.AxisError(f"{name} is {index}; {expected}")
    return index % ndim


def check_broadcast(given: Array, shape: tuple[int, ...], name: str) -> None:
    """Refuse an array that does not broadcast to `shape`, or would enlarge it."""
    if given.ndim == 0 or given.shape == shape:  # fast path for the usual cases
        return
    try:
        fits = np.broadcast_shapes(given.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} has shape {given.shape}; expected one that broadcasts to {shape}")


def shape_of_rows(ndim: int, batch: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """The shape to which numbers of rows with `ndim` axes broadcast.

    It is the batch shape; or, for as many axes as x has, x's shape with length 1 along the axis.
    The batch has one axis less than x, so that no array fits in both ways.
    """
    if axis is None or ndim <= len(batch):
        return batch
    return (*batch[:axis], 1, *batch[axis:])


def check_per_row(given: Array, batch: tuple[int, ...], axis: int | None, name: str) -> None:
    """Refuse an array that does not give a number to each row (`shape_of_rows`)."""
    check_broadcast(given, shape_of_rows(given.ndim, batch, axis), name)


def per_row(given: Any, batch: tuple[int, ...], rows: int, axis: int | None = None) -> Array:
    """One number for each row, shape (rows,), in new memory.

    A kernel would be compiled again for a read-only array, as a broadcast one is.
    """
    if isinstance(given, (float, int)):
        same = np.empty(rows, np.float64 if isinstance(given, float) else np.int64)
        same.fill(given)
        return same
    shape = shape_of_rows(given.ndim, batch, axis)
    return np.array(np.broadcast_to(given, shape), order="C").reshape(-1)


def check_positive(value: Any, batch: tuple[int, ...], name: str, axis: int | None = None) -> Any:
    """A temperature or the like, checked to be positive and finite: a float, or a float64 array."""
    if type(value) is float and 0.0 < value < math.inf:
        return value  # fast path for the usual case
    given = real_array(value, name).astype(np.float64)
    ok = (given > 0) & (given < np.inf)
    if not np.all(ok):
        bad = given[~ok].flat[0]
        raise ValueError(f"{name} is {bad}; expected a positive finite number")
    check_per_row(given, batch, axis, name)
    return given


# What others call an argument, or where one is known that is not known here.
_HINTS = {
    "tau": "temperature",
    "mask": "where",
    "dim": "axis, or dim for tensors of PyTorch",
    "hard": "hardtopk, or hard for arrays of PyTorch and JAX",
    "scale": "temperature",
    "descending": "largest",
}


def unexpected(name: str, argument: str, known: tuple[str, ...]) -> TypeError:
    """The error of the function `name` for an argument that it does not have."""
    hint = f"; you may want {_HINTS[argument]}" if argument in _HINTS else ""
    return TypeError(
        f"{name} got an unexpected keyword argument {argument!r}{hint}; it knows {', '.join(known)}"
    )


class Clamped(NamedTuple):
    """A k of which a row takes at most as much as it has entries that take part."""

    k: Any


def clamped(k: Any, clamp_k: Any) -> Any:
    """k as given; as `Clamped` if `clamp_k` is True."""
    check_bool(clamp_k, "clamp_k")
    return Clamped(k) if clamp_k else k


def check_k(
    value: Any, n: int, batch: tuple[int, ...], real_k: bool, axis: int | None = None
) -> Any:
    """A checked k for rows of n entries: a number as given, or an array of float64 or int64.

    One that is `Clamped` is n where it is more.
    """
    if type(value) is int and 0 <= value <= n:
        return float(value) if real_k else value  # fast path for the usual case
    clamps = type(value) is Clamped
    value = value.k if clamps else value
    if type(value) is int and not clamps:
        raise ValueError(_range_of_k(value, n))  # it may be too large for an array
    given = real_array(min(value, n) if type(value) is int else value, "k")
    if not real_k:
        check_whole(value, given.dtype)
    given = np.minimum(given, np.int64(n)) if clamps else given
    check_range_of_k(given, n, batch, axis)
    return given.astype(np.float64 if real_k else np.int64)


def check_range_of_k(given: Array, n: int, batch: tuple[int, ...], axis: int | None = None) -> None:
    """Refuse a k outside [0, n], compared before any conversion: no integer wraps around."""
    ok = (given >= 0) & (given <= n)
    if not np.all(ok):
        bad = given[~ok].flat[0]
        raise ValueError(_range_of_k(bad, n))
    check_per_row(given, batch, axis, "k")


def check_whole(k: Any, dtype: np.dtype[Any]) -> None:
    """Refuse a k of this type that is not of integers."""
    if dtype.kind not in "iu":
        raise TypeError(f"k is {show(k)} of dtype {dtype}; expected integers; thretopk takes any k")


def check_costs(costs: Array) -> None:
    """Refuse costs that are not positive and finite."""
    wrong = ~((costs > 0.0) & (costs < np.inf))
    if wrong.any():
        raise ValueError(f"cost is {costs[wrong].flat[0]}; expected positive finite numbers")


def _range_of_k(bad: Any, n: int) -> str:
    return f"k is {bad}; expected 0 <= k <= n = {n}, x's length along the axis"


def mask_of(where: Any) -> Array:
    """The mask as an array of bool."""
    given = host_arrays.as_numpy(where, "where")
    if given.dtype != np.bool_:
        raise TypeError(f"where has dtype {given.dtype}; expected bool")
    return given


def check_where(where: Any, shape: tuple[int, ...]) -> Array:
    """The mask, broadcast to x's shape."""
    given = mask_of(where)
    check_broadcast(given, shape, "where")
    return given if given.shape == shape else np.broadcast_to(given, shape)


def entries_as_rows(
    values: Array, axis: int, dtype: type, table: tuple[int, int], out: Array | None
) -> Array:
    """An array of x's shape as rows, or as a single row if they are all equal by broadcasting.

    It shares no memory with `out`, which is written before derivatives read it.
    """
    others = (a for a in range(values.ndim) if a != axis)
    if all(values.strides[a] == 0 or values.shape[a] == 1 for a in others):
        one = tuple(slice(None) if a == axis else slice(0, 1) for a in range(values.ndim))
        values = values[one]
        table = math.prod(values.shape[:axis] + values.shape[axis + 1 :]), table[1]
    rows = host_arrays.to_rows(values, axis, dtype, table)
    return rows.copy() if out is not None and np.may_share_memory(out, rows) else rows


_ONE_K = "one whole number for all rows; thretopk takes any k"


def whole(value: Any, name: str = "k", expected: str = _ONE_K) -> int:
    """The argument `name` as one whole number, such as a k that is the same for all rows."""
    try:
        if not isinstance(value, (bool, np.bool_)):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {show(value)}; expected {expected}")


def check_largest(largest: Any) -> None:
    """Refuse a value that is neither True nor False."""
    check_bool(largest, "largest")


def check_bool(value: Any, name: str) -> None:
    """Refuse a value of the argument `name` that is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {show(value)}; expected True or False")


def check_out(out: Any, shape: tuple[int, ...], what: str, dtype: np.dtype[Any]) -> None:
    """Refuse an `out` that cannot hold the result; `what` names the expected shape."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; expected a NumPy array")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected {what} {shape}")
    if out.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"out has dtype {out.dtype}; expected {dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; expected an array that can be written")


def direction(value: Any, batch: tuple[int, ...], axis: int, name: str) -> Array:
    """A direction in k or in the temperature, one number per row; None means 0."""
    given = real_array(0.0 if value is None else value, name).astype(np.float64)
    check_per_row(given, batch, axis, name)
    return per_row(given, batch, math.prod(batch), axis)


def rows_of(
    value: Any,
    name: str,
    shape: tuple[int, ...],
    axis: int,
    x: Array,
    present: Array | None,
    apart: bool,
) -> Array:
    """A direction or cotangent as rows like those of x, 0 where an entry is not `present`.

    Its type is that of x, or float64 if it came in a wider one: see `Direction`. If kernels keep
    masked entries `apart` and the type is x's, those may hold any values.
    """
    given = host_arrays.as_numpy(value, name)
    wide, _ = host_arrays.compute_dtype(given.dtype, name)
    dtype: Any = np.float64 if wide is np.float64 else x.dtype.type
    if given.shape != shape:
        check_broadcast(given, shape, name)
        given = np.broadcast_to(given, shape)
    rows = host_arrays.to_rows(given, axis, dtype, x.shape)
    if present is not None and not (apart and rows.dtype == x.dtype):
        rows = masked(rows, present, 0.0)
    return rows


class Direction:
    """A direction or cotangent in the type of the rows of x, scaled if its range is too small.

    A derivative is linear. Where squares and sums of a direction would overflow in float32, it is
    divided by a unit, a power of two for each row, and so is the derivative along it.
    """

    rows: Array
    numbers: tuple[Array, ...]  # directions in k and in the temperature, one number for each row

    def __init__(self, x: Array, rows: Array, *numbers: Array) -> None:
        self.rows, self.numbers = rows, numbers
        self._unit: Array | None = None
        if x.dtype == np.float64 or (rows.dtype == x.dtype and not numbers):
            return  # squares and sums cannot overflow
        largest = np.zeros(len(x))
        if rows.dtype != x.dtype:
            entries = (
                np.where(np.isfinite(x), abs(rows), 0.0) if rows.ndim == 2 else abs(rows)[:, None]
            )
            largest = entries.max(axis=1, initial=0.0)
        for each in numbers:
            np.maximum(largest, abs(each), out=largest)
        far = (largest > _ROOMY) & (largest < np.inf)
        if far.any():
            unit = np.where(far, np.ldexp(1.0, np.frexp(largest)[1] - 1), 1.0)
            self._unit = unit
            self.rows = (rows.T / unit).T
            self.numbers = tuple(each / unit for each in numbers)
        if rows.ndim == 2:
            self.rows = np.ascontiguousarray(host_arrays.cast(self.rows, x.dtype))

    def back(self, values: Array) -> Array:
        """Scale back results that were computed from the scaled rows and numbers."""
        if self._unit is None:
            return values
        with np.errstate(over="ignore"):
            result: Array = (values.T * self._unit).T
        return result
