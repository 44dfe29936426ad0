"""ThreTopK with costs, sum c p = k and p = f((x - lambda c)/tau), for rows lo .. hi of a batch.

The costs of a row are multiplied by its `unit`, the power of two that brings the largest of them
between 1/2 and 1, and so is k. Then a step of the threshold moves no entry by more than itself, and
the tolerances and the bracketed search of `_threshold.newton` hold as they are.
"""

from __future__ import annotations

import numpy as np

from ..._api.prices import NEAR_32, NEAR_64
from ..._compile.array_intrinsics import block, borrowed, window, workspace
from ..._compile.decorators import kernel, scalar, specialized, specialized_summing, summing
from ..._curves.base import (
    has_exponential_tails,
    has_second_derivative,
    least_share,
    origin,
    quantile,
    second_derivative_sums,
    split,
)
from ..._math.elementary import fma, from_ordinal, limits, to_ordinal, wide_vectors
from ..._math.special import natural_log
from ..._math.sums import FEW
from ..._nonfinite import (
    ALL,
    FINITE,
    NONE,
    SHARED,
    UNDEFINED,
    WITH_INFINITIES,
    expand,
    fill_constant,
    survey,
    taking_part,
)
from ..._threshold.distribution import quantile_of_distribution
from ..._threshold.newton import advance, enter, growth_of_tails, inverse_temperature, polish
from ..._threshold.policy import tolerances
from ..._threshold.records import HI_C, HI_D, HI_R, LO_C, LO_D, LO_R, MAX, MIN, REST, STATE, C, D
from ..formulas import priced_t

# A solved row: its threshold lam + tau (d + rest) in units of the scaled costs; its kind.
CODE = 3
SOLUTION = 4
SHORT = 2.0**-10  # a step along the slope alone


@scalar
def classify(x, cost, unit, total, k):
    """(kind of the row, costs of its finite entries, costs of those at +inf, the k that is left).

    `total`: the sum of all costs. A k that differs from a sum of costs by rounding is that sum.
    """
    T = x.dtype.type
    near = NEAR_32 if limits(T(1))[0] > 1e-10 else NEAR_64
    lowest, highest = to_ordinal(T(-np.inf)), to_ordinal(T(np.inf))
    lo, hi = survey(x)
    finite, present, above = x.shape[0], total, 0.0
    if lo < lowest or hi > highest:
        return UNDEFINED, 0.0, 0.0, k
    if lo == lowest or hi == highest:
        finite, present = 0, 0.0
        for i in range(x.shape[0]):
            c = np.float64(cost[i] * unit)
            if x[i] == T(np.inf):
                above += c
            elif x[i] != T(-np.inf):
                finite += 1
                present += c
    left, slack = k - above, near * (present + above)
    if left > present + slack:
        code = UNDEFINED
    elif left <= near * above:
        code = SHARED if left < -near * above else NONE
    elif left >= present - slack:
        code = ALL
    else:
        code = FINITE if finite == x.shape[0] else WITH_INFINITIES
    return code, present, above, left


@summing
def measure(x, cost, unit, pivot, inv):
    """Sums of c, c z, c z^2, c^2, c^2 z and c^3 with z = (x - pivot c)/tau; and four ordinals.

    These are the ordinals of the least and the largest x/c, and of the least and the largest c.
    """
    wide_vectors()
    T = x.dtype.type
    s0, sz, szz, sc, scz, scc = T(0), T(0), T(0), T(0), T(0), T(0)
    lo = hi = to_ordinal(x[0] / (cost[0] * unit))
    least = most = to_ordinal(cost[0] * unit)
    for i in range(x.shape[0]):
        c = cost[i] * unit
        o, each = to_ordinal(x[i] / c), to_ordinal(c)
        lo, hi = o if o < lo else lo, o if o > hi else hi
        least, most = each if each < least else least, each if each > most else most
        z = fma(-pivot, c, x[i]) * inv
        cz, cc = c * z, c * c
        s0 += c
        sz += cz
        szz += cz * z
        sc += cc
        scz += cc * z
        scc += cc * c
    return (s0, sz, szz, sc, scz, scc), (lo, hi, least, most)


@scalar
def guess(curve, sums, k):
    """The threshold in temperatures from the pivot, by the moments of entries weighted by costs.

    k is about the share of entries, so weighted, that x - lambda c plus the curve's noise leaves
    above 0: two steps to the lambda at which its quantile is 0.
    """
    s0, sz, szz, sc, scz, scc = sums
    share = 1.0 / np.float64(s0)
    mean, by_cost = sz * share, sc * share
    variance, both = szz * share - mean * mean, scz * share - mean * by_cost
    spread = scc * share - by_cost * by_cost
    d = mean / by_cost
    for _ in range(2):
        around = variance - 2.0 * d * both + d * d * spread
        there = mean - origin(curve)
        d = quantile_of_distribution(curve, there, around, 0.0, np.float64(s0), k) / by_cost
    return d


@scalar
def begin(state, curve, x, cost, unit, present, k, inv):
    """Bracket the threshold, and move to the first guess of it."""
    T = x.dtype.type
    eps, _, most_of_type = limits(T(1))
    middle = x.shape[0] // 2
    pivot = x[middle] / (cost[middle] * unit)
    pivot = pivot if abs(pivot) < T(np.inf) else T(0)
    sums, (lo, hi, least, most) = measure(x, cost, unit, pivot, inv)
    lowest, highest = np.float64(from_ordinal(lo)), np.float64(from_ordinal(hi))
    state[MIN] = lowest if lowest > -most_of_type else -most_of_type
    state[MAX] = highest if highest < most_of_type else most_of_type
    q = quantile(curve, k / present) + origin(curve)
    slack = 1e-3 * (1.0 + abs(q))  # the quantile is rounded, and the bracket must still hold
    cheap, costly = np.float64(from_ordinal(least)), np.float64(from_ordinal(most))
    upper, lower = q + slack, q - slack
    state[LO_D] = -upper / (cheap if upper > 0.0 else costly) - 4.0 * eps * abs(state[MIN]) * inv
    state[HI_D] = -lower / (costly if lower > 0.0 else cheap) + 4.0 * eps * abs(state[MAX]) * inv
    state[LO_R], state[HI_R] = present - k, -k
    enter(state, np.float64(pivot), guess(curve, sums, k), inv, True)


@specialized_summing
def tally(x, cost, unit, lam, inv, d, shift, curve):
    """Sums over a row of the pieces of c f(t) as `split` has them, of c^2 f'(t) and of c^3 f''(t).

    The last is 0 where the curve's second derivative is not known.
    """
    curved = has_second_derivative(curve)

    def sums(x, cost, unit, lam, inv, d, shift, curve):
        wide_vectors()
        T = x.dtype.type
        m, a, b, w, v = 0.0, 0.0, 0.0, 0.0, 0.0
        for start in range(0, x.shape[0], FEW):
            xs, costs = block(x, start, FEW), block(cost, start, FEW)
            sm, sa, sb, sw, sv = T(0), T(0), T(0), T(0), T(0)
            for i in range(xs.shape[0]):
                c = costs[i] * unit
                t = priced_t(xs[i], c, lam, inv, d, shift)
                ui, ai, bi, wi = split(curve, t)
                if curved:
                    sv += c * c * c * second_derivative_sums(curve, t, ai, bi, wi)[0]
                sm += c * ui
                sa += c * ai
                sb += c * bi
                sw += c * c * wi
            m += sm
            a += sa
            b += sb
            w += sw
            v += sv
        return m, a, b, w, v

    return sums


@specialized
def verdict(curve, k, sums, d, one, modelled):
    """(r, step, moved, stays, arrives), as `_threshold.newton.newton_step` has them.

    Tails of entries with costs grow as e^(rho s), rho the ratio of the sums of c^2 f' and of c
    times the tail, if all of them grow alike; elsewhere the step is Newton's.
    """
    curved, exponential = has_second_derivative(curve), has_exponential_tails(curve)
    eps, least, most = limits(one)
    first, third, _ = tolerances(curve, eps)

    def verdict_of(curve, k, sums, d, one, modelled):
        m, a, b, w, v = sums
        r, tails = (m - k) - a + b, a + b
        step, rho, bent = r / w if w > 0.0 else np.nan, 1.0, 0.0
        if exponential:
            y, rho = growth_of_tails(k, m, a, b), w / tails if tails > 0.0 else np.nan
            known = (w > 0.0) & (y >= least) & (y <= most)
            step, bent = natural_log(y) / rho if known else np.nan, rho * rho * (b - a)
        enough = first
        if curved:
            # The residual's second derivative less the model's.
            lacks = (v - bent) * step * step * (0.5 / w)
            if abs(lacks) <= 0.5 * abs(step):
                step, enough = step + lacks, third
        moved = np.float64(type(one)(d + step))
        length = abs(step) * (rho if rho > 1.0 else 1.0)
        # No sum is more exact than this.
        least_r = eps * (k + tails)
        stays = (r != r) | (abs(r) <= least_r)
        # Where d is many temperatures, a step that is lost in it may not be short; and where slopes
        # may be infinite, a short one may lead far.
        arrives = (length <= enough) | ((moved == d) & (length <= SHORT))
        arrives = arrives & (exponential | (abs(r) <= 16.0 * least_r))
        return r, step, moved, stays, modelled & arrives

    return verdict_of


@scalar
def fill(x, cost, unit, lam, inv, d, rest, shift, curve, out):
    """Write p at the threshold lam + tau (d + rest)."""
    wide_vectors()
    T = x.dtype.type
    rest = T(rest)
    for i in range(x.shape[0]):
        c = cost[i] * unit
        step = c * rest
        out[i] = polish(curve, priced_t(x[i], c, lam, inv, d, shift), step, step)


@specialized
def searched(curve, k, total, one):
    """k, or the least k to search for among entries with this sum of costs if that is larger."""
    least = least_share(curve)[0 if limits(one)[0] > 1e-10 else 1]

    def at_least(curve, k, total, one):
        return k if k > total * least else total * least

    return at_least


@kernel
def solve(lo, hi, x, k, tau, cost, total, unit, curve, method, out, solution):
    """Solve rows lo .. hi: p to `out` (unless its rows are empty), thresholds to `solution`.

    `cost` has a row for each of them, or one for all; so have its sums `total` and its `unit`.
    """
    T = x.dtype.type
    n, state, shared = x.shape[1], np.empty(STATE), cost.shape[0] == 1
    shift, packed = T(origin(curve)), workspace(x, 4, n)
    x, out, solution, costs = borrowed(x), borrowed(out), borrowed(solution), borrowed(cost)
    for i in range(lo, hi):
        each = 0 if shared else i
        entries, of_row, p, answer = x[i], costs[each], out[i], solution[i]
        scale = T(unit[each])
        code, present, above, left = classify(
            entries, of_row, scale, total[each] * unit[each], k[i] * unit[each]
        )
        answer[CODE], answer[D], answer[REST] = code, 0.0, 0.0
        if code > WITH_INFINITIES:
            answer[C] = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
            if p.shape[0] > 0:
                fill_constant(entries, k[i] * unit[each], code, above, p)
            continue
        xs, cs, values = taking_part(entries, of_row, p, code, packed)
        inv = inverse_temperature(tau[i], x)
        left = searched(curve, left, present, T(1))
        begin(state, curve, xs, cs, scale, present, left, inv)
        while True:
            at = T(state[C]), inv, T(state[D])
            sums = tally(xs, cs, scale, at[0], at[1], at[2], shift, curve)
            found = verdict(curve, left, sums, state[D], T(1), method.modelled)
            if advance(state, found, inv, method.modelled, False):
                break
        answer[C], answer[D], answer[REST] = state[C], state[D], state[REST]
        if p.shape[0] > 0:
            if found[3] | found[4]:
                at = T(state[C]), inv, T(state[D]), state[REST], shift
                fill(xs, cs, scale, at[0], at[1], at[2], at[3], at[4], curve, values)
            else:
                blend(state, xs, cs, scale, left, inv, shift, curve, packed[3], values)
            if code == WITH_INFINITIES:
                expand(entries, values, 1.0, p)


@scalar
def blend(state, x, cost, unit, k, inv, shift, curve, scratch, out):
    """Write p between its values at the ends of the bracket, such that it spends k.

    Where temperatures are so short that no number between the ends is left, an entry there may be
    1 at one of them and 0 at the other.
    """
    T = x.dtype.type
    lam, d, other, other_d = (
        T(state[LO_C]),
        T(state[LO_D]),
        T(state[HI_C]),
        T(state[HI_D]),
    )
    m, a, b, _, _ = tally(x, cost, unit, lam, inv, d, shift, curve)
    over = max((m - k) - a + b, 0.0)
    m, a, b, _, _ = tally(x, cost, unit, other, inv, other_d, shift, curve)
    under = max(a - b - (m - k), 0.0)
    fill(x, cost, unit, lam, inv, d, 0.0, shift, curve, out)
    end = window(scratch, 0, x.shape[0])
    fill(x, cost, unit, other, inv, other_d, 0.0, shift, curve, end)
    whole = over + under if over + under > 0.0 else 1.0
    near, far = T(under / whole), T(over / whole)
    for i in range(x.shape[0]):
        out[i] = near * out[i] + far * end[i]
