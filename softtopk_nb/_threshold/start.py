"""Where the search for a threshold starts: from the moments of a row, or of a part of it."""

from __future__ import annotations

import math

import numpy as np

from .._compile.array_intrinsics import window
from .._compile.decorators import row, scalar, summing
from .._curves.base import moments
from .._math.elementary import wide_vectors
from .._math.special import natural_log

__all__ = [
    "SAMPLED",
    "by_law",
    "by_moments",
    "finite",
    "guess",
    "law_of",
    "measure",
    "part_of",
    "pivot_of",
    "quantile_of_law",
    "resembles",
    "sample",
    "sample_size",
    "spread_of_law",
]

SAMPLED = 2048  # rows from this length on start from a solution on about every 16th entry
LARGEST_SAMPLE = 65536
FRACTIONS = 1 << 20  # of a place, in which the stride of a sample is counted

SCALE = 0.55  # of a logistic law, in standard deviations
LOGISTIC_EXCESS = 1.2  # of its kurtosis over that of a normal law

TELLING = 0.1  # temperatures that a sample may be off by, for a first pass to be worth keeping
HEAVY = 1.3  # times the variance that the mean distance suggests: a row with heavy tails has more
TAIL = 0.07  # how much wider its outer quantiles are then, for each unit of
EVEN_ODDS = 2.3  # the logarithm of the odds beyond this


@row
def spread_of_law(curve, variance):
    """The standard deviation of the row, blurred by noise whose CDF is the curve."""
    T = type(variance)
    _, own, _ = moments(curve)
    return T(math.sqrt((variance if variance > T(0) else T(0)) + T(own)))


@row
def quantile_of_law(curve, mean, variance, tail, n, k):
    """Where a share k/n of the row lies above, blurred by noise whose CDF is the curve.

    p sums to k where a fraction k/n of x - tau * noise lies above lambda: the means and variances
    of the two add. The quantile is that of a law between the normal and the logistic one, by the
    kurtosis if only the noise has any; or that of one with a heavier `tail`. All in the type of
    the mean: a guess needs no more digits than the row has.
    """
    T = type(mean)
    zero, one = T(0), T(1)
    centre, own, excess = moments(curve)
    odds = natural_log((T(n) - T(k)) / T(k))
    spread = spread_of_law(curve, variance)
    share = T(own) / (spread * spread)  # of the variance, and its square of the excess
    peaked = share * share * T(excess / LOGISTIC_EXCESS)
    peaked = one if (peaked > one) | (tail > zero) else zero if peaked < zero else peaked
    logistic = T(SCALE) * odds * (one + tail * (abs(odds) - T(EVEN_ODDS)))
    blurred = peaked * logistic + (one - peaked) * normal_quantile(odds)
    return mean - T(centre) + spread * blurred


@row
def normal_quantile(odds):
    """The z with log(Phi(z)/Phi(-z)) = odds, but for 0.01 up to 5, and 0.03 up to 10.

    Those odds are about a cubic in z. This is a step of Newton's from close to its root.
    """
    T = type(odds)
    most, linear, cubic = T(36), T(1.5976), T(0.070566)
    square = odds * odds
    square = most if square > most else square
    near = odds * (T(0.6262) - square * (T(0.00842) - T(0.0001117) * square))
    square = near * near
    return (odds + T(2) * cubic * near * square) / (linear + T(3) * cubic * square)


@scalar
def by_law(residual, k, n, spread):
    """The way to the threshold by the law of the row alone, whatever entries lie nearby.

    Quantiles of a logistic law are its scale apart, times what the logarithms of their odds differ
    by: 2 artanh(u), u = n r/(m (n - k) + k (n - m)), m = k + r. Twice u is enough here, and at
    least half as far as entries are from each other.
    """
    mass = k + residual
    far = residual if abs(residual) > 0.5 else 0.5 if residual > 0.0 else -0.5
    return 2.0 * SCALE * spread * n * far / (mass * (n - k) + k * (n - mass))


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


@row
def law_of(mean, square, distance):
    """(variance, tail) of the law that the means of z, z^2 and |z| suggest.

    A few entries far out decide the variance of a row with heavy tails, not where most of it lies.
    There its spread is taken from the mean distance, sqrt(2/pi) of a normal law's own.
    """
    T = type(mean)
    variance = square - mean * mean
    # From a pivot away from the mean, the mean distance m is larger, by about mean^2/(pi m).
    middle = distance - mean * mean / (T(math.pi) * distance)
    narrow = T(0.5 * math.pi) * middle * middle
    heavy = variance > T(HEAVY) * narrow
    return narrow if heavy else variance, T(TAIL) if heavy else T(0)


@row
def pivot_of(x):
    """An entry that is hardly ever far out: the middle one of three."""
    a, b, c = x[0], x[x.shape[0] // 2], x[x.shape[0] - 1]
    low, high = min(a, b), max(a, b)
    return max(low, min(high, c))


@row
def by_moments(x, curve, n, k, inv):
    """(pivot, d): k of n entries would have the threshold pivot + tau d, by the moments of x."""
    pivot = pivot_of(x)
    mean, square, distance = measure(x, pivot, inv)
    variance, tail = law_of(mean, square, distance)
    return np.float64(pivot), quantile_of_law(curve, mean, variance, tail, n, k)


@row
def guess(method, state, x, curve, k, inv):
    """(c, d) to start from, by the moments of the row."""
    return by_moments(x, curve, x.shape[0], k, inv)


@summing
def finite(x):
    """Whether all entries are."""
    wide_vectors()
    T = x.dtype.type
    s = T(0)
    for i in range(x.shape[0]):
        s += x[i] * T(0)  # NaN for an infinity
    return s == T(0)


@scalar
def sample_size(n):
    """How many entries of a row of n are its sample."""
    return n // 16 if n // 16 < LARGEST_SAMPLE else LARGEST_SAMPLE


@scalar
def resembles(share, weight):
    """Whether a sample tells the threshold of its row so well that a first pass may be the last.

    What entries of it sum up to varies by the root of sum p^2, about share - weight, weight the sum
    of p'; and the threshold by so much over that.
    """
    return abs(share - weight) < (TELLING * weight) ** 2


@scalar
def sample(x, out, start, end):
    """Copy to `out`, whose entries are spaced evenly all over the row, those of start .. end.

    Whole strides would leave out the end, where a sorted row has its greatest entries.
    """
    stride = x.shape[0] * FRACTIONS // out.shape[0]
    first, stop = -(-start * FRACTIONS // stride), -(-end * FRACTIONS // stride)
    for j in range(first, stop if stop < out.shape[0] else out.shape[0]):
        out[j] = x[j * stride // FRACTIONS]


@row
def part_of(x, few):
    """What a search in x begins with: x itself, or of a long row a sample, written to `few`."""
    part = x
    if x.shape[0] >= SAMPLED:
        part = window(few, 0, sample_size(x.shape[0]))
        sample(x, part, 0, x.shape[0])
    return part
