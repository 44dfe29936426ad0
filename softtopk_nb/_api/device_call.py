"""Checked calls of arrays on a device, as `call` for memory, without reading any number there.

Shapes, types and numbers from the host are checked and raise as on the host. What only the device
knows (a k or a temperature in its memory, a NaN) makes its rows NaN instead: nothing here
synchronises with the device or copies from it.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._cuda.arrays import Argument, Buffer, Rows
from .._cuda.copying import DIMS, clamped, copy, copy_of_mask, new_buffer, sum_to
from .._cuda.interop import Kind, View, buffer_of, dense, device_of, kind_of, nothing, view_of
from . import arguments as _arguments
from . import host_arrays


class GivenArray(NamedTuple):
    """A device array as given, and how its rows are laid out."""

    kind: Kind
    view: View
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    compute: Any  # np.float32 or np.float64
    dtype: np.dtype[Any]  # of the result
    where: View | None
    out: View | None = None  # the memory that is written while arguments are read

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.batch)

    def shape_of_rows(self, ndim: int) -> tuple[int, ...]:
        """The shape to which numbers of rows with `ndim` axes broadcast."""
        return _arguments.shape_of_rows(ndim, self.batch, self.axis)


class Direction(NamedTuple):
    """A direction in x, as rows, and in each of the numbers."""

    rows: Buffer
    numbers: tuple[Argument, ...]
    owners: tuple[Any, ...]  # keep their memory alive, which a launch does not


class Call(NamedTuple):
    """A checked call, with the verbs of `call.Call`."""

    op: Any
    engine: Any  # the operator's engine on a device
    given: GivenArray
    rows: Rows
    sign: int  # -1 if the smallest entries are wanted
    out: Any
    shapes: tuple[tuple[int, ...], ...]  # of the numbers of a row, as given
    options: Any  # the operator's own, checked

    def value(self) -> Any:
        """Compute the value, as an array like x."""
        with self.given.kind.device:
            target = Target(self.given, self.out, reduces=self.op.reduces)
            self.engine.value(self.rows, self.options, target.rows)
            return target.finish()

    def solve(self, *_: Direction) -> tuple[Target, Any]:
        """(the memory of the value, for `give_back`; the state)."""
        with self.given.kind.device:
            target = Target(self.given, self.out, reduces=self.op.reduces)
            return target, self.engine.linearize(self.rows, self.options, target.rows)

    def state(self) -> Any:
        """The state for derivatives, without the value."""
        given = self.given
        with given.kind.device:
            p = new_buffer(given.kind, given.view.size, given.compute)
            return self.engine.linearize(self.rows, self.options, p)

    def packed(self, state: Any) -> Any:
        """The state as an array, shape (*batch, width), of its own memory."""
        given = self.given
        shape = *given.batch, self.engine.state_width(self.rows.n, self.options)
        if not math.prod(shape):
            with given.kind.device:
                return given.kind.empty(shape, np.float64)
        return state.owner.reshape(shape)

    def unpacked(self, numbers: Any) -> Buffer:
        """The state from such an array."""
        view = view_of(numbers, "the state")
        if view.contiguous:
            return buffer_of(view)
        with self.given.kind.device:
            made = new_buffer(self.given.kind, view.size, np.float64)
            copy(self.given.kind.stream, view, dense_view(made, view.shape, np.float64))
            return made

    def kept(self) -> Call:
        """The call itself: rows are copied if the result would overwrite them (`_written_over`)."""
        return self

    def direction(
        self, dx: Any, numbers: tuple[Any, ...], name: str = "dx", *, cotangent: bool = False
    ) -> Direction:
        """A checked direction in x and in each of the numbers; None means 0.

        Or the cotangent of a derivative, which `largest=False` does not negate.
        """
        given = self.given
        with given.kind.device:
            rows = tangent(given, dx, name, 1 if cotangent else self.sign)
            pairs = zip(self.op.names, numbers, strict=True)
            moves = [_move(given, value, f"d{number}") for number, value in pairs]
        return Direction(rows, *zip(*moves, strict=True))

    def jvp(self, state: Any, direction: Direction) -> Any:
        """The derivative along a direction."""
        with self.given.kind.device:
            moved = Target(self.given, reduces=self.op.reduces)
            given = direction.rows, *direction.numbers
            self.engine.jvp(self.rows, self.options, state, *given, moved.rows)
            return moved.finish()

    def vjp(self, state: Any, g: Any, /) -> Any:
        """The gradients of <g, value>, each in the shape of its argument."""
        with self.given.kind.device:
            return self._gradients(*self.vjp_of_rows(state, g))

    def vjp_in_x(self, state: Any, g: Any) -> Any:
        """The gradient of <g, value> in x alone."""
        with self.given.kind.device:
            return self.vjp_of_rows(state, g)[0].finish()

    def vjp_of_rows(self, state: Any, g: Any) -> tuple[Target, list[Buffer]]:
        """(memory of the gradient in x, that of the gradients in each of the numbers of a row)."""
        cotangent, owner = _cotangent(self.op, self.given, g)
        gx, numbers = self._memory()
        self.engine.vjp(self.rows, self.options, state, cotangent, gx.rows, *numbers)
        del owner  # not before the launch
        return gx, numbers

    def second(self, state: Any, first: Direction, other: Direction) -> Any:
        """The gradients of <other, derivative along the first>; the numbers of `other` are 0."""
        with self.given.kind.device:
            return self._gradients(*self.second_of_rows(state, first, other))

    def second_of_rows(
        self, state: Any, first: Direction, other: Direction
    ) -> tuple[Target, list[Buffer]]:
        """`second`, as `vjp_of_rows` returns gradients."""
        gx, numbers = self._memory()
        given = state, first.rows, other.rows, first.numbers
        self.engine.second(self.rows, self.options, *given, gx.rows, tuple(numbers))
        return gx, numbers

    def number(self, name: str) -> Any:
        """A number per row in the units of x, by the engine's function of this name."""
        with self.given.kind.device:
            target = Target(self.given, sign=self.sign, reduces=True)
            getattr(self.engine, name)(self.rows, self.options, target.rows)
            return target.finish()

    def losses(self, y: Any, constant: bool) -> Any:
        """The Fenchel-Young loss of each row against y, of x's shape; NaN where y is no target."""
        given = self.given
        with given.kind.device:
            target = tangent(given, y, "target")
            found = self.engine.losses(self.rows, self.options, target, constant, None)
            array = given.kind.empty(given.batch, given.dtype)
            each = dense_view(found, given.batch, np.float64)
            copy(given.kind.stream, each, view_of(array, "the loss"))
            return array

    def give_back(self, target: Target) -> Any:
        """The array of a value that was written."""
        with self.given.kind.device:
            return target.finish()

    def _memory(self) -> tuple[Target, list[Buffer]]:
        """Memory for the gradients in x and, one per row, in each of the numbers."""
        given = self.given
        numbers = [new_buffer(given.kind, given.rows, np.float64) for _ in self.op.names]
        return Target(given, sign=self.sign), numbers

    def _gradients(self, gx: Target, numbers: list[Buffer]) -> Any:
        """Gradients that were written, each in the shape of its argument."""
        fixed = self.op.fixed
        pairs = zip(numbers[fixed:], self.shapes[fixed:], strict=True)
        sums = [_gradient(self.given, each, shape) for each, shape in pairs]
        return self.op.gradients(gx.finish(), *[None] * fixed, *sums)


# Views.


def as_rows(view: View, axis: int) -> View:
    """The view with the axis moved to the end."""
    if axis == len(view.shape) - 1:
        return view
    order = [*(i for i in range(len(view.shape)) if i != axis), axis]
    return view._replace(
        shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order)
    )


def broadcast(view: View, shape: tuple[int, ...], name: str) -> View:
    """The view broadcast to `shape`, with strides of 0."""
    try:
        fits = np.broadcast_shapes(view.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} has shape {view.shape}; expected one that broadcasts to {shape}")
    extra = len(shape) - len(view.shape)
    strides = [0] * extra + [
        0 if n == 1 else s for n, s in zip(view.shape, view.strides, strict=True)
    ]
    return view._replace(shape=shape, strides=tuple(strides))


def dense_view(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> View:
    """A contiguous buffer as an array of this shape."""
    return View(buffer.address, shape, dense(shape), np.dtype(dtype), True, buffer.owner)


def _elsewhere(value: Any, name: str) -> TypeError:
    shape = f" of shape {np.shape(value)}" if isinstance(value, np.ndarray) else ""
    return TypeError(
        f"{name} is a {type(value).__name__}{shape} on the host; x is on a device, expected "
        f"{name} there too"
    )


def beside(x: View, value: Any, name: str) -> View:
    """The view of an argument that lies on the device of x."""
    if not host_arrays.on_device(value):
        raise _elsewhere(value, name)
    view = view_of(value, name)
    there, here = device_of(view), device_of(x)
    if there != here:
        raise ValueError(f"{name} is on device {there}; x is on device {here}, expected {name} too")
    return view


# Arguments.


def _check_rows(x: Any, axis: Any, where: Any = None) -> GivenArray:
    """Check x, the axis and the mask; returns x as given."""
    kind, view = kind_of(x), view_of(x, "x")
    if len(view.shape) > DIMS:
        raise ValueError(f"x has {len(view.shape)} axes; expected at most {DIMS} on a device")
    compute, dtype = host_arrays.compute_dtype(view.dtype, "x")
    axis = _arguments.check_axis(axis, len(view.shape))
    mask = None
    if where is not None:
        mask = beside(view, where, "where")
        if mask.dtype != np.bool_:
            raise TypeError(f"where has dtype {mask.dtype}; expected bool")
        mask = broadcast(mask, view.shape, "where")
    batch = view.shape[:axis] + view.shape[axis + 1 :]
    return GivenArray(kind, view, view.shape, axis, batch, compute, dtype, mask)


def _written_over(given: GivenArray, view: View) -> bool:
    """Whether writing the result could overwrite this view."""
    return given.out is not None and given.out.overlaps(view)


def rows_of(given: GivenArray, view: View, sign: int = 1, fill: float = 0.0) -> Buffer:
    """Rows in the type to compute in: a view where possible, otherwise a copy."""
    rows = as_rows(view, given.axis)
    as_they_are = rows.contiguous and rows.dtype == given.compute and given.where is None
    if as_they_are and sign > 0 and not _written_over(given, view):
        return buffer_of(rows)
    made = new_buffer(given.kind, view.size, given.compute)
    target = dense_view(made, rows.shape, given.compute)
    mask = None if given.where is None else as_rows(given.where, given.axis)
    copy(given.kind.stream, rows, target, sign=sign, where=mask, fill=fill)
    return made


def _per_row(
    given: GivenArray,
    value: Any,
    name: str,
    check: Callable[[Any], Any],
    low: float = np.inf,
    high: float = -np.inf,
) -> Any:
    """(kernel argument, shape, owner of its memory) of one number for all rows, or one per row.

    A Python number from `low` to `high` is accepted; others, and arrays, are checked.
    """
    excluded = nothing(np.float64)
    if type(value) in (int, float) and low <= value <= high:
        return Argument(excluded.pointer, float(value), 0), (), None  # fast path for the usual case
    if not host_arrays.on_device(value):
        number = check(value)
        if np.ndim(number):
            raise _elsewhere(value, name)
        return Argument(excluded.pointer, float(number), 0), (), None
    view = beside(given.view, value, name)
    stretched = broadcast(view, given.shape_of_rows(len(view.shape)), name)
    as_it_is = view.dtype == np.float64 and stretched.contiguous and not _written_over(given, view)
    if not view.shape or not as_it_is:
        made = new_buffer(given.kind, stretched.size, np.float64)
        flat = stretched if stretched.shape else stretched._replace(shape=(1,), strides=(0,))
        copy(given.kind.stream, flat, dense_view(made, flat.shape, np.float64))
        return Argument(made.pointer, 0.0, 1), view.shape, made.owner
    return Argument(buffer_of(stretched).pointer, 0.0, 1), view.shape, view.owner


def _real_dtype(value: Any, name: str, kinds: str, expected: str) -> None:
    if host_arrays.on_device(value):
        dtype = view_of(value, name).dtype
        if dtype.kind not in kinds:
            raise TypeError(f"{name} has dtype {dtype}; expected {expected}")


def _number(op: Any, given: GivenArray, name: str, value: Any) -> Any:
    """(argument, shape, owner) of k, of the temperature or the like."""
    clamps = type(value) is _arguments.Clamped
    value = value.k if clamps else value
    batch, n = given.batch, given.shape[given.axis]
    if name != "k":
        _real_dtype(value, name, "iuf", "real numbers")
        check = functools.partial(_arguments.check_positive, batch=batch, name=name)
        return _per_row(given, value, name, check, 5e-324, 1.7e308)
    kinds = ("iuf", "real numbers") if op.real_k else ("iu", "integers")
    _real_dtype(value, name, *kinds)
    low = 0 if op.real_k or type(value) is int else np.inf
    check = functools.partial(_arguments.check_k, n=n, batch=batch, real_k=op.real_k)
    if clamps and not host_arrays.on_device(value) and np.ndim(value) == 0:
        value = check(_arguments.Clamped(value))
    return _per_row(given, value, name, check, low, n)


@functools.cache
def engine_of(cpu: str) -> Any:
    """The engine on a device beside the CPU engine of this name."""
    return importlib.import_module("..cuda", cpu)


def _check_out(op: Any, given: GivenArray, out: Any) -> View:
    target = beside(given.view, out, "out")
    shape, what = op.shape_of_out(given.shape, given.batch)
    if target.shape != shape:
        raise ValueError(f"out has shape {target.shape}; expected {what} {shape}")
    if target.dtype != given.dtype:
        raise TypeError(f"out has dtype {target.dtype}; expected {given.dtype}")
    if not target.writable:
        raise ValueError("out is read-only; expected an array that can be written")
    return target


def check(op: Any, x: Any, *arguments: Any) -> Call:
    """Check a call; the arguments are those of `base.RowOperator`."""
    *numbers, axis, largest, where, out, options = arguments
    given = _check_rows(x, axis, where)
    _arguments.check_largest(largest)
    op.check_length(given.shape, given.axis)
    options = op.check_options(options)
    given = given._replace(compute=op.computed_in(options, given.compute))
    if out is not None:
        given = given._replace(out=_check_out(op, given, out))
    sign = 1 if largest else -1
    with given.kind.device:
        if given.where is not None and _written_over(given, given.where):
            given = given._replace(where=copy_of_mask(given.kind, given.where))
        found = [_number(op, given, *pair) for pair in zip(op.names, numbers, strict=True)]
        values = rows_of(given, given.view, sign, op.excluded)
    each, shapes, owners = zip(*found, strict=True)
    excluded = Argument(nothing(np.float64).pointer, 0.0, 0)
    k, temperature = each if len(each) == 2 else (excluded, *each)
    rows = Rows(
        values,
        k,
        temperature,
        given.rows,
        given.shape[given.axis],
        given.compute,
        given.kind.stream,
        lambda entries, dtype: new_buffer(given.kind, entries, dtype),
        nothing(given.compute),
        owners,
    )
    if type(numbers[0]) is _arguments.Clamped:
        with given.kind.device:
            rows = clamped(rows)
    return Call(op, engine_of(op.cpu.__name__), given, rows, sign, out, shapes, options)


# Results.


class Target:
    """The memory that a kernel writes, and the array that it becomes."""

    def __init__(
        self, given: GivenArray, out: Any = None, sign: int = 1, *, reduces: bool = False
    ) -> None:
        kind, self._sign = given.kind, sign
        shape = given.batch if reduces else given.shape
        self.array = out if out is not None else kind.empty(shape, given.dtype)
        view = view_of(self.array, "out")
        self._view = view if reduces else as_rows(view, given.axis)
        self._type = np.float64 if reduces else given.compute
        self._stream = kind.stream
        self._apart = not (self._view.contiguous and given.dtype == self._type and sign > 0)
        if self._apart:
            self.rows = new_buffer(kind, self._view.size, self._type)
        else:
            self.rows = buffer_of(self._view)

    def finish(self) -> Any:
        """The array, to be called once the kernels that write its rows have been launched."""
        if self._apart:
            source = dense_view(self.rows, self._view.shape, self._type)
            copy(self._stream, source, self._view, sign=self._sign)
        return self.array


def tangent(given: GivenArray, value: Any, name: str, sign: int = 1) -> Buffer:
    """A direction or cotangent of x's shape as rows, 0 where the entry is masked."""
    view = beside(given.view, value, name)
    host_arrays.compute_dtype(view.dtype, name)
    return rows_of(given, broadcast(view, given.shape, name), sign)


def _move(given: GivenArray, value: Any, name: str) -> tuple[Argument, Any]:
    """(argument, owner) of a direction in k or in the temperature; None means 0."""
    _real_dtype(value, name, "iuf", "real numbers")
    argument, _, owner = _per_row(
        given, 0.0 if value is None else value, name, lambda v: _arguments.real_array(v, name)
    )
    return argument, owner


def _cotangent(op: Any, given: GivenArray, g: Any) -> tuple[Any, Any]:
    """(the cotangent as rows, or as a number per row if the operator reduces them; its owner)."""
    if not op.reduces:
        return tangent(given, g, "the cotangent"), None
    if g is None:
        raise TypeError("the cotangent is None; expected real numbers")
    return _move(given, g, "the cotangent")


def _gradient(given: GivenArray, per_row: Buffer, shape: tuple[int, ...]) -> Any:
    """The gradient of an argument of this shape, summed over broadcast axes."""
    array = given.kind.empty(shape, given.dtype)
    batch = given.shape_of_rows(len(shape))
    sum_to(given.kind.stream, per_row, batch, shape, view_of(array, "the gradient"))
    return array


def negate(array: Any) -> Any:
    """Negate an array in place; returns it."""
    kind, view = kind_of(array), view_of(array, "x")
    with kind.device:
        copy(kind.stream, view, view, sign=-1)
    return array
