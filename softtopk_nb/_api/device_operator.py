"""What `_api.base` does, for arrays on a device, without looking at any number.

Shapes, types and numbers from the host are checked and raise as there. What only the device knows
(a k or a temperature in its memory, a NaN) makes its rows NaN instead: nothing here waits for the
device or copies from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._cuda.arrays import Argument, Buffer, Rows
from .._cuda.copying import DIMS, copy, copy_of_mask, new_buffer, sum_to
from .._cuda.interop import Kind, View, buffer_of, dense, kind_of, nothing, view_of
from . import arguments as _arguments
from . import host_arrays


class Given(NamedTuple):
    """An array as it came, and how its rows lie."""

    kind: Kind
    view: View
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    compute: Any  # np.float32 or np.float64
    dtype: np.dtype[Any]  # of the result
    where: View | None
    out: View | None = None  # what is written while arguments are read

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(np.prod(self.batch, dtype=np.int64))


class Call(NamedTuple):
    """A checked call, as `_api.base.Call` is one on the host."""

    given: Given
    rows: Rows
    sign: int  # -1 if the smallest entries are wanted
    out: Any
    shapes: tuple[tuple[int, ...], ...]  # of the numbers that rows have, as given
    plan: Any
    engine: Any  # `cuda` of the operator


# Views.


def as_rows(view: View, axis: int) -> View:
    """The same entries with the axis last."""
    if axis == len(view.shape) - 1:
        return view
    order = [*(i for i in range(len(view.shape)) if i != axis), axis]
    return view._replace(
        shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order)
    )


def _broadcast(view: View, shape: tuple[int, ...], name: str) -> View:
    """Stretched to `shape`, with strides of 0."""
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


def _dense_view(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> View:
    """Memory of our own as an array of this shape."""
    return View(buffer.address, shape, dense(shape), np.dtype(dtype), True, buffer.owner)


def _elsewhere(value: Any, name: str) -> TypeError:
    shape = f" of shape {np.shape(value)}" if isinstance(value, np.ndarray) else ""
    return TypeError(
        f"{name} is a {type(value).__name__}{shape} on the host; x is on a device, expected "
        f"{name} there too"
    )


# Arguments.


def _check_rows(x: Any, axis: Any, where: Any = None) -> Given:
    """Check x, the axis and the mask."""
    kind, view = kind_of(x), view_of(x, "x")
    if not view.shape:
        raise ValueError("x is 0-dimensional; expected at least one axis")
    if len(view.shape) > DIMS:
        raise ValueError(f"x has {len(view.shape)} axes; expected at most {DIMS} on a device")
    compute, dtype = host_arrays.compute_dtype(view.dtype, "x")
    axis = _arguments.check_axis(axis, len(view.shape))
    mask = None
    if where is not None:
        if not host_arrays.on_device(where):
            raise _elsewhere(where, "where")
        mask = view_of(where, "where")
        if mask.dtype != np.bool_:
            raise TypeError(f"where has dtype {mask.dtype}; expected bool")
        mask = _broadcast(mask, view.shape, "where")
    batch = view.shape[:axis] + view.shape[axis + 1 :]
    return Given(kind, view, view.shape, axis, batch, compute, dtype, mask)


def _written_over(given: Given, view: View) -> bool:
    """Whether the result could be written over what is still to be read."""
    return given.out is not None and given.out.overlaps(view)


def rows_of(given: Given, view: View, sign: int = 1, fill: float = 0.0) -> Buffer:
    """Rows of the type to compute in: the memory itself where it will do, else a copy."""
    rows = as_rows(view, given.axis)
    as_they_are = rows.contiguous and rows.dtype == given.compute and given.where is None
    if as_they_are and sign > 0 and not _written_over(given, view):
        return buffer_of(rows)
    made = new_buffer(given.kind, view.size, given.compute)
    target = _dense_view(made, rows.shape, given.compute)
    mask = None if given.where is None else as_rows(given.where, given.axis)
    copy(given.kind.stream, rows, target, sign=sign, where=mask, fill=fill)
    return made


def _per_row(
    given: Given,
    value: Any,
    name: str,
    check: Callable[[Any], Any],
    low: float = np.inf,
    high: float = -np.inf,
) -> Any:
    """(argument of the kernels, its shape, the owner of its memory): one for all rows or each.

    A Python number from `low` to `high` is right as it is; others, and arrays, are checked.
    """
    excluded = nothing(np.float64)
    if type(value) in (int, float) and low <= value <= high:
        return Argument(excluded.pointer, float(value), 0), (), None  # the usual case, in a hurry
    if not host_arrays.on_device(value):
        number = check(value)
        if np.ndim(number):
            raise _elsewhere(value, name)
        return Argument(excluded.pointer, float(number), 0), (), None
    view = view_of(value, name)
    stretched = _broadcast(view, given.batch, name)
    as_it_is = view.dtype == np.float64 and stretched.contiguous and not _written_over(given, view)
    if not view.shape or not as_it_is:
        made = new_buffer(given.kind, stretched.size, np.float64)
        flat = stretched if given.batch else stretched._replace(shape=(1,), strides=(0,))
        copy(given.kind.stream, flat, _dense_view(made, flat.shape, np.float64))
        return Argument(made.pointer, 0.0, 1), view.shape, made.owner
    return Argument(buffer_of(stretched).pointer, 0.0, 1), view.shape, view.owner


def _real_dtype(value: Any, name: str, kinds: str, expected: str) -> None:
    if host_arrays.on_device(value):
        dtype = view_of(value, name).dtype
        if dtype.kind not in kinds:
            raise TypeError(f"{name} has dtype {dtype}; expected {expected}")


def _number(op: Any, given: Given, name: str, value: Any) -> Any:
    """(argument, shape, owner) of k, of the temperature or the like."""
    batch, n = given.batch, given.shape[given.axis]
    if name != "k":
        _real_dtype(value, name, "iuf", "real numbers")
        check = functools.partial(_arguments.check_positive, batch=batch, name=name)
        return _per_row(given, value, name, check, 5e-324, 1.7e308)
    kinds = ("iuf", "real numbers") if op.real_k else ("iu", "integers")
    _real_dtype(value, name, *kinds)
    low = 0 if op.real_k or type(value) is int else np.inf
    return _per_row(given, value, name, functools.partial(op._check_k, n=n, batch=batch), low, n)


def _check_out(op: Any, given: Given, out: Any) -> View:
    if not host_arrays.on_device(out):
        raise _elsewhere(out, "out")
    target = view_of(out, "out")
    shape, what = op.shape_of_out(given.shape, given.batch)
    if target.shape != shape:
        raise ValueError(f"out has shape {target.shape}; expected {what} {shape}")
    if target.dtype != given.dtype:
        raise TypeError(f"out has dtype {target.dtype}; expected {given.dtype}")
    if not target.writable:
        raise ValueError("out is read-only; expected an array that can be written")
    return target


def check(op: Any, x: Any, *arguments: Any) -> Call:
    """Check a call; the arguments are those of `_api.base.RowOperator`."""
    *numbers, axis, largest, where, out, options = arguments
    given = _check_rows(x, axis, where)
    _arguments.check_largest(largest)
    op.check_length(given.shape, given.axis)
    plan = op._plan(options)
    given = given._replace(compute=op._computed_in(plan, given.compute))
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
    return Call(given, rows, sign, out, shapes, plan, op.cuda)


# Results.


class Target:
    """Memory for a kernel to write, and the array that it becomes."""

    def __init__(
        self, given: Given, out: Any = None, sign: int = 1, *, reduces: bool = False
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
        """The array, once the kernels that write its rows have been launched."""
        if self._apart:
            source = _dense_view(self.rows, self._view.shape, self._type)
            copy(self._stream, source, self._view, sign=self._sign)
        return self.array


def tangent(given: Given, value: Any, name: str, sign: int = 1) -> Buffer:
    """A direction or cotangent of x's shape as rows, 0 where the entry is masked out."""
    if not host_arrays.on_device(value):
        raise _elsewhere(value, name)
    view = view_of(value, name)
    host_arrays.compute_dtype(view.dtype, name)
    return rows_of(given, _broadcast(view, given.shape, name), sign)


def direction(given: Given, value: Any, name: str) -> tuple[Argument, Any]:
    """(argument, owner) of a direction in k or in the temperature; None is 0."""
    _real_dtype(value, name, "iuf", "real numbers")
    argument, _, owner = _per_row(
        given, 0.0 if value is None else value, name, lambda v: _arguments.real_array(v, name)
    )
    return argument, owner


def _cotangent(op: Any, given: Given, g: Any) -> tuple[Any, Any]:
    """(rows, or for an operator that reduces them a number for each; their owner)."""
    if not op.reduces:
        return tangent(given, g, "the cotangent"), None
    if g is None:
        raise TypeError("the cotangent is None; expected real numbers")
    return direction(given, g, "the cotangent")


def _gradient(given: Given, per_row: Buffer, shape: tuple[int, ...]) -> Any:
    """What a VJP function returns for an argument of this shape."""
    array = given.kind.empty(shape, given.dtype)
    sum_to(given.kind.stream, per_row, given.batch, shape, view_of(array, "the gradient"))
    return array


# Calls.


def call(op: Any, *arguments: Any) -> Any:
    """The value."""
    c = check(op, *arguments)
    with c.given.kind.device:
        target = Target(c.given, c.out, reduces=op.reduces)
        c.engine.value(c.rows, c.plan, target.rows)
        return target.finish()


def jvp(op: Any, dx: Any, directions: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """Value and derivative along a direction."""
    c = check(op, *arguments)
    with c.given.kind.device:
        v = tangent(c.given, dx, "dx", c.sign)
        pairs = zip(op.names, directions, strict=True)
        moves = [direction(c.given, value, f"d{name}") for name, value in pairs]
        target = Target(c.given, c.out, reduces=op.reduces)
        moved = Target(c.given, reduces=op.reduces)
        state = c.engine.linearize(c.rows, c.plan, target.rows)
        c.engine.jvp(c.rows, c.plan, state, v, *(move for move, _ in moves), moved.rows)
        del moves  # the owners of memory: not before the launch
        return target.finish(), moved.finish()


def vjp(op: Any, *arguments: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Value and VJP function."""
    c = check(op, *arguments)
    with c.given.kind.device:
        target = Target(c.given, c.out, reduces=op.reduces)
        state = c.engine.linearize(c.rows, c.plan, target.rows)
        p = target.finish()

    def vjp_function(g: Any, /) -> Any:
        given = c.given
        with given.kind.device:
            cotangent, owner = _cotangent(op, given, g)
            gx = Target(given, sign=c.sign)
            numbers = _numbers_of(op, given)
            c.engine.vjp(c.rows, c.plan, state, cotangent, gx.rows, *numbers)
            del owner  # not before the launch
            return _gradients(op, c, gx, numbers)

    return p, vjp_function


def hvp(op: Any, v: Any, directions: tuple[Any, ...], g: Any, *arguments: Any) -> Any:
    """The gradients of <g, derivative along a direction>."""
    c = check(op, *arguments)
    given = c.given
    with given.kind.device:
        along = tangent(given, v, "v", c.sign)
        pairs = zip(op.names, directions, strict=True)
        moves = [direction(given, value, f"d{name}") for name, value in pairs]
        cotangent = tangent(given, g, "g")
        gx, numbers = Target(given, sign=c.sign), _numbers_of(op, given)
        state = c.engine.linearize(
            c.rows, c.plan, new_buffer(given.kind, given.view.size, given.compute)
        )
        along_numbers = tuple(move for move, _ in moves)
        c.engine.second(
            c.rows, c.plan, state, along, cotangent, along_numbers, gx.rows, tuple(numbers)
        )
        del moves  # the owners of memory: not before the launch
        return _gradients(op, c, gx, numbers)


def _numbers_of(op: Any, given: Given) -> list[Buffer]:
    """Room for a gradient of each row in each of its numbers."""
    return [new_buffer(given.kind, given.rows, np.float64) for _ in op.names]


def _gradients(op: Any, c: Call, gx: Target, numbers: list[Buffer]) -> Any:
    """What has been written, in the shapes of what it belongs to."""
    pairs = zip(numbers[op.fixed :], c.shapes[op.fixed :], strict=True)
    sums = [_gradient(c.given, each, shape) for each, shape in pairs]
    return op._gradients(gx.finish(), *[None] * op.fixed, *sums)


def batch(op: Any, name: str, *arguments: Any) -> Any:
    """One number for each row: the operator's function of this name."""
    c = check(op, *arguments)
    with c.given.kind.device:
        target = Target(c.given, sign=c.sign, reduces=True)
        getattr(c.engine, name)(c.rows, c.plan, target.rows)
        return target.finish()


def negate(array: Any) -> Any:
    """Change the sign of an array in place, and return it."""
    kind, view = kind_of(array), view_of(array, "x")
    with kind.device:
        copy(kind.stream, view, view, sign=-1)
    return array
