"""The passes of a search over a matrix on a device: `memory.Passes`, with the same functions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..._api.base import Array
from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.copying import clamped, copy, sum_to
from ..._cuda.interop import View, dense, nothing
from ..._cuda.launch import choose_for_two
from ..._cuda.transfers import Room
from ..._curves.base import origin
from ...thretopk import cuda as thretopk
from ...thretopk.cuda.rows import THREADS as ROWS_OF_BLOCK
from ...thretopk.cuda.rows import make_threshold
from . import rows as kernels
from . import tables

SUMMED = 256  # rows of which products are added at least before those of others
MOST_SUMS = 1 << 22  # numbers that parts of the rows have for their products in all, if several


class Table:
    """A matrix, contiguous on a device, and what is done to its entries."""

    def __init__(self, room: Room, memory: Buffer, shape: tuple[int, int], dtype: Any) -> None:
        self.room, self.memory, self.shape, self.dtype = room, memory, shape, dtype

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    def view(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> View:
        """Its memory as an array of this shape."""
        kind, steps = np.dtype(self.dtype), dense(shape) if strides is None else strides
        return View(self.memory.address, shape, steps, kind, True, self.memory.owner)

    def like(self, shape: tuple[int, int] | None = None) -> Table:
        """An uninitialised matrix of this shape, by default its own."""
        shape = shape or self.shape
        memory = self.room.new(shape[0] * shape[1], self.dtype)
        return Table(self.room, memory, shape, self.dtype)

    def copied_from(self, source: View) -> None:
        """Write the entries of a view of its shape."""
        copy(self.room.kind.stream, source, self.view(self.shape))

    def launch(self, kernel: Any, *given: Any) -> None:
        """Launch a kernel that has a thread for each entry and takes their number first."""
        kernel(-(-self.size // tables.THREADS), self.room.kind.stream, self.size, *given)

    def less(self, b: Buffer, out: Table, axis: int = 1) -> None:
        """Write the entries less a number for each row (axis 0) or each column."""
        pointers = self.memory.pointer, b.pointer, out.memory.pointer
        self.launch(tables.make_less(self.dtype, axis), self.shape[1], *pointers)

    def survey(self) -> Array:
        """The numbers of NaN, +inf and -inf; the smallest and the largest finite entry."""
        piece = tables.THREADS * 4
        blocks = min(-(-self.size // piece), tables.MOST_BLOCKS)
        found = self.room.new(blocks * tables.FOUND, np.float64)
        given = self.size, self.memory.pointer, found.pointer
        tables.make_survey(self.dtype)(blocks, self.room.kind.stream, *given)
        each = self.room.read(found, (blocks, tables.FOUND))
        return np.r_[each[:, :3].sum(axis=0), each[:, 3].min(), each[:, 4].max()]

    def sums(self, term: Any, given: Array | None = None, axis: int = 0) -> Array:
        """The sums of a term along an axis; `given` has a number for each column or each row."""
        room, (m, n), steps = self.room, self.shape, (self.shape[1], 1)
        if axis == 1:
            (m, n), steps = (n, m), (1, n)
        numbers = nothing(np.float64) if given is None else room.of(np.asarray(given, np.float64))
        parts = -(-m // tables.HEIGHT)
        found = room.new(parts * n, np.float64)
        blocks, pointers = parts * -(-n // tables.WIDTH), (self.memory.pointer, numbers.pointer)
        kernel = tables.make_column_sums(self.dtype, term)
        kernel(blocks, room.kind.stream, (m, n), steps, *pointers, found.pointer)
        return _added(room, found, parts, n)

    def products(self) -> Array:
        """v^T v of these weights v, in float64."""
        room, (m, n) = self.room, self.shape
        parts = min(-(-m // SUMMED), max(MOST_SUMS // (n * n), 1))
        length = -(-m // (parts * tables.TILE)) * tables.TILE
        parts = -(-m // length)
        found = room.new(parts * n * n, np.float64)
        blocks = parts * (-(-n // tables.TILE)) ** 2
        given = m, n, length, self.memory.pointer, found.pointer
        tables.make_products(self.dtype)(blocks, room.kind.stream, *given)
        return _added(room, found, parts, n * n).reshape(n, n)


def _added(room: Room, found: Buffer, parts: int, count: int) -> Array:
    """The sums over parts that have so many numbers each, on the host."""
    total = found
    if parts > 1:
        total, kind = room.new(count, np.float64), np.dtype(np.float64)
        out = View(total.address, (count,), (1,), kind, True, total.owner)
        sum_to(room.kind.stream, found, (parts, count), (count,), out)
    numbers: Array = room.read(total, (count,))
    return numbers


class Passes:
    """The passes over a matrix on a device: as in memory, of which there is as much."""

    def __init__(self, x: Table, k: Array, options: Any) -> None:
        self._x, self._k, self._options = x, k, options
        self.shape, self.dtype = x.shape, x.dtype
        self.p, self._y, self._v = x.like(), x.like(), x.like()
        self._room, self._r = x.room, x.room.new(len(k), np.float64)
        self._of_rows = self._room.of(np.ascontiguousarray(k, np.float64))

    def _rows(self, table: Table, k: Buffer, temperature: float) -> Rows:
        """The rows of a table as a problem of `thretopk`."""
        room, T, excluded = self._room, table.dtype, nothing(np.float64)
        numbers = Argument(k.pointer, 0.0, 1), Argument(excluded.pointer, temperature, 0)
        (m, n), stream = table.shape, room.kind.stream
        return Rows(table.memory, *numbers, m, n, T, stream, room.new, nothing(T), (table, k))

    def at(self, b: Array, temperature: float) -> tuple[Any, Array]:
        """Solve the rows for these thresholds of the columns: (solution, sums of the columns)."""
        self._x.less(self._room.of(b), self._y)
        rows = self._rows(self._y, self._of_rows, temperature)
        solution = thretopk.linearize(rows, self._options, self.p.memory)
        return solution, self.p.sums(tables.entry)

    def _thresholds(self, solution: Buffer, temperature: float) -> Buffer:
        m, out = self.shape[0], self._room.new(self.shape[0], np.float64)
        tau = Argument(nothing(np.float64).pointer, temperature, 0)
        given = m, tau, origin(self._options.curve), solution.pointer, out.pointer
        make_threshold()(-(-m // ROWS_OF_BLOCK), self._room.kind.stream, *given)
        return out

    def thresholds(self, solution: Buffer, temperature: float) -> Array:
        """The thresholds of the rows."""
        found: Array = self._room.read(self._thresholds(solution, temperature), self.shape[:1])
        return found

    def _run(self, make: Any, table: Table, temperature: float, *given: Any) -> None:
        """Launch a kernel of `rows` over the rows of a table."""
        *options, given = given
        kernel = make(table.dtype, choose_for_two(table.shape[1], table.dtype), *options)
        kernel.run(self._rows(table, self._of_rows, temperature), *given)

    def weigh(self, solution: Buffer, temperature: float) -> Array:
        """The matrix v^T v of the weights at the solution that y is of."""
        given = solution, self._v.memory, self._r
        self._run(kernels.make_weigh, self._y, temperature, self._options.curve, given)
        return self._v.products()

    def columns_solved(
        self, solution: Buffer, temperature: float, load: Array, bounded: bool
    ) -> Array:
        """The thresholds of the columns, each solved for those of the rows."""
        (m, n), room = self.shape, self._room
        # Of memory there is enough: the columns take that of the weights.
        flat = Table(room, self._v.memory, (n, m), self.dtype)
        flat.copied_from(self._x.view((n, m), (1, n)))
        flat.less(self._thresholds(solution, temperature), flat)
        rows = self._rows(flat, room.of(load), temperature)
        found = room.new(n, np.float64)
        thretopk.threshold(clamped(rows) if bounded else rows, self._options, found)
        numbers: Array = room.read(found, (n,))
        return numbers

    @functools.cached_property
    def extent(self) -> tuple[float, float, bool]:
        """(the smallest entry that takes part, the largest one, whether all take part)."""
        _, _, down, low, high = self._x.survey()
        return float(low), float(high), not down

    def moments(self) -> tuple[Array, float]:
        """The means of the columns, and the standard deviation of all entries from them."""
        counts, sums = self.present(), self._x.sums(tables.of_present)
        mean = sums / counts
        squares = self._x.sums(tables.square, mean)
        return mean, float(np.sqrt(squares.sum() / counts.sum()))

    def present(self, axis: int = 1) -> Array:
        """The number of entries that take part, of each row (axis 0) or of each column."""
        return self._x.sums(tables.present, axis=1 - axis)

    def means(self, axis: int) -> Array:
        """The means of the rows (axis 0) or of the columns over entries that take part."""
        count = self.shape[1 - axis] if self.extent[2] else self.present(axis)
        found: Array = self._x.sums(tables.of_present, axis=1 - axis) / count
        return found

    def less_means(self, means: Array, axis: int) -> Passes:
        """The passes over the entries less a number for each row (axis 0) or each column."""
        x = self._x.like()
        self._x.less(self._room.of(means), x, axis)
        return Passes(x, self._k, self._options)

    def size(self) -> float:
        """The root of the mean square of the entries that take part."""
        squares = self._x.sums(tables.square, np.zeros(self.shape[1]))
        return float(np.sqrt(squares.sum() / self.present().sum()))

    def sample(self, every: int) -> Passes:
        """The passes over every so many of the rows."""
        k, n = self._k[::every], self.shape[1]
        some = self._x.like((len(k), n))
        some.copied_from(self._x.view(some.shape, (every * n, 1)))
        return Passes(some, k, self._options)

    # Derivatives, at the solution of the last calls of `at` and `weigh`.

    def project(
        self, solution: Buffer, temperature: float, g: Table, dk: Array, dtau: float
    ) -> tuple[tuple[Table, Buffer], Array]:
        """(what `spread` takes, the sums of u (g' - mean) over rows), where g' = g - t dtau."""
        moved, out = self._room.of(np.r_[dk, dtau]), g.like()
        mean = self._room.new(len(dk), np.float64)
        given = solution, self._v.memory, self._r, g.memory, moved, mean, out.memory
        self._run(kernels.make_project, self._y, temperature, given)
        return (out, mean), out.sums(tables.entry)

    def spread(self, projected: tuple[Table, Buffer], other: Array) -> tuple[Table, Array]:
        """(u (g' - a - other); a, the mean less that of `other` in each row)."""
        out, mean = projected
        given = self._r, self._room.of(other.astype(self.dtype)), mean, out.memory
        self._run(kernels.make_spread, self._v, 1.0, given)
        shares: Array = self._room.read(mean, self.shape[:1])
        return out, shares

    def along_t(self, solution: Buffer, temperature: float, g: Table) -> float:
        """The sum of g t over the matrix."""
        sums = self._room.new(self.shape[0], np.float64)
        self._run(kernels.make_along_t, self._y, temperature, (solution, g.memory, sums))
        return float(self._room.read(sums, self.shape[:1]).sum())
