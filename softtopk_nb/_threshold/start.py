"""Where the search for a threshold starts: from the moments of a row, or of a part of it."""

from __future__ import annotations

import math

import numpy as np

from .._compile import row, scalar, summing
from .._scalars import wide_vectors
from .._special import natural_log
from .curves import law

__all__ = ["guess", "measure", "quantile_of_law", "sample", "spread_of_law"]


@row
def spread_of_law(curve, variance):
    """The standard deviation of the row, blurred by noise whose CDF is the curve."""
    _, own = law(curve)
    return math.sqrt((variance if variance > 0.0 else 0.0) + own)


@row
def quantile_of_law(curve, mean, variance, n, k):
    """Where a share k/n of the row lies above, blurred by noise whose CDF is the curve.

    p sums to k where a fraction k/n of x - tau * noise lies above lambda: the means and variances
    of the two add, and the quantile is that of a logistic law.
    """
    own, _ = law(curve)
    return mean - own + 0.55 * spread_of_law(curve, variance) * natural_log((n - k) / k)


@summing
def measure(x, pivot, inv):
    """Mean and variance of (x - pivot)/tau, for a first guess; not finite if an entry is not."""
    wide_vectors()
    T = x.dtype.type
    s, ss = T(0), T(0)
    for i in range(x.shape[0]):
        z = (x[i] - pivot) * inv
        s += z
        ss += z * z
    share = 1.0 / x.shape[0]
    mean = s * share
    return mean, ss * share - mean * mean


@row
def guess(method, state, x, curve, k, inv):
    """(c, d) to start from, by the moments of the row."""
    mean, variance = measure(x, x[0], inv)
    return np.float64(x[0]), quantile_of_law(curve, mean, variance, x.shape[0], k)


@scalar
def sample(x, out):
    """Copy entries from all over the row, evenly spaced."""
    stride = x.shape[0] // out.shape[0]
    for j in range(out.shape[0]):
        out[j] = x[j * stride]
