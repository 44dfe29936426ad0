"""The curve f(t) = min(1, e^t)."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._compile.decorators import scalar
from .._math.elementary import exp_neg
from .base import Traits, distance_to_0, register, shift_factors_of_exponentials


class Exp(NamedTuple):
    """f(t) = min(1, e^t)."""


@scalar
def _split(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    e = zero if upper else exp_neg(zero if upper else t)
    return T(1) if upper else zero, zero, e, e


@scalar
def _curvature(curve, t, a, b, w):
    return w


@scalar
def _excess(curve, t):
    return exp_neg(t if t < 0.0 else 0.0)


@scalar
def _quantile(curve, u):
    return math.log(u)


@scalar
def _moments(curve):
    return -1.0, 1.0, 6.0


@scalar
def _slope_sum(curve, a, b, w):
    return b


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    T = type(p)
    return p - (p if p < T(1) else T(0)) * below


register(
    Exp,
    Traits(
        split=_split,
        curvature=_curvature,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        slope_sum=_slope_sum,
        distance_to_kink=distance_to_0,
        shift_factors=shift_factors_of_exponentials,
        cdf_after_shift=_cdf_after_shift,
    ),
)
