"""Fenchel-Young losses: what an entry adds, and which targets there are, on the CPU and a device.

Theorem thm-fenchel-young has the sum.
"""

from __future__ import annotations

import numpy as np

from .._compile.decorators import scalar
from .._curves.base import excess, has_mean, mean_of_distribution, quantile, split
from .._math.elementary import limits

NEAR = 1e-5  # relative to max(1, k): the tolerance for the sum of a target


@scalar
def in_temperatures(value, tau, c, d):
    """t = (value - c)/tau - d in float64, the largest number where it overflows."""
    # Half of a difference of numbers of the type does not overflow.
    t = 2.0 * ((0.5 * np.float64(value) - 0.5 * c) / tau) - d
    _, _, most = limits(1.0)
    return -most if t < -most else most if t > most else t


@scalar
def apart(t, y):
    """max(t, 0) - t y without cancellation: how far y in [0, 1] is from 1 if t > 0, else from 0."""
    share = 1.0 - y if t > 0.0 else y
    return abs(t) * share


@scalar
def surplus(curve, t, y, constant):
    """F(t) + omega(y) - t y, 0 at f(t) = y and positive elsewhere; omega(y) only if `constant`."""
    if not constant:
        return excess(curve, t) + apart(t, y)
    if y <= 0.0 or y >= 1.0:
        if not has_mean(curve):
            return np.inf
        found = excess(curve, t)
        # omega(0) = 0 and omega(1) is the mean of the distribution.
        found += max(t, 0.0) if y <= 0.0 else max(-t, 0.0) + mean_of_distribution(curve)
    else:
        s = quantile(curve, y)
        found = excess(curve, t) - excess(curve, s) + max(t, 0.0) - max(s, 0.0) - y * (t - s)
    return max(found, 0.0)


@scalar
def own_surplus(curve, t):
    """F(t) - t f(t), which is `surplus` of y = f(t), from the smaller tail of f(t)."""
    u, a, b, _ = split(curve, t)
    share = (1.0 - u) + a - b if t > 0.0 else u - a + b
    return excess(curve, t) + abs(t) * share


@scalar
def surplus_at_infinity(curve, value, c, y, constant):
    """The limit of `surplus` at an infinite t; 0 for an excluded entry with y = 0."""
    t = -c if abs(value) < np.inf else value
    if value == -np.inf and y == 0.0:
        return 0.0
    if y != (0.0 if t < 0.0 else 1.0):
        return np.inf
    if not has_mean(curve):
        return np.inf if constant else -np.inf
    return 0.0 if constant or t < 0.0 else -mean_of_distribution(curve)
