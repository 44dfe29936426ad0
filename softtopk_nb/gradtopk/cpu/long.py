"""GradTopK on one long row, whose parts are shared among the threads (`_threads.long_rows`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._compile import subnormals
from ..._compile.array_intrinsics import borrowed
from ..._compile.decorators import kernel
from ..._nonfinite import FINITE, WITH_INFINITIES
from ..._threads.long_rows import (
    LONG,
    PART,
    Pass,
    Passes,
    RowScan,
    derivative_of_row,
    here,
    look,
    nothing,
    part_count,
    scratch,
    solve_finite_part,
)
from ..._threshold.cpu import long as threshold
from ..._threshold.cpu.start import distribution_by_moments, finite
from ..._threshold.newton import inverse_temperature, nearest
from ..._threshold.records import SOLUTION as THRESHOLD
from ..nodes import CAPACITY, DEGREE, FIELDS, NODES
from ..records import (
    CODE,
    CORE_LIMIT,
    DIRECTION_SUMS,
    FLAGS,
    LOG_P,
    MARGINAL_FIELDS,
    MARGINAL_POLYNOMIALS,
    STEPS,
    SUMS,
    TANGENT_FIELDS,
    TANGENT_POLYNOMIALS,
    USED,
    C,
    D,
)
from . import cumulant, rows, with_core
from .chebyshev_tangent import (
    chebyshev_direction_sums,
    chebyshev_tangent,
    direction_scratch,
    pair_with_t,
)
from .contour import MOST_IN_CORE, power_sums, power_sums_scratch, quadrature
from .marginals import (
    chebyshev_marginals,
    marginal_coefficients,
    marginals,
    marginals_scratch,
)
from .moments import TiltSums, chebyshev_sums, choose_series, tilted_probabilities
from .rows import DTAU, OTHER_DTAU, level_of, load_nodes, smoothed_sum, store_nodes
from .tangent import direction_sums, tangent_coefficients, tangent_scratch, write_tangent

Array = Any


@kernel
def tilt_of_sample(few, n, k, tau, tilt):
    """Write a tilt for k of a row's n entries, found by a search on a sample of them."""
    T = few.dtype.type
    inv = inverse_temperature(tau, few)
    (c, d), _ = rows.tilt_by_distribution(distribution_by_moments(few, inv), n, k, inv)
    target, width, y = (k - 0.5) * few.shape[0] / n, 1.0 / inv, np.empty(few.shape[0], few.dtype)
    for _ in range(rows.TRIES):
        seen = tilted_probabilities(few, T(c), inv, T(d), y)
        off, step = rows.tilt_step(seen, target, d, T(1))
        if abs(step) < np.inf:
            c, d = nearest(c + (d + step) * width, c, d + step, inv)
        if off * off <= rows.NEAR_ENOUGH * seen.variance or not abs(step) < np.inf:
            break
    tilt[C], tilt[D] = c, d


@kernel
def tilt_parts(lo, hi, x, tau, solution, anew, y, seen, sums, cores, found):
    """Write `tilted_probabilities` of each part if `anew`; NaN as its sums if it is not finite.

    If the solution names the series, write the sums over each part too, and the core's entries.
    """
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    work, limit, steps = power_sums_scratch(y), solution[CORE_LIMIT], int(solution[STEPS])
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        if anew:
            unknown = 0.0 if finite(x[part]) else np.nan
            at = tilted_probabilities(x[part], c, inv, d, y[part])
            seen[j, 0], seen[j, 1] = at.above + unknown, at.tails_above + unknown
            seen[j, 2], seen[j, 3] = at.tails_below + unknown, at.variance + unknown
            seen[j, 4] = at.skewness + unknown
        if limit > 0.0:
            at = TiltSums(seen[j, 0], seen[j, 1], seen[j, 2], seen[j, 3], seen[j, 4])
            if steps > 0:
                chebyshev_sums(y[part], at, steps, sums[j])
            else:
                found[j] = power_sums(y[part], at, inv, limit, work, sums[j], cores[j])


@kernel
def close_row(x, n, k, tau, sums, cores, found, solution, polynomials, table):
    """Write nodes and polynomials, from the sums of the parts added in order."""
    inv, steps = inverse_temperature(tau, x), int(solution[STEPS])
    core, count, total = np.empty(MOST_IN_CORE), 0, np.zeros(SUMS)
    for j in range(sums.shape[0]):
        for m in range(SUMS):
            total[m] += sums[j, m]
        for i in range(0 if steps > 0 else min(found[j], MOST_IN_CORE - count)):
            core[count] = cores[j, i]
            count += 1
    nodes = np.empty((FIELDS, CAPACITY))
    if steps > 0:
        size, used, log_p = quadrature(n, k, inv, steps, total, None, 0, nodes)
    else:
        size, used, log_p = quadrature(n, k, inv, steps, total, core, count, nodes)
    store_nodes(nodes, size, used, log_p, solution)
    marginal_coefficients(nodes, used, polynomials, table)


@kernel
def marginals_parts(lo, hi, x, tau, solution, polynomials, table, out):
    """Turn the y of each part, as `tilt_parts` has written it, into p."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    limit, steps = solution[CORE_LIMIT], int(solution[STEPS])
    used, work = int(solution[USED]), marginals_scratch(x)
    for j in range(lo, hi):
        xs, p = x[j * PART : (j + 1) * PART], out[j * PART : (j + 1) * PART]
        if steps > 0:
            chebyshev_marginals(xs, c, inv, d, steps, polynomials, p, p)
        else:
            marginals(xs, c, inv, d, limit, table, used, polynomials, work, p, p)


@kernel
def direction_parts(lo, hi, x, v, dtau, tau, solution, sums, out):
    """Write the sums of each part along a direction."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    at, limit, steps = (dtau, c, inv, d), solution[CORE_LIMIT], int(solution[STEPS])
    nodes, work, few = np.empty((FIELDS, CAPACITY)), tangent_scratch(x), direction_scratch(x)
    used = load_nodes(solution, nodes)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        if steps > 0:
            chebyshev_direction_sums(x[part], v[part], *at, steps, few, sums[j], out[part])
        else:
            direction_sums(x[part], v[part], *at, limit, nodes, used, work, sums[j])


@kernel
def close_tangent(solution, sums, polynomials, table):
    """Write the polynomials of the derivative, from the sums of the parts added in order."""
    total = np.zeros(DIRECTION_SUMS)
    for j in range(sums.shape[0]):
        for m in range(DIRECTION_SUMS):
            total[m] += sums[j, m]
    nodes, q_re, q_im = np.empty((FIELDS, CAPACITY)), np.empty(NODES), np.empty(NODES)
    used, steps = load_nodes(solution, nodes), int(solution[STEPS])
    tangent_coefficients(nodes, used, steps, total, q_re, q_im, polynomials, table)


@kernel
def tangent_parts(lo, hi, x, v, dtau, tau, solution, polynomials, table, out, pairs):
    """Write the derivative of each part along v."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    at, limit, steps = (dtau, c, inv, d), solution[CORE_LIMIT], int(solution[STEPS])
    used, work, few = int(solution[USED]), tangent_scratch(x), direction_scratch(x)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        xs, vs, dp = x[part], v[part], out[part]
        if steps > 0:
            chebyshev_tangent(xs, vs, *at, steps, polynomials, few, dp)
        else:
            write_tangent(xs, vs, *at, limit, table, used, polynomials, work, dp)
        if pairs.shape[0] > 0:
            pairs[j] = pair_with_t(x[part], out[part], c, inv, d)


@kernel
def smoothed_parts(lo, hi, x, tau, solution, smoothed, above):
    """Write the sums of each part for the potential."""
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        smoothed[j], above[j] = smoothed_sum(part, tau, solution[C], solution[D])


# Results of `step` for a tilt.
NOT_FINITE, LOST, MOVED, SERVES = range(4)


@kernel
def step(x, k, tau, seen, known, solution):
    """(whether the tilt is accepted, the core's limit, the steps of the series to use there).

    It adds the sums of the parts in order. A tilt that is `known` is accepted; another one that is
    not accepted is moved, unless its sums do not determine a step.
    """
    inv, total = inverse_temperature(tau, x), np.zeros(seen.shape[1])
    for j in range(seen.shape[0]):
        for m in range(seen.shape[1]):
            total[m] += seen[j, m]
    at = TiltSums(total[0], total[1], total[2], total[3], total[4])
    limit, steps = choose_series(at.variance, inv)
    c, d = solution[C], solution[D]
    off, way = rows.tilt_step(at, k - 0.5, d, 1.0)
    if np.isnan(at.variance):
        return NOT_FINITE, limit, steps
    if known or off * off <= rows.NEAR_ENOUGH * at.variance:
        return SERVES, limit, steps
    if not abs(way) < np.inf:
        return LOST, limit, steps
    solution[C], solution[D] = nearest(c + (d + way) / inv, c, d + way, inv)
    return MOVED, limit, steps


class _Tables(NamedTuple):
    """Results of a pass at a tilt: a row for each part, except for y."""

    y: Any
    seen: Any  # `TiltSums`
    sums: Any
    cores: Any  # most of it is never touched
    found: Any  # entries of the core


def _at_tilt(x: Array, tau: float, solution: Array, anew: bool, tables: _Tables) -> Pass:
    """The pass at the tilt that computes the sums named in the solution, and the y they need."""
    y, seen, sums, cores, found = tables
    given, unasked = (x, tau, solution, anew, *tables), solution.copy()
    unasked[CORE_LIMIT] = 0.0
    again = (x, tau, unasked, anew, *tables)
    entries: dict[str, Any] = {"written": (y,), "again": again} if anew else {"changed": (y,)}
    of_parts: dict[str, Any] = {"sums": (seen, sums, found), "lists": (cores,)}
    return Pass(tilt_parts, 2 * x.size, given, **of_parts, **entries)


def _find_tilt(
    x: Array, k: int, tau: float, first: RowScan, tables: _Tables, solution: Array
) -> Passes[bool]:
    """Find a tilt to accept, and the sums over each part at it; False if x is not finite.

    The series rarely changes from one tilt to the next, so that the pass at a tilt sums it as well;
    except for a core, which would be gathered at a tilt that may not be accepted.
    """
    tilt_of_sample(first.few, len(x), k, tau, solution)
    solution[CORE_LIMIT], solution[STEPS] = 0.0, 0
    known, tries = False, 0
    while True:
        yield _at_tilt(x, tau, solution, True, tables)
        said, limit, steps = step(nothing(x), k, tau, tables.seen, known, solution)
        if said == NOT_FINITE:
            return False
        if said == SERVES:
            break
        solution[CORE_LIMIT], solution[STEPS] = (limit, steps) if steps else (0.0, 0)
        tries += 1
        known = said == LOST or tries == rows.TRIES
        if known:
            tilt, sigmoid = np.empty(THRESHOLD), (rows.SIGMOID, rows.TILT)
            problem = x, k - 0.5, tau, *sigmoid, first, nothing(x), tilt
            yield from threshold.solve_finite(*problem)
            solution[C], solution[D] = tilt[C], tilt[D]
    solution[C], solution[D] = x.dtype.type(solution[C]), x.dtype.type(solution[D])
    if (limit, steps) != (solution[CORE_LIMIT], solution[STEPS]):
        solution[CORE_LIMIT], solution[STEPS] = limit, steps
        yield _at_tilt(x, tau, solution, False, tables)
    return True


def solve_finite(
    x: Array, k: int, tau: float, first: RowScan, out: Array, solution: Array
) -> Passes[bool]:
    """Solve a row of 0 < k < n, scanned before; False if it is not finite."""
    parts, y = part_count(x), out if len(out) else scratch(x)
    seen, sums = np.empty((parts, len(TiltSums._fields))), np.empty((parts, SUMS))
    cores, found = np.empty((parts, MOST_IN_CORE)), np.zeros(parts, np.int64)
    tables = _Tables(y, seen, sums, cores, found)
    if not (yield from _find_tilt(x, k, tau, first, tables, solution)):
        return False
    polynomials = np.empty((MARGINAL_POLYNOMIALS, DEGREE), x.dtype)
    table, few = np.empty((MARGINAL_FIELDS, NODES)), nothing(x)
    close_row(few, len(x), k, tau, sums, cores, found, solution, polynomials, table)
    solution[CODE] = FINITE
    if len(out):
        problem = x, tau, solution, polynomials, table, out
        yield Pass(marginals_parts, 2 * x.size, problem, changed=(out,))
    return True


def solve(x: Array, k: int, tau: float, out: Array, solution: Array) -> bool:
    """Solve one row, as `rows.solve`; `solution` always has its columns.

    False if its finite entries are not a long row, or need no solving.
    """
    if 0 < k < len(x) and here(solve_finite(x, k, tau, look(x), out, solution)):
        return True
    present = np.isfinite(x)
    size, left = int(np.count_nonzero(present)), k - int(np.count_nonzero(x == np.inf))
    if not LONG <= size < len(x) or not 0 < left < size or np.isnan(x).any():
        return False

    def solve_present(x: Array, out: Array) -> None:
        here(solve_finite(x, left, tau, look(x), out, solution))

    solve_finite_part(x, present, out, solve_present)
    solution[CODE] = WITH_INFINITIES
    return True


def potential(x: Array, k: int, tau: float, solution: Array) -> float:
    """The potential of one row, as `rows.potential`."""
    if solution[CODE] != FINITE:
        phi = np.empty(1)
        rows.potential(0, 1, x[None], np.array([k]), np.array([tau]), solution[None], phi)
        return float(phi[0])
    return here(potential_of_finite(x, k, tau, solution))


def potential_of_finite(x: Array, k: int, tau: float, solution: Array) -> Passes[float]:
    """The potential of a finite row, 0 < k < n."""
    smoothed, above = np.empty((2, part_count(x)))
    problem = x, tau, solution, smoothed, above
    yield Pass(smoothed_parts, 16 * x.size, problem, (smoothed, above))
    threshold = solution[C] + tau * solution[D]
    return float(smoothed.sum() + (k - above.sum()) * threshold + tau * solution[LOG_P])


def jvp(
    x: Array, tau: float, solution: Array, v: Array, dtau: float, out: Array, gtau: Array
) -> None:
    """Write the derivative or the VJP of one row, as `rows.jvp`."""
    solved = solution.copy()
    solved[CODE] = FINITE

    def along(x: Array, v: Array, out: Array) -> None:
        if len(x) >= LONG:
            here(jvp_finite(x, tau, solved, v, dtau, out, gtau))
            return
        # The finite entries of a long row.
        one = x[None], np.array([tau]), solved[None], v[None], np.array([dtau]), out[None]
        if solved[STEPS] > 0:
            rows.jvp(0, 1, *one, gtau[None], np.zeros(FLAGS, np.bool_))
        else:
            with_core.jvp(0, 1, *one, gtau[None])

    derivative_of_row(solution[CODE], x, v, out, gtau, along)


def jvp_finite(
    x: Array, tau: float, solution: Array, v: Array, dtau: float, out: Array, gtau: Array
) -> Passes[None]:
    """Write the derivative or the VJP of a finite row, 0 < k < n."""
    parts = part_count(x)
    sums, pairs = np.empty((parts, DIRECTION_SUMS)), np.empty(parts if len(gtau) else 0)
    problem = x, v, dtau, tau, solution
    yield Pass(direction_parts, 2 * x.size, (*problem, sums, out), (sums,), (), (out,))
    polynomials = np.empty((TANGENT_POLYNOMIALS, DEGREE), x.dtype)
    table = np.empty((TANGENT_FIELDS, NODES))
    close_tangent(solution, sums, polynomials, table)
    given = (*problem, polynomials, table, out, pairs)
    yield Pass(tangent_parts, 2 * x.size, given, (pairs,) if len(gtau) else (), (), (), (out,))
    gtau[...] = -pairs.sum()


AT_ONCE = 1 << 20  # entries that a kernel of a second derivative visits in a call, some 15 ms


@kernel
def _add_entries(first, last, x, tau, solution, v, a, moves, memory):
    if first == 0:
        cumulant.open_nodes(solution, memory)
    x, v, a, used = borrowed(x), borrowed(v), borrowed(a), int(solution[USED])
    level, dtau, other = level_of(x, tau, solution), moves[DTAU], moves[OTHER_DTAU]
    cumulant.add_entries(first, last, x, v, a, level, dtau, other, used, memory)


@kernel
def _write_entries(first, last, x, tau, solution, v, a, moves, memory, in_tau, out):
    x, v, a, out, used = borrowed(x), borrowed(v), borrowed(a), borrowed(out), int(solution[USED])
    level, dtau, other = level_of(x, tau, solution), moves[DTAU], moves[OTHER_DTAU]
    if first == 0:
        in_tau = cumulant.close_nodes(level, used, memory)
    args = x, v, a, level, dtau, other, used, memory
    return cumulant.write_entries(first, last, *args, in_tau, out)


def second(
    x: Array, tau: float, solution: Array, v: Array, a: Array, moves: Array, out: Array, sums: Array
) -> None:
    """One row, as `rows.second`, by one thread: Python handles signals between parts of it."""
    if solution[CODE] == WITH_INFINITIES:
        present = np.isfinite(x)
        values, alone = np.empty(np.count_nonzero(present), x.dtype), solution.copy()
        alone[CODE] = FINITE
        second(x[present], tau, alone, v[present], a[present], moves, values, sums)
        out[...] = 0
        out[present] = values
    elif len(x) < LONG or solution[CODE] != FINITE or x[-1] == -np.inf:
        # The finite entries of a long row, or one whose infinities are at its end.
        one = (each[None] for each in (solution, v, a, moves, out, sums))
        rows.second(0, 1, x[None], np.array([tau]), *one)
    else:
        memory, in_tau = cumulant.cumulant_scratch(), 0.0
        problem = x, tau, solution, v, a, moves, memory
        parts = [(first, min(first + AT_ONCE, len(x))) for first in range(0, len(x), AT_ONCE)]
        with subnormals.kept():
            for part in parts:
                _add_entries(*part, *problem)
            for part in parts:
                in_tau = _write_entries(*part, *problem, in_tau, out)
        sums[...] = 0.0, in_tau
