"""GradTopK on rows lo .. hi of a batch: value, tangent, VJP and potential.

Each row comes with its tilt, the sigmoid threshold of k - 1/2 (`_threshold`). `solve` leaves in
`solution` what the others need, so that none of them looks at all entries at every node again.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import unpack
from ..._curves.registry import CURVES
from ..._math.elementary import wide_vectors
from ..._nonfinite import (
    ALL,
    FINITE,
    MIXED,
    NONE,
    UNDEFINED,
    classify,
    expand,
    fill_behind,
    fill_constant,
    fill_constant_row,
    length,
    present_part,
    survey,
    taking_part,
    with_infinities,
    without_infinities,
)
from ..._threads.sampling import sample_size
from ..._threshold.cpu.start import (
    distribution_by_moments,
    finite,
    has_few,
    part_of,
    start_by_distribution,
)
from ..._threshold.methods import Newton
from ..._threshold.newton import UNKNOWN, inverse_temperature, judge, nearest
from ..._threshold.policy import enough_for
from ..._threshold.records import (
    BY_DISTRIBUTION,
    MISLED,
    OPEN,
    SOME_MISLED,
    SOME_OPEN,
)
from ..formulas import smoothed
from ..nodes import CAPACITY, DEGREE, FIELDS, IM, NODES, RE, write_circle
from ..records import (
    CODE,
    CORE_LIMIT,
    DIRECTION_SUMS,
    LOG_P,
    MARGINAL_FIELDS,
    MARGINAL_POLYNOMIALS,
    SIZE,
    SOME_SHORT,
    STEPS,
    SUMS,
    TANGENT_FIELDS,
    TANGENT_POLYNOMIALS,
    USED,
    WEIGHTS,
    C,
    D,
)
from .chebyshev_tangent import pair_with_t
from .contour import MOST_IN_CORE, power_sums_room, quadrature
from .cumulant import cumulant_room, third_cumulant
from .marginals import marginal_coefficients, marginals, marginals_room
from .moments import choose_series, row_sums, tilted_probabilities
from .recursions import dp, recursion
from .tangent import direction_sums, tangent_coefficients, tangent_room, write_tangent

# The code of a tilt whose row has so few finite entries that `poisson_binomial` takes them.
SHORT_LEFT = -2.0

SIGMOID = CURVES["sigmoid"]
# What a last step leaves is of third order (Proposition prop-solver), and must be small against the
# spread of the count, at most sqrt(n)/2, and against the count's variance.
TILT = Newton(0.4, fades=0.9)
TRIES = 8  # passes over a row, and over its sample, in search of a tilt
NEAR_ENOUGH = 0.34  # variances that the square of what the mean count is off by may be


@scalar
def step_of_tilt(n):
    """The length of a step, in temperatures, that ends the search for the tilt of a row of n."""
    return enough_for(TILT, n)


@scalar
def store_nodes(nodes, size, used, log_p, answer):
    """Write the nodes of a row to its solution."""
    answer[LOG_P], answer[SIZE], answer[USED] = log_p, size, used
    for j in range(used):
        answer[WEIGHTS + j] = nodes[RE, j]
        answer[WEIGHTS + NODES + j] = nodes[IM, j]


@scalar
def load_nodes(answer, nodes):
    """Write the nodes of a solved row; returns how many."""
    used = int(answer[USED])
    write_circle(int(answer[SIZE]), used, int(answer[STEPS]), nodes)
    for j in range(used):
        nodes[RE, j] = answer[WEIGHTS + j]
        nodes[IM, j] = answer[WEIGHTS + NODES + j]
    return used


@scalar
def tilt_by_distribution(distribution, n, k, inv):
    """(a tilt c + tau d of k of n entries by their distribution (`start`), whether it misleads)."""
    pivot, d, misled = start_by_distribution(SIGMOID, distribution, n, k - 0.5)
    return nearest(pivot + d / inv, pivot, d, inv), misled


@scalar
def first_tilt(x, k, inv, room, by_distribution, answer):
    """(entries with which a search begins, the tilt c + tau d to begin at, whether it misleads).

    By their moments, or by the distribution in `answer`.
    """
    n, part = x.shape[0], part_of(x, room)
    distribution = answer[0], answer[1], answer[2], answer[3]
    if by_distribution:
        part = x if has_few(part, n, k) else part
    else:
        distribution = distribution_by_moments(part, inv)
    (c, d), misled = tilt_by_distribution(distribution, n, k, inv)
    return part, c, d, misled or not distribution[2] < np.inf


@scalar
def tilt_step(seen, target, d, one):
    """(what the mean count is off by, the step to take) from `seen` at the tilt c + tau d."""
    tails = seen.above, seen.tails_above, seen.tails_below
    sums = *tails, seen.variance, seen.skewness, *UNKNOWN[1:]
    off, step, _, _, _ = judge(SIGMOID, target, sums, 0.0, d, one, True, 0.0)
    return off, step


@scalar
def find_tilt(x, part, k, inv, c, d, known, kept):
    """Write `tilted_probabilities` at the tilt c + tau d if that is known, or at one that serves.

    Returns (whether it serves, c, d, the sums at it). The first is often near enough to serve:
    nodes make up for what it is off by. The search begins on a part of the row. One that does not
    end soon is left to the solver of `_threshold`.
    """
    T, n = x.dtype.type, x.shape[0]
    target, width, tries = k - 0.5, 1.0 / inv, 0
    while True:
        share, whole = target * part.shape[0] / n, part.shape[0] == n
        seen = tilted_probabilities(part, T(c), inv, T(d), kept)
        off, step = tilt_step(seen, share, d, T(1))
        found, tries = known or off * off <= NEAR_ENOUGH * seen.variance, tries + 1
        lost = tries >= TRIES or not abs(step) < np.inf
        if whole and (found or lost):
            return found, c, d, seen
        if abs(step) < np.inf:
            c, d = nearest(c + (d + step) * width, c, d + step, inv)
        if not whole and (found or lost):
            part, tries = x, 0


@kernel
def solve(lo, hi, x, k, tau, tilt, limits, out, solution, flags):
    """Rows lo .. hi: p to `out`, what the others need to `solution`; not if that has no columns.

    Rows whose tilt is OPEN get one here, or are MISLED, or stay open, and the flags say so; by the
    flag BY_DISTRIBUTION they ask for the rows that are MISLED, and no others. Rows that are short
    by the `limits` get the tilt SHORT_LEFT and zeros, and `flags[SOME_SHORT]` is set.
    """
    T, again = x.dtype.type, flags[BY_DISTRIBUTION]
    wide = solution.shape[1] > 0
    work, room = power_sums_room(x), marginals_room(x)
    sums, core = np.empty(SUMS), np.empty(MOST_IN_CORE)
    nodes, table = np.empty((FIELDS, CAPACITY)), np.empty((MARGINAL_FIELDS, NODES))
    polynomials = np.empty((MARGINAL_POLYNOMIALS, DEGREE), x.dtype)
    sampled, apart = np.empty(sample_size(x.shape[1]), x.dtype), workspace(x, 2, x.shape[1])
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        if again and tilt[i, CODE] != MISLED:
            continue
        inv, whole = inverse_temperature(tau[i], x), window(x[i], 0, length(x[i]))
        p = window(out[i], 0, whole.shape[0] if out.shape[1] > 0 else 0)
        fill_behind(out[i], p.shape[0], T(0))
        present, left, code, above = whole, k[i], FINITE, 0
        if not finite(whole):
            present, left = without_infinities(whole, k[i], apart[0])
            code = MIXED
        n = present.shape[0]
        if not 0 < left < n or (code == MIXED and not finite(present)):
            code, _, above, _, _, _ = classify(whole, k[i], *survey(whole))
        few = n <= limits.most and left * (n - left) <= limits.variance * n
        few = code <= MIXED and (few or n <= limits.always)
        code = NONE if few else code
        if wide:
            solution[i, CODE] = code
        if code > MIXED:
            tilt[i, CODE] = SHORT_LEFT if few else code
            if few:
                flags[SOME_SHORT] = True
            if p.shape[0] > 0:
                fill_constant_row(whole, k[i], code, above, out[i])
            continue
        values = window(p if p.shape[0] > 0 and code == FINITE else apart[1], 0, n)
        part, c, d = present, tilt[i, C], tilt[i, D]
        known = tilt[i, CODE] != OPEN and not again
        if not known:
            part, c, d, misled = first_tilt(present, left, inv, sampled, again, tilt[i])
            if misled and not again:
                tilt[i, CODE], flags[SOME_MISLED] = MISLED, True
                continue
        served, c, d, seen = find_tilt(present, part, left, inv, c, d, known, values)
        if not served:
            tilt[i, CODE], flags[SOME_OPEN] = OPEN, True
            continue
        tilt[i, CODE], c, d = code, T(c), T(d)
        limit, steps = choose_series(seen.variance, inv)
        found = row_sums(values, seen, inv, limit, steps, work, sums, core)
        size, used, log_p = quadrature(n, left, inv, steps, sums, core, found, nodes)
        if wide:
            solution[i, C], solution[i, D] = c, d
            solution[i, CORE_LIMIT], solution[i, STEPS] = limit, steps
            store_nodes(nodes, size, used, log_p, solution[i])
        if p.shape[0] > 0:
            marginal_coefficients(nodes, used, polynomials, table)
            at = c, inv, d, limit, steps
            marginals(present, *at, table, used, polynomials, room, values, values)
            if code == MIXED:
                with_infinities(whole, values, k[i] - left, p)


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
    """Rows lo .. hi: p by the recursion of Su (2024)."""
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
    work, sums = tangent_room(x), np.empty(DIRECTION_SUMS)
    nodes, q_re, q_im = np.empty((FIELDS, CAPACITY)), np.empty(NODES), np.empty(NODES)
    polynomials = np.empty((TANGENT_POLYNOMIALS, DEGREE), x.dtype)
    table = np.empty((TANGENT_FIELDS, NODES))
    apart = workspace(x, 3, x.shape[1])
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        n, answer, code = length(x[i]), solution[i], int(solution[i, CODE])
        entries, dp = window(x[i], 0, n), window(out[i], 0, n)
        fill_behind(out[i], n if code <= MIXED else 0, T(np.nan) if code == UNDEFINED else T(0))
        if code > MIXED:
            if gtau.shape[1] > 0:
                gtau[i, 0] = np.nan if code == UNDEFINED else 0.0
            continue
        c, d, inv = T(answer[C]), T(answer[D]), inverse_temperature(tau[i], x)
        limit, steps = answer[CORE_LIMIT], int(answer[STEPS])
        xs, vs, target = taking_part(entries, window(v[i], 0, n), dp, code, apart)
        used = load_nodes(answer, nodes)
        at = dtau[i], c, inv, d, limit, steps
        direction_sums(xs, vs, *at, nodes, used, work, sums, target)
        tangent_coefficients(nodes, used, steps, sums, q_re, q_im, polynomials, table)
        write_tangent(xs, vs, *at, table, used, polynomials, work, target)
        if gtau.shape[1] > 0:
            gtau[i, 0] = -pair_with_t(xs, target, c, inv, d)
        if code == MIXED:
            unpack(entries, target, T(0), dp)


# The numbers of a row in which two directions move it, and the gradients in them: k has none.
DTAU, OTHER_DTAU = 1, 3
GK, GTAU = range(2)


@kernel
def second(lo, hi, x, tau, solution, v, a, moves, out, sums):
    """Rows lo .. hi: the second derivative along two directions (Theorem thm-grad-second).

    `moves`: those in k, which are not looked at, and in the temperature. To `out` goes the
    derivative of p along both. Where a is a cotangent, this is the gradient in x of <a, dp along
    the first>, and to `sums` goes that in the temperature.
    """
    T, n = x.dtype.type, x.shape[1]
    room, apart, others = cumulant_room(), workspace(x, 3, n), workspace(x, 3, n)
    x, v, a, out, solution = (
        borrowed(x),
        borrowed(v),
        borrowed(a),
        borrowed(out),
        borrowed(solution),
    )
    for i in range(lo, hi):
        n, answer, code = length(x[i]), solution[i], int(solution[i, CODE])
        undefined = code == UNDEFINED
        entries, ddp = window(x[i], 0, n), window(out[i], 0, n)
        fill_behind(out[i], n if code <= MIXED else 0, T(np.nan) if undefined else T(0))
        sums[i, GK] = sums[i, GTAU] = np.nan if undefined else 0.0
        if code > MIXED:
            continue
        level = T(answer[C]), inverse_temperature(tau[i], x), T(answer[D])
        _, others_of, _ = taking_part(entries, window(a[i], 0, n), ddp, code, others)
        xs, vs, target = taking_part(entries, window(v[i], 0, n), ddp, code, apart)
        at = level, moves[i, DTAU], moves[i, OTHER_DTAU]
        sums[i, GTAU] = third_cumulant(xs, vs, others_of, *at, answer, room, target)
        if code == MIXED:
            unpack(entries, target, T(0), ddp)


@summing
def smoothed_sum(x, tau, c, d):
    """Sum of tau log(1 + e^t) over finite entries, plus c + tau d where t >= 0; how many those."""
    wide_vectors()
    tails, entries, upper = 0.0, 0.0, 0.0
    for i in range(x.shape[0]):
        tail, whole, above = smoothed(np.float64(x[i]), tau, c, d)
        tails += tail
        entries += whole
        upper += 1.0 if above else 0.0
    return tails + entries, upper


@kernel
def potential(lo, hi, x, k, tau, solution, out):
    """Rows lo .. hi: tau log Z_k(x/tau) (Theorem thm-grad-tilt)."""
    x = borrowed(x)
    for i in range(lo, hi):
        answer, entries = solution[i], window(x[i], 0, length(x[i]))
        code, above, total = int(answer[CODE]), 0, 0.0
        if code != FINITE:
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
            entries, _ = present_part(entries, entries, code)
            total, upper = smoothed_sum(entries, tau[i], c, d)
            out[i] = total + (k[i] - upper) * (c + tau[i] * d) + tau[i] * answer[LOG_P]
