"""p = f(t) in pieces, for each curve: what `curves.split` chooses from."""

from __future__ import annotations

import numpy as np

from .._compile import scalar
from .._scalars import exp_neg, half_exp_neg, quotient
from .._special import normal_tail, normal_tail_in_brief, power_of_fraction

__all__ = [
    "split_clip",
    "split_entmax",
    "split_exp",
    "split_laplace",
    "split_normal",
    "split_normal_in_brief",
    "split_sigmoid",
    "split_user",
]


@scalar
def split_exp(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    e = zero if upper else exp_neg(zero if upper else t)
    return T(1) if upper else zero, zero, e, e


@scalar
def _by_tail(t, tail, w):
    """The pieces of a curve that is 1 - f(-t), from its smaller tail."""
    zero = type(t)(0)
    upper = t >= zero
    return type(t)(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def split_sigmoid(curve, t):
    T = type(t)
    e = exp_neg(-abs(t))
    tail = quotient(e, T(1) + e)
    return _by_tail(t, tail, tail * (T(1) - tail))


@scalar
def split_laplace(curve, t):
    tail = half_exp_neg(-abs(t))
    return _by_tail(t, tail, tail)


@scalar
def split_clip(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    inside = (t > zero) & (t < one)
    return one if t >= one else zero, zero, t if inside else zero, one if inside else zero


@scalar
def split_normal(curve, t):
    tail, w = normal_tail(abs(t))
    return _by_tail(t, tail, w)


@scalar
def split_normal_in_brief(curve, t):
    tail, w = normal_tail_in_brief(abs(t))
    return _by_tail(t, tail, w)


@scalar
def split_entmax(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    s = T(curve.alpha - 1.0) * t
    inside = (s > zero) & (s < one)
    fraction = s if inside else one
    p = power_of_fraction(fraction, T(1.0 / (curve.alpha - 1.0)))
    # f' = f/s: an infinite slope at the edge of the support when alpha > 2.
    w = quotient(p, fraction)
    return one if s >= one else zero, zero, p if inside else zero, w if inside else zero


@scalar
def split_user(curve, t):
    p, w = np.float64(curve.cdf(t)), np.float64(curve.pdf(t))
    return (1.0, 1.0 - p, 0.0, w) if p >= 0.5 else (0.0, 0.0, p, w)
