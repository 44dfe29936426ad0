"""Fenchel-Young losses: what an entry adds, and which targets there are, on the CPU and a device.

Theorem thm-fenchel-young has the sum.
"""

from __future__ import annotations

import numpy as np

from .._compile.decorators import scalar
from .._curves.base import excess, has_mean, mean_of_distribution, quantile

NEAR = 1e-5  # relative to max(1, k): the tolerance for the sum of a target


@scalar
def surplus(curve, t, y, constant):
    """F(t) + omega(y) - t y, 0 at f(t) = y and positive elsewhere; omega(y) only if `constant`."""
    if not constant:
        return excess(curve, t) + max(t, 0.0) - t * y
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
