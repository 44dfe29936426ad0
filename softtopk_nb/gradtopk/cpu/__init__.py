"""GradTopK on the CPU: its engine, as in `_api.engine`. `options` is the method."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.operator import Array, Rows
from ..._curves.registry import CURVES
from ..._nonfinite import NONE, WITH_INFINITIES
from ..._threads import pool
from ..._threshold.cpu import loss
from ..._threshold.records import CODE
from ..._threshold.records import SOLUTION as TILT
from ..records import FLAGS, LOG_P, NONE_SHORT, SHORT_32, SOLUTION, SOME_WITH_CORE, USED, WEIGHTS
from . import long, short, solving, with_core
from . import rows as kernels
from .solving import Short, Solved, columns, no_columns


def value(rows: Rows, options: str, out: Array) -> None:
    """Write p."""
    x = rows.x
    if solving.is_short(rows, options):
        solving.solve_short(rows, out)
    elif options == "recursion":
        work = 8 * x.size * (1 + int(rows.k.max(initial=0)))
        pool.over(len(x), work, kernels.solve_recursion, *rows, out)
    elif options == "dp":
        work = x.size * (32 + int(rows.k.max(initial=0)))
        pool.over(len(x), work, kernels.solve_dp, *rows, solving.tilts(rows), out)
    else:
        limits = solving.limits_of(rows, options)
        solving.solve(rows, out, np.empty((len(x), 0)), limits)


def linearize(rows: Rows, options: str, out: Array) -> Solved:
    """Write p; returns the state for derivatives."""
    if solving.is_short(rows, options):
        return Solved(np.empty((len(out), 0)), solving.solve_short(rows, out))
    if options in ("auto", "contour"):
        return solving.solve(rows, out, columns(rows), solving.limits_of(rows, options))
    value(rows, options, out)
    return solving.solve(rows, no_columns(rows), columns(rows))


def few(rows: Rows, options: str) -> Any:
    """A function (rows, out) that writes p of few rows like these, or None; returns the tilts."""
    all_short = rows.x.shape[1] <= solving.limits_of(rows, options).always
    return solving.few_short(rows) if all_short else None


def jvp(
    rows: Rows, options: str, state: Solved, dx: Array, dk: Array, dtau: Array, out: Array
) -> None:
    """Write dp along (dx, dtau); k is an integer and has no direction."""
    _move(rows, state, dx, dtau, out, np.empty((len(rows.x), 0)))


def vjp(
    rows: Rows, options: str, state: Solved, g: Array, gx: Array, gk: Array, gtau: Array
) -> None:
    """Write the gradients of <g, p>: the Jacobian is symmetric. gk is not written."""
    _move(rows, state, g, np.zeros(len(rows.x)), gx, gtau[:, None])


def few_vjp(rows: Rows, options: str) -> Any:
    """A function (rows, state, g, gx) that writes the gradient in x of few rows."""
    return short.few_vjp(rows, np.empty((len(rows.x), TILT)))


def _move(rows: Rows, state: Solved, v: Array, dtau: Array, out: Array, gtau: Array) -> None:
    """Write dp along (v, dtau), however the rows were solved; `gtau` has one column, or none."""
    (x, _, tau), (solution, short_ones) = rows, state
    if short_ones is not None and short_ones.at is None:
        short.jvp(rows, short_ones.tilt, v, dtau, out, gtau)
        return
    if solving.is_long(rows):
        for i in range(len(x)):
            long.jvp(x[i], tau[i], solution[i], v[i], dtau[i], out[i], gtau[i])
    else:
        given, flags = (x, tau, solution, v, dtau, out, gtau), np.zeros(FLAGS, np.bool_)
        pool.over(len(x), 2 * x.size, kernels.jvp, *given, flags)
        if flags[SOME_WITH_CORE]:
            pool.over(len(x), 2 * x.size, with_core.jvp, *given)
    if short_ones is not None:
        at: Any = short_ones.at
        dp, in_tau = out[at], gtau[at]
        short.jvp(solving.take(rows, at), short_ones.tilt, v[at], dtau[at], dp, in_tau)
        out[at], gtau[at] = dp, in_tau


def second(
    rows: Rows,
    options: str,
    state: Solved,
    v: Array,
    a: Array,
    moves: Array,
    out: Array,
    sums: Array,
) -> None:
    """Write the derivative along v and a; to `sums` the gradients in k and temperature."""
    x, tau = rows.x, rows.temperature
    solution = state.solution
    if state.short is not None:  # a solution by the count's distribution has no nodes
        solution = solving.solve(rows, no_columns(rows), columns(rows)).solution
    problem = x, tau, solution, v, a, moves, out, sums
    if solving.is_long(rows):
        for one in zip(*problem, strict=True):
            long.second(*one)
    else:
        pool.over(len(x), 16 * x.size, kernels.second, *problem)


def potential(rows: Rows, options: str, out: Array) -> None:
    """Write phi, the potential of each row, for any method."""
    out[...] = solving.potentials(rows)


def losses(rows: Rows, options: str, y: Array, constant: bool, out: Array | None) -> Array:
    """The Fenchel-Young loss of each row against y; p to `out` unless that is None."""
    # The conjugate of a 0/1 vector is 0; for other vectors it has no formula.
    if constant and not np.isin(y, (0.0, 1.0)).all():
        raise ValueError(
            "target has entries between 0 and 1, whose conjugate of gradtopk's potential has "
            "no formula; expected 0/1 vectors or labels, or constant=False"
        )
    if out is not None:
        value(rows, options, out)
    rows = _in_float64(rows)
    found = _losses(rows, *solving.weighed(rows, no_columns(rows)), y)
    return np.maximum(found, 0.0) if constant else found


def _in_float64(rows: Rows) -> Rows:
    return rows._replace(x=rows.x.astype(np.float64, copy=False))


def _losses(rows: Rows, level: Array, smooth: Array, y: Array) -> Array:
    """The losses against y without the conjugate, from the records of rows."""
    (x, _, tau), found = rows, np.empty(len(rows.x))
    given = x, tau, CURVES["sigmoid"], level, y, False, smooth, found
    pool.over(len(x), 32 * x.size, loss.losses, *given)
    log_p = np.where(level[:, CODE] > WITH_INFINITIES, 0.0, level[:, LOG_P])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return tau * (found + log_p)


def surplus(rows: Rows, options: str, out: Array) -> None:
    """Write the potential less <x, p>, which is the entropy times the temperature."""
    rows = _in_float64(rows)
    p = np.empty(rows.x.shape)
    level, smooth = solving.weighed(rows, p)
    out[...] = np.maximum(_losses(rows, level, smooth, p), 0.0)


def state_width(n: int, options: str) -> int:
    """Number of float64 per row in the packed state."""
    return TILT if n <= (SHORT_32 if options == "auto" else NONE_SHORT).always else SOLUTION


def pack(rows: Rows, options: str, state: Solved) -> Array:
    """The state packed as an array."""
    solution, short_ones = state
    if short_ones is None:
        solution[solution[:, CODE] > WITH_INFINITIES, USED] = 0
        return solution
    if state_width(rows.x.shape[1], options) == TILT:
        return short_ones.tilt
    at: Any = short_ones.at
    if at is None:
        solution, at = columns(rows), slice(None)
        solution[:, CODE] = NONE
    else:
        solution[solution[:, CODE] > WITH_INFINITIES, USED] = 0
    solution[at, USED] = -1
    solution[at, WEIGHTS : WEIGHTS + TILT] = short_ones.tilt
    return solution


def unpack(rows: Rows, options: str, packed: Array) -> Solved:
    """The state from its packed array."""
    nothing = np.empty(0)
    if packed.shape[1] == TILT:
        return Solved(np.empty((len(packed), 0)), Short(None, packed, nothing))
    at = np.flatnonzero(packed[:, USED] < 0)
    if not len(at):
        return Solved(packed)
    tilt = np.ascontiguousarray(packed[at, WEIGHTS : WEIGHTS + TILT])
    return Solved(packed, Short(None if len(at) == len(packed) else at, tilt, nothing))
