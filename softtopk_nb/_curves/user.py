"""A curve of the user's own: a CDF, its density and its antiderivative, compiled by Numba."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._compile.decorators import scalar
from .base import Traits, register

FARTHEST = 1e150  # the largest |t| passed to a user's functions: its square does not overflow


class UserCurve(NamedTuple):
    """A CDF, its density, its antiderivative and f'' (or None), each compiled by Numba.

    `mean` is the distribution's mean if the antiderivative is given: NaN if none vanishes at -inf,
    inf if the upper tail is too heavy. `middle` and `spread` are the mean and standard deviation of
    a normal distribution with about the same quantiles at 1/6 and 5/6.
    """

    cdf: Any
    pdf: Any
    integral: Any
    mean: float = 0.0
    middle: float = 0.0
    spread: float = 1.4
    slope: Any = None  # f'', the derivative of the density


@scalar
def _split(curve, t):
    t = math.copysign(FARTHEST, t) if abs(t) > FARTHEST else t
    p, w = np.float64(curve.cdf(t)), np.float64(curve.pdf(t))
    return (1.0, 1.0 - p, 0.0, w) if p >= 0.5 else (0.0, 0.0, p, w)


@scalar
def _curvature(curve, t, a, b, w):
    return np.float64(curve.slope(math.copysign(FARTHEST, t) if abs(t) > FARTHEST else t))


@scalar
def _excess(curve, t):
    if abs(t) > FARTHEST:
        return 0.0 if t < 0.0 else -curve.mean
    return curve.integral(t) - max(t, 0.0)


@scalar
def _mean(curve):
    return curve.mean


@scalar
def _cdf(curve, t):
    u, a, b, _ = _split(curve, t)
    return u - a + b


@scalar
def _quantile(curve, u):
    # The inverse has no formula: double the bracket, then bisect.
    reach = 1.0
    while reach < 1e300 and (_cdf(curve, -reach) > u or _cdf(curve, reach) < u):
        reach *= 2.0
    lo, hi = -reach, reach
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if mid <= lo or mid >= hi:
            break
        if _cdf(curve, mid) < u:
            lo = mid
        else:
            hi = mid
    return 0.5 * (lo + hi)


@scalar
def _moments(curve):
    return curve.middle, curve.spread * curve.spread, 0.0


register(
    UserCurve,
    Traits(
        split=_split,
        curvature=_curvature,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        mean=_mean,
        shifts_by_value_alone=False,
        float32_comes_near=False,
        cached=False,
    ),
)
