"""Matrices on a device: how they are laid out there. `memory` has the same for arrays in memory.

No array with a number for each entry leaves the device. What has one for each row or column is
copied: with a step the sums of the columns and the n x n products of the weights to the host, and
the thresholds of the columns back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._api import host_arrays
from ..._api.base import Array
from ..._api.device_call import beside, broadcast, dense_view
from ..._cuda.copying import copy
from ..._cuda.interop import View, buffer_of, kind_of, nothing, view_of
from ..._cuda.transfers import Room
from ..checks import check_axes
from ..reduction import Decided
from . import tables
from .passes import Passes, Table


class Tables:
    """Matrices in a row, contiguous; `array` is their memory as an array like x, if it is one."""

    def __init__(self, room: Room, view: View, table: tuple[int, int, int], array: Any = None):
        self.view, self.array, self._room, self._table = view, array, room, table

    def __getitem__(self, i: int) -> Table:
        _, m, n = self._table
        address = self.view.address + i * m * n * self.view.dtype.itemsize
        one = View(address, (m, n), (n, 1), self.view.dtype, True, self.view.owner)
        return Table(self._room, buffer_of(one), (m, n), self.view.dtype.type)


class Store:
    """The matrices of a call on a device, as `memory.Store` has them in memory."""

    shift = None  # scores are as they were given
    dtype: np.dtype[Any]

    def __init__(
        self, given: Any, axis: Any, where: Any, computed_in: Callable[[type], type]
    ) -> None:
        """Check and lay out; `computed_in` says in which type one of this type is computed."""
        kind, self._view = kind_of(given), view_of(given, "x")
        compute, self.dtype = host_arrays.compute_dtype(self._view.dtype, "x")
        self._compute, self._room, self.device = computed_in(compute), Room(kind), kind.device
        self.axis, self._shape = check_axes(axis, self._view), self._view.shape
        *leading, m, n = self._moved(self._view).shape
        self.batch, self.table = tuple(leading), (math.prod(leading), m, n)
        self._where = None
        if where is not None:
            mask = beside(self._view, where, "where")
            if mask.dtype != np.bool_:
                raise TypeError(f"where has dtype {mask.dtype}; expected bool")
            self._where = broadcast(mask, self._shape, "where")
        with self.device:
            self._x = self._laid_out(self._view, self._where)

    def _moved(self, view: View) -> View:
        """The view with the axes of rows and columns moved to the end."""
        order = [*(i for i in range(len(view.shape)) if i not in self.axis), *self.axis]
        shape, strides = (tuple(each[i] for i in order) for each in (view.shape, view.strides))
        return view._replace(shape=shape, strides=strides)

    def _laid_out(self, view: View, where: View | None = None) -> Tables:
        """A view of x's shape as matrices: its own memory where possible, otherwise a copy."""
        rows = self._moved(view)
        if rows.contiguous and rows.dtype == self._compute and where is None:
            return Tables(self._room, rows, self.table)
        made = self._room.new(view.size, self._compute)
        target = dense_view(made, rows.shape, self._compute)
        mask = None if where is None else self._moved(where)
        copy(self._room.kind.stream, rows, target, where=mask, fill=-np.inf)
        return Tables(self._room, target, self.table)

    @property
    def mask_counts(self) -> Callable[[int], None] | None:
        """A function that says that what a mask leaves is not known, if there is a mask."""
        return None if self._where is None else lambda i: None

    def present(self) -> Array:
        """The number of entries that take part in each row of each matrix."""
        with self.device:
            each = [self._x[i].sums(tables.present, axis=1) for i in range(self.table[0])]
        return np.reshape(each, self.table[:2])

    def rescale(self, temperature: Array) -> Array:
        """The temperatures, which act as the ends of the type's range where they are beyond."""
        return temperature

    def entries(self, i: int) -> Entries:
        """The entries of a matrix."""
        return Entries(self._x[i])

    def _survey(self, all_of: Tables) -> Array:
        whole, n = all_of[0], self.table[2]
        rows = self.table[0] * self.table[1]
        return Table(self._room, buffer_of(all_of.view), (rows, n), whole.dtype).survey()

    @property
    def are_given_finite(self) -> bool:
        """Whether no score was infinite as it was given, under a mask too."""
        given = self._x if self._where is None else self._laid_out(self._view)
        return not self._survey(given)[1:3].any()

    def excludes(self) -> bool:
        """Whether some entries do not take part."""
        return bool(self._survey(self._x)[2] > 0.0)

    def passes(self, i: int, decided: Decided, options: Any) -> Passes:
        """The passes over what is left of a matrix."""
        return Passes(self._rest(self._x[i], decided, True), decided.k, options)

    def tables(self) -> Tables:
        """Uninitialised matrices like those of x."""
        axes = len(self._shape)
        if self.axis == (axes - 2, axes - 1) and self.dtype == self._compute:
            array = self._room.kind.empty(self._shape, self.dtype)
            return Tables(self._room, view_of(array, "scratch memory"), self.table, array)
        made = self._room.new(math.prod(self.table), self._compute)
        return Tables(self._room, dense_view(made, self.table, self._compute), self.table)

    def tables_of(self, given: Any, name: str, shift: Array | None = None) -> Tables:
        """A direction or cotangent of x's shape as matrices of its type."""
        view = beside(self._view, given, name)
        host_arrays.compute_dtype(view.dtype, name)
        return self._laid_out(broadcast(view, self._shape, name))

    def of_rest(self, table: Table, decided: Decided) -> Table:
        """The entries of a matrix that belong to the rest."""
        return self._rest(table, decided, False)

    def _rest(self, table: Table, decided: Decided, finite: bool) -> Table:
        if decided.rows is None or decided.columns is None:
            return table
        left = [np.flatnonzero(each).astype(np.int64) for each in (decided.rows, decided.columns)]
        some = table.like((len(left[0]), len(left[1])))
        places = [self._room.of(each) for each in left]
        pointers = table.memory.pointer, tuple(each.pointer for each in places)
        kernel = tables.make_gather(self._compute, finite)
        some.launch(kernel, some.shape[1], table.shape[1], *pointers, some.memory.pointer)
        return some

    def fill(self, table: Table, value: float) -> None:
        """Write a number to all entries of a matrix."""
        number = self._room.of(np.array([value], self._compute))
        source = dense_view(number, (1,), self._compute)
        table.copied_from(source._replace(shape=table.shape, strides=(0, 0)))

    def write(self, i: int, decided: Decided, rest: Table | None, out: Table) -> None:
        """Write p of a whole matrix: that of the rest, if there is one, and what was decided."""
        self._spread_out(self._x[i], decided, rest, out, True)

    def write_rest(self, rest: Table, decided: Decided, out: Table) -> None:
        """Write a matrix that is 0 outside of the rest."""
        self._spread_out(out, decided, rest, out, False)

    def _spread_out(
        self, x: Table, decided: Decided, rest: Table | None, out: Table, decides: bool
    ) -> None:
        if rest is not None and (decided.rows is None or decided.columns is None):
            out.copied_from(rest.view(rest.shape))
            return
        room, none = self._room, nothing(self._compute)
        turns = [room.of(each) for each in decided.turns]
        places = [room.of(_places(each)) for each in (decided.rows, decided.columns)]
        table, width = (none, 0) if rest is None else (rest.memory, rest.shape[1])
        given = tables.Rest(table.pointer, width, *(each.pointer for each in places))
        pointers = x.memory.pointer, tuple(each.pointer for each in turns), given
        kernel = tables.make_spread_out(self._compute, decides)
        out.launch(kernel, out.shape[1], *pointers, out.memory.pointer)

    def give_back(self, all_of: Tables, shift: Array | None = None) -> Any:
        """Matrices in the shape and the type of x."""
        if all_of.array is not None:
            return all_of.array
        array = self._room.kind.empty(self._shape, self.dtype)
        target = self._moved(view_of(array, "the result"))
        source = dense_view(buffer_of(all_of.view), target.shape, self._compute)
        copy(self._room.kind.stream, source, target)
        return array

    def give_numbers(self, values: Array) -> Any:
        """A row of numbers for each matrix, in the type of x, on the device."""
        array = self._room.kind.empty((*self.batch, values.shape[1]), self.dtype)
        numbers = np.ascontiguousarray(host_arrays.cast(values, self.dtype))
        self._room.write(numbers, buffer_of(view_of(array, "the thresholds")))
        return array


def _places(left: Any) -> Array:
    """The place of each row or column among those that are left, -1 for others."""
    return np.where(left, np.cumsum(left) - 1, -1).astype(np.int64)


class Entries:
    """How many entries of a matrix are what, as they are asked for by `reduction.reduce`."""

    def __init__(self, x: Table) -> None:
        self._x = x
        bad, up, down, *_ = x.survey()
        self.has_nan, self.are_finite = bool(bad > 0.0), not (bad or up or down)

    def above(self) -> tuple[Array, Array]:
        """The numbers of +inf in rows and columns."""
        return self._x.sums(tables.above, axis=1), self._x.sums(tables.above)

    def counts(self, axis: int, rows: Array, columns: Array) -> Array:
        """The numbers of finite entries in these rows and columns, of each row or each column."""
        others, own = (columns, rows) if axis == 0 else (rows, columns)
        counts: Array = self._x.sums(tables.finite, others, axis=1 - axis).astype(np.int64) * own
        return counts
