"""The front door for arrays on a device: what `_api.operator` does, without looking at any number.

Shapes, types and numbers from the host are checked and raise as there. What only the device knows
(a k or a temperature in its memory, a NaN) makes its rows NaN instead: nothing here waits for the
device or copies from it.
"""

from __future__ import annotations

import functools
import importlib
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


class _Call(NamedTuple):
    given: Given
    rows: Rows
    sign: int  # -1 if the smallest entries are wanted
    out: Any
    k: Any  # shape of k as given, and of the temperature
    temperature: Any
    plan: Any
    room: Any


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


def _rows_view(given: Given, buffer: Buffer, dtype: Any) -> View:
    """Rows in memory of their own, seen with x's axes in the order of `as_rows`."""
    shape = (*given.batch, given.shape[given.axis])
    return View(buffer.address, shape, dense(shape), np.dtype(dtype), True, buffer.owner)


def _elsewhere(value: Any, name: str) -> TypeError:
    shape = f" of shape {np.shape(value)}" if isinstance(value, np.ndarray) else ""
    return TypeError(
        f"{name} is a {type(value).__name__}{shape} on the host; x is on a device, expected "
        f"{name} there too"
    )


# Arguments.


def check_rows(x: Any, axis: Any, where: Any = None) -> Given:
    """Check what every function of a device array has."""
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
    target = _rows_view(given, made, given.compute)
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
    absent = nothing(np.float64)
    if type(value) in (int, float) and low <= value <= high:
        return Argument(absent.pointer, float(value), 0), (), None  # the usual case, in a hurry
    if not host_arrays.on_device(value):
        number = check(value)
        if number.ndim:
            raise _elsewhere(value, name)
        return Argument(absent.pointer, float(number), 0), (), None
    view = view_of(value, name)
    stretched = _broadcast(view, given.batch, name)
    as_it_is = view.dtype == np.float64 and stretched.contiguous and not _written_over(given, view)
    if not view.shape or not as_it_is:
        made = new_buffer(given.kind, stretched.size, np.float64)
        whole = View(made.address, (stretched.size,), (1,), np.dtype(np.float64), True, made.owner)
        flat = stretched if given.batch else stretched._replace(shape=(1,), strides=(0,))
        target = whole._replace(shape=flat.shape, strides=dense(flat.shape))
        copy(given.kind.stream, flat, target)
        return Argument(made.pointer, 0.0, 1), view.shape, made.owner
    return Argument(buffer_of(stretched).pointer, 0.0, 1), view.shape, view.owner


def _real_dtype(value: Any, name: str, kinds: str, expected: str) -> None:
    if host_arrays.on_device(value):
        dtype = view_of(value, name).dtype
        if dtype.kind not in kinds:
            raise TypeError(f"{name} has dtype {dtype}; expected {expected}")


def temperature_of(given: Given, temperature: Any) -> Any:
    """(argument, shape, owner) of the temperature."""
    _real_dtype(temperature, "temperature", "iuf", "real numbers")
    return _per_row(
        given,
        temperature,
        "temperature",
        lambda value: _arguments.check_temperature(value, given.batch),
        5e-324,
        1.7e308,
    )


@functools.cache
def _room(module: str) -> Any:
    """The device side of the room that a module belongs to."""
    return importlib.import_module(".".join(module.split(".")[:2]) + ".cuda")


def _check(
    op: Any,
    x: Any,
    k: Any,
    temperature: Any,
    axis: Any,
    largest: Any,
    where: Any,
    out: Any,
    options: dict[str, Any],
) -> _Call:
    given = check_rows(x, axis, where)
    if not isinstance(largest, (bool, np.bool_)):
        raise TypeError(f"largest is {largest!r}; expected True or False")
    plan = op._plan(options)
    given = given._replace(compute=op._computed_in(plan, given.compute))
    n = given.shape[given.axis]
    if op.real_k:
        _real_dtype(k, "k", "iuf", "real numbers")
    else:
        _real_dtype(k, "k", "iu", "integers")
    if out is not None:
        if not host_arrays.on_device(out):
            raise _elsewhere(out, "out")
        target = view_of(out, "out")
        if target.shape != given.shape:
            raise ValueError(f"out has shape {target.shape}; expected x's shape {given.shape}")
        if target.dtype != given.dtype:
            raise TypeError(f"out has dtype {target.dtype}; expected {given.dtype}")
        if not target.writable:
            raise ValueError("out is read-only; expected an array that can be written")
        given = given._replace(out=target)
    room = _room(type(op).__module__)
    sign = 1 if largest else -1
    with given.kind.device:
        if given.where is not None and _written_over(given, given.where):
            given = given._replace(where=copy_of_mask(given.kind, given.where))
        k_rows, k_shape, k_owner = _per_row(
            given,
            k,
            "k",
            lambda value: op._check_k(value, n, given.batch),
            0 if op.real_k or type(k) is int else np.inf,
            n,
        )
        tau_rows, tau_shape, tau_owner = temperature_of(given, temperature)
        values = rows_of(given, given.view, sign, -np.inf)
    rows = problem(given, values, k_rows, tau_rows, (k_owner, tau_owner))
    return _Call(given, rows, sign, out, k_shape, tau_shape, plan, room)


def problem(given: Given, values: Buffer, k: Argument, temperature: Argument, owners: Any) -> Rows:
    """What a room is given."""
    return Rows(
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


# Results.


class Target:
    """Rows for a kernel to write, and the array that they become."""

    def __init__(self, given: Given, out: Any = None, sign: int = 1) -> None:
        self._given, self._sign = given, sign
        self.array = out if out is not None else given.kind.empty(given.shape, given.dtype)
        self._view = as_rows(view_of(self.array, "out"), given.axis)
        direct = self._view.contiguous and given.dtype == given.compute and sign > 0
        self._apart = not direct
        if direct:
            self.rows = buffer_of(self._view)
        else:
            self.rows = new_buffer(given.kind, self._view.size, given.compute)

    def finish(self) -> Any:
        """The array, once the kernels that write its rows have been launched."""
        if self._apart:
            source = _rows_view(self._given, self.rows, self._given.compute)
            copy(self._given.kind.stream, source, self._view, sign=self._sign)
        return self.array


def give_back_batch(given: Given, values: Buffer, sign: int = 1) -> Any:
    """One number for each row, float64 in scratch memory, as an array of the batch shape."""
    array = given.kind.empty(given.batch, given.dtype)
    target = view_of(array, "out")
    source = View(
        values.address, target.shape, dense(target.shape), np.dtype(np.float64), True, values.owner
    )
    copy(given.kind.stream, source, target, sign=sign)
    return array


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


def gradient_of(given: Given, per_row: Buffer, shape: tuple[int, ...]) -> Any:
    """What a pullback returns for an argument of this shape."""
    array = given.kind.empty(shape, given.dtype)
    sum_to(given.kind.stream, per_row, given.batch, shape, view_of(array, "the gradient"))
    return array


# Calls.


def call(op: Any, *arguments: Any) -> Any:
    """The value."""
    c = _check(op, *arguments)
    with c.given.kind.device:
        target = Target(c.given, c.out)
        c.room.value(c.rows, c.plan, target.rows)
        return target.finish()


def jvp(op: Any, dx: Any, dk: Any, dtemperature: Any, *arguments: Any) -> tuple[Any, Any]:
    """Value and derivative along a direction."""
    c = _check(op, *arguments)
    if dk is not None and not op.real_k:
        raise TypeError(f"dk was given, but {op.__name__} takes an integer k")
    with c.given.kind.device:
        v = tangent(c.given, dx, "dx", c.sign)
        in_k, k_owner = direction(c.given, dk, "dk")
        in_tau, tau_owner = direction(c.given, dtemperature, "dtemperature")
        target, moved = Target(c.given, c.out), Target(c.given)
        state = c.room.linearize(c.rows, c.plan, target.rows)
        c.room.push(c.rows, c.plan, state, v, in_k, in_tau, moved.rows)
        del k_owner, tau_owner  # not before the launch
        return target.finish(), moved.finish()


def vjp(op: Any, gradients: Any, *arguments: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Value and pullback."""
    c = _check(op, *arguments)
    with c.given.kind.device:
        target = Target(c.given, c.out)
        state = c.room.linearize(c.rows, c.plan, target.rows)
        p = target.finish()

    def pullback(g: Any, /) -> Any:
        given = c.given
        with given.kind.device:
            cotangent = tangent(given, g, "the cotangent")
            target = Target(given, sign=c.sign)
            gk, gtau = (new_buffer(given.kind, given.rows, np.float64) for _ in range(2))
            c.room.pull(c.rows, c.plan, state, cotangent, target.rows, gk, gtau)
            return gradients(
                target.finish(),
                gradient_of(given, gk, c.k) if op.real_k else None,
                gradient_of(given, gtau, c.temperature),
            )

    return p, pullback


def batch(op: Any, name: str, *arguments: Any) -> Any:
    """One number for each row: the room's function of this name."""
    c = _check(op, *arguments)
    with c.given.kind.device:
        values = new_buffer(c.given.kind, c.given.rows, np.float64)
        getattr(c.room, name)(c.rows, c.plan, values)
        return give_back_batch(c.given, values, c.sign)
