"""ThreTopK: p_i = f((x_i - lambda)/tau), with the threshold lambda that makes p sum to k."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _threshold
from .._api import host_arrays, operator
from .._curves.base import is_steep, kernel_for, mean_of_distribution, origin
from .._curves.entmax import Entmax
from .._curves.registry import CURVES, NAMES
from .._curves.user import UserCurve
from .._nonfinite import ALL
from .._threads import pool
from .._threads.long_rows import room
from .._threshold.cpu.long import solve_finite
from .._threshold.cpu.scan import SCANNED
from .._threshold.methods import METHODS
from .._threshold.records import REST, SOLUTION, C, D
from .cpu import long as _long
from .cpu import loss as _loss
from .cpu import rows as _rows
from .cpu.at_edge import beside, narrow, widened
from .curve import (
    Curve,
    check_integral,
    check_mass,
    check_one_mass,
    check_slope,
    misses,
    missing_mass,
)
from .formulas import potential_of_nothing

__all__ = ["Curve", "thretopk"]

MOST_ALPHA = 100.0  # with more entmax is all but a step, and float64 has too few numbers for it


class _Plan(NamedTuple):
    curve: Any  # a value of one of the types in `_curves`
    method: Any  # a value of one of the types in `_threshold.methods`
    name: str


class ThreTopK(operator.Differentiable):
    """Smooth top-k by a threshold: p_i = f((x_i - lambda) / temperature), sum p = k.

    f is a CDF, the *curve*; lambda is the one number for each row that makes p sum to k. As the
    temperature goes to 0, p turns into the hard top-k.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type (float16 is computed in float32);
        integers and bools give float64.
    k : float or array_like
        Sum of p, any real number 0 <= k <= n; broadcast against x's shape without the axis. One
        below n 2^-1020 is taken for that; with ``curve="cauchy"`` one below n 2^-500, or n 2^-60
        in float32.
    curve : {CURVES} or Curve, optional
        The curve f, "laplace" by default: see the page "Which operator?".
    alpha : float, optional
        Exponent of ``curve="entmax"``, 1 < alpha <= 100; towards 1 it becomes exp, 2 is clip, 1.5
        is the usual choice.
    method : {"auto", "newton", "scan", "bisect"}, optional
        How lambda is found. newton: passes over the row, no sort (auto takes it). scan: sort and
        scan analytically, for exp, laplace and clip. bisect: halve until the mass is right.
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
        x, k, temperature, where, alpha or out of a wrong type, an unknown keyword.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, an unknown curve or
        method, a shape that does not fit.

    See Also
    --------
    hardtopk : the limit of temperature 0.

    Notes
    -----
    *Holds*: range, sum, monotonicity up to rounding (x_i >= x_j implies p_i >= p_j, less a unit
    or two in the last place), invariance under shifts and permutations, convergence to the hard
    top-k when x_(k) > x_(k+1), and a symmetric positive semidefinite Jacobian: p is the gradient
    of `potential`. *Does not hold*: p_i >= p_j implies x_i >= x_j only for the strictly increasing
    curves, not where exp, clip or entmax saturate; exp, clip and entmax have kinks.

    *Accuracy*, R = (max x - min x)/temperature: 1e-13 + 4 eps R in float64, 1e-6 + 4 eps R in
    float32, for entmax with every alpha; with alpha > 2, where the slope is infinite at the edge
    of the support, float32 rows are solved in float64 (on the CPU). *Cost*: O(n), a few passes
    over the row; a row is never sorted unless asked for. The derivatives cost two passes.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. At k = 0 and k = n, and where every entry is
    saturated to rounding, all derivatives are 0. Temperatures may be as small or large as numbers
    are; on a device those beyond 1/max or max of the type (3e-39 and 3e38 in float32) act as these.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([3.0, 2.0, 1.0, 4.0])
    >>> stk.thretopk(x, 2, temperature=0.5).round(3)
    array([0.816, 0.184, 0.025, 0.975])
    >>> p, vjp = stk.thretopk.vjp(x, 2, temperature=0.5)
    >>> vjp(np.array([1.0, 0.0, 0.0, 0.0])).x.round(3)
    array([ 0.206, -0.162, -0.022, -0.022])
    """

    __name__ = "thretopk"
    real_k = True
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
        """Smoothed sum of the k largest entries; its gradient in x is p.

        temperature * min over l of [k l + sum F(x/temperature - l)], F the antiderivative of the
        curve that vanishes at -inf; of a distribution without a mean the one that vanishes at 0,
        and then it is -inf at k = 0 and k = n. For entmax it goes to -inf as
        -k temperature/(alpha - 1) where alpha goes to 1, and has digits in proportion.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, **options
            As in a call of the operator. A `Curve` of one's own needs its ``integral``.

        Returns
        -------
        phi : array of the batch shape, or a scalar
            In the units of x. With ``largest=False``, the smoothed sum of the k smallest.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> phi = stk.thretopk.potential([3.0, 2.0, 1.0, 4.0], 2, temperature=0.1)
        >>> round(float(phi), 4)                                 # near 3 + 4
        7.0007
        """
        if host_arrays.on_device(x):
            return self._device().batch(
                self, "potential", x, k, temperature, axis, largest, where, None, options
            )
        call = self._check(x, k, temperature, axis, largest, where, None, options)
        curve = call.plan.curve
        check_integral(curve, call.plan.name)
        rows = call.rows
        solution = self._solve(rows, call.plan, np.empty((len(rows.x), 0), rows.x.dtype))
        phi = np.empty(len(rows.x))
        if _threshold.is_long(rows.x, call.plan.method):
            for i, (x, k, tau) in enumerate(zip(*rows, strict=True)):
                phi[i] = _long.potential(x, k, tau, curve, solution[i])
        else:
            kernel, work = kernel_for(curve, _rows.potential), 16 * rows.x.size
            pool.over(len(phi), work, kernel, *rows, curve, solution, phi)
        phi -= rows.k * rows.temperature * origin(curve)
        return self._give_back_batch(call, call.sign * phi)

    def threshold(
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
        """The threshold lambda of p = f((x - lambda)/temperature).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, **options
            As in a call of the operator.

        Returns
        -------
        lam : array of the batch shape, or a scalar
            In the units of x; +inf where nothing is selected (k = 0), -inf where everything is
            (k = n). With ``largest=False``, p = f((lam - x)/temperature). That of entmax goes to
            -inf as -temperature/(alpha - 1) where alpha goes to 1.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> float(stk.thretopk.threshold([3.0, 2.0, 1.0, 4.0], 2))
        2.5
        """
        if host_arrays.on_device(x):
            return self._device().batch(
                self, "threshold", x, k, temperature, axis, largest, where, None, options
            )
        call = self._check(x, k, temperature, axis, largest, where, None, options)
        rows = call.rows
        solution = self._solve(rows, call.plan, np.empty((len(rows.x), 0), rows.x.dtype))
        with np.errstate(over="ignore"):
            d = solution[:, D] + solution[:, REST] - origin(call.plan.curve)
            lam = solution[:, C] + rows.temperature * d
        return self._give_back_batch(call, call.sign * lam)

    def _options(self, *, curve: Any = "laplace", alpha: Any = None, method: str = "auto") -> _Plan:
        chosen: Any
        if isinstance(curve, Curve):
            chosen, name = curve.compiled, curve.name
        elif curve == "entmax" and isinstance(curve, str):
            chosen, name = Entmax(_check_alpha(alpha)), curve
        elif isinstance(curve, str) and curve in CURVES:
            chosen, name = CURVES[curve], curve
        else:
            known = ", ".join(map(repr, NAMES))
            raise ValueError(f"curve is {curve!r}; expected one of {known} or a Curve")
        if alpha is not None and name != "entmax":
            raise ValueError(f"alpha is {alpha!r}, but curve {name!r} has no alpha")
        if method not in ("auto", *METHODS):
            known = ", ".join(map(repr, ("auto", *METHODS)))
            raise ValueError(f"method is {method!r}; expected one of {known}")
        if method == "scan" and not isinstance(chosen, SCANNED):
            raise ValueError(
                f"method is 'scan', which curve {name!r} does not have; "
                "expected curve 'exp', 'laplace' or 'clip'"
            )
        return _Plan(chosen, METHODS["newton" if method == "auto" else method], name)

    def _computed_in(self, plan: _Plan, given: type) -> type:
        # float32 has not the digits for tails that are differences from 1.
        return np.float64 if isinstance(plan.curve, UserCurve) else given

    @staticmethod
    def _solve(rows: operator.Rows, plan: _Plan, out: operator.Array) -> Any:
        if rows.x.dtype != np.float64 and is_steep(plan.curve):
            p = np.empty(out.shape)
            solution = _threshold.solve(*widened(rows), plan.curve, plan.method, p)
            out[...] = p
            return solution
        if not isinstance(plan.curve, UserCurve):
            return _threshold.solve(*rows, plan.curve, plan.method, out)
        p = out if out.shape == rows.x.shape else np.empty_like(rows.x)
        solution = _threshold.solve(*rows, plan.curve, plan.method, p)
        missed = missing_mass(rows.k, p, solution)
        if len(missed):
            # What is known of the curve has misled the steps.
            some = operator.Rows(*(each[missed] for each in rows))
            found = np.empty_like(some.x)
            solution[missed] = _threshold.solve(*some, plan.curve, METHODS["bisect"], found)
            p[missed] = found
            check_mass(plan.name, rows.k, p, solution)
        return solution

    def _value(self, rows: operator.Rows, plan: _Plan, out: operator.Array) -> None:
        self._solve(rows, plan, out)

    def _linearize(self, rows: operator.Rows, plan: _Plan, out: operator.Array) -> Any:
        return self._solve(rows, plan, out)

    def _losses(
        self,
        rows: operator.Rows,
        plan: _Plan,
        y: operator.Array,
        constant: bool,
        out: operator.Array | None,
    ) -> operator.Array:
        check_integral(plan.curve, plan.name)
        p = np.empty((len(rows.x), 0), rows.x.dtype) if out is None else out
        solution = self._solve(rows, plan, p)
        losses, kernel = np.empty(len(p)), kernel_for(plan.curve, _loss.losses)
        given = plan.curve, solution, y, constant, losses
        pool.over(len(p), 32 * rows.x.size, kernel, *rows, *given)
        return losses

    def _packed_width(self, n: int, plan: _Plan) -> int:
        return SOLUTION

    def _pack(self, call: Any, state: operator.Array) -> operator.Array:
        return state

    def _unpack(self, call: Any, packed: operator.Array) -> operator.Array:
        return packed

    def _push_two(
        self,
        rows: operator.Rows,
        plan: _Plan,
        state: Any,
        v: operator.Array,
        a: operator.Array,
        moves: operator.Array,
        out: operator.Array,
        sums: operator.Array,
    ) -> None:
        check_slope(plan.curve, plan.name)
        moved = out
        if is_steep(plan.curve):
            rows, moved = widened(rows), np.empty(out.shape)
            v, _ = beside(rows, plan.curve, state, v)
            a, _ = beside(rows, plan.curve, state, a)
        x, tau, kernel = rows.x, rows.temperature, kernel_for(plan.curve, _rows.second)
        pool.over(len(x), 3 * x.size, kernel, x, tau, plan.curve, state, v, a, moved, moves, sums)
        if moved is not out:
            narrow(moved, out)

    def _push(
        self,
        rows: operator.Rows,
        plan: _Plan,
        state: Any,
        dx: operator.Array,
        dk: operator.Array,
        dtau: operator.Array,
        dp: operator.Array,
    ) -> None:
        if is_steep(plan.curve):
            rows, moved = widened(rows), np.empty(dp.shape)
            v, _ = beside(rows, plan.curve, state, dx)
            self._push_rows(rows, plan, state, v, dk, dtau, moved)
            narrow(moved, dp)
        else:
            self._push_rows(rows, plan, state, dx, dk, dtau, dp)

    @staticmethod
    def _push_rows(
        rows: operator.Rows,
        plan: _Plan,
        state: Any,
        dx: operator.Array,
        dk: operator.Array,
        dtau: operator.Array,
        dp: operator.Array,
    ) -> None:
        x, tau = rows.x, rows.temperature
        if _threshold.is_long(x, plan.method):
            for i in range(len(x)):
                _long.push(x[i], tau[i], plan.curve, state[i], dx[i], dk[i], dtau[i], dp[i])
        else:
            kernels = _rows.push, _rows.push_mixed
            _move(kernels, x, tau, plan.curve, state, dx, dp, dk, dtau)

    def _pull(
        self,
        rows: operator.Rows,
        plan: _Plan,
        state: Any,
        g: operator.Array,
        gx: operator.Array,
        gk: operator.Array,
        gtau: operator.Array,
    ) -> None:
        if is_steep(plan.curve):
            rows, moved = widened(rows), np.empty(gx.shape)
            v, u = beside(rows, plan.curve, state, g)
            self._pull_rows(rows, plan, state, v, moved, gk, gtau)
            narrow(moved, gx)
            gk += u
        else:
            self._pull_rows(rows, plan, state, g, gx, gk, gtau)

    @staticmethod
    def _pull_rows(
        rows: operator.Rows,
        plan: _Plan,
        state: Any,
        g: operator.Array,
        gx: operator.Array,
        gk: operator.Array,
        gtau: operator.Array,
    ) -> None:
        x, tau = rows.x, rows.temperature
        if _threshold.is_long(x, plan.method):
            for i in range(len(x)):
                gk[i], gtau[i] = _long.pull(x[i], tau[i], plan.curve, state[i], g[i], gx[i])
        else:
            kernels = _rows.pull, _rows.pull_mixed
            _move(kernels, x, tau, plan.curve, state, g, gx, gk, gtau)

    def _long_dtype(self, plan: _Plan, given: type) -> type:
        return np.float64 if is_steep(plan.curve) else self._computed_in(plan, given)

    def _long_value(self, x: Any, numbers: Any, plan: _Plan, first: Any, out: Any) -> Any:
        (k, tau), solution = numbers, np.empty(SOLUTION)
        own = isinstance(plan.curve, UserCurve)
        p, at = room(x) if own and not len(out) else out, (plan.curve, plan.method)
        yield from solve_finite(x, k, tau, *at, first, p, solution)
        if not own:
            return solution
        if misses(k, (yield from _long.mass_of_finite(p))):
            # What is known of the curve has misled the steps.
            at = plan.curve, METHODS["bisect"]
            yield from solve_finite(x, k, tau, *at, first, p, solution)
            check_one_mass(plan.name, k, (yield from _long.mass_of_finite(p)))
        return solution

    def _long_push(self, x: Any, plan: _Plan, solved: Any, v: Any, moves: Any, out: Any) -> Any:
        at = solved.numbers[-1], plan.curve, solved.state
        if is_steep(plan.curve):
            v, _ = yield from _long.beside_finite(x, *at, v)
        dk, dtau = moves
        yield from _long.push_finite(x, *at, v, dk, dtau, out)

    def _long_pull(self, x: Any, plan: _Plan, solved: Any, g: Any, out: Any) -> Any:
        at, u = (solved.numbers[-1], plan.curve, solved.state), 0.0
        if is_steep(plan.curve):
            g, u = yield from _long.beside_finite(x, *at, g)
        gk, gtau = yield from _long.pull_finite(x, *at, g, out)
        return gk + u, gtau

    def _long_height(self, verb: str, x: Any, plan: _Plan, solved: Any) -> Any:
        (k, tau), solution, shift = solved.numbers, solved.state, origin(plan.curve)
        if verb == "threshold":
            return solution[C] + tau * (solution[D] + solution[REST] - shift)
        phi = yield from _long.potential_of_finite(x, k, tau, plan.curve, solution)
        return phi - k * tau * shift

    def _long_height_of_few(self, verb: str, plan: _Plan, rows: Any, solved: Any) -> float:
        (k, tau), solution, shift = solved.numbers, solved.state, origin(plan.curve)
        if verb == "threshold":
            lam: float = solution[0, C] + tau * (solution[0, D] + solution[0, REST] - shift)
            return lam
        phi = np.empty(1)
        kernel_for(plan.curve, _rows.potential)(0, 1, *rows, plan.curve, solution, phi)
        return float(phi[0] - k * tau * shift)

    def _long_height_of_constant(self, verb: str, plan: _Plan, solved: Any, total: float) -> float:
        k, tau = solved.numbers
        if verb == "threshold":
            return -np.inf if solved.constant == ALL else np.inf
        if solved.constant != ALL or k == 0:
            return float(potential_of_nothing(plan.curve, int(solved.seen.size)))
        far = mean_of_distribution(plan.curve)  # type: ignore[no-untyped-call]
        return float(total - k * tau * (far + origin(plan.curve)))


def _move(kernels: Any, x: operator.Array, tau: operator.Array, curve: Any, *args: Any) -> None:
    """The first of two kernels on all rows, and the second on those with infinities, if any."""
    mixed = np.zeros(1, np.bool_)
    for each in kernels:
        pool.over(len(x), x.size, kernel_for(curve, each), x, tau, curve, *args, mixed)
        if not mixed[0]:
            return


def _check_alpha(alpha: Any) -> float:
    expected = f"a number above 1, at most {MOST_ALPHA:g}"
    if alpha is None:
        raise ValueError(f"curve 'entmax' needs alpha=..., {expected}")
    if isinstance(alpha, (bool, np.bool_)) or not isinstance(
        alpha, (int, float, np.integer, np.floating)
    ):
        raise TypeError(f"alpha is {alpha!r}; expected {expected}")
    if not (1 < alpha <= MOST_ALPHA and float(alpha) > 1.0):
        raise ValueError(f"alpha is {alpha!r}; expected {expected}")
    return float(alpha)


if ThreTopK.__doc__ is not None:  # it is under -OO
    ThreTopK.__doc__ = ThreTopK.__doc__.replace("{CURVES}", f"{{{', '.join(map(repr, NAMES))}}}")
thretopk = ThreTopK()
