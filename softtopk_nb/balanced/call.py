"""Checked calls: arguments become matrices, and results become what came in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, fronts, host_arrays, scaling
from .._api.base import Array
from .._threads.masking import masked
from ..softmax.assignment import ConvergenceError
from ..thretopk.operator import thretopk
from . import derivatives
from .reduction import Decided, Infeasible, expand, of_rest, reduce, to_whole
from .solve import Matrix, Solved, solve

_SAME = 1e-9  # the part by which two totals may differ
_DIGITS = 16  # or so many units in the last place of the type that they came in


class Call(NamedTuple):
    """A checked call, its matrices in a row."""

    given: Any  # x as given
    shape: tuple[int, ...]
    axis: tuple[int, int]
    batch: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result
    x: Array  # (matrices, m, n), contiguous; -inf for entries that do not take part
    k: Array  # (matrices, m)
    load: Array  # (matrices, n)
    temperature: Array  # (matrices,)
    numbers: tuple[Any, Any, Any]  # k, load and temperature as given
    options: Any  # of thretopk
    bounded: bool
    tol: float
    max_iter: int
    shift: Array | None  # x and the temperature are 2^shift times the given ones
    start: Array | None  # (matrices, n), thresholds of the columns of a solution, in x's units

    def value(self) -> tuple[Any, Any, Any]:
        """(p, thresholds of the rows, of the columns)."""
        return self._give_back(self._solve())

    def vjp(self) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        """The value, and a function of the cotangent of p: gradients in the arguments."""
        solved = self._solve()
        linear = [_linear(each) for each in solved]
        value = self._give_back(solved)

        def gradients(g: Any) -> tuple[Any, ...]:
            cotangent = self._matrices_of(g, "the cotangent")
            gx, gk, gload = (np.zeros(each.shape) for each in (self.x, self.k, self.load))
            gx, gtau = gx.astype(self.x.dtype), np.zeros(len(self.x))
            for i, each in enumerate(linear):
                self._vjp_of(each, cotangent[i], (gx[i], gk[i], gload[i], gtau[i : i + 1]))
            return self._summed(gx, gk, gload, gtau)

        return value, gradients

    def jvp(self, dx: Any, dk: Any, dload: Any, dtau: Any) -> tuple[Any, Any]:
        """The value, and the derivative of p along a direction."""
        if dload is not None and self.numbers[1] is None:
            raise TypeError("dload was given, but no load; expected both or none")
        batch = self.batch
        moved = self._matrices_of(dx, "dx")
        (count, m, n), given = self.x.shape, (dk, dload, dtau)
        shapes, names = ((*batch, m), (*batch, n), batch), ("dk", "dload", "dtemperature")
        in_k, in_load, in_tau = (
            _broadcast(0.0 if each is None else each, shape, name)
            for each, shape, name in zip(given, shapes, names, strict=True)
        )
        in_k, in_load, in_tau = (
            in_k.reshape(count, m),
            in_load.reshape(count, n),
            in_tau.reshape(count),
        )
        solved, dp = self._solve(), np.zeros_like(self.x)
        for i, each in enumerate(map(_linear, solved)):
            if isinstance(each, _Constant):
                dp[i] = each.derivative
                continue
            decided, linear = each
            rows, columns = (
                slice(None) if part is None else part for part in (decided.rows, decided.columns)
            )
            some = of_rest(decided, moved[i])
            tangent = scaling.scaled(some[None], self._shift_of(i))[0]
            tau = scaling.scaled(in_tau[i : i + 1], self._shift_of(i))
            found = derivatives.jvp(linear, tangent, in_k[i, rows], in_load[i, columns], tau[0])
            dp[i] = to_whole(decided, found, (m, n))
        return self._give_back(solved), self._like_x(dp)

    def _shift_of(self, i: int) -> Array | None:
        return None if self.shift is None else self.shift[i : i + 1]

    def _solve(self) -> list[_Found]:
        """Every matrix; raises `ConvergenceError` once all have been tried."""
        found = [self._solve_one(i) for i in range(len(self.x))]
        missed = [each.solved for each in found if each.solved is not None]
        missed = [each for each in missed if not each.error <= each.limit]
        if missed:
            worst = max(missed, key=lambda each: each.error)
            raise ConvergenceError(
                f"balancedtopk did not converge: after {worst.steps} steps the columns' sums are "
                f"off by {worst.error:.1e} of max(1, load) in {len(missed)} of {len(found)} "
                f"matrices, and tol is {self.tol:g}; raise max_iter, tol or temperature"
                + (", or allow more entries" if np.isneginf(self.x).any() else ""),
                worst.error,
                worst.steps,
            )
        return found

    def _solve_one(self, i: int) -> _Found:
        x, k, load = self.x[i], self.k[i], self.load[i]
        if np.isnan(x.max()):
            return _Found(None, None, None)
        try:
            decided = reduce(x, k, load, self.bounded)
        except Infeasible as error:
            # By infinities among the scores it is the result that is not defined.
            if _has_infinities(host_arrays.as_numpy(self.given, "x")):
                return _Found(None, None, None)
            which = f" in matrix {i}" if len(self.x) > 1 else ""
            raise ValueError(f"k and load cannot both be met{which}: {error}") from None
        if not decided.x.size:
            return _Found(decided, None, None)
        tau = float(self.temperature[i])
        matrix = Matrix(decided.x, decided.k, decided.load, tau, self.options, self.bounded)
        start = None
        if self.start is not None:
            start = scaling.scaled(self.start[i : i + 1], self._shift_of(i))[0]
            start = start if decided.columns is None else start[decided.columns]
        return _Found(decided, matrix, solve(matrix, self.tol, self.max_iter, start))

    def _give_back(self, found: list[_Found]) -> tuple[Any, Any, Any]:
        """The results in the shapes and the type of x."""
        count, m, n = self.x.shape
        p = np.empty(self.x.shape, self.x.dtype)
        a, b = np.empty((count, m)), np.empty((count, n))
        for i, (decided, _, solved) in enumerate(found):
            if decided is None:
                p[i], a[i], b[i] = np.nan, np.nan, np.nan
                continue
            p[i], a[i], b[i] = expand(decided, solved)
        if self.shift is not None:
            a, b = scaling.scaled(a, -self.shift), scaling.scaled(b, -self.shift)
        rows, columns = (
            host_arrays.cast(each, self.dtype).reshape((*self.batch, each.shape[1]))
            for each in (a, b)
        )
        return self._like_x(p), rows, columns

    def _like_x(self, values: Array) -> Any:
        """Matrices in the shape and the type of x."""
        whole = values.reshape((*self.batch, *values.shape[1:]))
        return host_arrays.cast(np.moveaxis(whole, (-2, -1), self.axis), self.dtype)

    def _matrices_of(self, given: Any, name: str) -> Array:
        """A direction or cotangent of x's shape as matrices of its type."""
        values = host_arrays.as_numpy(given, name)
        host_arrays.compute_dtype(values.dtype, name)
        arguments.check_broadcast(values, self.shape, name)
        whole = np.moveaxis(np.broadcast_to(values, self.shape), self.axis, (-2, -1))
        return np.array(whole, self.x.dtype, order="C").reshape(self.x.shape)

    def _vjp_of(self, each: Any, g: Array, out: tuple[Array, ...]) -> None:
        """Write the gradients of one matrix."""
        gx, gk, gload, gtau = out
        if isinstance(each, _Constant):
            for part in out:
                part[...] = each.derivative
            return
        decided, linear = each
        rows, columns = (
            slice(None) if part is None else part for part in (decided.rows, decided.columns)
        )
        found, gk[rows], gload[columns], gtau[...] = derivatives.vjp(linear, of_rest(decided, g))
        gx[...] = to_whole(decided, found, gx.shape)

    def _summed(self, gx: Array, gk: Array, gload: Array, gtau: Array) -> tuple[Any, ...]:
        """The gradients in the shapes of the arguments."""
        m, n, batch = gx.shape[1], gx.shape[2], self.batch
        k, load, temperature = self.numbers
        if self.shift is not None:
            gx, gtau = scaling.scaled(gx, self.shift), scaling.scaled(gtau, self.shift)
        with np.errstate(over="ignore", invalid="ignore"):
            in_k = host_arrays.sum_to(gk, (*batch, m), np.asarray(k), self.dtype)
            in_load = None
            if load is not None:
                in_load = host_arrays.sum_to(gload, (*batch, n), np.asarray(load), self.dtype)
            in_tau = host_arrays.sum_to(gtau, batch, np.asarray(temperature), self.dtype)
        return self._like_x(gx), in_k, in_load, in_tau


class _Found(NamedTuple):
    """What became of a matrix: undecided if it is NaN, unsolved if nothing was left to solve."""

    decided: Decided | None
    matrix: Matrix | None
    solved: Solved | None


class _Constant(NamedTuple):
    """A matrix that was not solved: all its derivatives are 0, or NaN."""

    derivative: float


def _linear(found: _Found) -> Any:
    """(what was decided, the derivative of the rest), or `_Constant`."""
    decided, matrix, solved = found
    if decided is None or matrix is None or solved is None:
        return _Constant(np.nan if decided is None else 0.0)
    return decided, derivatives.linearize(matrix, solved)


def _has_infinities(x: Array) -> bool:
    return x.dtype.kind == "f" and bool(np.isinf(x).any())


def check(
    x: Any, k: Any, load: Any, temperature: Any, options: dict[str, Any], start: Any = None
) -> Call:
    """Check a call.

    `start` are the thresholds of the columns of a solution, from which it is found again at once.
    """
    if front := fronts.name_of(x):
        raise TypeError(
            f"x is an array of {front}, for which there is no balancedtopk yet; pass it as NumPy's"
        )
    values = host_arrays.as_numpy(x, "x")
    compute, dtype = host_arrays.compute_dtype(values.dtype, "x")
    own = thretopk.check_options({name: options[name] for name in ("curve", "alpha")})
    # A curve whose slope is infinite somewhere is worked on in float64, as rows in chunks are.
    compute = thretopk.computed_in_chunks(own, compute)
    axis = check_axes(options["axis"], values)
    bounded, where = options["at_most"], options["where"]
    arguments.check_bool(bounded, "at_most")
    tol, most = _check_tolerance(options["tol"]), _check_count(options["max_iter"])
    whole = np.moveaxis(values, axis, (-2, -1))
    *leading, m, n = whole.shape
    batch, count = tuple(leading), math.prod(leading)
    given = arguments.check_positive(temperature, batch, "temperature")
    tau = arguments.per_row(given, batch, count)
    table: Array = np.ascontiguousarray(whole, compute).reshape(count, m, n)
    mask = None
    if where is not None:
        mask = np.moveaxis(arguments.check_where(where, values.shape), axis, (-2, -1))
        mask = np.ascontiguousarray(mask).reshape(count, m, n)
    budgets = _check_budgets(k, load, batch, (count, m, n), mask, bool(bounded))
    if mask is not None and not mask.all():
        flat = masked(table.reshape(-1, n), mask.reshape(-1, n), -np.inf)
        table = flat.reshape(table.shape)
    shift = None
    if not scaling.is_moderate(tau, compute):
        flat, tau, shift = scaling.rescaled(table.reshape(count, m * n), tau)
        table = flat.reshape(table.shape)
    numbers = k, load, given
    what = x, values.shape, axis, batch, dtype, table, *budgets, tau
    begun = None if start is None else np.asarray(start, np.float64).reshape(count, n)
    return Call(*what, numbers, own, bool(bounded), tol, most, shift, begun)


def check_axes(axis: Any, values: Any, name: str = "axis") -> tuple[int, int]:
    """The axes of rows and of columns as non-negative integers."""
    if not isinstance(axis, (tuple, list)) or len(axis) != 2:
        raise TypeError(f"{name} is {arguments.show(axis)}; expected two axes, of rows and columns")
    if values.ndim < 2:
        raise ValueError(f"x has shape {tuple(values.shape)}; expected at least two axes")
    first, second = (arguments.check_axis(each, values.ndim) for each in axis)
    if first == second:
        raise ValueError(f"{name} is {axis}, the same axis twice; expected two axes")
    if not (values.shape[first] and values.shape[second]):
        raise ValueError(f"x has shape {tuple(values.shape)}; expected at least one row and column")
    return first, second


def _check_tolerance(tol: Any) -> float:
    given = arguments.real_array(tol, "tol")
    if given.ndim != 0 or not 0 < given < np.inf:
        raise ValueError(f"tol is {arguments.show(tol)}; expected a positive finite number")
    return float(given)


def _check_count(most: Any) -> int:
    given = arguments.real_array(most, "max_iter")
    if given.ndim != 0 or given.dtype.kind not in "iu":
        raise TypeError(f"max_iter is {arguments.show(most)}; expected an integer")
    if given < 1:
        raise ValueError(f"max_iter is {most}; expected at least 1")
    return int(given)


def _broadcast(value: Any, shape: tuple[int, ...], name: str) -> Array:
    given = arguments.real_array(value, name).astype(np.float64)
    arguments.check_broadcast(given, shape, name)
    return np.array(np.broadcast_to(given, shape), order="C")


def _check_budgets(
    k: Any,
    load: Any,
    batch: tuple[int, ...],
    table: tuple[int, int, int],
    mask: Array | None,
    bounded: bool,
) -> tuple[Array, Array]:
    """k and the load of each matrix; raises where no matrix of numbers in [0, 1] has these sums."""
    count, m, n = table
    raw = arguments.real_array(k, "k")
    _check_range(raw, 0, n, "k", "n", "columns")
    rows = _broadcast(k, (*batch, m), "k").reshape(count, m)
    total, same = rows.sum(axis=1), max(_SAME, _rounding(raw))
    if load is None:
        columns = np.repeat(total / n, n).reshape(count, n)
    else:
        raw = arguments.real_array(load, "load")
        _check_range(raw, 0, m, "load", "m", "rows")
        columns = _broadcast(load, (*batch, n), "load").reshape(count, n)
        same = max(same, _rounding(raw))
    for i in range(count):
        which = f" of matrix {i}" if count > 1 else ""
        _check_total(total[i], columns[i].sum(), same, which, bounded)
        if mask is not None:
            _check_mask(rows[i], mask[i].sum(axis=1), "k", f"row {{}}{which}")
            if not bounded:
                _check_mask(columns[i], mask[i].sum(axis=0), "load", f"column {{}}{which}")
        else:
            _check_together(rows[i], columns[i], same, which)
    return rows, columns


def _check_range(given: Array, least: float, most: float, name: str, limit: str, what: str) -> None:
    ok = (given >= least) & (given <= most)
    if not ok.all():
        bad = given[~ok].flat[0]
        raise ValueError(
            f"{name} is {bad}; expected 0 <= {name} <= {limit} = {most}, the number of {what}"
        )


def _rounding(given: Array) -> float:
    return _DIGITS * float(np.finfo(given.dtype).eps) if given.dtype.kind == "f" else 0.0


def _check_total(total: float, loads: float, same: float, which: str, bounded: bool) -> None:
    if bounded:
        if loads < total * (1.0 - same):
            raise ValueError(
                f"load sums to {loads:.12g}{which}, {total - loads:.6g} less than k, which sums to "
                f"{total:.12g}; expected at least as much"
            )
    elif abs(loads - total) > same * total:
        raise ValueError(
            f"load sums to {loads:.12g}{which} and k to {total:.12g}, which differs by "
            f"{abs(loads - total):.6g}; expected the same total, or at_most=True"
        )


def _check_mask(budget: Array, counts: Array, name: str, which: str) -> None:
    short = budget - counts
    worst = int(short.argmax())
    if short[worst] > 0.0:
        raise ValueError(
            f"`where` leaves {counts[worst]} entries in {which.format(worst)}, "
            f"{short[worst]:.6g} fewer than its {name} of {budget[worst]:.6g}; expected as many"
        )


def _check_together(k: Array, load: Array, same: float, which: str) -> None:
    """Whether the q largest k fit into q of each column, for each q (thm-balanced-feasible)."""
    if k.min() == k.max() or load.min() == load.max():
        return
    largest, loads = np.sort(k)[::-1], np.sort(load)
    q = np.arange(1, len(k) + 1)
    below = np.searchsorted(loads, q)
    room = np.concatenate([[0.0], np.cumsum(loads)])[below] + q * (len(loads) - below)
    short = np.cumsum(largest) - room
    worst = int(short.argmax())
    if short[worst] > same * k.sum():
        raise ValueError(
            f"the {worst + 1} largest k sum to {largest[: worst + 1].sum():.6g}{which}, "
            f"{short[worst]:.6g} more than the columns can take from so many rows: at most 1 from "
            "each, and their load; expected budgets that can both be met"
        )
