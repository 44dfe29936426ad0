"""Arguments: what is accepted, and the message for what is not.

Every message names the argument, what came, and what was expected.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._threads.masking import masked
from . import host_arrays

Array = npt.NDArray[Any]

_ROOMY = 2.0**64  # the square of a direction shorter than this is a number in float32


def show(value: Any) -> str:
    """A short text for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def real_array(value: Any, name: str) -> Array:
    """`value` as an array of real numbers; bools are not numbers here."""
    given = host_arrays.as_numpy(value, name)
    if given.dtype.kind not in "iuf" or given.dtype.itemsize > 8:
        raise TypeError(
            f"{name} is {show(value)} of dtype {given.dtype}; expected real numbers"
            + (" (not bool)" if given.dtype.kind == "b" else "")
        )
    return given


def check_axis(axis: Any, ndim: int) -> int:
    """The axis as a non-negative integer."""
    if isinstance(axis, (bool, np.bool_)):
        raise TypeError(f"axis is {axis!r}; expected an integer")
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis is {show(axis)}; expected an integer") from None
    if not -ndim <= index < ndim:
        raise np.exceptions.AxisError(index, ndim, "axis")
    return index % ndim


def check_broadcast(given: Array, shape: tuple[int, ...], name: str) -> None:
    """Refuse what does not broadcast to `shape`, or would enlarge it."""
    if given.ndim == 0 or given.shape == shape:  # the usual cases, in a hurry
        return
    try:
        fits = np.broadcast_shapes(given.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} has shape {given.shape}; expected one that broadcasts to {shape}")


def per_row(given: Any, batch: tuple[int, ...], rows: int) -> Array:
    """One number for each of so many rows, in memory of its own.

    A kernel would be compiled anew for a read-only array, as a broadcast one is.
    """
    if isinstance(given, (float, int)):
        same = np.empty(rows, np.float64 if isinstance(given, float) else np.int64)
        same.fill(given)
        return same
    return np.array(np.broadcast_to(given, batch), order="C").reshape(-1)


def check_positive(value: Any, batch: tuple[int, ...], name: str) -> Any:
    """A temperature or the like, positive and finite: a float, or an array of float64."""
    if type(value) is float and 0.0 < value < math.inf:
        return value  # the usual case, in a hurry
    given = real_array(value, name).astype(np.float64)
    ok = (given > 0) & (given < np.inf)
    if not np.all(ok):
        bad = given[~ok].flat[0]
        raise ValueError(f"{name} is {bad}; expected a positive finite number")
    check_broadcast(given, batch, name)
    return given


def check_k(given: Array, n: int, batch: tuple[int, ...]) -> None:
    """Refuse a k outside [0, n], compared before any conversion: no integer wraps around."""
    ok = (given >= 0) & (given <= n)
    if not np.all(ok):
        bad = given[~ok].flat[0]
        raise ValueError(f"k is {bad}; expected 0 <= k <= n = {n}, x's length along the axis")
    check_broadcast(given, batch, "k")


def check_where(where: Any, shape: tuple[int, ...]) -> Array:
    """The mask, broadcast to x's shape."""
    given = host_arrays.as_numpy(where, "where")
    if given.dtype != np.bool_:
        raise TypeError(f"where has dtype {given.dtype}; expected bool")
    check_broadcast(given, shape, "where")
    return given if given.shape == shape else np.broadcast_to(given, shape)


def rows_of_mask(mask: Array, axis: int, table: tuple[int, int], out: Array | None) -> Array:
    """A mask of x's shape as rows, or as the one row that all of them are.

    It does not share memory with `out`, which is written before derivatives read it.
    """
    others = (a for a in range(mask.ndim) if a != axis)
    if all(mask.strides[a] == 0 or mask.shape[a] == 1 for a in others):
        mask = mask[tuple(slice(None) if a == axis else slice(0, 1) for a in range(mask.ndim))]
        table = mask.size // max(1, table[1]), table[1]
    rows = host_arrays.to_rows(mask, axis, bool, table)
    return rows.copy() if out is not None and np.may_share_memory(out, rows) else rows


def check_largest(largest: Any) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(largest, (bool, np.bool_)):
        raise TypeError(f"largest is {largest!r}; expected True or False")


def check_out(out: Any, shape: tuple[int, ...], what: str, dtype: np.dtype[Any]) -> None:
    """Refuse an `out` that cannot take the result, whose shape is `what`, as it is."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; expected a NumPy array")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; expected {what} {shape}")
    if out.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"out has dtype {out.dtype}; expected {dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; expected an array that can be written")


def direction(value: Any, batch: tuple[int, ...], name: str) -> Array:
    """A direction in k or in the temperature, one number for each row; None is 0."""
    given = real_array(0.0 if value is None else value, name).astype(np.float64)
    check_broadcast(given, batch, name)
    return per_row(given, batch, math.prod(batch))


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

    Of their type, or of float64 if it came in a wider one: see `Direction`. With anything where an
    entry is not present if kernels keep that `apart`, and the type is x's.
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
    """A direction or cotangent in the type of the rows of x, which may be too short for it.

    A derivative is linear. Where float32 has no room for the squares and sums of a direction, it
    is measured in a unit, a power of two for each row, and so is the derivative along it.
    """

    rows: Array
    numbers: tuple[Array, ...]  # directions in k and in the temperature, one number for each row

    def __init__(self, x: Array, rows: Array, *numbers: Array) -> None:
        self.rows, self.numbers = rows, numbers
        self._unit: Array | None = None
        if x.dtype == np.float64 or (rows.dtype == x.dtype and not numbers):
            return  # there is room
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
        """What follows from the direction itself, from what followed from its rows and numbers."""
        if self._unit is None:
            return values
        with np.errstate(over="ignore"):
            result: Array = (values.T * self._unit).T
        return result
