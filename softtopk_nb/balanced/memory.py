"""Matrices in memory: how they are laid out, and the passes of a search over one of them.

`cuda` has the same for a device: `Store`, `Entries` and `Passes`, with the same functions. What has
a number for each entry stays where the scores are; what has one for each row or column is an array
of NumPy in both.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._api import arguments, host_arrays, scaling
from .._api.base import Array
from .._api.operator import Rows
from .._curves.base import origin
from .._threads.masking import masked
from .._threads.transposing import transposed
from .._threshold.records import REST, C, D
from ..thretopk.operator import thretopk
from . import kernels
from .checks import check_axes, counts_of
from .offsets import root_mean_square
from .reduction import Decided


class Store:
    """The matrices of a call, in a row, and how arrays become such tables and back."""

    device = contextlib.nullcontext()  # in which it is used

    def __init__(
        self, given: Any, axis: Any, where: Any, computed_in: Callable[[type], type]
    ) -> None:
        """Check and lay out; `computed_in` says in which type one of this type is computed."""
        self._given = values = host_arrays.as_numpy(given, "x")
        compute, self.dtype = host_arrays.compute_dtype(values.dtype, "x")
        self.axis, self._shape = check_axes(axis, values), values.shape
        *leading, m, n = np.moveaxis(values, self.axis, (-2, -1)).shape
        self.batch, self.table = tuple(leading), (math.prod(leading), m, n)
        self._x = self._laid_out(values, computed_in(compute))
        self._mask: Array | None = None
        self.shift: Array | None = None  # x is 2^shift times the given one
        if where is not None:
            mask = arguments.check_where(where, values.shape)
            self._mask = self._laid_out(mask, np.bool_)
            if not mask.all():
                flat = masked(self._x.reshape(-1, n), self._mask.reshape(-1, n), -np.inf)
                self._x = flat.reshape(self.table)

    def _laid_out(self, values: Array, dtype: Any) -> Array:
        whole = np.moveaxis(values, self.axis, (-2, -1))
        return np.ascontiguousarray(whole, dtype).reshape(self.table)

    @property
    def mask_counts(self) -> Callable[[int], tuple[Array, Array]] | None:
        """The numbers of entries that the mask leaves in rows and columns of a matrix, if any."""
        return None if self._mask is None else counts_of(self._mask)

    def present(self) -> Array:
        """The number of entries that take part in each row of each matrix."""
        found: Array = (self._x != -np.inf).sum(axis=2)
        return found

    def rescale(self, temperature: Array) -> Array:
        """Bring matrices into the range of their type; returns the temperatures that fit."""
        count, m, n = self.table
        flat, info = self._x.reshape(count, m * n), np.finfo(self._x.dtype)
        if not scaling.is_moderate(temperature, flat.dtype.type):
            flat, temperature, self.shift = scaling.rescaled(flat, temperature)
        # Sums over the matrix have to stay in the range, too.
        spare = info.maxexp - scaling.HEADROOM - (m * n).bit_length()
        most = np.ldexp(1.0, spare)
        if flat.max(initial=0.0) > most or flat.min(initial=0.0) < -most:
            more = np.minimum(spare - scaling.exponent_of(flat), 0)
            flat, temperature = scaling.scaled(flat, more), scaling.scaled(temperature, more)
            temperature = np.maximum(temperature, info.tiny)
            self.shift = more if self.shift is None else self.shift + more
        self._x = flat.reshape(self.table)
        return temperature

    def entries(self, i: int) -> Entries:
        """The entries of a matrix."""
        return Entries(self._x[i])

    @property
    def are_given_finite(self) -> bool:
        """Whether no score was infinite as it was given, under a mask too."""
        return self._given.dtype.kind != "f" or not np.isinf(self._given).any()

    def excludes(self) -> bool:
        """Whether some entries do not take part."""
        return bool(np.isneginf(self._x).any())

    def passes(self, i: int, decided: Decided, options: Any) -> Passes:
        """The passes over what is left of a matrix."""
        x = self._x[i]
        if decided.rows is not None:
            x = np.where(np.isfinite(x), x, x.dtype.type(-np.inf))
        return Passes(self.of_rest(x, decided), decided.k, options)

    def tables(self) -> Array:
        """Uninitialised matrices like those of x."""
        return np.empty(self.table, self._x.dtype)

    def tables_of(self, given: Any, name: str, shift: Array | None = None) -> Array:
        """A direction or cotangent of x's shape as matrices of its type, times 2^shift."""
        values = host_arrays.as_numpy(given, name)
        host_arrays.compute_dtype(values.dtype, name)
        arguments.check_broadcast(values, self._shape, name)
        whole = np.moveaxis(np.broadcast_to(values, self._shape), self.axis, (-2, -1))
        with np.errstate(over="ignore"):
            copy = np.array(whole, self._x.dtype, order="C").reshape(self.table)
        return scaling.scaled(copy, shift)

    def of_rest(self, table: Array, decided: Decided) -> Array:
        """The entries of a matrix that belong to the rest, contiguous."""
        if decided.rows is None or decided.columns is None:
            return np.ascontiguousarray(table)
        return np.ascontiguousarray(table[np.ix_(decided.rows, decided.columns)])

    def fill(self, table: Array, value: float) -> None:
        """Write a number to all entries of a matrix."""
        table[...] = value

    def write(self, i: int, decided: Decided, rest: Array | None, out: Array) -> None:
        """Write p of a whole matrix: that of the rest, if there is one, and what was decided."""
        if decided.rows is None or decided.columns is None:
            out[...] = rest
            return
        x, of_row, of_column = self._x[i], decided.turns[0][:, None], decided.turns[1]
        by_row = (of_column == 0) | ((of_row != 0) & (abs(of_row) < abs(of_column)))
        ones = np.where(by_row, of_row > 0, of_column > 0)
        out[...] = (ones & np.isfinite(x)) | (x == np.inf)
        if rest is not None:
            out[np.ix_(decided.rows, decided.columns)] += rest

    def write_rest(self, rest: Array, decided: Decided, out: Array) -> None:
        """Write a matrix that is 0 outside of the rest."""
        if decided.rows is None or decided.columns is None:
            out[...] = rest
        else:
            out[...] = 0.0
            out[np.ix_(decided.rows, decided.columns)] = rest

    def give_back(self, tables: Array, shift: Array | None = None) -> Any:
        """Matrices times 2^shift, in the shape and the type of x."""
        whole = scaling.scaled(tables, shift).reshape((*self.batch, *self.table[1:]))
        return host_arrays.cast(np.moveaxis(whole, (-2, -1), self.axis), self.dtype)

    def give_numbers(self, values: Array) -> Any:
        """A row of numbers for each matrix, in the type of x."""
        return host_arrays.cast(values, self.dtype).reshape((*self.batch, values.shape[1]))


class Entries:
    """How many entries of a matrix are what."""

    def __init__(self, x: Array) -> None:
        self._x = x
        low, high = x.min(initial=0.0), x.max(initial=0.0)
        self.has_nan, self.are_finite = bool(np.isnan(high)), bool(low > -np.inf and high < np.inf)

    def above(self) -> tuple[Array, Array]:
        """The numbers of +inf in rows and columns."""
        infinite = self._x == np.inf
        return infinite.sum(axis=1), infinite.sum(axis=0)

    def counts(self, axis: int, rows: Array, columns: Array) -> Array:
        """The numbers of finite entries in these rows and columns, of each row or each column."""
        there = np.isfinite(self._x) & rows[:, None] & columns
        found: Array = there.sum(axis=1 - axis)
        return found


class Passes:
    """The passes over a matrix in memory, with the memory for p, y = x - b and the weights.

    A solution is what `at` returned; y and p are those of the last call of `at`, and the weights
    those of the last call of `weigh`.
    """

    def __init__(self, x: Array, k: Array, options: Any) -> None:
        self._x, self._k, self._options = x, k, options
        self.shape, self.dtype = x.shape, x.dtype.type
        self.p, self._y, self._v = np.empty_like(x), np.empty_like(x), np.empty_like(x)

    def at(self, b: Array, temperature: float) -> tuple[Any, Array]:
        """Solve the rows for these thresholds of the columns: (solution, sums of the columns)."""
        kernels.less(self._x, b, self._y)
        rows = Rows(self._y, self._k, np.full(len(self._k), temperature))
        solution = thretopk.cpu.linearize(rows, self._options, self.p)
        return solution, kernels.column_sums(self.p)

    def thresholds(self, solution: Any, temperature: float) -> Array:
        """The thresholds of the rows."""
        d = solution[:, D] + solution[:, REST] - origin(self._options.curve)
        found: Array = solution[:, C] + temperature * d
        return found

    def weigh(self, solution: Any, temperature: float) -> Array:
        """The matrix v^T v of the weights at the solution that y is of."""
        of_rows = temperature, self._options.curve, solution
        self._r = kernels.weigh(self._y, *of_rows, self._v)
        return kernels.products(self._v)

    def columns_solved(
        self, solution: Any, temperature: float, load: Array, bounded: bool
    ) -> Array:
        """The thresholds of the columns, each solved for those of the rows."""
        (m, n), a = self.shape, self.thresholds(solution, temperature)
        # Of memory there is enough: the columns take that of the weights.
        flat = transposed(self._x[None], self._v.reshape(1, n, m))[0]
        kernels.less(flat, a, flat)
        if bounded:
            load = np.minimum(load, np.count_nonzero(flat > -np.inf, axis=1))
        found = np.empty(n)
        columns = Rows(flat, load, np.full(n, temperature))
        thretopk.cpu.threshold(columns, self._options, found)
        return found

    @functools.cached_property
    def extent(self) -> tuple[float, float, bool]:
        """(the smallest entry that takes part, the largest one, whether all take part)."""
        low, high = self._x.min(), self._x.max()
        all_of = bool(low > -np.inf)
        if not all_of:
            low = self._x.min(where=self._x > -np.inf, initial=np.inf)
        return float(low), float(high), all_of

    def moments(self) -> tuple[Array, float]:
        """The means of the columns, and the root mean square of what they leave."""
        mean = self.means(1)
        left = self._x - mean
        return mean, root_mean_square(left if self.extent[2] else left[left > -np.inf])

    def present(self, axis: int = 1) -> Array:
        """The number of entries that take part, of each row (axis 0) or of each column."""
        found: Array = np.count_nonzero(self._x > -np.inf, axis=1 - axis)
        return found

    def means(self, axis: int) -> Array:
        """The means of the rows (axis 0) or of the columns over entries that take part."""
        if not self.extent[2]:
            x = np.where(self._x > -np.inf, self._x, self.dtype(0))
            total = x.sum(axis=1 - axis, dtype=np.float64) / self.present(axis)
        elif axis == 0:
            total = np.einsum("ij->i", self._x) / float(self.shape[1])
        else:
            total = kernels.column_sums(self._x) / self.shape[0]
        found: Array = total.astype(np.float64)
        return found

    def less_means(self, means: Array, axis: int) -> Passes:
        """The passes over the entries less a number for each row (axis 0) or each column."""
        x, numbers = np.empty_like(self._x), np.expand_dims(means, 1 - axis)
        np.subtract(self._x, numbers, out=x, casting="same_kind")
        return Passes(x, self._k, self._options)

    def size(self) -> float:
        """The root mean square of the entries that take part."""
        x = self._x
        return root_mean_square(x if self.extent[2] else x[x > -np.inf])

    def sample(self, every: int) -> Passes:
        """The passes over every so many of the rows."""
        x, k = (np.ascontiguousarray(each[::every]) for each in (self._x, self._k))
        return Passes(x, k, self._options)

    # Derivatives, at the solution of the last calls of `at` and `weigh`.

    def project(
        self, solution: Any, temperature: float, g: Array, dk: Array, dtau: float
    ) -> tuple[tuple[Array, Array], Array]:
        """(what `spread` takes, the sums of u (g' - mean) over rows), where g' = g - t dtau."""
        if dtau != 0.0:
            g = g.copy()
            kernels.stretch(self._y, temperature, solution, dtau, g)
        mean, sums = kernels.project(self._v, self._r, g, dk)
        return (g, mean), sums

    def spread(self, projected: Any, other: Array) -> tuple[Array, Array]:
        """(u (g' - a - other); a, the mean less that of `other` in each row)."""
        (g, mean), out = projected, np.empty_like(self._v)
        return out, kernels.spread(self._v, self._r, g, mean, other, out)

    def along_t(self, solution: Any, temperature: float, g: Array) -> float:
        """The sum of g t over the matrix."""
        return kernels.along_t(self._y, temperature, solution, g)
