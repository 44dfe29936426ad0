"""GradTopK on one long row, its parts shared out among the threads, as in `_threads.long_rows`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._nonfinite import FINITE, MIXED, UNDEFINED
from ..._threads.long_rows import LONG, PART, part_count
from ..._threads.pool import over
from ..._threshold.cpu.start import finite, law_by_moments, part_of, sample_size
from ..._threshold.newton import inverse_temperature, nearest
from ..nodes import CAPACITY, DEGREE, FIELDS, NODES
from ..records import (
    CODE,
    CORE_LIMIT,
    DIRECTION_SUMS,
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
from . import rows
from .chebyshev_tangent import pair_with_t
from .contour import MOST_IN_CORE, power_sums_room, quadrature
from .marginals import marginal_coefficients, marginals, marginals_room
from .moments import TiltSums, choose_series, row_sums, tilted_probabilities
from .rows import load_nodes, smoothed_sum, store_nodes
from .tangent import direction_sums, tangent_coefficients, tangent_room, write_tangent

Array = Any


@kernel
def tilt_of_sample(x, k, tau, tilt):
    """Write a tilt of k of the row's entries, by a search on a sample of them."""
    T, n = x.dtype.type, x.shape[0]
    inv = inverse_temperature(tau, x)
    part = part_of(x, np.empty(sample_size(n), x.dtype))
    (c, d), _ = rows.tilt_by_law(law_by_moments(part, inv), n, k, inv)
    target, width, y = (k - 0.5) * part.shape[0] / n, 1.0 / inv, np.empty(part.shape[0], x.dtype)
    for _ in range(rows.TRIES):
        seen = tilted_probabilities(part, T(c), inv, T(d), y)
        off, step = rows.tilt_step(seen, target, d, T(1))
        if abs(step) < np.inf:
            c, d = nearest(c + (d + step) * width, c, d + step, inv)
        if off * off <= rows.NEAR_ENOUGH * seen.variance or not abs(step) < np.inf:
            break
    tilt[C], tilt[D] = c, d


@kernel
def tilt_parts(lo, hi, x, tau, solution, y, seen):
    """`tilted_probabilities` of each part; NaN in place of its sums if it is not finite."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        unknown = 0.0 if finite(x[part]) else np.nan
        sums = tilted_probabilities(x[part], c, inv, d, y[part])
        seen.above[j], seen.variance[j] = sums.above + unknown, sums.variance + unknown
        seen.tails_above[j] = sums.tails_above + unknown
        seen.tails_below[j] = sums.tails_below + unknown
        seen.skewness[j] = sums.skewness + unknown


@kernel
def sum_parts(lo, hi, y, tau, solution, seen, sums, core, found):
    """The sums over each part at a tilt, and the entries of the core."""
    work, inv = power_sums_room(y), inverse_temperature(tau, y)
    limit, steps = solution[CORE_LIMIT], int(solution[STEPS])
    for j in range(lo, hi):
        part = y[j * PART : (j + 1) * PART]
        above, variance, skewness = seen.above[j], seen.variance[j], seen.skewness[j]
        at = TiltSums(above, seen.tails_above[j], seen.tails_below[j], variance, skewness)
        found[j] = row_sums(part, at, inv, limit, steps, work, sums[j], core[j])


@kernel
def close_row(x, k, tau, sums, cores, found, solution, polynomials, table):
    """Nodes and polynomials from the sums of the parts, added in order."""
    inv, steps = inverse_temperature(tau, x), int(solution[STEPS])
    core, count, total = np.empty(MOST_IN_CORE), 0, np.zeros(SUMS)
    for j in range(sums.shape[0]):
        for m in range(SUMS):
            total[m] += sums[j, m]
        for i in range(min(found[j], MOST_IN_CORE - count)):
            core[count] = cores[j, i]
            count += 1
    nodes = np.empty((FIELDS, CAPACITY))
    size, used, log_p = quadrature(x.shape[0], k, inv, steps, total, core, count, nodes)
    store_nodes(nodes, size, used, log_p, solution)
    marginal_coefficients(nodes, used, polynomials, table)


@kernel
def marginals_parts(lo, hi, x, tau, solution, polynomials, table, out):
    """Turn what `tilt_parts` has written of each part into p."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    at = c, inv, d, solution[CORE_LIMIT], int(solution[STEPS])
    used, work = int(solution[USED]), marginals_room(x)
    for j in range(lo, hi):
        xs, p = x[j * PART : (j + 1) * PART], out[j * PART : (j + 1) * PART]
        marginals(xs, *at, table, used, polynomials, work, p, p)


@kernel
def direction_parts(lo, hi, x, v, dtau, tau, solution, sums, out):
    """The sums of each part along a direction."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    at = dtau, c, inv, d, solution[CORE_LIMIT], int(solution[STEPS])
    nodes, work = np.empty((FIELDS, CAPACITY)), tangent_room(x)
    used = load_nodes(solution, nodes)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        direction_sums(x[part], v[part], *at, nodes, used, work, sums[j], out[part])


@kernel
def close_tangent(solution, sums, polynomials, table):
    """The polynomials of the tangent, from the sums of the parts, added in order."""
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
    at = dtau, c, inv, d, solution[CORE_LIMIT], int(solution[STEPS])
    used, work = int(solution[USED]), tangent_room(x)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        write_tangent(x[part], v[part], *at, table, used, polynomials, work, out[part])
        if pairs.shape[0] > 0:
            pairs[j] = pair_with_t(x[part], out[part], c, inv, d)


@kernel
def smoothed_parts(lo, hi, x, tau, solution, smoothed, above):
    """The sums of each part for the potential."""
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        smoothed[j], above[j] = smoothed_sum(part, tau, solution[C], solution[D])


def _find_tilt(x: Array, k: int, tau: float, y: Array, seen: TiltSums, solution: Array) -> bool:
    """As `rows.find_tilt`; the sums of each part go to the arrays of `seen`."""
    T, inv = x.dtype.type, inverse_temperature(tau, x)
    tilt_of_sample(x, k, tau, solution)
    for _ in range(rows.TRIES):
        c, d = solution[C], solution[D]
        over(part_count(x), 2 * x.size, tilt_parts, x, tau, solution, y, seen)
        total = TiltSums(*(sum(np.asarray(part).tolist()) for part in seen))
        off, step = rows.tilt_step(total, k - 0.5, d, 1.0)
        if off * off <= rows.NEAR_ENOUGH * total.variance:
            solution[C], solution[D] = T(c), T(d)
            solution[CORE_LIMIT], solution[STEPS] = choose_series(total.variance, inv)
            return True
        if not abs(step) < np.inf:
            break
        solution[C], solution[D] = nearest(c + (d + step) / float(inv), c, d + step, inv)
    return False


def _solve_finite(x: Array, k: int, tau: float, out: Array, solution: Array) -> bool:
    """A row of 0 < k < n, unless it is not finite or its tilt is not soon found."""
    parts, y = part_count(x), out if len(out) else np.empty_like(x)
    seen, sums = TiltSums(*np.empty((len(TiltSums._fields), parts))), np.empty((parts, SUMS))
    if not _find_tilt(x, k, tau, y, seen, solution):
        return False
    # Hardly any of the cores is ever touched.
    cores, found = np.empty((parts, MOST_IN_CORE)), np.empty(parts, np.int64)
    over(parts, 2 * x.size, sum_parts, y, tau, solution, seen, sums, cores, found)
    polynomials = np.empty((MARGINAL_POLYNOMIALS, DEGREE), x.dtype)
    table = np.empty((MARGINAL_FIELDS, NODES))
    close_row(x, k, tau, sums, cores, found, solution, polynomials, table)
    if len(out):
        over(parts, 2 * x.size, marginals_parts, x, tau, solution, polynomials, table, out)
    return True


def solve(x: Array, k: int, tau: float, out: Array, solution: Array) -> bool:
    """One row, as `rows.solve`; `solution` always has its columns.

    False if what infinities leave of it is not long, or it needs no solving or a longer search.
    """
    if 0 < k < len(x) and _solve_finite(x, k, tau, out, solution):
        solution[CODE] = FINITE
        return True
    present = np.isfinite(x)
    some, left = x[present], k - int(np.count_nonzero(x == np.inf))
    if not LONG <= len(some) < len(x) or not 0 < left < len(some) or np.isnan(x).any():
        return False
    values = np.empty(len(some) if len(out) else 0, x.dtype)
    if not _solve_finite(some, left, tau, values, solution):
        return False
    solution[CODE] = MIXED
    if len(out):
        out[...] = x > 0  # +inf entries are 1, -inf entries 0
        out[present] = values
    return True


def potential(x: Array, k: int, tau: float, solution: Array) -> float:
    """phi of one row, as `rows.potential`."""
    if solution[CODE] != FINITE:
        phi = np.empty(1)
        rows.potential(0, 1, x[None], np.array([k]), np.array([tau]), solution[None], phi)
        return float(phi[0])
    smoothed, above = np.empty((2, part_count(x)))
    over(len(above), 16 * x.size, smoothed_parts, x, tau, solution, smoothed, above)
    threshold = solution[C] + tau * solution[D]
    return float(smoothed.sum() + (k - above.sum()) * threshold + tau * solution[LOG_P])


def push(
    x: Array, tau: float, solution: Array, v: Array, dtau: float, out: Array, gtau: Array
) -> None:
    """The tangent or the pullback of one row, as `rows.push`."""
    if solution[CODE] == UNDEFINED:
        out[...], gtau[...] = np.nan, np.nan
    elif solution[CODE] > MIXED:
        out[...], gtau[...] = 0, 0.0
    elif solution[CODE] == MIXED:
        present = np.isfinite(x)
        values, alone = np.empty(np.count_nonzero(present), x.dtype), solution.copy()
        alone[CODE] = FINITE
        push(x[present], tau, alone, v[present], dtau, values, gtau)
        out[...] = 0
        out[present] = values
    elif len(x) < LONG:  # what infinities left of a long row
        one = x[None], np.array([tau]), solution[None], v[None], np.array([dtau])
        rows.push(0, 1, *one, out[None], gtau[None])
    else:
        parts = part_count(x)
        sums, pairs = np.empty((parts, DIRECTION_SUMS)), np.empty(parts if len(gtau) else 0)
        problem = x, v, dtau, tau, solution
        over(parts, 2 * x.size, direction_parts, *problem, sums, out)
        polynomials = np.empty((TANGENT_POLYNOMIALS, DEGREE), x.dtype)
        table = np.empty((TANGENT_FIELDS, NODES))
        close_tangent(solution, sums, polynomials, table)
        over(parts, 2 * x.size, tangent_parts, *problem, polynomials, table, out, pairs)
        gtau[...] = -pairs.sum()
