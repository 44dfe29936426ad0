"""GradTopK on rows lo .. hi of a batch: value, derivative, VJP and potential.

Each row comes with its tilt, the sigmoid threshold of k - 1/2 (`_threshold`). `solve` writes to
`solution` what the others need, so that none of them evaluates all entries at every node again.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, empty, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import unpack
from ..._curves.sigmoid import Sigmoid
from ..._math.elementary import wide_vectors
from ..._nonfinite import (
    ALL,
    FINITE,
    NONE,
    UNDEFINED,
    WITH_INFINITIES,
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
from ..._threshold.newton import UNKNOWN, inverse_temperature, nearest, newton_step
from ..._threshold.policy import enough_for
from ..._threshold.records import (
    BAD_MOMENTS,
    BY_DISTRIBUTION,
    SOME_BAD_MOMENTS,
    SOME_UNSOLVED,
    UNSOLVED,
)
from ..formulas import smoothed
from ..nodes import CAPACITY, DEGREE, FIELDS, IM, NODES, RE, write_circle
from ..records import (
    CODE,
    CORE_AND_INFINITIES,
    CORE_LIMIT,
    DIRECTION_SUMS,
    LOG_P,
    MARGINAL_FIELDS,
    MARGINAL_POLYNOMIALS,
    SHORT_LEFT,
    SIZE,
    SOME_SHORT,
    SOME_WITH_CORE,
    STEPS,
    SUMS,
    TANGENT_FIELDS,
    TANGENT_POLYNOMIALS,
    TILT_ABOVE,
    TILT_VARIANCE,
    USED,
    WEIGHTS,
    WITH_CORE,
    C,
    D,
)
from .chebyshev_tangent import (
    chebyshev_direction_sums,
    chebyshev_tangent,
    direction_scratch,
    pair_with_t,
)
from .contour import quadrature
from .cumulant import cumulant_scratch, third_cumulant
from .marginals import chebyshev_marginals, marginal_coefficients
from .moments import chebyshev_sums, choose_series, tilted_probabilities
from .recursions import dp, recursion
from .tangent import tangent_coefficients

SIGMOID = Sigmoid()
# The error after the last step is of third order (Proposition prop-solver), and must be small
# against the standard deviation of the count, at most sqrt(n)/2, and against its variance.
TILT = Newton(0.4, fades=0.9)
TRIES = 8  # passes over a row, and over its sample, in search of a tilt
NEAR_ENOUGH = 0.34  # largest squared error of the mean count, in variances of the count


@scalar
def step_of_tilt(n):
    """The length of a step, in temperatures, that ends the search for the tilt of n entries."""
    return enough_for(TILT, n)


@scalar
def store_nodes(nodes, size, used, log_p, answer):
    """Write the nodes of a row to its solution."""
    answer[LOG_P], answer[SIZE], answer[USED] = log_p, size, used
    for j in range(used):
        answer[WEIGHTS + j] = nodes[RE, j]
        answer[WEIGHTS + NODES + j] = nodes[IM, j]


@scalar
def store_tilt(c, d, limit, steps, answer):
    """Write the tilt of a row and its series to its solution."""
    answer[C], answer[D], answer[CORE_LIMIT], answer[STEPS] = c, d, limit, steps


@scalar
def load_nodes(answer, nodes):
    """Write the nodes of a solved row; returns their number."""
    used = int(answer[USED])
    write_circle(int(answer[SIZE]), used, int(answer[STEPS]), nodes)
    for j in range(used):
        nodes[RE, j] = answer[WEIGHTS + j]
        nodes[IM, j] = answer[WEIGHTS + NODES + j]
    return used


@scalar
def level_of(x, tau, answer):
    """c, 1/tau and d of the tilt of a solved row, in the type of its entries."""
    T = x.dtype.type
    return T(answer[C]), inverse_temperature(tau, x), T(answer[D])


@scalar
def tilt_by_distribution(distribution, n, k, inv):
    """((c, d) of a tilt for k of n entries so distributed (`start`), whether it misleads)."""
    pivot, d, misled = start_by_distribution(SIGMOID, distribution, n, k - 0.5)
    return nearest(pivot + d / inv, pivot, d, inv), misled


@scalar
def first_tilt(x, k, inv, scratch, by_distribution, answer):
    """(entries with which a search begins, first tilt c and d, whether the distribution misleads).

    The tilt is by the moments of these entries, or by the distribution in `answer`.
    """
    n, part = x.shape[0], part_of(x, scratch)
    distribution = answer[0], answer[1], answer[2], answer[3]
    if by_distribution:
        part = x if has_few(part, n, k) else part
    else:
        distribution = distribution_by_moments(part, inv)
    (c, d), misled = tilt_by_distribution(distribution, n, k, inv)
    return part, c, d, misled or not distribution[2] < np.inf


@scalar
def tilt_step(seen, target, d, one):
    """(error of the mean count, step to take), from the sums `seen` at the tilt c + tau d."""
    tails = seen.above, seen.tails_above, seen.tails_below
    sums = *tails, seen.variance, seen.skewness, *UNKNOWN[1:]
    off, step, _, _, _ = newton_step(SIGMOID, target, sums, 0.0, d, one, True, 0.0)
    return off, step


@scalar
def find_tilt(x, part, k, inv, c, d, known, kept):
    """Write `tilted_probabilities` at the tilt c + tau d if `known`, or at one near enough.

    Returns (whether it is accepted, c, d, the sums at it). The first is often near enough: the
    nodes correct its error. The search begins on a part of the row. One that does not end soon is
    left to the solver of `_threshold`.
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


@scalar
def leave_to_core(tilt, code, c, d, seen, flags):
    """Leave a row to `with_core.solve`, and write to its tilt what that needs."""
    flags[SOME_WITH_CORE] = True
    tilt[CODE] = WITH_CORE if code == FINITE else CORE_AND_INFINITIES
    tilt[C], tilt[D] = c, d
    tilt[TILT_ABOVE], tilt[TILT_VARIANCE] = seen.above, seen.variance


@kernel
def solve(lo, hi, x, k, tau, tilt, limits, out, solution, flags):
    """Write p of rows lo .. hi to `out`, and solutions to `solution` unless it has no columns.

    Rows whose tilt is UNSOLVED get one here, or have BAD_MOMENTS, or stay UNSOLVED, and the flags
    are set; if the flag BY_DISTRIBUTION is set, only rows with BAD_MOMENTS are solved. Rows that
    are short by the `limits` get the tilt SHORT_LEFT and zeros, and `flags[SOME_SHORT]` is set.
    Rows with a core are left to `with_core.solve`, and `flags[SOME_WITH_CORE]` is set.
    """
    T, again, wide = x.dtype.type, flags[BY_DISTRIBUTION], solution.shape[1] > 0
    sums = empty(SUMS)
    nodes, table = empty((FIELDS, CAPACITY)), empty((MARGINAL_FIELDS, NODES))
    polynomials = empty((MARGINAL_POLYNOMIALS, DEGREE), x.dtype)
    sampled, apart = empty(sample_size(x.shape[1]), x.dtype), workspace(x, 2, x.shape[1])
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        if again and tilt[i, CODE] != BAD_MOMENTS:
            continue
        inv, whole = inverse_temperature(tau[i], x), window(x[i], 0, length(x[i]))
        p = window(out[i], 0, whole.shape[0] if out.shape[1] > 0 else 0)
        fill_behind(out[i], p.shape[0], T(0))
        present, left, code, above = whole, k[i], FINITE, 0
        if not finite(whole):
            present, left = without_infinities(whole, k[i], apart[0])
            code = WITH_INFINITIES
        n = present.shape[0]
        if not 0 < left < n or (code == WITH_INFINITIES and not finite(present)):
            code, _, above, _, _, _ = classify(whole, k[i], *survey(whole))
        few = n <= limits.most and left * (n - left) <= limits.variance * n
        few = code <= WITH_INFINITIES and (few or n <= limits.always)
        code = NONE if few else code
        if wide:
            solution[i, CODE] = code
        if code > WITH_INFINITIES:
            tilt[i, CODE] = SHORT_LEFT if few else code
            if few:
                flags[SOME_SHORT] = True
            if p.shape[0] > 0:
                fill_constant_row(whole, k[i], code, above, out[i])
            continue
        values = window(p if p.shape[0] > 0 and code == FINITE else apart[1], 0, n)
        part, c, d = present, tilt[i, C], tilt[i, D]
        known = tilt[i, CODE] != UNSOLVED and not again
        if not known:
            part, c, d, misled = first_tilt(present, left, inv, sampled, again, tilt[i])
            if misled and not again:
                tilt[i, CODE], flags[SOME_BAD_MOMENTS] = BAD_MOMENTS, True
                continue
        served, c, d, seen = find_tilt(present, part, left, inv, c, d, known, values)
        if not served:
            tilt[i, CODE], flags[SOME_UNSOLVED] = UNSOLVED, True
            continue
        tilt[i, CODE], c, d = code, T(c), T(d)
        limit, steps = choose_series(seen.variance, inv)
        if steps == 0:
            leave_to_core(tilt[i], code, c, d, seen, flags)
            continue
        chebyshev_sums(values, seen, steps, sums)
        size, used, log_p = quadrature(n, left, inv, steps, sums, None, 0, nodes)
        if wide:
            store_nodes(nodes, size, used, log_p, solution[i])
            store_tilt(c, d, limit, steps, solution[i])
        if p.shape[0] > 0:
            marginal_coefficients(nodes, used, polynomials, table)
            chebyshev_marginals(present, c, inv, d, steps, polynomials, values, values)
            if code == WITH_INFINITIES:
                with_infinities(whole, values, k[i] - left, p)


@kernel
def solve_dp(lo, hi, x, k, tau, tilt, out):
    """Write p of rows lo .. hi by sums over prefixes and suffixes."""
    for i in range(lo, hi):
        entries, p = x[i], out[i]
        code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        if code > WITH_INFINITIES:
            fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        values, inv = np.empty(n, x.dtype), np.float64(inverse_temperature(tau[i], x))
        dp(present, int(left), tilt[i, C], inv, tilt[i, D], values)
        expand(entries, values, 1.0, p)


@kernel
def solve_recursion(lo, hi, x, k, tau, out):
    """Write p of rows lo .. hi by the recursion of Su (2024)."""
    for i in range(lo, hi):
        entries, p = x[i], out[i]
        code, n, above, left, _, _ = classify(entries, k[i], *survey(entries))
        if code > WITH_INFINITIES:
            fill_constant(entries, k[i], code, above, p)
            continue
        present, _ = present_part(entries, entries, code)
        values = np.empty(n, x.dtype)
        recursion(present, int(left), tau[i], values)
        expand(entries, values, 1.0, p)


@kernel
def jvp(lo, hi, x, tau, solution, v, dtau, out, gtau, flags):
    """Write dp of rows lo .. hi along (v, dtau).

    With dtau = 0 and v a cotangent of p, dp is the gradient in x, as J is symmetric, and the
    gradient in the temperature goes to `gtau`, unless that is empty: dp = J (v - t dtau), and
    <v, J t> = <J v, t>. Rows with a core are left to `with_core.jvp`, and `flags[SOME_WITH_CORE]`
    is set.
    """
    T = x.dtype.type
    scratch, sums = direction_scratch(x), empty(DIRECTION_SUMS)
    nodes, q_re, q_im = empty((FIELDS, CAPACITY)), empty(NODES), empty(NODES)
    polynomials = empty((TANGENT_POLYNOMIALS, DEGREE), x.dtype)
    table = empty((TANGENT_FIELDS, NODES))
    apart = workspace(x, 3, x.shape[1])
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        n, answer, code = length(x[i]), solution[i], int(solution[i, CODE])
        entries, dp = window(x[i], 0, n), window(out[i], 0, n)
        fill_behind(
            out[i], n if code <= WITH_INFINITIES else 0, T(np.nan) if code == UNDEFINED else T(0)
        )
        if code > WITH_INFINITIES:
            if gtau.shape[1] > 0:
                gtau[i, 0] = np.nan if code == UNDEFINED else 0.0
            continue
        steps = int(answer[STEPS])
        if steps == 0:
            flags[SOME_WITH_CORE] = True
            continue
        c, inv, d = level_of(x, tau[i], answer)
        xs, vs, target = taking_part(entries, window(v[i], 0, n), dp, code, apart)
        used = load_nodes(answer, nodes)
        at = dtau[i], c, inv, d, steps
        chebyshev_direction_sums(xs, vs, *at, scratch, sums, target)
        tangent_coefficients(nodes, used, steps, sums, q_re, q_im, polynomials, table)
        chebyshev_tangent(xs, vs, *at, polynomials, scratch, target)
        if gtau.shape[1] > 0:
            gtau[i, 0] = -pair_with_t(xs, target, c, inv, d)
        if code == WITH_INFINITIES:
            unpack(entries, target, T(0), dp)


# Columns of `moves` and of `sums` in `second`: k has no derivative.
DTAU, OTHER_DTAU = 1, 3
GK, GTAU = range(2)


@kernel
def second(lo, hi, x, tau, solution, v, a, moves, out, sums):
    """Write the second derivative of rows lo .. hi along v and a (Theorem thm-grad-second).

    `moves`: the directions in k, which are not read, and in the temperature. To `out` goes the
    derivative of p along both. If a is a cotangent, this is the gradient in x of <a, dp along the
    first>, and to `sums` goes that in the temperature.
    """
    T, n = x.dtype.type, x.shape[1]
    scratch, apart, others = cumulant_scratch(), workspace(x, 3, n), workspace(x, 3, n)
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
        fill_behind(out[i], n if code <= WITH_INFINITIES else 0, T(np.nan) if undefined else T(0))
        sums[i, GK] = sums[i, GTAU] = np.nan if undefined else 0.0
        if code > WITH_INFINITIES:
            continue
        level = level_of(x, tau[i], answer)
        _, others_of, _ = taking_part(entries, window(a[i], 0, n), ddp, code, others)
        xs, vs, target = taking_part(entries, window(v[i], 0, n), ddp, code, apart)
        at = level, moves[i, DTAU], moves[i, OTHER_DTAU]
        sums[i, GTAU] = third_cumulant(xs, vs, others_of, *at, answer, scratch, target)
        if code == WITH_INFINITIES:
            unpack(entries, target, T(0), ddp)


@summing
def smoothed_sum(x, tau, c, d):
    """(sum of tau log(1 + e^t) of finite entries, plus c + tau d where t >= 0; their number)."""
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
    """Write the potential tau log Z_k(x/tau) of rows lo .. hi (Theorem thm-grad-tilt)."""
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
