"""The curve f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1], of alpha-entmax."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._compile.decorators import scalar
from .._math.elementary import limits, quotient
from .._math.special import power_of_fraction
from .base import Traits, register

# Where (alpha - 1) t is smaller, f is its chord down to 0: for large alpha, p of any size lies
# within the range where t would underflow. Entries so close to each other are equal, or nearly so.
# The slope of the chord, at most the inverse of this, can still be divided by any moderate
# temperature.
FAINTEST_32, FAINTEST_64 = 1e-20, 1e-150


class Entmax(NamedTuple):
    """f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1].

    If `_begins_at_1`, t is shifted by 1/(alpha - 1), so that f reaches 1 at t = 0: as alpha goes to
    1 the shift goes to infinity, and unshifted t would lose all digits.
    """

    alpha: float


@scalar
def _begins_at_1(curve):
    """Whether t of this `Entmax` is 0 where f reaches 1; otherwise it is 0 where f leaves 0.

    In the second form small p keep their relative accuracy, and for alpha > 2 the slope is
    infinite.
    """
    return curve.alpha < 1.5


@scalar
def _split(curve, t):
    T = type(t)
    zero, one, least = T(0), T(1), T(FAINTEST_32 if limits(t)[0] > 1e-10 else FAINTEST_64)
    lower = one if _begins_at_1(curve) else zero
    y = T(curve.alpha - 1.0) * t
    s = lower + y
    full = y >= one - lower
    inside = (s > zero) & (y < one - lower)
    # The same condition for all entries, so that a loop evaluates it once.
    if curve.alpha == 1.5:
        w = s if inside else zero
        p = w * w
    else:
        rest = y - (s - lower) if inside else zero
        base = s if inside else one
        base = base if base > least else least
        whole = power_of_fraction(base, rest, T(1.0 / (curve.alpha - 1.0)))
        # f' = f/s: an infinite slope at the edge of the support when alpha > 2, if it were not for
        # the chord that ends f.
        w = quotient(whole, base) if inside else zero
        p = whole if s >= least else s * w
        p = p if inside else zero
    return one if full else zero, zero, p, w


@scalar
def _curvature(curve, t, a, b, w):
    # (2 - alpha) f'/s.
    T = type(t)
    least = T(FAINTEST_32 if limits(t)[0] > 1e-10 else FAINTEST_64)
    s = T(curve.alpha - 1.0) * t + (T(1) if _begins_at_1(curve) else T(0))
    return T(2.0 - curve.alpha) * quotient(w, s if s > least else least)


@scalar
def _origin(curve):
    return 1.0 / (curve.alpha - 1.0) if _begins_at_1(curve) else 0.0


@scalar
def _excess(curve, t):
    alpha, rate = curve.alpha, curve.alpha - 1.0
    if _begins_at_1(curve):
        if t >= 0.0:
            return 1.0 / alpha
        y = rate * t
        return math.exp(math.log1p(y) * (alpha / rate)) / alpha if y > -1.0 else 0.0
    s = min(max(rate * t, 0.0), 1.0)
    return math.pow(s, alpha / rate) / alpha - s / rate


@scalar
def _quantile(curve, u):
    rate = curve.alpha - 1.0
    return math.expm1(rate * math.log(u)) / rate + (0.0 if _begins_at_1(curve) else 1.0 / rate)


@scalar
def _moments(curve):
    # Of q U^(1/q), less q if `_begins_at_1`, with q = 1/rate and U uniform.
    rate = curve.alpha - 1.0
    mean = 1.0 / curve.alpha
    variance = mean * mean / (1.0 + 2.0 * rate)
    skewed = (1.0 - rate) * (1.0 - rate) * (1.0 + 2.0 * rate) - rate * (1.0 + 3.0 * rate)
    excess = 6.0 * skewed / ((1.0 + 3.0 * rate) * (1.0 + 4.0 * rate))
    return -mean if _begins_at_1(curve) else mean / rate, variance, excess


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    # The slope of a steep curve changes by orders of magnitude within the step.
    if curve.alpha > 2.0:
        full, _, p, _ = _split(curve, t - below)
        return p if full == type(t)(0) else full
    return p - w * below


def _is_steep(curve: Entmax) -> bool:
    """Whether f' is infinite at the edge of the support."""
    return curve.alpha > 2.0


register(
    Entmax,
    Traits(
        split=_split,
        curvature=_curvature,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        origin=_origin,
        cdf_after_shift=_cdf_after_shift,
        is_steep=_is_steep,
        shifts_by_value_alone=False,
        has_exponential_tails=False,
    ),
)
