"""The curve f(t) = e^t/2 below 0 and 1 - e^-t/2 above, the CDF of the Laplace distribution."""

from __future__ import annotations

import math
from typing import NamedTuple

from .._compile.decorators import scalar
from .._math.elementary import half_exp_neg
from .base import (
    Traits,
    as_it_is,
    distance_to_0,
    register,
    shift_factors_of_exponentials,
    split_by_tail,
)


class Laplace(NamedTuple):
    """f(t) = e^t/2 below 0, 1 - e^-t/2 above."""


@scalar
def _split(curve, t):
    tail = half_exp_neg(-abs(t))
    return split_by_tail(t, tail, tail)


@scalar
def _curvature(curve, t, a, b, w):
    zero = type(t)(0)
    return w if t < zero else -w if t > zero else zero


@scalar
def _excess(curve, t):
    return half_exp_neg(-abs(t))


@scalar
def _quantile(curve, u):
    return math.log(2 * u) if u < 0.5 else -math.log(2 * (1 - u))


@scalar
def _moments(curve):
    return 0.0, 2.0, 3.0


@scalar
def _slope_sum(curve, a, b, w):
    return a + b


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    q = type(p)(1) - p
    lower = p < q
    return p - (p if lower else q) * (below if lower else above)


register(
    Laplace,
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
        clamp=as_it_is,
        has_continuous_slope=True,
    ),
)
