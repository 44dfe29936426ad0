"""Formulas of softmax for one entry: relative to the largest of the row, in temperatures."""

from __future__ import annotations

import numpy as np

from .._compile.decorators import scalar
from .._math.elementary import exp_neg, limits

# Rules: for softmax; for its logarithm, along a direction; for its logarithm's gradients.
OF_SHARES, OF_LOGS, OF_LOGS_BACK = range(3)


@scalar
def inverse(tau, one):
    """1/tau in the type of `one`, finite; a temperature below 1/max acts as that."""
    T = type(one)
    _, _, most = limits(one)
    width = min(max(tau, 1.0 / most), most)
    return T(min(1.0 / width, most))


@scalar
def z_of(v, m, inv):
    """z = (v - m)/tau for an entry v of a row with largest entry m: at most 0, and 0 at m.

    Only an excluded entry has z = -inf: a difference that overflows is replaced by the lowest
    finite number. Where m is +inf, the entries equal to it have z = 0 and all others are excluded.
    """
    T = type(v)
    _, _, most = limits(v)
    lowest, infinity = T(-most), T(np.inf)
    d = v - m
    d = (d if d > lowest else lowest) * inv
    d = d if d > lowest else lowest
    return d if (v > -infinity) & (m < infinity) else T(0) if v == infinity else -infinity


@scalar
def share(z, scale):
    """p = e^z / sum e^z. Compiled as written in every loop, so that p has the same bits."""
    return exp_neg(z) * scale


@scalar
def direction(z, v, dtau):
    """v - z dtau, the derivative of an entry along (v, dtau), times the temperature."""
    return v - z * dtau if dtau != type(z)(0) else v


@scalar
def slope(z, p, v, inv, dtau, mean, rule):
    """One entry of the derivative along (v, dtau); `mean` is the one that the rule needs.

    thm-lse-gradient: the Jacobian of softmax is (Diag(p) - p p^T)/tau, applied to v - z dtau. The
    derivative of an excluded entry is 0.
    """
    T = type(p)
    zero = T(0)
    d = direction(z, v, dtau)
    if rule == OF_SHARES:
        return p * (d - mean) * inv if p > zero else zero
    return (d - (mean if rule == OF_LOGS else p * mean)) * inv if z > T(-np.inf) else zero
