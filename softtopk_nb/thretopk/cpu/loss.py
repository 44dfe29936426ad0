"""The Fenchel-Young loss of ThreTopK on rows, entry by entry (Theorem thm-fenchel-young)."""

from __future__ import annotations

import numpy as np

from ..._compile.decorators import kernel, scalar
from ..._curves.base import excess, has_mean, mean_of_distribution, origin, quantile
from ..._nonfinite import MIXED, UNDEFINED
from ..._threshold.records import CODE, REST, C, D


@scalar
def surplus(curve, t, y, constant):
    """F(t) + omega(y) - t y, which is 0 at f(t) = y and positive elsewhere; F(t) - t y without."""
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
    """The limit of `surplus` at an infinite t; an excluded entry has none."""
    t = -c if np.isfinite(value) else value
    if value == -np.inf and y == 0.0:
        return 0.0
    if y != (0.0 if t < 0.0 else 1.0):
        return np.inf
    if not has_mean(curve):
        return np.inf if constant else -np.inf
    return 0.0 if constant or t < 0.0 else -mean_of_distribution(curve)


@kernel
def losses(lo, hi, x, k, tau, curve, solution, y, constant, out):
    """Rows lo .. hi: potential + conjugate of y - <x, y>, the conjugate only if `constant`."""
    for i in range(lo, hi):
        code, total = solution[i, CODE], 0.0
        c, d = solution[i, C], solution[i, D] + solution[i, REST]
        if code == UNDEFINED:
            out[i] = np.nan
            continue
        for j in range(x.shape[1]):
            value = np.float64(x[i, j])
            if code <= MIXED and np.isfinite(value):
                total += surplus(curve, (value - c) / tau[i] - d, y[i, j], constant)
            else:
                total += surplus_at_infinity(curve, value, c, y[i, j], constant)
        out[i] = tau[i] * (total if constant else total - k[i] * origin(curve))
