"""ThreTopK on the CPU: its engine, as in `_api.engine`.

A state is the solutions of `_threshold`, one record for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import _threshold
from ..._api.operator import Array, Rows
from ..._curves.base import is_steep, kernel_for, origin
from ..._curves.user import UserCurve
from ..._threads import pool
from ..._threshold.cpu import loss
from ..._threshold.methods import METHODS
from ..._threshold.records import REST, SOLUTION, C, D
from ..curve import check_integral, check_mass, check_slope, missing_mass
from . import long
from . import rows as kernels
from .at_edge import beside, narrow, widened


def _solve(rows: Rows, options: Any, out: Array) -> Array:
    """Write p, unless `out` has no columns; returns the solutions."""
    curve, method = options.curve, options.method
    if rows.x.dtype != np.float64 and is_steep(curve):
        p = np.empty(out.shape)
        solution = _threshold.solve(*widened(rows), curve, method, p)
        out[...] = p
        return solution
    if not isinstance(curve, UserCurve):
        return _threshold.solve(*rows, curve, method, out)
    p = out if out.shape == rows.x.shape else np.empty_like(rows.x)
    solution = _threshold.solve(*rows, curve, method, p)
    missed = missing_mass(rows.k, p, solution)
    if len(missed):
        # The mean or the moments of the user's curve have misled the steps.
        some = Rows(*(each[missed] for each in rows))
        found = np.empty_like(some.x)
        solution[missed] = _threshold.solve(*some, curve, METHODS["bisect"], found)
        p[missed] = found
        check_mass(options.name, rows.k, p, solution)
    return solution


def _solution(rows: Rows, options: Any) -> Array:
    return _solve(rows, options, np.empty((len(rows.x), 0), rows.x.dtype))


def _move(names: tuple[Any, Any], rows: Rows, curve: Any, *given: Any) -> None:
    """Call the first of two kernels on all rows, and the second on rows with infinities, if any."""
    x, with_infinities = rows.x, np.zeros(1, np.bool_)
    of_finite, of_others = (kernel_for(curve, each) for each in names)
    given = x, rows.temperature, curve, *given, with_infinities
    pool.over(len(x), x.size, of_finite, *given)
    if with_infinities[0]:
        pool.over(len(x), x.size, of_others, *given, pool.code_of(of_finite, given).address)


def value(rows: Rows, options: Any, out: Array) -> None:
    """Write p."""
    _solve(rows, options, out)


def linearize(rows: Rows, options: Any, out: Array) -> Array:
    """Write p; returns the solutions, which the derivatives need."""
    return _solve(rows, options, out)


def few(rows: Rows, options: Any) -> Any:
    """A function (rows, out) that writes p of few rows, or None; returns the solutions."""
    x, curve = rows.x, options.curve
    if x.dtype != np.float64 and is_steep(curve):
        return None
    return _threshold.few(*rows, curve, options.method, x)


def jvp(
    rows: Rows, options: Any, state: Array, dx: Array, dk: Array, dtau: Array, out: Array
) -> None:
    """Write dp along (dx, dk, dtau)."""
    curve = options.curve
    if is_steep(curve):
        rows, moved = widened(rows), np.empty(out.shape)
        v, _ = beside(rows, curve, state, dx)
        _jvp_rows(rows, options, state, v, dk, dtau, moved)
        narrow(moved, out)
    else:
        _jvp_rows(rows, options, state, dx, dk, dtau, out)


def _jvp_rows(
    rows: Rows, options: Any, state: Array, dx: Array, dk: Array, dtau: Array, out: Array
) -> None:
    (x, _, tau), curve = rows, options.curve
    if _threshold.is_long(x, options.method):
        for i in range(len(x)):
            long.jvp(x[i], tau[i], curve, state[i], dx[i], dk[i], dtau[i], out[i])
    else:
        _move((kernels.jvp, kernels.jvp_with_infinities), rows, curve, state, dx, out, dk, dtau)


def vjp(
    rows: Rows, options: Any, state: Array, g: Array, gx: Array, gk: Array, gtau: Array
) -> None:
    """Write the gradients of <g, p>."""
    curve = options.curve
    if is_steep(curve):
        rows, moved = widened(rows), np.empty(gx.shape)
        v, u = beside(rows, curve, state, g)
        _vjp_rows(rows, options, state, v, moved, gk, gtau)
        narrow(moved, gx)
        gk += u
    else:
        _vjp_rows(rows, options, state, g, gx, gk, gtau)


def _vjp_rows(
    rows: Rows, options: Any, state: Array, g: Array, gx: Array, gk: Array, gtau: Array
) -> None:
    (x, _, tau), curve = rows, options.curve
    if _threshold.is_long(x, options.method):
        for i in range(len(x)):
            gk[i], gtau[i] = long.vjp(x[i], tau[i], curve, state[i], g[i], gx[i])
    else:
        _move((kernels.vjp, kernels.vjp_with_infinities), rows, curve, state, g, gx, gk, gtau)


def few_vjp(rows: Rows, options: Any) -> Any:
    """A function (rows, state, g, gx) that writes the gradient in x of few rows, or None."""
    (x, k, tau), curve = rows, options.curve
    if is_steep(curve):
        return None
    count, state = len(x), np.empty((len(x), SOLUTION))
    given = x, tau, curve, state, x, x, k, tau, np.zeros(1, np.bool_)
    call = pool.code_of(kernel_for(curve, kernels.vjp), given).call

    def vjp_few(rows: Any, state: Array, g: Array, gx: Array) -> None:
        x, _, tau = rows
        gk, gtau, others = np.empty(count), np.empty(count), np.zeros(1, np.bool_)
        call(0, count, x, tau, curve, state, g, gx, gk, gtau, others)

    return vjp_few


def second(
    rows: Rows,
    options: Any,
    state: Array,
    v: Array,
    a: Array,
    moves: Array,
    out: Array,
    sums: Array,
) -> None:
    """Write the derivative along v and a; to `sums` the gradients in k and temperature."""
    curve = options.curve
    check_slope(curve, options.name)
    moved = out
    if is_steep(curve):
        rows, moved = widened(rows), np.empty(out.shape)
        v, _ = beside(rows, curve, state, v)
        a, _ = beside(rows, curve, state, a)
    x, tau, kernel = rows.x, rows.temperature, kernel_for(curve, kernels.second)
    pool.over(len(x), 3 * x.size, kernel, x, tau, curve, state, v, a, moved, moves, sums)
    if moved is not out:
        narrow(moved, out)


def potential(rows: Rows, options: Any, out: Array) -> None:
    """Write phi, the potential of each row."""
    curve = options.curve
    check_integral(curve, options.name)
    solution = _solution(rows, options)
    if _threshold.is_long(rows.x, options.method):
        for i, (x, k, tau) in enumerate(zip(*rows, strict=True)):
            out[i] = long.potential(x, k, tau, curve, solution[i])
    else:
        kernel, work = kernel_for(curve, kernels.potential), 16 * rows.x.size
        pool.over(len(out), work, kernel, *rows, curve, solution, out)
    out -= rows.k * rows.temperature * origin(curve)


def threshold(rows: Rows, options: Any, out: Array) -> None:
    """Write lambda, the threshold of each row."""
    solution = _solution(rows, options)
    with np.errstate(over="ignore"):
        d = solution[:, D] + solution[:, REST] - origin(options.curve)
        out[...] = solution[:, C] + rows.temperature * d


def losses(rows: Rows, options: Any, y: Array, constant: bool, out: Array | None) -> Array:
    """The Fenchel-Young loss of each row against y; p to `out` unless that is None."""
    curve = options.curve
    check_integral(curve, options.name)
    solution = _solution(rows, options) if out is None else _solve(rows, options, out)
    return _losses(rows, options, solution, y, constant)


def _losses(rows: Rows, options: Any, solution: Array, y: Array, constant: bool) -> Array:
    """The loss of each row against y, from solutions; a y without columns is p itself."""
    (x, k, tau), curve = rows, options.curve
    level, found, smooth = solution.copy(), np.empty(len(x)), np.ones(len(x), np.bool_)
    level[:, D] += level[:, REST]
    given = x, tau, curve, level, y, constant, smooth, found
    pool.over(len(x), 32 * x.size, kernel_for(curve, loss.losses), *given)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return tau * (found if constant else found - k * origin(curve))


def surplus(rows: Rows, options: Any, out: Array) -> None:
    """Write the potential less <x, p>, a sum of terms of one sign."""
    check_integral(options.curve, options.name)
    itself = np.empty((len(rows.x), 0))
    out[...] = _losses(rows, options, _solution(rows, options), itself, False)


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state."""
    return SOLUTION


def pack(rows: Rows, options: Any, state: Array) -> Array:
    """The state as an array, which it already is."""
    return state


def unpack(rows: Rows, options: Any, packed: Array) -> Array:
    """The state from its array, which it already is."""
    return packed
