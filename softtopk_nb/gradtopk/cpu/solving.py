"""The method for each row of GradTopK, and the calls that solve them.

Short rows are solved by the distribution of the count (`short`), the others by nodes (`rows`, and
`long` for a row on all threads), after a search for their tilt where the first is not near enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import _threshold
from ..._api.operator import Array, Rows
from ..._curves.registry import CURVES
from ..._threads import pool
from ..._threads.long_rows import LONG
from ..._threshold.cpu import order_statistics
from ..._threshold.records import BY_DISTRIBUTION, CODE, SOME_BAD_MOMENTS, SOME_UNSOLVED, UNSOLVED
from ..._threshold.records import SOLUTION as TILT
from ..records import (
    FLAGS,
    NONE_SHORT,
    SHORT,
    SHORT_32,
    SHORT_LEFT,
    SOLUTION,
    SOME_SHORT,
    SOME_WITH_CORE,
    Limits,
)
from . import long, poisson_binomial, with_core
from . import rows as kernels
from . import short as short_rows

CHUNK = 1 << 19  # entries of the rows whose tilts are searched for together, roughly


class Short(NamedTuple):
    """The rows that were solved as short ones."""

    at: Array | None  # indices of the rows; None: all
    tilt: Array
    phi: Array  # the potential, if p was not wanted


class Solved(NamedTuple):
    """The state for derivatives."""

    solution: Array
    short: Short | None = None


def is_long(rows: Rows) -> bool:
    """Whether the rows are so long that each is solved by all threads."""
    return bool(rows.x.shape[1] >= LONG)


def limits_of(rows: Rows, method: str) -> Limits:
    """The limits up to which rows are short, and solved by the distribution of the count."""
    limits = SHORT_32 if rows.x.dtype == np.float32 else SHORT
    return limits if method == "auto" else NONE_SHORT


def is_short(rows: Rows, method: str) -> bool:
    """Whether all rows are short, and with them their finite entries alone."""
    n, limits = int(rows.x.shape[1]), limits_of(rows, method)
    if n <= limits.always or n > limits.most:
        return n <= limits.always
    return bool((rows.k * (n - rows.k)).max(initial=0) <= limits.variance * n)


def take(rows: Rows, these: Array) -> Rows:
    """The rows with these indices."""
    return Rows(*(each[these] for each in rows))


def columns(rows: Rows) -> Array:
    """Memory for the solutions: 0 where a row has no node."""
    return np.zeros((len(rows.x), SOLUTION))


def no_columns(rows: Rows) -> Array:
    """An `out` without columns, for p that is not wanted."""
    return np.empty((len(rows.x), 0), rows.x.dtype)


def tilts(rows: Rows) -> Array:
    """Approximate sigmoid thresholds of k - 1/2, as solutions of `_threshold`."""
    x, k, tau = rows
    solution: Array = _threshold.solve(
        x, k - 0.5, tau, CURVES["sigmoid"], kernels.TILT, no_columns(rows)
    )
    return solution


def solve(rows: Rows, out: Array, solution: Array, limits: Limits = NONE_SHORT) -> Solved:
    """Write p and solutions; rows that are short by the limits are solved as such."""
    if not is_long(rows):
        return Solved(solution, _solve_rows(rows, out, solution, limits))
    wide = solution if solution.shape[1] else columns(rows)
    left = [
        i
        for i, (x, k, tau) in enumerate(zip(*rows, strict=True))
        if not long.solve(x, int(k), tau, out[i], wide[i])
    ]
    return Solved(solution, _solve_some(rows, np.array(left, int), out, wide, limits))


def _solve_some(
    rows: Rows, these: Array, out: Array, solution: Array, limits: Limits
) -> Short | None:
    """Solve the rows with these indices, as `_solve_rows`."""
    if not len(these):
        return None
    some, p, answers = take(rows, these), out[these], solution[these]
    short = _solve_rows(some, p, answers, limits)
    out[these], solution[these] = p, answers
    return short and short._replace(at=these[short.at])


def _solve_rows(rows: Rows, out: Array, solution: Array, limits: Limits) -> Short | None:
    """Solve rows, each by one thread; those whose tilt needs a search in a second call."""
    x = rows.x
    tilt, flags = np.full((len(x), TILT), UNSOLVED), np.zeros(FLAGS, np.bool_)
    problem = *rows, tilt, limits, out, solution, flags
    pool.over(len(x), 2 * x.size, kernels.solve, *problem)
    if flags[SOME_BAD_MOMENTS]:
        pool.over(
            len(x), x.size, order_statistics.distributions, x, rows.k - 0.5, rows.temperature, tilt
        )
        flags[BY_DISTRIBUTION] = True
        pool.over(len(x), 2 * x.size, kernels.solve, *problem)
    _solve_cores(*problem)
    if flags[SOME_UNSOLVED]:
        several = max(1, CHUNK // max(1, x.shape[1]))
        still = np.flatnonzero(tilt[:, CODE] == UNSOLVED)
        for start in range(0, len(still), several):
            _solve_open(rows, still[start : start + several], out, solution)
    if not flags[SOME_SHORT]:
        return None
    these = np.flatnonzero(tilt[:, CODE] == SHORT_LEFT)
    p = out[these]
    short = solve_short(take(rows, these), p)
    out[these] = p
    return short._replace(at=these)


def _solve_cores(
    x: Array,
    k: Array,
    tau: Array,
    tilt: Array,
    limits: Limits,
    out: Array,
    solution: Array,
    flags: Array,
) -> None:
    """Solve the rows that have a core, if the flags say that there are some."""
    if flags[SOME_WITH_CORE]:
        pool.over(len(x), 2 * x.size, with_core.solve, x, k, tau, tilt, out, solution)


def _solve_open(rows: Rows, these: Array, out: Array, solution: Array) -> None:
    """Solve the rows with these indices, whose tilts need a search."""
    some, flags = take(rows, these), np.zeros(FLAGS, np.bool_)
    p = np.empty((len(these), out.shape[1]), out.dtype)
    answers = np.zeros((len(these), solution.shape[1]))
    problem = *some, tilts(some), NONE_SHORT, p, answers, flags
    pool.over(len(these), 2 * some.x.size, kernels.solve, *problem)
    _solve_cores(*problem)
    out[these], solution[these] = p, answers


def solve_short(rows: Rows, out: Array) -> Short:
    """Solve rows with few finite entries, by the distribution of the count."""
    tilt, phi = tilts(rows), np.empty(0 if out.shape[1] else len(out))
    short_rows.solve(rows, tilt, out, phi)
    return Short(None, tilt, phi)


def few_short(rows: Rows) -> Any:
    """A function (rows, out) that solves few rows like these as short ones; returns their tilts.

    It returns None where some rows have infinities, or need no solving.
    """
    (x, k, tau), nothing, phi = rows, no_columns(rows), np.empty(0)
    count, sizes = len(x), poisson_binomial.scratch_sizes(x.shape[1], x.dtype)
    tilts_of = _threshold.few(x, k - 0.5, tau, CURVES["sigmoid"], kernels.TILT, nothing)
    given = *rows, np.empty((count, TILT)), sizes, x, phi, np.zeros(1, np.bool_)
    solve_rows = pool.code_of(poisson_binomial.solve, given).call

    def solve_few(rows: Any, out: Array) -> Array | None:
        x, k, tau = rows
        half, left_out = np.empty(count), np.zeros(1, np.bool_)
        half.fill(k.item(0) - 0.5)
        tilt: Array | None = tilts_of((x, half, tau), nothing)
        if tilt is not None:
            solve_rows(0, count, x, k, tau, tilt, sizes, out, phi, left_out)
        return None if left_out[0] else tilt

    return solve_few


def weighed(rows: Rows, out: Array) -> tuple[Array, Array]:
    """(a record of each row, whether its LOG_P is log P(N = k) and not log b_k); p to `out`."""
    counted = np.ones(len(rows.x), np.bool_)
    if is_short(rows, "auto"):
        return solve_short(rows, out).tilt, ~counted
    solution, short = solve(rows, out, columns(rows), limits_of(rows, "auto"))
    records = solution[:, :TILT].copy()
    if short is not None:
        records[short.at], counted[short.at] = short.tilt, False
    return records, counted


def potentials(rows: Rows) -> Array:
    """The potential of each row."""
    nothing = no_columns(rows)
    if is_short(rows, "auto"):
        return solve_short(rows, nothing).phi
    solution, short = solve(rows, nothing, columns(rows), limits_of(rows, "auto"))
    phi = np.empty(len(rows.x))
    if is_long(rows):
        for i, (row, size, tau) in enumerate(zip(*rows, strict=True)):
            phi[i] = long.potential(row, int(size), tau, solution[i])
    else:
        pool.over(len(phi), 16 * rows.x.size, kernels.potential, *rows, solution, phi)
    if short is not None:
        phi[short.at] = short.phi
    return phi
