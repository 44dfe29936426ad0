"""Checked calls: arguments become matrices, and results become what came in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, fronts, host_arrays, scaling
from .._api.base import Array
from ..softmax.assignment import ConvergenceError
from ..thretopk.operator import thretopk
from . import checks, derivatives, memory
from .offsets import centred
from .reduction import Decided, Infeasible, reduce, thresholds
from .solve import Matrix, Solved, solve


class Call(NamedTuple):
    """A checked call, its matrices in a row."""

    store: Any  # of x, and of whatever has a number for each entry (`memory.Store`)
    k: Array  # (matrices, m)
    load: Array  # (matrices, n)
    temperature: Array  # (matrices,)
    numbers: tuple[Any, Any, Any]  # k, load and temperature as given
    options: Any  # of thretopk
    bounded: bool
    tol: float
    max_iter: int
    start: Array | None  # (matrices, n), thresholds of the columns of a solution, in x's units

    def value(self) -> tuple[Any, Any, Any]:
        """(p, thresholds of the rows, of the columns)."""
        with self.store.device:
            return self._give_back(self._solve())

    def vjp(self) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        """The value, and a function of the cotangent of p: gradients in the arguments."""
        store = self.store
        with store.device:
            solved = self._solve()
            linear = [self._linear(i, each) for i, each in enumerate(solved)]
            value = self._give_back(solved)

        def gradients(g: Any) -> tuple[Any, ...]:
            with store.device:
                cotangent, gx = store.tables_of(g, "the cotangent"), store.tables()
                shapes = self.k.shape, self.load.shape, self.temperature.shape
                gk, gload, gtau = map(np.zeros, shapes)
                for i, each in enumerate(linear):
                    out = gx[i], gk[i], gload[i], gtau[i : i + 1]
                    self._vjp_of(each, cotangent[i], out)
                return self._summed(gx, gk, gload, gtau)

        return value, gradients

    def jvp(self, dx: Any, dk: Any, dload: Any, dtau: Any) -> tuple[Any, Any]:
        """The value, and the derivative of p along a direction."""
        if dload is not None and self.numbers[1] is None:
            raise TypeError("dload was given, but no load; expected both or none")
        store, batch = self.store, self.store.batch
        (count, m, n), given = store.table, (dk, dload, dtau)
        shapes, names = ((*batch, m), (*batch, n), batch), ("dk", "dload", "dtemperature")
        in_k, in_load, in_tau = (
            checks.broadcast(0.0 if each is None else each, shape, name)
            for each, shape, name in zip(given, shapes, names, strict=True)
        )
        in_k, in_load = in_k.reshape(count, m), in_load.reshape(count, n)
        in_tau = scaling.scaled(in_tau.reshape(count), store.shift)
        with store.device:
            moved, dp = store.tables_of(dx, "dx", store.shift), store.tables()
            solved = self._solve()
            for i, one in enumerate(solved):
                each = self._linear(i, one)
                if isinstance(each, _Constant):
                    store.fill(dp[i], each.derivative)
                    continue
                decided, linear = each
                rows, columns = _parts(decided)
                numbers = in_k[i, rows], in_load[i, columns], in_tau[i]
                found = derivatives.jvp(linear, store.of_rest(moved[i], decided), *numbers)
                store.write_rest(found, decided, dp[i])
            return self._give_back(solved), store.give_back(dp)

    def _solve(self) -> list[_Found]:
        """Every matrix; raises `ConvergenceError` once all have been tried."""
        found = [self._solve_one(i) for i in range(len(self.k))]
        missed = [each.solved for each in found if each.solved is not None]
        missed = [each for each in missed if not each.error <= each.limit]
        if missed:
            worst = max(missed, key=lambda each: each.error)
            raise ConvergenceError(
                f"balancedtopk did not converge: after {worst.steps} steps the columns' sums are "
                f"off by {worst.error:.1e} of max(1, load) in {len(missed)} of {len(found)} "
                f"matrices, and tol is {self.tol:g}; raise max_iter, tol or temperature"
                + (", or allow more entries" if self.store.excludes() else ""),
                worst.error,
                worst.steps,
            )
        return found

    def _solve_one(self, i: int) -> _Found:
        store, entries = self.store, self.store.entries(i)
        if entries.has_nan:
            return _Found(None, None, None)
        try:
            decided = reduce(entries, self.k[i], self.load[i], self.bounded)
        except Infeasible as error:
            # By infinities among the scores it is the result that is not defined.
            if not store.are_given_finite:
                return _Found(None, None, None)
            which = f" in matrix {i}" if len(self.k) > 1 else ""
            raise ValueError(f"k and load cannot both be met{which}: {error}") from None
        if decided.is_done:
            return _Found(decided, None, None)
        passes, tau = store.passes(i, decided, self.options), float(self.temperature[i])
        passes, *offsets = centred(passes, self.bounded)
        matrix = Matrix(passes, decided.k, decided.load, tau, self.bounded)
        start = None
        # Of thresholds beside large offsets of columns too few digits are left.
        if self.start is not None and not offsets[1].any():
            shift = None if store.shift is None else store.shift[i : i + 1]
            start = scaling.scaled(self.start[i : i + 1], shift)[0, _parts(decided)[1]]
        solved = solve(matrix, self.tol, self.max_iter, start)
        return _Found(decided, matrix, solved.moved_by(*offsets))

    def _linear(self, i: int, found: _Found) -> Any:
        """(what was decided, the derivative of the rest), or `_Constant`."""
        decided, matrix, solved = found
        if decided is None or matrix is None or solved is None:
            return _Constant(np.nan if decided is None else 0.0)
        return decided, derivatives.linearize(matrix, solved, self._shares(i, decided))

    def _shares(self, i: int, decided: Decided) -> Array:
        """What the loads of the rest grow by where the sum of k does: bounds that are given do not.

        Where loads must be met, what is decided leaves its part of the growth to the rest.
        """
        load = self.load[i]
        shares: Array = load[_parts(decided)[1]]
        if not self.bounded:
            shares = shares / shares.sum()
        else:
            shares = shares / load.sum() if self.numbers[1] is None else np.zeros(len(shares))
        return shares

    def _give_back(self, found: list[_Found]) -> tuple[Any, Any, Any]:
        """The results in the shapes and the type of x."""
        store, p = self.store, self.store.tables()
        a, b = np.empty(self.k.shape), np.empty(self.load.shape)
        for i, (decided, matrix, solved) in enumerate(found):
            if decided is None:
                store.fill(p[i], np.nan)
                a[i], b[i] = np.nan, np.nan
                continue
            store.write(i, decided, None if matrix is None else matrix.passes.p, p[i])
            a[i], b[i] = thresholds(decided, solved)
        if store.shift is not None:
            a, b = scaling.scaled(a, -store.shift), scaling.scaled(b, -store.shift)
        return store.give_back(p), store.give_numbers(a), store.give_numbers(b)

    def _vjp_of(self, each: Any, g: Any, out: tuple[Any, ...]) -> None:
        """Write the gradients of one matrix."""
        store, (gx, *numbers) = self.store, out
        if isinstance(each, _Constant):
            store.fill(gx, each.derivative)
            for part in numbers:
                part[...] = each.derivative
            return
        decided, linear = each
        rows, columns = _parts(decided)
        gk, gload, gtau = numbers
        rest = store.of_rest(g, decided)
        found, gk[rows], gload[columns], gtau[...] = derivatives.vjp(linear, rest)
        store.write_rest(found, decided, gx)

    def _summed(self, gx: Any, gk: Array, gload: Array, gtau: Array) -> tuple[Any, ...]:
        """The gradients in the shapes of the arguments."""
        store = self.store
        (_, m, n), batch = store.table, store.batch
        k, load, temperature = self.numbers
        gtau = scaling.scaled(gtau, store.shift)
        with np.errstate(over="ignore", invalid="ignore"):
            in_k = host_arrays.sum_to(gk, (*batch, m), np.asarray(k), store.dtype)
            in_load = None
            if load is not None:
                in_load = host_arrays.sum_to(gload, (*batch, n), np.asarray(load), store.dtype)
            in_tau = host_arrays.sum_to(gtau, batch, np.asarray(temperature), store.dtype)
        return store.give_back(gx, store.shift), in_k, in_load, in_tau


class _Found(NamedTuple):
    """What became of a matrix: undecided if it is NaN, unsolved if nothing was left to solve."""

    decided: Decided | None
    matrix: Matrix | None
    solved: Solved | None


class _Constant(NamedTuple):
    """A matrix that was not solved: all its derivatives are 0, or NaN."""

    derivative: float


def _parts(decided: Decided) -> tuple[Any, Any]:
    """The rows and the columns that are left, as indices."""
    if decided.rows is None or decided.columns is None:
        return slice(None), slice(None)
    return decided.rows, decided.columns


def check(
    x: Any, k: Any, load: Any, temperature: Any, options: dict[str, Any], start: Any = None
) -> Call:
    """Check a call.

    `start` are the thresholds of the columns of a solution, from which it is found again at once.
    """
    front = fronts.name_of(x)
    on_device = front in (None, "torch") and host_arrays.on_device(x)
    if front and not on_device:
        raise TypeError(
            f"x is an array of {front}, but balancedtopk computes with NumPy here; pass "
            "numpy.asarray(x)"
        )
    place: Any = importlib.import_module(".cuda", __package__) if on_device else memory
    own, bounded, tol, most = check_options(options)
    # A curve whose slope is infinite somewhere is worked on in float64, as rows in chunks are.
    store = place.Store(
        x, options["axis"], options["where"], lambda T: thretopk.computed_in_chunks(own, T)
    )
    batch, table = store.batch, store.table
    given = arguments.check_positive(temperature, batch, "temperature")
    tau = store.rescale(arguments.per_row(given, batch, table[0]))
    number = arguments.clamped(k, options["clamp_k"])
    of_mask = store.mask_counts, bounded, store.present
    budgets = checks.check_budgets(number, load, batch, table, *of_mask)
    begun = None if start is None else np.asarray(start, np.float64).reshape(table[0], table[2])
    numbers = k, load, given
    return Call(store, *budgets, tau, numbers, own, bounded, tol, most, begun)


def check_options(options: dict[str, Any]) -> tuple[Any, bool, float, int]:
    """(the options of thretopk, at_most, tol, max_iter)."""
    own = thretopk.check_options({name: options[name] for name in ("curve", "alpha")})
    arguments.check_bool(options["at_most"], "at_most")
    tol, most = checks.check_tolerance(options["tol"]), checks.check_count(options["max_iter"])
    return own, bool(options["at_most"]), tol, most
