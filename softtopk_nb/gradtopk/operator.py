"""GradTopK as an operator."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _threshold
from .._api import host_arrays, operator
from .._curves.registry import CURVES
from .._nonfinite import MIXED, NONE
from .._threads import pool
from .._threads.long_rows import LONG
from .._threshold.cpu import order
from .._threshold.records import BY_DISTRIBUTION, CODE, OPEN, SOME_MISLED, SOME_OPEN
from .._threshold.records import SOLUTION as TILT
from .cpu import long as _long
from .cpu import rows as _rows
from .cpu import short as _short
from .records import (
    FLAGS,
    NONE_SHORT,
    SHORT,
    SHORT_32,
    SOLUTION,
    SOME_SHORT,
    USED,
    WEIGHTS,
    Limits,
)

CHUNK = 1 << 19  # entries whose tilts are sought together, about
METHODS = ("auto", "contour", "dp", "recursion")


class Short(NamedTuple):
    """Rows that were solved as short ones."""

    at: operator.Array | None  # which of the rows; None: all
    tilt: operator.Array
    phi: operator.Array  # the potential, where p was not asked for


class Solved(NamedTuple):
    """What derivatives need."""

    solution: operator.Array
    short: Short | None = None


class GradTopK(operator.Differentiable):
    """Smooth top-k as a gradient: the inclusion probabilities of a random k-subset.

    A subset S of k entries has probability proportional to exp(sum of x_i/temperature over S);
    p_i is the probability that i is in S. It is the gradient of temperature * log Z_k, Z_k the sum
    over all subsets, which smooths the sum of the k largest entries. With k = 1 it is softmax.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type (float16 is computed in float32);
        integers and bools give float64.
    k : int or array_like of int
        Size of the subset, 0 <= k <= n; broadcast against x's shape without the axis.
    method : {"auto", "contour", "dp", "recursion"}, optional
        contour: O(n) for every k, a sum over at most 30 points of a circle. dp: O(n k) time and
        O(k sqrt(n)) memory, sums over prefixes and suffixes; ties agree to rounding only. auto:
        contour, but on the CPU for short rows the distribution of the subset's size multiplied out,
        O(n k): for n up to 128 (96 in float32), and up to 512 (256) if k (n - k) <= 27 n (13 n). It
        takes down to a fifth of the time there. recursion: O(n k), of Su (2024), kept for teaching:
        it returns NaN or, worse, wrong finite numbers as soon as some p is close to 1 (see Notes).
    temperature : float or array_like, optional
        Width of the transition, in the units of x; broadcast as k.
    axis : int, optional
        The axis of the scores, the last by default.
    largest : bool, optional
        False smooths the k smallest instead.
    where : array_like of bool, optional
        Entries that take part; the others get 0, exactly as if they were not there.
    out : ndarray, optional
        Array of x's shape and of the result's type to write to; it is returned.

    Returns
    -------
    p : array of x's shape and type
        Between 0 and 1, summing to k along the axis.

    Raises
    ------
    TypeError
        x, k, temperature, where or out of a wrong type (k must be an integer), an unknown keyword.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, an unknown method, a
        shape that does not fit.

    See Also
    --------
    KSubset : the distribution itself: log-probabilities, samples, entropy.
    thretopk : independent Bernoulli variables instead of a subset; k may be any real number.

    Notes
    -----
    *Holds*: range (strictly between 0 and 1 before rounding), sum, strict monotonicity up to
    rounding (x_i > x_j exactly if p_i > p_j, to a few units in the last place), invariance under
    shifts and permutations, convergence to the hard top-k when x_(k) > x_(k+1), the complement p(x,
    k) + p(-x, n - k) = 1, and a symmetric positive semidefinite Jacobian, the covariance of the
    subset's indicator divided by the temperature. *Does not hold*: a real k has no meaning here.

    *Accuracy*, R = (max x - min x)/temperature: 1e-13 + 4 eps R in float64, 1e-6 + 4 eps R in
    float32; small p have full relative accuracy as long as they are normal numbers, and so have
    small 1 - p as ``gradtopk(-x, n - k)``. *Cost*: O(n) whatever k is; a row of
    some thousand entries costs little more than a sigmoid `thretopk`, and a derivative as much
    again. Derivatives are those of contour with every method but auto.

    *Recursion*: with n = 100 scores from N(0, 9) and k = 20, most rows come out as NaN, and at
    k = 10 some finite results are wrong by more than 1. It is unstable because it subtracts
    nearly equal numbers; the operator itself is well-conditioned.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. At k = 0 and k = n all derivatives are 0.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024). The evaluation in
    O(n) is this library's own.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([3.0, 2.0, 1.0, 4.0])
    >>> stk.gradtopk(x, 2, temperature=0.5).round(3)
    array([0.869, 0.131, 0.018, 0.982])
    >>> p, dp = stk.gradtopk.jvp(x, 2, np.array([1.0, 0.0, 0.0, 0.0]), temperature=0.5)
    >>> dp.round(3)
    array([ 0.228, -0.197, -0.027, -0.004])
    >>> round(float(stk.gradtopk.potential(x, 2)), 3)  # log(e^7 + e^6 + e^5 + e^5 + e^4 + e^3)
    7.535
    """

    __name__ = "gradtopk"
    has_second = True
    has_potential = True

    def potential(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        **options: Any,
    ) -> Any:
        """Smoothed sum of the k largest entries, temperature * log Z_k; its gradient in x is p.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, **options
            As in a call of the operator; the result does not depend on the method.

        Returns
        -------
        phi : array of the batch shape, or a scalar
            In the units of x, between the sum of the k largest entries and that plus
            temperature * log(n choose k). With ``largest=False``, the smoothed sum of the k
            smallest.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> round(float(stk.gradtopk.potential([3.0, 2.0, 1.0, 4.0], 2)), 3)
        7.535
        """
        if host_arrays.on_device(x):
            return self._device().batch(
                self, "potential", x, k, temperature, axis, largest, where, None, options
            )
        call = self._check(x, k, temperature, axis, largest, where, None, options)
        return self._give_back_batch(call, call.sign * self._heights(call.rows))

    def _heights(self, rows: operator.Rows) -> operator.Array:
        """The potential of each row."""
        nothing = _no_columns(rows)
        if _is_short(rows, "auto"):
            return self._solve_short(rows, nothing).phi
        limits = _limits(rows, "auto")
        solution, short = self._solve(rows, nothing, _columns(rows), limits)
        phi = np.empty(len(rows.x))
        if _is_long(rows):
            for i, (row, size, tau) in enumerate(zip(*rows, strict=True)):
                phi[i] = _long.potential(row, int(size), tau, solution[i])
        else:
            pool.over(len(phi), 16 * rows.x.size, _rows.potential, *rows, solution, phi)
        if short is not None:
            phi[short.at] = short.phi
        return phi

    def _losses(
        self,
        rows: operator.Rows,
        plan: str,
        y: operator.Array,
        constant: bool,
        out: operator.Array | None,
    ) -> operator.Array:
        # The conjugate of a 0/1 vector is 0, and no other's has a formula.
        if constant and not np.isin(y, (0.0, 1.0)).all():
            raise ValueError(
                "target has entries between 0 and 1, whose conjugate of gradtopk's potential has "
                "no formula; expected 0/1 vectors or labels, or constant=False"
            )
        if out is not None:
            self._value(rows, plan, out)
        x = rows.x.astype(np.float64)
        least = np.where(np.isfinite(x), x, np.inf).min(axis=1, initial=np.inf)
        # A shift changes nothing but for rounding, and there is less of that near 0.
        x -= np.where(np.isfinite(least), least, 0.0)[:, None]
        taken = np.where(y > 0.0, x, 0.0) * y
        with np.errstate(invalid="ignore"):  # beside entries of +inf, whose rows are done again
            losses: operator.Array = self._heights(rows._replace(x=x)) - taken.sum(axis=1)
        for i in np.flatnonzero(np.isposinf(x).any(axis=1)):
            # Entries of +inf are always chosen: no loss if y says so, else an infinite one.
            others, k = ~np.isposinf(x[i]), rows.k[i] - np.isposinf(x[i]).sum()
            losses[i] = np.inf
            if (y[i, ~others] == 1.0).all():
                rest = operator.Rows(x[None, i, others], k[None], rows.temperature[None, i])
                losses[i] = self._losses(rest, plan, y[None, i, others], constant, None)[0]
        return np.maximum(losses, 0.0) if constant else losses

    def _options(self, *, method: str = "auto") -> str:
        if method not in METHODS:
            known = ", ".join(map(repr, METHODS))
            raise ValueError(f"method is {method!r}; expected one of {known}")
        return method

    @staticmethod
    def _tilt(rows: operator.Rows) -> operator.Array:
        """Sigmoid thresholds of k - 1/2, about."""
        x, k, tau = rows
        solution: operator.Array = _threshold.solve(
            x, k - 0.5, tau, CURVES["sigmoid"], _rows.TILT, _no_columns(rows)
        )
        return solution

    def _solve(
        self,
        rows: operator.Rows,
        out: operator.Array,
        solution: operator.Array,
        limits: Limits = NONE_SHORT,
    ) -> Solved:
        """Rows that are short by the limits are solved as such."""
        if not _is_long(rows):
            return Solved(solution, self._solve_rows(rows, out, solution, limits))
        wide = solution if solution.shape[1] else _columns(rows)
        left = [
            i
            for i, (x, k, tau) in enumerate(zip(*rows, strict=True))
            if not _long.solve(x, int(k), tau, out[i], wide[i])
        ]
        return Solved(solution, self._solve_some(rows, np.array(left, int), out, wide, limits))

    def _solve_some(
        self,
        rows: operator.Rows,
        these: operator.Array,
        out: operator.Array,
        solution: operator.Array,
        limits: Limits,
    ) -> Short | None:
        """`_solve_rows` of some rows."""
        if not len(these):
            return None
        some, p, answers = _take(rows, these), out[these], solution[these]
        short = self._solve_rows(some, p, answers, limits)
        out[these], solution[these] = p, answers
        return short and short._replace(at=these[short.at])

    def _solve_rows(
        self, rows: operator.Rows, out: operator.Array, solution: operator.Array, limits: Limits
    ) -> Short | None:
        """Rows each by one thread; those whose tilt needs a search in a second turn."""
        x = rows.x
        tilt, flags = np.full((len(x), TILT), OPEN), np.zeros(FLAGS, np.bool_)
        problem = *rows, tilt, limits, out, solution, flags
        pool.over(len(x), 2 * x.size, _rows.solve, *problem)
        if flags[SOME_MISLED]:
            pool.over(len(x), x.size, order.distributions, x, rows.k - 0.5, rows.temperature, tilt)
            flags[BY_DISTRIBUTION] = True
            pool.over(len(x), 2 * x.size, _rows.solve, *problem)
        if flags[SOME_OPEN]:
            several = max(1, CHUNK // max(1, x.shape[1]))
            still = np.flatnonzero(tilt[:, CODE] == OPEN)
            for start in range(0, len(still), several):
                self._solve_open(rows, still[start : start + several], out, solution)
        if not flags[SOME_SHORT]:
            return None
        these = np.flatnonzero(tilt[:, CODE] == _rows.SHORT_LEFT)
        p = out[these]
        short = self._solve_short(_take(rows, these), p)
        out[these] = p
        return short._replace(at=these)

    def _solve_open(
        self,
        rows: operator.Rows,
        these: operator.Array,
        out: operator.Array,
        solution: operator.Array,
    ) -> None:
        """Rows whose tilt needs a search."""
        some, flags = _take(rows, these), np.zeros(FLAGS, np.bool_)
        p, answers = (np.empty((len(these), a.shape[1]), a.dtype) for a in (out, solution))
        problem = *some, self._tilt(some), NONE_SHORT, p, answers, flags
        pool.over(len(these), 2 * some.x.size, _rows.solve, *problem)
        out[these], solution[these] = p, answers

    def _solve_short(self, rows: operator.Rows, out: operator.Array) -> Short:
        """Rows of which few entries are finite, by the distribution of the count."""
        tilt, phi = self._tilt(rows), np.empty(0 if out.shape[1] else len(out))
        _short.solve(rows, tilt, out, phi)
        return Short(None, tilt, phi)

    def _value(self, rows: operator.Rows, plan: str, out: operator.Array) -> None:
        x = rows.x
        if _is_short(rows, plan):
            self._solve_short(rows, out)
        elif plan == "recursion":
            work = 8 * x.size * (1 + int(rows.k.max(initial=0)))
            pool.over(len(x), work, _rows.solve_recursion, *rows, out)
        elif plan == "dp":
            work = x.size * (32 + int(rows.k.max(initial=0)))
            pool.over(len(x), work, _rows.solve_dp, *rows, self._tilt(rows), out)
        else:
            self._solve(rows, out, np.empty((len(x), 0)), _limits(rows, plan))

    def _linearize(self, rows: operator.Rows, plan: str, out: operator.Array) -> Solved:
        if _is_short(rows, plan):
            return Solved(np.empty((len(out), 0)), self._solve_short(rows, out))
        if plan in ("auto", "contour"):
            return self._solve(rows, out, _columns(rows), _limits(rows, plan))
        self._value(rows, plan, out)
        return self._solve(rows, _no_columns(rows), _columns(rows))

    def _packed_width(self, n: int, plan: str) -> int:
        return TILT if n <= (SHORT_32 if plan == "auto" else NONE_SHORT).always else SOLUTION

    def _pack(self, call: Any, state: Solved) -> operator.Array:
        solution, short = state
        if short is None:
            solution[solution[:, CODE] > MIXED, USED] = 0
            return solution
        n = call.rows.x.shape[1]
        if self._packed_width(n, call.plan) == TILT:
            return short.tilt
        at: Any = short.at
        if at is None:
            solution, at = _columns(call.rows), slice(None)
            solution[:, CODE] = NONE
        else:
            solution[solution[:, CODE] > MIXED, USED] = 0
        solution[at, USED] = -1
        solution[at, WEIGHTS : WEIGHTS + TILT] = short.tilt
        return solution

    def _unpack(self, call: Any, packed: operator.Array) -> Solved:
        nothing = np.empty(0)
        if packed.shape[1] == TILT:
            return Solved(np.empty((len(packed), 0)), Short(None, packed, nothing))
        at = np.flatnonzero(packed[:, USED] < 0)
        if not len(at):
            return Solved(packed)
        tilt = np.ascontiguousarray(packed[at, WEIGHTS : WEIGHTS + TILT])
        return Solved(packed, Short(None if len(at) == len(packed) else at, tilt, nothing))

    def _push_two(
        self,
        rows: operator.Rows,
        plan: str,
        state: Solved,
        v: operator.Array,
        a: operator.Array,
        moves: operator.Array,
        out: operator.Array,
        sums: operator.Array,
    ) -> None:
        x, tau = rows.x, rows.temperature
        solution = state.solution
        if state.short is not None:  # of the distribution of the count there are no nodes
            solution = self._solve(rows, _no_columns(rows), _columns(rows)).solution
        pool.over(len(x), 16 * x.size, _rows.second, x, tau, solution, v, a, moves, out, sums)

    def _push(
        self,
        rows: operator.Rows,
        plan: str,
        state: Solved,
        dx: operator.Array,
        dk: operator.Array,
        dtau: operator.Array,
        dp: operator.Array,
    ) -> None:
        _move(rows, state, dx, dtau, dp, np.empty((len(rows.x), 0)))

    def _pull(
        self,
        rows: operator.Rows,
        plan: str,
        state: Solved,
        g: operator.Array,
        gx: operator.Array,
        gk: operator.Array,
        gtau: operator.Array,
    ) -> None:
        _move(rows, state, g, np.zeros(len(rows.x)), gx, gtau[:, None])

    def _long_value(self, x: Any, numbers: Any, plan: str, first: Any, out: Any) -> Any:
        (k, tau), solution = numbers, np.zeros(SOLUTION)
        yield from _long.solve_finite(x, k, tau, first, out, solution)
        return solution

    def _long_push(self, x: Any, plan: str, solved: Any, v: Any, moves: Any, out: Any) -> Any:
        at = solved.numbers[-1], solved.state
        yield from _long.push_finite(x, *at, v, moves[-1], out, np.empty(0))

    def _long_pull(self, x: Any, plan: str, solved: Any, g: Any, out: Any) -> Any:
        in_tau = np.empty(1)
        yield from _long.push_finite(x, solved.numbers[-1], solved.state, g, 0.0, out, in_tau)
        return np.nan, in_tau[0]

    def _long_height(self, verb: str, x: Any, plan: str, solved: Any) -> Any:
        k, tau = solved.numbers
        return (yield from _long.potential_of_finite(x, k, tau, solved.state))

    def _long_height_of_few(self, verb: str, plan: str, rows: Any, solved: Any) -> float:
        return float(self._heights(rows)[0])

    def _long_height_of_constant(self, verb: str, plan: str, solved: Any, total: float) -> float:
        return total


def _is_long(rows: operator.Rows) -> bool:
    return bool(rows.x.shape[1] >= LONG)


def _limits(rows: operator.Rows, plan: str) -> Limits:
    """Which rows are short: of those the distribution of the count is multiplied out."""
    limits = SHORT_32 if rows.x.dtype == np.float32 else SHORT
    return limits if plan == "auto" else NONE_SHORT


def _is_short(rows: operator.Rows, plan: str) -> bool:
    """Whether all rows are short, and then whatever infinities leave of them is."""
    n, limits = int(rows.x.shape[1]), _limits(rows, plan)
    if n <= limits.always or n > limits.most:
        return n <= limits.always
    return bool((rows.k * (n - rows.k)).max(initial=0) <= limits.variance * n)


def _take(rows: operator.Rows, these: operator.Array) -> operator.Rows:
    return operator.Rows(*(each[these] for each in rows))


def _move(
    rows: operator.Rows,
    state: Solved,
    v: operator.Array,
    dtau: operator.Array,
    out: operator.Array,
    gtau: operator.Array,
) -> None:
    """`rows.push`, whichever way the rows were solved; `gtau`: a column, or none."""
    (x, _, tau), (solution, short) = rows, state
    if short is not None and short.at is None:
        _short.push(rows, short.tilt, v, dtau, out, gtau)
        return
    if _is_long(rows):
        for i in range(len(x)):
            _long.push(x[i], tau[i], solution[i], v[i], dtau[i], out[i], gtau[i])
    else:
        pool.over(len(x), 2 * x.size, _rows.push, x, tau, solution, v, dtau, out, gtau)
    if short is not None:
        at: Any = short.at
        dp, in_tau = out[at], gtau[at]
        _short.push(_take(rows, at), short.tilt, v[at], dtau[at], dp, in_tau)
        out[at], gtau[at] = dp, in_tau


def _columns(rows: operator.Rows) -> operator.Array:
    """Room for what the derivatives need: 0 where a row has no node."""
    return np.zeros((len(rows.x), SOLUTION))


def _no_columns(rows: operator.Rows) -> operator.Array:
    """An `out` that says that p is not wanted."""
    return np.empty((len(rows.x), 0), rows.x.dtype)


gradtopk = GradTopK()
