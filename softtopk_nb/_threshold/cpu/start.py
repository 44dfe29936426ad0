"""The start of a threshold search, from the moments of a row or of a sample of it."""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import window
from ..._compile.decorators import scalar, summing
from ..._math.elementary import wide_vectors
from ..._threads.sampling import sample, sample_size
from ..distribution import distribution_of, quantile_of_distribution

SAMPLED = 2048  # rows from this length on start from the solution for every 16th entry, about
FEW = 8.0  # sampled entries


@summing
def measure(x, pivot, inv):
    """Means of z = (x - pivot)/tau, z^2 and |z|, for a first guess; finite only if x is."""
    wide_vectors()
    T = x.dtype.type
    s, ss, sa = T(0), T(0), T(0)
    for i in range(x.shape[0]):
        z = (x[i] - pivot) * inv
        s += z
        ss += z * z
        sa += abs(z)
    share = 1.0 / x.shape[0]
    return s * share, ss * share, sa * share


@scalar
def pivot_of(x):
    """The median of the first, middle and last entry: it is rarely an outlier."""
    a, b, c = x[0], x[x.shape[0] // 2], x[x.shape[0] - 1]
    low, high = (a, b) if a < b else (b, a)
    return low if c < low else high if c > high else c


@scalar
def distribution_by_moments(x, inv):
    """(pivot, means of z, z^2 and |z|), z = (x - pivot)/tau."""
    pivot = pivot_of(x)
    mean, square, distance = measure(x, pivot, inv)
    return np.float64(pivot), np.float64(mean), np.float64(square), np.float64(distance)


@scalar
def start_by_distribution(curve, distribution, n, k):
    """(pivot, d, misled): pivot + tau d is the threshold of k among n entries so distributed."""
    pivot, mean, square, distance = distribution
    variance, tail, misled = distribution_of(mean, square, distance)
    return pivot, quantile_of_distribution(curve, mean, variance, tail, n, k), misled


@scalar
def guess(method, state, x, curve, k, inv):
    """(c, d): the first guess c + tau d of the threshold, by the moments of the row."""
    c, d, _ = start_by_distribution(curve, distribution_by_moments(x, inv), x.shape[0], k)
    return c, d


@summing
def finite(x):
    """Whether all entries are finite."""
    wide_vectors()
    T = x.dtype.type
    s = T(0)
    for i in range(x.shape[0]):
        s += x[i] * T(0)  # NaN for an infinity
    return s == T(0)


@scalar
def has_few(part, n, k):
    """Whether a sample holds few of the k entries chosen, or of the n - k others."""
    return (k if 2.0 * k < n else n - k) * part.shape[0] < FEW * n


@scalar
def part_of(x, few):
    """The entries a search in x begins with: x, or a sample of a long row, written to `few`."""
    part = x
    if x.shape[0] >= SAMPLED:
        part = window(few, 0, sample_size(x.shape[0]))
        sample(x, 0, x.shape[0], part.shape[0], part)
    return part
