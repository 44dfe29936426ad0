"""GradTopK on rows lo .. hi of a batch: value, tangent, pullback and potential.

Each row comes with its tilt, the sigmoid threshold of k - 1/2 (`_threshold`). `solve` leaves in
`solution` what the others need, so that none of them looks at all entries at every node again.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed
from ..._compile.decorators import kernel, row, scalar
from ..._curves.registry import CURVES
from ..._nonfinite import (
    ALL,
    FINITE,
    MIXED,
    NONE,
    UNDEFINED,
    classify,
    compress,
    expand,
    fill_constant,
    present_part,
    survey,
)
from ..._threshold.cpu.start import by_moments, finite, part_of, sample_size
from ..._threshold.methods import Newton
from ..._threshold.newton import UNKNOWN, inverse_temperature, judge, nearest
from ..._threshold.policy import enough_for
from ..._threshold.records import CODE as TILTED
from ..._threshold.records import OPEN, C, D
from ..formulas import softplus
from ..nodes import DEGREE, FIELDS, IM, NODES, RE, ROOM, circle
from ..records import CODE, CUT, FLOWS, LANES, LOG_P, SIZE, SUMS, USED, WEIGHTS
from .chebyshev_tangent import pair
from .contour import CORE, gather_room, quadrature
from .marginals import TABLE, coefficients, marginals, marginals_room
from .moments import collect, cut_for, toss
from .recursions import dp, recursion
from .tangent import PIECES, flow, spread, steer, tangent_room, weigh

# The code of a tilt whose row has so few finite entries that `poisson_binomial` takes them.
BRIEF = -2.0

SIGMOID = CURVES["sigmoid"]
# What a last step leaves is of third order (Proposition prop-solver), and must be small against the
# spread of the count, at most sqrt(n)/2, and against the count's variance.
TILT = Newton(0.4, fades=0.9)
TRIES = 6  # passes over a row, and over its sample, in search of a tilt
NEAR_ENOUGH = 0.34  # variances that the square of what the mean count is off by may be


@scalar
def step_of_tilt(n):
    """The length of a step, in temperatures, that ends the search for the tilt of a row of n."""
    return enough_for(TILT, n)


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


@row
def suggested(part, n, k, inv):
    """A tilt c + tau d of k of n entries, by the moments of a part of them."""
    pivot, d = by_moments(part, SIGMOID, n, k - 0.5, inv)
    return nearest(pivot + d / inv, pivot, d, inv)


@row
def toss_at_tilt(x, part, k, inv, c, d, known, kept):
    """`toss` at the tilt c + tau d if that is known, or one that serves: (whether, c, d, sums).

    The first is often near enough to serve: nodes make up for what it is off by. The search begins
    on a part of the row. One that does not end soon is left to the solver of `_threshold`.
    """
    T, n = x.dtype.type, x.shape[0]
    target, width, tries = k - 0.5, 1.0 / inv, 0
    while True:
        share, whole = target * part.shape[0] / n, part.shape[0] == n
        seen = toss(part, T(c), inv, T(d), kept)
        sums = *seen, *UNKNOWN[1:]
        off, step, _, _, _ = judge(SIGMOID, share, sums, 0.0, d, T(1), True, 0.0)
        found, tries = known or off * off <= NEAR_ENOUGH * seen[3], tries + 1
        lost = tries >= TRIES or not abs(step) < np.inf
        if whole and (found or lost):
            return found, c, d, seen
        if abs(step) < np.inf:
            c, d = nearest(c + (d + step) * width, c, d + step, inv)
        if not whole and (found or lost):
            part, tries = x, 0


@kernel
def solve(lo, hi, x, k, tau, tilt, brief, out, solution, left_open):
    """Rows lo .. hi: p to `out`, what the others need to `solution`; not if that has no columns.

    Rows whose tilt is OPEN get one here, or stay open, and the first of `left_open` is set. Rows of
    which infinities leave at most `brief` entries get the tilt BRIEF and zeros, and the second is.
    """
    T = x.dtype.type
    wide = solution.shape[1] > 0
    work, room = gather_room(x), marginals_room(x)
    sums, core = np.empty(SUMS), np.empty(CORE)
    nodes, table = np.empty((FIELDS, ROOM)), np.empty((TABLE, NODES))
    coefficient = np.empty((3, DEGREE), x.dtype)
    sampled = np.empty(sample_size(x.shape[1]), x.dtype)
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        entries, p, inv = x[i], out[i], inverse_temperature(tau[i], x)
        code, n, above, left = FINITE, x.shape[1], 0, k[i]
        if not (0 < left < n and finite(entries)):
            code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        few = code == MIXED and n <= brief
        code = NONE if few else code
        if wide:
            solution[i, CODE] = code
        if code > MIXED:
            tilt[i, TILTED] = BRIEF if few else code
            if few:
                left_open[1] = True
            if p.shape[0] > 0:
                fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        values = p[:n] if p.shape[0] > 0 else np.empty(n, x.dtype)
        c, d, known = tilt[i, C], tilt[i, D], tilt[i, TILTED] != OPEN
        part = present
        if not known:
            part = part_of(present, sampled)
            c, d = suggested(part, n, left, inv)
        served, c, d, seen = toss_at_tilt(present, part, left, inv, c, d, known, values)
        if not served:
            left_open[0] = True
            continue
        tilt[i, TILTED], c, d, cut = code, T(c), T(d), cut_for(seen[3], inv)
        found = collect(values, seen, inv, cut, work, sums, core)
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
def few_of(lo, hi, x, values, packed):
    """The values at the finite entries of each row, one after the other; they fill `packed`."""
    for i in range(lo, hi):
        for j in range(compress(x[i], values[i], packed[i]), packed.shape[1]):
            packed[i, j] = -np.inf


@kernel
def spread_few(lo, hi, x, packed, at_plus_inf, out):
    """Undo `few_of`."""
    for i in range(lo, hi):
        finite_entries = 0
        for value in x[i]:
            finite_entries += np.isfinite(value)
        expand(x[i], packed[i, :finite_entries], at_plus_inf, out[i])


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
def push(lo, hi, x, tau, solution, v, dtau, out, gtau):
    """Rows lo .. hi: dp along (v, dtau).

    With dtau = 0 and v a gradient in p, dp is that in x, J being symmetric, and the gradient in the
    temperature goes to `gtau`, unless that is empty: dp = J (v - t dtau), and <v, J t> = <J v, t>.
    """
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
            if gtau.shape[1] > 0:
                gtau[i, 0] = np.nan if code == UNDEFINED else 0.0
            continue
        inv = inverse_temperature(tau[i], x)
        c, d, cut = T(answer[C]), T(answer[D]), answer[CUT]
        xs, vs = present_part(entries, v[i], code)
        used = restore(answer, nodes)
        target = dp[: xs.shape[0]]
        weigh(xs, vs, dtau[i], c, inv, d, cut, nodes, used, work, flows, target)
        mean = flow(nodes, used, cut, flows, flow_re, flow_im)
        steer(nodes, used, cut, flow_re, flow_im, mean, pieces, table)
        spread(xs, vs, dtau[i], c, inv, d, cut, table, used, pieces, work, target)
        if gtau.shape[1] > 0:
            gtau[i, 0] = -pair(xs, target, c, inv, d)
        if code == MIXED:
            expand(entries, target, 0.0, dp)


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
