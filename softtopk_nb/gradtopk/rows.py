"""GradTopK on rows lo .. hi of a batch: value, tangent, pullback and potential.

Each row comes with its tilt, the sigmoid threshold of k - 1/2 (`_threshold`). `solve` leaves in
`solution` what the others need, so that none of them looks at all entries at every node again.
"""

from __future__ import annotations

import math

import numpy as np

from .._compile import kernel, scalar, summing
from .._rows import ALL, MIXED, UNDEFINED, classify, expand, fill_constant, present_part, survey
from .._scalars import wide_vectors
from .._threshold.rows import WEIGHT
from .._threshold.solver import C, D, inverse_temperature
from .._views import block, borrowed
from .contour import BLOCK, CORE, SUMS, quadrature
from .dp import dp, recursion
from .marginals import TABLE, coefficients, marginals, marginals_room
from .moments import collect, cut_for, room_for
from .nodes import DEGREE, FIELDS, IM, NODES, RE, ROOM, circle
from .tangent import FLOWS, LANES, PIECES, flow, spread, steer, tangent_room, weigh

__all__ = [
    "CODE",
    "CUT",
    "LOG_P",
    "SIZE",
    "SOLUTION",
    "USED",
    "WEIGHTS",
    "keep",
    "potential",
    "pull",
    "push",
    "restore",
    "smoothed_sum",
    "softplus",
    "solve",
    "solve_dp",
    "solve_recursion",
]

# A solved row: the tilt c + tau d (C and D as in `_threshold`), log P(N = k), the kind of row
# (`_rows`), up to which s polynomials serve, and the nodes: of how many, how many, their weights.
LOG_P, CODE, CUT, SIZE, USED = 2, 3, 4, 5, 6
WEIGHTS = 7
SOLUTION = WEIGHTS + 2 * NODES


@scalar
def keep(nodes, size, used, log_p, answer):
    """The nodes of a row, for `restore`."""
    answer[LOG_P], answer[SIZE], answer[USED] = log_p, size, used
    for j in range(used):
        answer[WEIGHTS + j] = nodes[RE, j]
        answer[WEIGHTS + NODES + j] = nodes[IM, j]


@scalar
def restore(answer, nodes):
    """The nodes of a solved row; returns how many."""
    used = int(answer[USED])
    circle(int(answer[SIZE]), used, answer[CUT], nodes)
    for j in range(used):
        nodes[RE, j] = answer[WEIGHTS + j]
        nodes[IM, j] = answer[WEIGHTS + NODES + j]
    return used


@kernel
def solve(lo, hi, x, k, tau, tilt, out, solution):
    """Rows lo .. hi: p to `out`, what the others need to `solution`; not if that has no columns."""
    T = x.dtype.type
    wide = solution.shape[1] > 0
    work, room = room_for(x), marginals_room(x)
    sums, core = np.empty(SUMS), np.empty(CORE)
    nodes, table = np.empty((FIELDS, ROOM)), np.empty((TABLE, NODES))
    coefficient = np.empty((3, DEGREE), x.dtype)
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        entries, p = x[i], out[i]
        code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        if wide:
            solution[i, CODE] = code
        if code > MIXED:
            if p.shape[0] > 0:
                fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        inv = inverse_temperature(tau[i], x)
        c, d, cut = T(tilt[i, C]), T(tilt[i, D]), cut_for(tilt[i, WEIGHT], inv)
        values = p[:n] if p.shape[0] > 0 else np.empty(n, x.dtype)
        found = collect(present, c, inv, d, cut, work, sums, core, values)
        size, used, log_p = quadrature(n, left, inv, cut, sums, core, found, nodes)
        if wide:
            solution[i, C], solution[i, D], solution[i, CUT] = c, d, cut
            keep(nodes, size, used, log_p, solution[i])
        if p.shape[0] > 0:
            coefficients(nodes, used, coefficient, table)
            marginals(present, c, inv, d, cut, table, used, coefficient, room, values, values)
            if code == MIXED:
                expand(entries, values, 1.0, p)


@kernel
def solve_dp(lo, hi, x, k, tau, tilt, out):
    """Rows lo .. hi: p by sums over prefixes and suffixes."""
    for i in range(lo, hi):
        entries, p = x[i], out[i]
        code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        if code > MIXED:
            fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        values, inv = np.empty(n, x.dtype), np.float64(inverse_temperature(tau[i], x))
        dp(present, int(left), tilt[i, C], inv, tilt[i, D], values)
        expand(entries, values, 1.0, p)


@kernel
def solve_recursion(lo, hi, x, k, tau, out):
    """Rows lo .. hi: p by the source's recursion."""
    for i in range(lo, hi):
        entries, p = x[i], out[i]
        code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        if code > MIXED:
            fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        values = np.empty(n, x.dtype)
        recursion(present, int(left), tau[i], values)
        expand(entries, values, 1.0, p)


@kernel
def push(lo, hi, x, tau, solution, v, dtau, out):
    """Rows lo .. hi: dp along (v, dtau)."""
    T = x.dtype.type
    work, flows = tangent_room(x), np.empty(FLOWS)
    nodes, flow_re, flow_im = np.empty((FIELDS, ROOM)), np.empty(NODES), np.empty(NODES)
    pieces, table = np.empty((PIECES, DEGREE), x.dtype), np.empty((LANES, NODES))
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        entries, answer, dp = x[i], solution[i], out[i]
        code = int(answer[CODE])
        if code > MIXED:
            for j in range(dp.shape[0]):
                dp[j] = T(np.nan) if code == UNDEFINED else T(0)
            continue
        inv = inverse_temperature(tau[i], x)
        c, d, cut = T(answer[C]), T(answer[D]), answer[CUT]
        xs, vs = present_part(entries, v[i], code)
        used = restore(answer, nodes)
        target = dp[: xs.shape[0]]
        weigh(xs, vs, dtau[i], c, inv, d, cut, nodes, used, work, flows, target)
        mean = flow(nodes, used, cut, flows, flow_re, flow_im)
        steer(nodes, used, cut, flow_re, flow_im, mean, pieces, table)
        spread(xs, vs, dtau[i], c, inv, d, cut, table, used, pieces, work, target, target)
        if code == MIXED:
            expand(entries, target, 0.0, dp)


@summing
def pair(x, gradient, c, inv, d):
    """<t, gradient>; a saturated entry may lie infinitely many temperatures away."""
    wide_vectors()
    T = x.dtype.type
    total = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, gs = block(x, start, BLOCK), block(gradient, start, BLOCK)
        several = T(0)
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            several += gs[i] * (t if gs[i] != T(0) else T(0))
        total += several
    return total


@kernel
def pull(lo, hi, x, tau, solution, gx, gtau):
    """Rows lo .. hi: the gradient in the temperature, -<t, gx>, from that in x.

    dp = J (v - t dtau) and J is symmetric: <g, J t> = <J g, t>.
    """
    T = x.dtype.type
    x, gx, solution = borrowed(x), borrowed(gx), borrowed(solution)
    for i in range(lo, hi):
        answer = solution[i]
        code = int(answer[CODE])
        if code > MIXED:
            gtau[i] = np.nan if code == UNDEFINED else 0.0
            continue
        inv = inverse_temperature(tau[i], x)
        gtau[i] = -pair(x[i], gx[i], T(answer[C]), inv, T(answer[D]))


@scalar
def softplus(value, tau, c, d):
    """(t, tau log(1 + e^-|t|)) of an entry."""
    t = (np.float64(value) - c) / tau - d
    return t, tau * math.log1p(math.exp(-abs(t)))


@scalar
def smoothed_sum(x, tau, c, d):
    """Sum of tau log(1 + e^t) over the finite entries, plus c + tau d where t >= 0; how many those.

    Above 0 that is x and a tail: sums of t would only have to be taken back.
    """
    total, above = 0.0, 0
    for i in range(x.shape[0]):
        if np.isfinite(x[i]):
            t, tail = softplus(x[i], tau, c, d)
            total += tail
            if t >= 0.0:
                total += x[i]
                above += 1
    return total, above


@kernel
def potential(lo, hi, x, k, tau, solution, out):
    """Rows lo .. hi: tau log Z_k(x/tau) (Theorem thm-grad-tilt)."""
    for i in range(lo, hi):
        answer = solution[i]
        code = int(answer[CODE])
        above, total = 0, 0.0
        for value in x[i]:
            above += value == np.inf
            total += value if np.isfinite(value) else 0.0
        if code == UNDEFINED:
            out[i] = np.nan
        elif k[i] == 0:
            out[i] = 0.0
        elif above > 0:
            out[i] = np.inf
        elif code == ALL:
            out[i] = total
        else:
            c, d = answer[C], answer[D]
            smoothed, upper = smoothed_sum(x[i], tau[i], c, d)
            out[i] = smoothed + (k[i] - upper) * (c + tau[i] * d) + tau[i] * answer[LOG_P]
