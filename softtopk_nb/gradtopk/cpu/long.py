"""GradTopK on one long row, its parts shared out among the threads, as in `_threads.long_rows`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._math.elementary import exp_neg
from ..._nonfinite import FINITE, MIXED, UNDEFINED
from ..._threads.long_rows import LONG, PART, part_count
from ..._threads.pool import over
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import CODE as TILTED
from ..._threshold.records import REST, SEEN, WEIGHT, C, D
from ..nodes import DEGREE, FIELDS, NODES, ROOM
from ..records import CODE, CUT, FLOWS, LANES, LOG_P, SUMS, USED
from . import rows
from .chebyshev_tangent import pair
from .contour import CORE, gather_room, quadrature
from .marginals import TABLE, coefficients, marginals, marginals_room
from .moments import collect, cut_for, toss
from .rows import keep, restore, smoothed_sum
from .tangent import PIECES, flow, spread, steer, tangent_room, weigh

Array = Any


@kernel
def gather_parts(lo, hi, x, tau, solution, sums, core, found):
    """The sums over each part at a tilt, and the entries of the core."""
    T = x.dtype.type
    work, kept = gather_room(x), np.empty(PART, x.dtype)
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        y = kept[: part.shape[0]]
        seen = toss(part, c, inv, d, y)
        found[j] = collect(y, seen, inv, solution[CUT], work, sums[j], core[j])


@kernel
def open_row(x, tau, tilt, solution):
    """The tilt in the row's own type, and the cut."""
    T = x.dtype.type
    inv = inverse_temperature(tau, x)
    solution[C], solution[D] = T(tilt[C]), T(tilt[D])
    # The variance changes by a factor of at most e^h over a way h.
    solution[CUT] = cut_for(tilt[WEIGHT] * exp_neg(-abs(tilt[D] + tilt[REST] - tilt[SEEN])), inv)


@kernel
def close_row(x, k, tau, sums, cores, found, solution, coefficient, table):
    """Nodes and polynomials from the sums of the parts, added in order."""
    inv, cut = inverse_temperature(tau, x), solution[CUT]
    core, count, total = np.empty(CORE), 0, np.zeros(SUMS)
    for j in range(sums.shape[0]):
        for m in range(SUMS):
            total[m] += sums[j, m]
        for i in range(min(found[j], CORE - count)):
            core[count] = cores[j, i]
            count += 1
    nodes = np.empty((FIELDS, ROOM))
    size, used, log_p = quadrature(x.shape[0], k, inv, cut, total, core, count, nodes)
    keep(nodes, size, used, log_p, solution)
    coefficients(nodes, used, coefficient, table)


@kernel
def marginals_parts(lo, hi, x, tau, solution, coefficient, table, out):
    """Write p of each part."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    cut, used = solution[CUT], int(solution[USED])
    work = marginals_room(x)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        marginals(x[part], c, inv, d, cut, table, used, coefficient, work, out[part])


@kernel
def weigh_parts(lo, hi, x, v, dtau, tau, solution, flows, out):
    """The sums of each part that a direction moves."""
    T = x.dtype.type
    inv, c, d, cut = inverse_temperature(tau, x), T(solution[C]), T(solution[D]), solution[CUT]
    nodes, work = np.empty((FIELDS, ROOM)), tangent_room(x)
    used = restore(solution, nodes)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        weigh(x[part], v[part], dtau, c, inv, d, cut, nodes, used, work, flows[j], out[part])


@kernel
def steer_row(solution, flows, pieces, table):
    """The polynomials of the tangent, from the sums of the parts, added in order."""
    total = np.zeros(FLOWS)
    for j in range(flows.shape[0]):
        for m in range(FLOWS):
            total[m] += flows[j, m]
    nodes, flow_re, flow_im = np.empty((FIELDS, ROOM)), np.empty(NODES), np.empty(NODES)
    used = restore(solution, nodes)
    mean = flow(nodes, used, solution[CUT], total, flow_re, flow_im)
    steer(nodes, used, solution[CUT], flow_re, flow_im, mean, pieces, table)


@kernel
def spread_parts(lo, hi, x, v, dtau, tau, solution, pieces, table, out, pairs):
    """Write the derivative of each part along v."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    cut, used = solution[CUT], int(solution[USED])
    work = tangent_room(x)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        spread(x[part], v[part], dtau, c, inv, d, cut, table, used, pieces, work, out[part])
        if pairs.shape[0] > 0:
            pairs[j] = pair(x[part], out[part], c, inv, d)


@kernel
def smoothed_parts(lo, hi, x, tau, solution, sums):
    """The sums of each part for the potential."""
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        sums[j, 0], sums[j, 1] = smoothed_sum(part, tau, solution[C], solution[D])


def _solve_finite(x: Array, k: int, tau: float, tilt: Array, out: Array, solution: Array) -> None:
    """A finite row, 0 < k < n."""
    open_row(x, tau, tilt, solution)
    parts = part_count(x)
    sums, found = np.empty((parts, SUMS)), np.empty(parts, np.int64)
    cores = np.empty((parts, CORE))  # hardly any of which is ever touched
    over(parts, 2 * x.size, gather_parts, x, tau, solution, sums, cores, found)
    coefficient, table = np.empty((3, DEGREE), x.dtype), np.empty((TABLE, NODES))
    close_row(x, k, tau, sums, cores, found, solution, coefficient, table)
    if len(out):
        over(parts, 2 * x.size, marginals_parts, x, tau, solution, coefficient, table, out)


def solve(x: Array, k: int, tau: float, tilt: Array, out: Array, solution: Array) -> bool:
    """One row, as `rows.solve`; `solution` always has its columns.

    False, and nothing done, if what infinities leave of it is not long, or it needs no solving.
    """
    code = tilt[TILTED]  # of k - 1/2: at k = n there is a tilt, and no use for it
    if code == FINITE and k < len(x):
        _solve_finite(x, k, tau, tilt, out, solution)
        solution[CODE] = FINITE
        return True
    if code == MIXED:
        finite = np.isfinite(x)
        present = x[finite]
        left = k - int(np.count_nonzero(x == np.inf))
        if len(present) >= LONG and len(present) > left:
            values = np.empty(len(present) if len(out) else 0, x.dtype)
            _solve_finite(present, left, tau, tilt, values, solution)
            solution[CODE] = MIXED
            if len(out):
                out[...] = x > 0  # +inf entries are 1, -inf entries 0
                out[finite] = values
            return True
    return False


def potential(x: Array, k: int, tau: float, solution: Array) -> float:
    """phi of one row, as `rows.potential`."""
    if solution[CODE] != FINITE:
        phi = np.empty(1)
        rows.potential(0, 1, x[None], np.array([k]), np.array([tau]), solution[None], phi)
        return float(phi[0])
    sums = np.empty((part_count(x), 2))
    over(len(sums), 16 * x.size, smoothed_parts, x, tau, solution, sums)
    smoothed, upper = sums.sum(axis=0)
    threshold = solution[C] + tau * solution[D]
    return float(smoothed + (k - upper) * threshold + tau * solution[LOG_P])


def push(
    x: Array, tau: float, solution: Array, v: Array, dtau: float, out: Array, gtau: Array
) -> None:
    """The tangent or the pullback of one row, as `rows.push`."""
    if solution[CODE] == UNDEFINED:
        out[...], gtau[...] = np.nan, np.nan
    elif solution[CODE] > MIXED:
        out[...], gtau[...] = 0, 0.0
    elif solution[CODE] == MIXED:
        finite = np.isfinite(x)
        values = np.empty(np.count_nonzero(finite), x.dtype)
        present = solution.copy()
        present[CODE] = FINITE
        push(x[finite], tau, present, v[finite], dtau, values, gtau)
        out[...] = 0
        out[finite] = values
    elif len(x) < LONG:  # what infinities left of a long row
        one = x[None], np.array([tau]), solution[None], v[None], np.array([dtau])
        rows.push(0, 1, *one, out[None], gtau[None])
    else:
        parts = part_count(x)
        flows, pairs = np.empty((parts, FLOWS)), np.empty(parts if len(gtau) else 0)
        problem = x, v, dtau, tau, solution
        over(parts, 2 * x.size, weigh_parts, *problem, flows, out)
        pieces, table = np.empty((PIECES, DEGREE), x.dtype), np.empty((LANES, NODES))
        steer_row(solution, flows, pieces, table)
        over(parts, 2 * x.size, spread_parts, *problem, pieces, table, out, pairs)
        gtau[...] = -pairs.sum()
