"""Checked calls of arrays in memory: x as rows to compute, and results in x's form.

Arrays of any shape are checked and laid out as rows, passed to the operator's engine on the CPU,
and returned in x's shape, type and kind of array. Everything is checked before anything is computed
or written. `device_call` does the same for arrays on a device.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._threads.masking import masked
from . import arguments as _arguments
from . import host_arrays, scaling

Array = npt.NDArray[Any]


class Layout(NamedTuple):
    """What follows from the type and shape of x, the axis and the options: cached over calls."""

    compute: type  # of the rows
    dtype: np.dtype[Any]  # of the result
    axis: int
    batch: tuple[int, ...]
    table: tuple[int, int]  # shape of the rows
    options: Any


class Call(NamedTuple):
    """A checked call: the problem, its verbs, and how to return a result."""

    op: Any
    rows: Any  # of the operator's `rows_type`
    given: Any  # x as given
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result
    sign: int  # -1 if the smallest entries are wanted
    present: Array | None  # the mask as rows, one for all or one for each; None: no mask
    out: Array | None
    numbers: list[Any]  # k, temperature or what else rows have: a number, or an array as given
    options: Any  # the operator's own, checked
    shift: Array | None = None  # `rows` are 2^shift times the given ones (`_api.scaling`)

    def value(self) -> Any:
        """Compute the value, as an array like x."""
        p = self._target()
        self.op.cpu.value(self.rows, self.options, p)
        return self.give_back(p)

    def solve(self, *read_later: Any) -> tuple[Any, Any]:
        """(the value as rows, for `give_back`; the state).

        `read_later`: directions that are still to be read, so that the value must not overwrite
        them.
        """
        p = self._target(*(each.rows for each in read_later))
        return p, self.op.cpu.linearize(self.rows, self.options, p)

    def state(self) -> Any:
        """The state for derivatives, without the value."""
        return self.op.cpu.linearize(self.rows, self.options, self._empty())

    def packed(self, state: Any) -> Array:
        """The state as an array, shape (*batch, width)."""
        numbers: Array = self.op.cpu.pack(self.rows, self.options, state)
        return numbers.reshape((*self.batch, numbers.shape[1]))

    def unpacked(self, numbers: Array) -> Any:
        """The state from such an array."""
        table = np.ascontiguousarray(numbers).reshape(len(self.rows.x), numbers.shape[-1])
        return self.op.cpu.unpack(self.rows, self.options, table)

    def kept(self) -> Call:
        """The call with a copy of x, if writing the value would overwrite it."""
        if self.out is None or not np.may_share_memory(self.out, self.rows.x):
            return self
        return self._replace(rows=self.rows._replace(x=self.rows.x.copy()))

    def direction(
        self, dx: Any, numbers: tuple[Any, ...], name: str = "dx", *, cotangent: bool = False
    ) -> _arguments.Direction:
        """A checked direction in x and in each of the numbers; None means 0.

        Or the cotangent of a derivative, which `largest=False` does not negate.
        """
        rows = self._rows_of(dx, name)
        if self.sign < 0 and not cotangent:
            rows = -rows
        moves = [
            _arguments.direction(each, self.batch, self.axis, f"d{name}")
            for name, each in zip(self.op.names, numbers, strict=True)
        ]
        return _arguments.Direction(self.rows.x, rows, *moves)

    def jvp(self, state: Any, direction: _arguments.Direction) -> Any:
        """The derivative along a direction."""

        def along(*directions: Array) -> Array:
            dp = self._empty()
            self.op.cpu.jvp(self.rows, self.options, state, *directions, dp)
            return dp

        # A value in the units of x has the same derivative for scaled rows.
        shift = None if self.op.reduces else self.shift
        dp = scaling.along(along, shift, direction.rows, *direction.numbers)
        return self.give_back(direction.back(dp), is_value=False)

    def vjp(self, state: Any, g: Any, /) -> Any:
        """The gradients of <g, value>, each in the shape of its argument."""
        return self._summed(*self._gradients(state, g))

    def vjp_in_x(self, state: Any, g: Any) -> Any:
        """The gradient of <g, value> in x alone."""
        return self.give_back(self._gradients(state, g)[0], is_value=False)

    def second(self, state: Any, first: _arguments.Direction, other: _arguments.Direction) -> Any:
        """The derivative along two directions, as the `x` of the gradients that are returned.

        If the other is a cotangent, with zeros for its numbers, these are the gradients of <other,
        derivative along the first>.
        """
        given = first.rows, first.numbers, other.rows, other.numbers
        result = scaling.along_two(self._second_rows, self.shift, state, *given)
        gx, *numbers = (other.back(first.back(each)) for each in result)
        if self.sign < 0:
            np.negative(gx, out=gx)
        return self._summed(gx, numbers)

    def number(self, name: str) -> Any:
        """A number per row in the units of x, by the engine's function of this name."""
        found = np.empty(len(self.rows.x))
        getattr(self.op.cpu, name)(self.rows, self.options, found)
        return self.give_back(self.sign * found)

    def give_back(self, values: Array, *, is_value: bool = True) -> Any:
        """Rows in the shape, type and array kind of x, written to `out` if they are the value.

        One number per row is returned in the batch shape instead.
        """
        if values.ndim == 1:
            return self._give_back_batch(values, is_value=is_value)
        result = values
        if values.shape != self.shape or self.axis != 1:
            result = host_arrays.from_rows(values, self.shape, self.axis)
        if self.out is not None and is_value:
            target = host_arrays.as_numpy(self.out, "out")
            if not np.shares_memory(values, target):
                host_arrays.write_rows(host_arrays.cast(values, self.dtype), self.axis, target)
            return self.out
        return host_arrays.like(self.given, host_arrays.cast(result, self.dtype))

    def _give_back_batch(self, values: Array, *, is_value: bool) -> Any:
        """One number per row in the batch shape; values are in the units of x."""
        if self.shift is not None and is_value:
            values = scaling.scaled(values, -self.shift)
        result = host_arrays.cast(values, self.dtype).reshape(self.batch)
        if self.out is not None and is_value:
            self.out[...] = result
            return self.out
        return host_arrays.like(self.given, result) if self.batch else result[()]

    def _empty(self) -> Array:
        """Uninitialised memory for a value or its derivative: rows, or a float64 per row."""
        x = self.rows.x
        return np.empty(len(x)) if self.op.reduces else np.empty(x.shape, x.dtype)

    def _target(self, *read_later: Array) -> Array:
        """Memory for the value: `out` itself if it is suitable, otherwise new.

        `read_later`: arrays that are still to be read, beside x, once the value has been written.
        """
        out, x = self.out, self.rows.x
        if (
            out is not None
            and not self.op.reduces
            and out.dtype == x.dtype
            and out.dtype.isnative
            and out.flags.c_contiguous
            and self.axis == out.ndim - 1
            and not any(np.may_share_memory(out, rows) for rows in (x, *read_later))
        ):
            return out.reshape(x.shape)
        return self._empty()

    def _rows_of(self, v: Any, name: str) -> Array:
        """A direction or cotangent of x's shape as rows."""
        # Kernels ignore what belongs to excluded entries; but scaling would depend on it.
        apart = self.op.excluded == -np.inf and self.shift is None
        return _arguments.rows_of(v, name, self.shape, self.axis, self.rows.x, self.present, apart)

    def _cotangent(self, g: Any) -> Array:
        name = "the cotangent"
        if not self.op.reduces:
            return self._rows_of(g, name)
        given = host_arrays.as_numpy(g, name)
        host_arrays.compute_dtype(given.dtype, name)
        _arguments.check_broadcast(given, self.batch, name)
        return _arguments.per_row(given.astype(np.float64), self.batch, len(self.rows.x))

    def _gradients(self, state: Any, g: Any) -> tuple[Array, list[Array]]:
        """The gradients in x and the numbers, one per row."""
        x = self.rows.x
        cotangent = _arguments.Direction(x, self._cotangent(g))
        gx, numbers = np.empty(x.shape, x.dtype), [np.empty(len(x)) for _ in self.numbers]
        self.op.cpu.vjp(self.rows, self.options, state, cotangent.rows, gx, *numbers)
        gx, *numbers = map(cotangent.back, (gx, *numbers))
        if self.shift is not None and not self.op.reduces:
            gx = scaling.scaled(gx, self.shift)
            numbers[-1] = scaling.scaled(numbers[-1], self.shift)
        if self.sign < 0:
            np.negative(gx, out=gx)
        return gx, numbers

    def _second_rows(
        self, state: Any, v: Array, moves: tuple[Array, ...], a: Array, others: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        x = self.rows.x
        out, sums = np.empty(x.shape, x.dtype), np.empty((len(x), len(self.numbers)))
        table = np.stack([*moves, *others], axis=1)
        self.op.cpu.second(self.rows, self.options, state, v, a, table, out, sums)
        return out, *np.ascontiguousarray(sums.T)

    def _summed(self, gx: Array, numbers: list[Array]) -> Any:
        """Gradients in the shapes of their arguments, summed over broadcast axes."""
        sums: list[Any] = [None] * len(numbers)
        for i in range(self.op.fixed, len(numbers)):
            sums[i] = self.sum_to_given(numbers[i], self.numbers[i])
        return self.op.gradients(self.give_back(gx, is_value=False), *sums)

    def sum_to_given(self, per_row: Array, given: Any) -> Any:
        """The gradient in numbers of rows, in the shape given, from that in each row's own."""
        batch = _arguments.shape_of_rows(np.ndim(given), self.batch, self.axis)
        return host_arrays.sum_to(per_row, batch, given, self.dtype)


def check(op: Any, x: Any, *arguments: Any, as_given: bool = False) -> Call:
    """Check a call; the arguments are those of `base.RowOperator`.

    Rows with a temperature near an end of its range are scaled, unless x is wanted `as_given`.
    """
    *numbers, axis, largest, where, out, options = arguments
    values = host_arrays.as_numpy(x, "x")
    shape = values.shape
    compute, dtype, axis, batch, table, options = layout_of(op, values.dtype, shape, axis, options)
    if largest is not True:
        _arguments.check_largest(largest)
    given = check_numbers(op, table[1], batch, axis, *numbers)
    mask = None if where is None else _arguments.check_where(where, shape)
    if out is not None:
        wanted, what = op.shape_of_out(shape, batch)
        _arguments.check_out(out, wanted, what, dtype)
    rows = host_arrays.to_rows(values, axis, compute, table)
    if not largest:
        rows = -rows
    present = None
    if mask is not None:
        present = _arguments.entries_as_rows(mask, axis, bool, table, out)
        present = None if present.all() else present
    if present is not None:
        rows = masked(rows, present, op.excluded)
    if op.check_rows is not None:
        rows = op.check_rows(rows)
    width, shift = _arguments.per_row(given[-1], batch, table[0], axis), None
    if op.is_soft and not as_given and not scaling.is_moderate(given[-1], compute):
        rows, width, shift = scaling.rescaled(rows, width)
    # No loop over the numbers: this is a large part of a call on few rows.
    if len(given) == 1:
        problem = op.rows_type(rows, width)
    else:
        k = _arguments.per_row(given[0], batch, table[0], axis)
        if type(numbers[0]) is _arguments.Clamped:
            # Where this is less than k all derivatives are 0, that in k too.
            np.minimum(k, np.count_nonzero(rows != op.excluded, axis=1), out=k)
        problem = op.rows_type(rows, k, width)
    sign = 1 if largest else -1
    of_rows = batch, dtype, sign, present
    return Call(op, problem, x, shape, axis, *of_rows, out, given, options, shift)


def check_numbers(op: Any, n: int, batch: tuple[int, ...], axis: int, *numbers: Any) -> list[Any]:
    """The checked numbers of rows of n entries, each of a shape that fits the batch."""
    if len(op.names) == 1:
        return [_arguments.check_positive(numbers[-1], batch, op.names[0], axis)]
    k, temperature = numbers
    return [
        _arguments.check_k(k, n, batch, op.real_k, axis),
        _arguments.check_positive(temperature, batch, op.names[1], axis),
    ]


def layout_of(
    op: Any, dtype: np.dtype[Any], shape: tuple[int, ...], axis: Any, options: dict[str, Any]
) -> Layout:
    """The layout of a call, from the cache if the options are hashable."""
    try:
        return _known_layout(op, dtype, shape, axis, **options)
    except TypeError:
        pass  # an option is unhashable, or invalid: then the call below raises
    return _lay_out(op, dtype, shape, axis, **options)


def _lay_out(
    op: Any, dtype: np.dtype[Any], shape: tuple[int, ...], axis: Any, **options: Any
) -> Layout:
    """The layout of a call: all that does not depend on its numbers."""
    compute, result = host_arrays.compute_dtype(dtype, "x")
    axis = _arguments.check_axis(axis, len(shape))
    n, batch = shape[axis], shape[:axis] + shape[axis + 1 :]
    if n == 0:
        op.check_length(shape, axis)
    own = op.check_options(options)
    table = math.prod(batch), n
    return Layout(op.computed_in(own, compute), result, axis, batch, table, own)


# Saves a fifth of a call on a short row. By type too: 1 is not True.
_known_layout = functools.lru_cache(maxsize=2048, typed=True)(_lay_out)
