"""p = f(t) in pieces, for each curve: what `curves.split` chooses from."""

from __future__ import annotations

import math

import numpy as np

from .._compile import scalar
from .._scalars import exp_neg, half_exp_neg, limits, quotient
from .._special import normal_tail, normal_tail_in_brief, power_of_fraction
from .curve_types import FARTHEST

__all__ = [
    "lifted",
    "split_clip",
    "split_entmax",
    "split_exp",
    "split_laplace",
    "split_normal",
    "split_normal_in_brief",
    "split_sigmoid",
    "split_user",
]

# Where (alpha - 1) t is smaller, entmax is its chord, down to 0: numbers have an end, and for large
# alpha p of any size lies within it. Entries so close to each other are equal, or nearly so.
FAINTEST_32, FAINTEST_64 = 1e-30, 1e-280


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
def lifted(curve):
    """Whether t of this `Entmax` is counted from its upper end; else from its lower one.

    There small p keep their relative accuracy, and the slope of alpha > 2 is infinite.
    """
    return curve.alpha < 1.5


@scalar
def split_entmax(curve, t):
    T = type(t)
    zero, one, least = T(0), T(1), T(FAINTEST_32 if limits(t)[0] > 1e-10 else FAINTEST_64)
    lower = one if lifted(curve) else zero
    y = T(curve.alpha - 1.0) * t
    s = lower + y
    full = y >= one - lower
    inside = (s > zero) & (y < one - lower)
    # The same for all entries, so that a loop decides it once.
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
def split_user(curve, t):
    t = math.copysign(FARTHEST, t) if abs(t) > FARTHEST else t
    p, w = np.float64(curve.cdf(t)), np.float64(curve.pdf(t))
    return (1.0, 1.0 - p, 0.0, w) if p >= 0.5 else (0.0, 0.0, p, w)
