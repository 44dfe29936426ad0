"""The curve f(t) = t clipped to [0, 1], the CDF of the uniform distribution."""

from __future__ import annotations

from typing import NamedTuple

from .._compile.decorators import scalar
from .base import Traits, register


class Clip(NamedTuple):
    """f(t) = t clipped to [0, 1]."""


@scalar
def _split(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    inside = (t > zero) & (t < one)
    return one if t >= one else zero, zero, t if inside else zero, one if inside else zero


@scalar
def _curvature(curve, t, a, b, w):
    return type(t)(0)


@scalar
def _excess(curve, t):
    s = min(max(t, 0.0), 1.0)
    return 0.5 * s * s - s


@scalar
def _quantile(curve, u):
    return u


@scalar
def _moments(curve):
    return 0.5, 1.0 / 12.0, -1.2


@scalar
def _distance_to_kink(curve, t):
    below, above = abs(t), abs(t - type(t)(1))
    return below if below < above else above


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    T = type(p)
    return p - (T(1) if (p > T(0)) & (p < T(1)) else T(0)) * below


register(
    Clip,
    Traits(
        split=_split,
        curvature=_curvature,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        distance_to_kink=_distance_to_kink,
        cdf_after_shift=_cdf_after_shift,
        has_exponential_tails=False,
    ),
)
