"""The threshold of one row: the next step of the search, from the sums of one pass over the row.

The threshold is kept as lambda = c + tau (d + rest): c a number of the row's own type among its
entries, d a number of the same type in units of the temperature, `rest` the rounding error of d.
Entries near the threshold lie within a factor two of c, so x_i - c is exact there (Sterbenz) and
neither a large offset nor a long row costs accuracy.

A pass returns the four sums (m, a, b, w) of `split`. The residual
r = sum p - k = (m - k) - a + b subtracts whole numbers before it adds tails: it keeps its
relative accuracy when nearly every entry is saturated. See docs, Proposition prop-solver.
"""

from __future__ import annotations

import math

import numpy as np

from .._compile.decorators import scalar, specialized
from .._curves.base import (
    cdf_after_shift,
    clamp,
    exact_between_kinks,
    has_continuous_slope,
    has_exponential_tails,
    has_second_derivative,
    quantile,
    split,
)
from .._math.elementary import from_ordinal, limits, to_ordinal
from .._math.special import natural_log
from .policy import BLUR, CROWD, FAR, FAR_BY_KINKS, FREE, MOST_PASSES, tolerances
from .records import (
    FALLBACKS,
    HI_C,
    HI_D,
    HI_R,
    LAST_R,
    LO_C,
    LO_D,
    LO_R,
    MAX,
    MIN,
    PASSES,
    REST,
    STALLED,
    C,
    D,
)

UNKNOWN = math.nan, math.nan, math.nan  # in place of the sums of higher derivatives


@specialized
def inverse_temperature_of(tau, one):
    """1/tau in the type of `one`, clipped to finite and normal numbers."""
    _, least, most = limits(one)

    def inverse(tau, one):
        inv = 1.0 / tau
        return type(one)(least if inv < least else most if inv > most else inv)

    return inverse


@scalar
def inverse_temperature(tau, x):
    """1/tau in the type of the row x, clipped to finite and normal numbers."""
    return inverse_temperature_of(tau, x.dtype.type(1))


@scalar
def nearest(target, c, d, inv):
    """(c', d') with c' + tau d' = c + tau d: c' is the float next to `target`, d' the remainder."""
    T = type(inv)
    near = np.float64(T(target))
    rest = np.float64(T(d - (near - c) * inv))
    return near, rest if abs(rest) < np.inf else 0.0


@scalar
def place(state, c, d, inv):
    """Move the threshold to c + tau d; returns whether that is strictly within the bracket.

    c becomes the float next to the threshold, within the range of the row.
    """
    target = c + d * (1.0 / inv)
    target = state[MIN] if target < state[MIN] else state[MAX] if target > state[MAX] else target
    near, rest = nearest(target, c, d, inv)
    state[C], state[D], state[REST] = near, rest, 0.0
    above = (near - state[LO_C]) * inv + (rest - state[LO_D])
    below = (state[HI_C] - near) * inv + (state[HI_D] - rest)
    return above > 0.0 and below > 0.0


@scalar
def growth_of_tails(k, m, a, b):
    """The y > 0 with a y^2 + (k - m) y - b = 0: upper tails that grow by it leave the mass k."""
    # Numbers whose squares would underflow are scaled up; y does not change.
    g = k - m
    unit = 2.0**480 if abs(g) + a + b < 2.0**-480 else 1.0
    g, above, below = g * unit, a * unit, 2.0 * b * unit
    root = abs(g) + math.sqrt(g * g + 2.0 * above * below)
    over, under = (below, root) if g >= 0.0 else (root, 2.0 * above)
    return over / under


@specialized
def model_step(curve, k, m, a, b, w, r, mass, dense):
    """The step from the sums of one pass; NaN or infinite where they do not determine one.

    Exponential model: the upper tails grow as e^(rho s), the lower ones fall as e^(-rho s) with
    rho = w/(a + b), so that y = e^(rho s) solves a y^2 + (k - m) y - b = 0. It is exact for exp and
    laplace while no entry changes side (Theorems thm-closed-form-exp and -laplace), agrees with
    Newton to first order always, and does not crawl where all entries are far in the tails.
    Otherwise it is a Newton step, exact for clip while no entry changes piece
    (thm-closed-form-clip).

    `dense`: the mass is modelled as falling like e^(-s w/mass) instead, with the step log(mass/k)
    mass/w. That logarithm is 6 u/(3 - u^2), u = r/(mass + k), to fifth order, and is at most 3.
    """
    kinked = exact_between_kinks(curve)
    _, least, most = limits(1.0)

    # No branches, so that rows side by side take the step in SIMD lanes; and few divisions.
    def newton(curve, k, m, a, b, w, r, mass, dense):
        step = r / w if w > 0.0 else np.nan
        if not kinked:
            return step
        whole = mass + k
        far, rate = 6.0 * r * mass * whole, (3.0 * whole * whole - r * r) * w
        # r'' is the density of entries at 0, less that at 1: 6 w - 12 b, if it is linear between.
        bent = (3.0 - 6.0 * b / w) * step
        bent = -0.5 if bent < -0.5 else 0.5 if bent > 0.5 else bent
        crossing = far / rate if abs(step) > 0.5 else step + bent * step
        return crossing if dense else step

    def exponential(curve, k, m, a, b, w, r, mass, dense):
        whole = mass + k
        far, rate = 6.0 * r * mass * whole, (3.0 * whole * whole - r * r) * w
        y = growth_of_tails(k, m, a, b)
        known = (w > 0.0) & (y >= least) & (y <= most)
        # Between kinks of an exponential rho is 1.
        tails, one = (1.0, 1.0) if kinked else (a + b, w)
        near = natural_log(y) * tails if known else np.nan
        return (far if dense else near) / (rate if dense else one)

    return exponential if has_exponential_tails(curve) else newton


@scalar
def refined(step, r, a, b, w, bent, mass, dense):
    """(step, length, third, fifth): the model's step refined, and whether it is of that order.

    `bent`: the sums of the second, third and fourth derivative of f. The second corrects the
    model's own; with all of them the step leads to the root of the residual's Taylor polynomial, by
    one Halley step.
    """
    v, v3, v4 = bent
    length, tails = abs(step), mass if dense else a + b
    share = 1.0 / (tails * w)  # one division for two quotients, rho = w/tails and 1/w
    rho = w * w * share
    # The residual's second derivative less the model's.
    lacks = (v - rho * rho * (mass if dense else b - a)) * step * step * (0.5 * tails * share)
    third = (abs(lacks) <= 0.5 * length) & (length < np.inf)
    step += lacks if third else 0.0
    half, cubic, fourth = 0.5 * step, step * (1.0 / 3.0), 0.25 * step
    curvature = v - step * (v3 - half * v4)
    slope = w - step * (v - half * (v3 - cubic * v4))
    value = r - step * (w - half * (v - cubic * (v3 - fourth * v4)))
    root = step + 2.0 * value * slope / (2.0 * slope * slope - value * curvature)
    fifth = third & (abs(root - step) <= 0.25 * length)
    return root if fifth else step, length * (1.0 if rho < 1.0 else rho), third, fifth


@specialized
def newton_step(curve, k, sums, clear, d, one, modelled, enough):
    """The step from a pass at the threshold: (r, step, moved, stays, arrives).

    r is the residual, `step` the model's step, which leads from d to `moved`. The search ends at
    the present threshold (`stays`), or at the moved one (`arrives`), or goes on. `sums` are those
    of `tally` but for the last, `clear`: the length of a step up to which the model is exact
    (Proposition prop-solver).
    """
    kinked, curved = exact_between_kinks(curve), has_second_derivative(curve)
    exponential = has_exponential_tails(curve)
    far = FAR if has_continuous_slope(curve) else FAR_BY_KINKS
    may_crowd, finite_pieces = kinked or curved, kinked and exponential
    eps, _, _ = limits(one)
    tolerance = 0.25 * eps
    first_order, third_order, fifth_order = tolerances(curve, eps)

    def verdict(curve, k, sums, clear, d, one, modelled, enough):
        m, a, b, w, v, v3, v4 = sums
        r = (m - k) - a + b
        mass = (m - a) + b
        # Entries may lie so close that many of them pass a kink, or the middle of f, during the
        # step. Then the mass is modelled as an exponential, not the tails, as is right where
        # entries thin out upwards at a constant rate. Where they lie far apart that would crawl.
        dense = False
        if may_crowd:
            dense = (abs(r) > far * w) & (w > 0.25)
        if kinked:
            dense = dense & (abs(r) > CROWD * clear * w) & (clear > 0.0)
        elif curved:
            # Is the second derivative of this model, w^2/mass, nearer to the residual's than that
            # of the other? v varies by 0.2 to 0.4 sqrt(w) where entries lie close.
            tails, off = a + b, abs(v * mass - w * w)
            nearer = off * tails * tails < abs(v * tails * tails - w * w * (b - a)) * mass
            dense = dense & (nearer | ((off * off < w * mass * mass) & (w > 2.0)))
        step = model_step(curve, k, m, a, b, w, r, mass, dense)
        length, least = abs(step), first_order
        if curved:
            step, length, third, fifth = refined(step, r, a, b, w, (v, v3, v4), mass, dense)
            least = fifth_order if fifth else third_order if third else first_order
        # |r| is the distance of p from the answer (Proposition prop-mass). Bisection stops on it;
        # the exponential model goes on to full relative accuracy for small p, if its step is known.
        distance = tolerance * (k if k < 1.0 else 1.0)
        if not modelled:
            distance += 2.0 * eps * (a + b)
        knows = modelled & exponential & (abs(step) < np.inf)
        stays = (r == 0.0) | (r != r) | ((abs(r) <= distance) & (not knows))
        rough = enough > least
        # Entries near a kink of a curve with compact support can outnumber their mass.
        exact = exponential | rough | (abs(r) <= 16.0 * eps * b)
        # If `moved` is d, no further pass could improve on it.
        moved = np.float64(type(one)(d + step))
        short = length <= (enough if rough else least)
        # The pass is as exact as its sums, whose errors a residual beyond k would outweigh; and a
        # long step takes the last digits from small p.
        straight = (abs(step) < clear) & (abs(step) <= 1.0) & (abs(r) <= 0.5 * k)
        if finite_pieces:
            # With all entries below, nothing is subtracted, and on the way up none passes a kink.
            straight |= (m == 0.0) & (step > -clear) & (step > -1.0) & (step <= FREE)
        arrives = ((moved == d) | (short & exact) | straight) & (rough | (not dense))
        return r, step, moved, stays, modelled & arrives

    return verdict


@scalar
def middle_of(lo, hi):
    """The middle of two ordinals, whose sum can overflow."""
    return type(lo)((lo >> 1) + (hi >> 1) + (lo & hi & 1))


@scalar
def halve(state, inv, informed):
    """Move to the inside of the bracket without the model; returns whether there is an inside.

    Three ways take turns: regula falsi (Illinois; a midpoint unless `informed` by residuals), the
    midpoint of the values, and the midpoint of the ordinals, which leaves two neighbouring floats
    after at most 64 of its turns whatever the spread. Neighbours can still lie many temperatures
    apart: then they are tried themselves, and the distances from them are reduced to their square
    roots. Or the bracket could only be narrower next to an entry, where a curve can be infinitely
    steep: then the distance in temperatures is bisected by its ordinals too.
    """
    T = type(inv)
    turn = state[FALLBACKS] % 3.0
    state[FALLBACKS] += 1.0
    lo_c, lo_d, hi_c, hi_d = state[LO_C], state[LO_D], state[HI_C], state[HI_D]
    width = (hi_c - lo_c) * inv + (hi_d - lo_d)
    lo, hi = to_ordinal(T(lo_c + lo_d / inv)), to_ordinal(T(hi_c + hi_d / inv))
    between = lo + 1 < hi  # the difference of two ordinals can overflow
    c, d = lo_c, lo_d + 0.5 * width
    if between and (turn == 2.0 or not abs(width) < np.inf):
        c, d = np.float64(from_ordinal(middle_of(lo, hi))), 0.0
    elif lo_c == hi_c and turn > 0.0 and width < 4.0 * limits(inv)[0]:
        d = np.float64(from_ordinal(middle_of(to_ordinal(T(lo_d)), to_ordinal(T(hi_d)))))
    elif between or not width > 1e3:
        if informed and turn == 0.0:
            share = state[LO_R] / (state[LO_R] - state[HI_R])
            share = 0.01 if share < 0.01 else 0.99 if share > 0.99 else share
            d = lo_d + share * width
    else:
        if place(state, hi_c, 0.0, inv) or place(state, lo_c, 0.0, inv):
            return True
        _, _, most = limits(inv)
        width = most if most < width else width
        d = lo_d + 0.5 * width
        if turn == 0.0:
            d = lo_d + math.sqrt(width)
        elif turn == 2.0:
            c, d = hi_c, hi_d - math.sqrt(width)
    return place(state, c, d, inv) or place(state, lo_c, lo_d + 0.5 * width, inv)


@scalar
def begin(state, curve, k, n, c, d, inv, informed):
    """Bracket the threshold and move to c + tau d, or to the inside of the bracket if that fails.

    The bracket is [min x - tau q, max x - tau q] with f(q) = k/n.
    """
    q = quantile(curve, k / n)
    slack = 1e-3 * (1.0 + abs(q))  # the quantile is rounded, and the bracket must still hold
    state[LO_D], state[LO_R] = -q - slack, n - k
    state[HI_D], state[HI_R] = -q + slack, -k
    enter(state, c, d, inv, informed)


@scalar
def enter(state, c, d, inv, informed):
    """Move to c + tau d, or to the inside of the bracket if that fails.

    The bracket is [MIN + tau LO_D, MAX + tau HI_D], with the residuals LO_R and HI_R.
    """
    state[LO_C], state[HI_C] = state[MIN], state[MAX]
    state[LAST_R] = np.inf
    state[PASSES] = state[FALLBACKS] = 0.0
    state[STALLED] = -1.0
    # The squares or differences of a row that spans nearly all numbers can overflow.
    if not (abs(d) < np.inf and place(state, c, d, inv)):
        halve(state, inv, informed)


@scalar
def update(state, sums, k, curve, inv, modelled, enough, cheap):
    """Update a search from the sums of a pass: move the threshold; returns whether it is found.

    The sums are those of `tally`, with UNKNOWN and a clearance of 0 if they were not computed.
    `modelled`: steps come from a model of the row, not from bisection alone. `enough`: the length
    of a model's step that ends the search; 0 asks for all that the type allows. `cheap`: the sums
    are not exact enough to end it.
    """
    one, here = type(inv)(1), state[D]
    verdict = newton_step(curve, k, sums[:-1], sums[-1], here, one, modelled, enough)
    return advance(state, verdict, inv, modelled, cheap)


@scalar
def advance(state, verdict, inv, modelled, cheap):
    """Update a search by the verdict on a pass, as `newton_step` gives it; whether it has ended."""
    r, step, moved, stays, arrives = verdict
    state[PASSES] += 1.0
    if stays and not cheap:
        return True
    c, d = state[C], state[D]
    blur = BLUR if cheap else 0.0
    if arrives and not cheap:
        state[D], state[REST] = moved, d + step - moved
        return True
    if r > 0.0:
        if state[LAST_R] > 0.0:
            state[HI_R] *= 0.5  # Illinois: the end that stays is weighted less
        state[LO_C], state[LO_D], state[LO_R] = c, d - blur, r
    else:
        if state[LAST_R] < 0.0:
            state[LO_R] *= 0.5
        state[HI_C], state[HI_D], state[HI_R] = c, d + blur, r
    if state[PASSES] >= MOST_PASSES:
        return True

    # After a step of the model that does not halve the residual, its next two turns are skipped.
    if state[STALLED] == 0.0 and abs(r) > 0.5 * abs(state[LAST_R]):
        state[STALLED] = 2.0
    state[LAST_R] = r
    informed = modelled and abs(step) < np.inf
    if informed and state[STALLED] <= 0.0 and place(state, c, d + step, inv):
        state[STALLED] = 0.0
        return False
    # Negative: no step of the model is being judged.
    state[STALLED] = state[STALLED] - 1.0 if state[STALLED] > 1.0 else -1.0
    if halve(state, inv, informed):
        return False
    # The ends of the bracket are neighbours: rounding allows nothing better.
    state[C], state[D] = c, d
    if abs(step) <= 8.0 * limits(inv)[0] * (1.0 + abs(d)):
        state[D], state[REST] = moved, d + step - moved
    return True


@scalar
def polish(curve, t, below, above):
    """f(t - step), with the last step of a search as `shift_factors` gives it."""
    u, a, b, w = split(curve, t)
    p = type(t)(b if u == 0.0 else u - a)
    return clamp(curve, type(t)(cdf_after_shift(curve, p, w, t, below, above)))
