"""What every operator does before and after its mathematics.

An operator is one object, in the manner of a NumPy ufunc. It is called with arrays of any shape;
here they are checked and laid out as rows, handed to the methods with an underscore that its room
provides, and given back in the shape, type and kind that came in. Everything is checked before
anything is computed or written.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._threads.masking import masked
from . import arguments as _arguments
from . import host_arrays, scaling

Array = npt.NDArray[Any]


class Gradients(NamedTuple):
    """What a VJP function returns: the gradients of <cotangent, p>.

    Each has the shape of the argument it belongs to; where an argument was broadcast over rows,
    their contributions are summed.

    Parameters
    ----------
    x : array
        The gradient in the scores.
    k : array, scalar or None
        The gradient in k; None for operators whose k must be an integer, and for those without a k.
    temperature : array or scalar
        The gradient in the temperature.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> p, vjp = stk.thretopk.vjp([3.0, 2.0, 1.0, 4.0], 2)
    >>> round(float(vjp([1.0, 0.0, 0.0, 0.0]).k), 3)
    0.366
    """

    x: Any
    k: Any
    temperature: Any


class Layout(NamedTuple):
    """What the type and shape of x, the axis and the options say: the same for many calls."""

    compute: type  # of the rows
    dtype: np.dtype[Any]  # of the result
    axis: int
    batch: tuple[int, ...]
    table: tuple[int, int]  # shape of the rows
    plan: Any


class Call(NamedTuple):
    """A checked call: the problem, and how to give its result back."""

    rows: Any  # of the operator's `rows_type`
    given: Any  # x as it came
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result
    sign: int  # -1 if the smallest entries are wanted
    present: Array | None  # the mask as rows, one for all or one for each; None: all take part
    out: Array | None
    numbers: list[Any]  # k, temperature or what else rows have: a number, or an array as given
    plan: Any  # the operator's own options, checked
    shift: Array | None = None  # `rows` are 2^shift times what was given (`_api.scaling`)


class RowOperator:
    """A map of rows of scores, of which each has a few numbers of its own, such as a temperature.

    The public methods, which say what these numbers are called, are those of a subclass. They pass
    on `arguments`: the numbers, axis, largest, where, out, and a dict of the other options.
    """

    __name__: str
    #: The engine on the CPU: a package with the functions of the protocol `engine`.
    cpu: Any
    #: The engine of one row in chunks, a module; None if there is none.
    chunks: Any = None
    #: A checked problem: `x`, of shape (rows, n), contiguous, float32 or float64; and the numbers
    #: by name, each of shape (rows,).
    rows_type: Any
    #: Whether there is a temperature that has an effect.
    is_soft = True
    #: Whether k, if there is one, may be any real number in [0, n].
    real_k = False
    #: Whether the result has one number for each row, in the units of x.
    reduces = False
    #: Whether an axis may be without entries.
    takes_empty_rows = False
    #: Whether second derivatives are known.
    has_second = False
    #: Whether arrays on a device are taken.
    has_device_side = True
    #: What a masked entry is taken for: every room treats it as if it were not there.
    excluded = -np.inf

    def __init__(self) -> None:
        self.__doc__ = type(self).__doc__
        #: The names of the numbers that each row has.
        self.names: tuple[str, ...] = self.rows_type._fields[1:]
        #: How many of these, from the first, are no real numbers and have no derivative.
        self.fixed = int(self.names[0] == "k" and not self.real_k)
        # A fifth of a call on a short row. By type too: 1 is not True.
        self._known_layout = functools.lru_cache(maxsize=256, typed=True)(self._lay_out)

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb>"

    def __reduce__(self) -> str:
        return self.__name__

    @functools.cached_property
    def cuda(self) -> Any:
        """The engine on a device: imported when the first array there comes."""
        return importlib.import_module("..cuda", self.cpu.__name__)

    @staticmethod
    @functools.cache
    def _device() -> Any:
        """The same for arrays on a device: imported when the first of them comes."""
        return importlib.import_module(".device_operator", __package__)

    # The verbs.

    def _evaluate(self, x: Any, *arguments: Any) -> Any:
        if type(x) is not np.ndarray and self.has_device_side and host_arrays.on_device(x):
            return self._device().call(self, x, *arguments)
        call = self._check(x, *arguments)
        p = self._target(call)
        self.cpu.value(call.rows, call.plan, p)
        return self._give_back(call, p)

    def _jvp(
        self, dx: Any, directions: tuple[Any, ...], x: Any, *arguments: Any
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction in x and in each of the numbers."""
        if self.has_device_side and host_arrays.on_device(x):
            pair: tuple[Any, Any] = self._device().jvp(self, dx, directions, x, *arguments)
            return pair
        call = self._check(x, *arguments)
        direction = self._direction(call, dx, directions)
        p = self._target(call, direction.rows)
        state = self.cpu.linearize(call.rows, call.plan, p)
        dp = self._tangent(call, state, direction.rows, *direction.numbers)
        return self._give_back(call, p), self._give_back(call, direction.back(dp), is_value=False)

    def _vjp(self, x: Any, *arguments: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Value and VJP function."""
        if self.has_device_side and host_arrays.on_device(x):
            both: tuple[Any, Any] = self._device().vjp(self, x, *arguments)
            return both
        result, call, state = self._solved(x, *arguments)

        def vjp_function(g: Any, /) -> Any:
            return self._pull_back(call, state, g)

        return result, vjp_function

    # The same in steps, for what keeps a solved call: its state may be packed as an array.

    def _solved(self, x: Any, *arguments: Any) -> tuple[Any, Call, Any]:
        """(value, checked call, what derivatives need of it)."""
        call = self._kept(self._check(x, *arguments))
        p = self._target(call)
        state = self.cpu.linearize(call.rows, call.plan, p)
        return self._give_back(call, p), call, state

    def _direction(
        self, call: Call, dx: Any, numbers: tuple[Any, ...], name: str = "dx"
    ) -> _arguments.Direction:
        rows = self._rows_of(call, dx, name)
        if call.sign < 0:
            rows = -rows
        moves = [
            _arguments.direction(each, call.batch, f"d{name}")
            for name, each in zip(self.names, numbers, strict=True)
        ]
        return _arguments.Direction(call.rows.x, rows, *moves)

    def _move(self, call: Call, state: Any, dx: Any, numbers: tuple[Any, ...]) -> Any:
        """The derivative of a solved call along a direction in x and in each of the numbers."""
        direction = self._direction(call, dx, numbers)
        dp = self._tangent(call, state, direction.rows, *direction.numbers)
        return self._give_back(call, direction.back(dp), is_value=False)

    def _second(
        self,
        call: Call,
        state: Any,
        v: Any,
        moves: tuple[Any, ...],
        a: Any,
        others: tuple[Any, ...],
        name: str = "a",
    ) -> Any:
        """The derivative of a solved call along two directions, as `x` of what is returned.

        Each is one in x and one in each of the numbers. Where a is a cotangent, and the numbers do
        not move with it, these are the gradients of <a, derivative along the first>.
        """
        first = self._direction(call, v, moves, "v")
        other = self._direction(call, a, others, name)
        given = first.rows, first.numbers, other.rows, other.numbers
        result = scaling.along_two(self._second_rows, call, state, *given)
        gx, *numbers = (other.back(first.back(each)) for each in result)
        if call.sign < 0:
            # The second direction was turned as well: right for a direction, and for the gradient
            # in x of a cotangent.
            numbers = [-each for each in numbers]
        return self._summed(call, gx, numbers)

    def _second_rows(
        self,
        call: Call,
        state: Any,
        v: Array,
        moves: tuple[Array, ...],
        a: Array,
        others: tuple[Array, ...],
    ) -> tuple[Array, ...]:
        x = call.rows.x
        out, sums = np.empty(x.shape, x.dtype), np.empty((len(x), len(self.names)))
        table = np.stack([*moves, *others], axis=1)
        self.cpu.second(call.rows, call.plan, state, v, a, table, out, sums)
        return out, *np.ascontiguousarray(sums.T)

    def _tangent(self, call: Call, state: Any, dx: Array, *numbers: Array) -> Array:
        def push(*directions: Array) -> Array:
            dp = self._empty(call)
            self.cpu.jvp(call.rows, call.plan, state, *directions, dp)
            return dp

        # What is in the units of x has the derivative of the rows that it was computed for.
        return scaling.along(push, None if self.reduces else call.shift, dx, *numbers)

    def _pull_back(self, call: Call, state: Any, g: Any) -> Any:
        return self._summed(call, *self._pulled(call, state, g))

    def _pulled(self, call: Call, state: Any, g: Any) -> tuple[Array, list[Array]]:
        """Gradients in x and the numbers, row by row."""
        x = call.rows.x
        cotangent = _arguments.Direction(x, self._cotangent(call, g))
        gx, numbers = np.empty(x.shape, x.dtype), [np.empty(len(x)) for _ in call.numbers]
        self.cpu.vjp(call.rows, call.plan, state, cotangent.rows, gx, *numbers)
        gx, *numbers = map(cotangent.back, (gx, *numbers))
        if call.shift is not None and not self.reduces:
            gx = scaling.scaled(gx, call.shift)
            numbers[-1] = scaling.scaled(numbers[-1], call.shift)
        if call.sign < 0:
            np.negative(gx, out=gx)
        return gx, numbers

    def _summed(self, call: Call, gx: Array, numbers: list[Array]) -> Any:
        """Gradients in the shapes of what they belong to."""
        sums: list[Any] = [None] * len(numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(self.fixed, len(numbers)):
                sums[i] = host_arrays.sum_to(numbers[i], call.batch, call.numbers[i], call.dtype)
        return self._gradients(self._give_back(call, gx, is_value=False), *sums)

    # Arguments.

    def _check(self, x: Any, *arguments: Any, as_given: bool = False) -> Call:
        """A checked call.

        Its temperatures are not near the ends of their range, unless x is wanted `as_given`.
        """
        *numbers, axis, largest, where, out, options = arguments
        values = host_arrays.as_numpy(x, "x")
        shape = values.shape
        if not shape:
            raise ValueError(f"x is 0-dimensional ({x!r}); expected at least one axis")
        compute, dtype, axis, batch, table, plan = self._layout(values.dtype, shape, axis, options)
        if largest is not True:
            _arguments.check_largest(largest)
        given = self._check_numbers(table[1], batch, *numbers)
        mask = None if where is None else _arguments.check_where(where, shape)
        if out is not None:
            _arguments.check_out(out, *self.shape_of_out(shape, batch), dtype)
        rows = host_arrays.to_rows(values, axis, compute, table)
        if not largest:
            rows = -rows
        present = None
        if mask is not None:
            present = _arguments.rows_of_mask(mask, axis, table, out)
            present = None if present.all() else present
        if present is not None:
            rows = masked(rows, present, self.excluded)
        width, shift = _arguments.per_row(given[-1], batch, table[0]), None
        if self.is_soft and not as_given and not scaling.is_moderate(given[-1], compute):
            rows, width, shift = scaling.rescaled(rows, width)
        # One more or none: spelled out, since this is a large part of a call on few rows.
        if len(given) == 1:
            problem = self.rows_type(rows, width)
        else:
            k = _arguments.per_row(given[0], batch, table[0])
            problem = self.rows_type(rows, k, width)
        sign = 1 if largest else -1
        of_rows = batch, dtype, sign, present
        return Call(problem, x, shape, axis, *of_rows, out, given, plan, shift)

    def _layout(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], axis: Any, options: dict[str, Any]
    ) -> Layout:
        """`_lay_out`, from memory if that can be."""
        try:
            return self._known_layout(dtype, shape, axis, **options)
        except TypeError:
            pass  # an option without a hash, or a wrong one: then it is raised below
        return self._lay_out(dtype, shape, axis, **options)

    def _lay_out(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], axis: Any, **options: Any
    ) -> Layout:
        """What a call's arguments say but for their numbers."""
        compute, result = host_arrays.compute_dtype(dtype, "x")
        axis = _arguments.check_axis(axis, len(shape))
        n, batch = shape[axis], shape[:axis] + shape[axis + 1 :]
        if n == 0:
            self.check_length(shape, axis)
        plan = self._plan(options)
        table = math.prod(batch), n
        return Layout(self._computed_in(plan, compute), result, axis, batch, table, plan)

    def check_length(self, shape: tuple[int, ...], axis: int) -> None:
        """Refuse rows without entries, unless the operator takes them."""
        if shape[axis] == 0 and not self.takes_empty_rows:
            raise ValueError(f"x has shape {shape}; expected at least one entry along axis {axis}")

    def shape_of_out(
        self, shape: tuple[int, ...], batch: tuple[int, ...]
    ) -> tuple[tuple[int, ...], str]:
        """The shape that `out` must have, and its name."""
        return (batch, "the batch shape") if self.reduces else (shape, "x's shape")

    def _check_numbers(self, n: int, batch: tuple[int, ...], *numbers: Any) -> list[Any]:
        """The numbers, each of a shape that broadcasts to the batch shape."""
        return [_arguments.check_positive(numbers[0], batch, self.names[0])]

    def _rows_of(self, call: Call, v: Any, name: str) -> Array:
        """A direction or cotangent of x's shape."""
        # Kernels leave out what belongs to excluded entries; what is scaled would be scaled by it.
        apart = self.excluded == -np.inf and call.shift is None
        return _arguments.rows_of(v, name, call.shape, call.axis, call.rows.x, call.present, apart)

    def _cotangent(self, call: Call, g: Any) -> Array:
        name = "the cotangent"
        if not self.reduces:
            return self._rows_of(call, g, name)
        given = host_arrays.as_numpy(g, name)
        host_arrays.compute_dtype(given.dtype, name)
        _arguments.check_broadcast(given, call.batch, name)
        return _arguments.per_row(given.astype(np.float64), call.batch, len(call.rows.x))

    # Results.

    def _empty(self, call: Call) -> Array:
        """Memory for a value or its derivative: rows, or float64 numbers."""
        x = call.rows.x
        return np.empty(len(x)) if self.reduces else np.empty(x.shape, x.dtype)

    def _target(self, call: Call, *read_later: Array) -> Array:
        """Memory for the value: `out` itself where it will do, else new.

        `read_later`: what is still to be read, beside x, once the value has been written.
        """
        out, x = call.out, call.rows.x
        if (
            out is not None
            and not self.reduces
            and out.dtype == x.dtype
            and out.dtype.isnative
            and out.flags.c_contiguous
            and call.axis == out.ndim - 1
            and not any(np.may_share_memory(out, rows) for rows in (x, *read_later))
        ):
            return out.reshape(x.shape)
        return self._empty(call)

    @staticmethod
    def _kept(call: Call) -> Call:
        """The call with copies of what the VJP function reads, if the value is written over it."""
        if call.out is None:
            return call
        rows = call.rows
        if np.may_share_memory(call.out, rows.x):
            rows = rows._replace(x=rows.x.copy())
        return call._replace(rows=rows)

    def _give_back(self, call: Call, values: Array, *, is_value: bool = True) -> Any:
        """Rows in the shape, type and kind of x, written to `out` if they are the value."""
        if values.ndim == 1:
            return self._give_back_batch(call, values, is_value=is_value)
        result = values
        if values.shape != call.shape or call.axis != 1:
            result = host_arrays.from_rows(values, call.shape, call.axis)
        if call.out is not None and is_value:
            target = host_arrays.as_numpy(call.out, "out")
            if not np.shares_memory(values, target):
                host_arrays.write_rows(host_arrays.cast(values, call.dtype), call.axis, target)
            return call.out
        return host_arrays.like(call.given, host_arrays.cast(result, call.dtype))

    def _give_back_batch(self, call: Call, values: Array, *, is_value: bool = True) -> Any:
        """One number for each row; values are in the units of x."""
        if call.shift is not None and is_value:
            values = scaling.scaled(values, -call.shift)
        result = host_arrays.cast(values, call.dtype).reshape(call.batch)
        if call.out is not None and is_value:
            call.out[...] = result
            return call.out
        return host_arrays.like(call.given, result) if call.batch else result[()]

    # What an operator says of its own options and rows.

    def _plan(self, options: dict[str, Any]) -> Any:
        """Check the operator's own options and return what its kernels need."""
        return None

    def _computed_in(self, plan: Any, given: type) -> type:
        """The type of the rows, where `given` is that of x or the next wider one."""
        return given

    def _computed_in_chunks(self, plan: Any, given: type) -> type:
        """The same for a row in chunks."""
        return self._computed_in(plan, given)

    def _gradients(self, x: Any, *numbers: Any) -> Any:
        """What a VJP function returns."""
        return Gradients(x, *numbers)
