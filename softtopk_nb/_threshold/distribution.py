"""The distribution of a row convolved with the curve's noise, from which the first guess comes."""

from __future__ import annotations

import math

from .._compile.decorators import scalar
from .._curves.base import moments
from .._math.special import natural_log

SCALE = 0.55  # of a logistic distribution, in standard deviations
LOGISTIC_EXCESS = 1.2  # its excess kurtosis
HEAVY = 1.3  # times the variance that the mean distance suggests: heavy-tailed rows have more
MOST_SPREAD = 4.0  # times that variance: beyond it, outliers determine the moments
AT_END, WIDE = 0.999, 1e6  # of the square of the mean distance; a variance
TAIL = 0.07  # relative widening of its outer quantiles for heavy tails, for each unit of
EVEN_ODDS = 2.3  # the logarithm of the odds beyond this


@scalar
def spread_of_distribution(curve, variance):
    """The standard deviation of the row plus noise whose CDF is the curve."""
    T = type(variance)
    _, own, _ = moments(curve)
    return T(math.sqrt((variance if variance > T(0) else T(0)) + T(own)))


@scalar
def quantile_of_distribution(curve, mean, variance, tail, n, k):
    """The quantile of the row plus noise whose CDF is the curve that a share k/n lies above.

    p sums to k where a fraction k/n of x - tau * noise lies above lambda: the means and variances
    of the two add. The quantile is that of a distribution between the normal and the logistic one,
    by the kurtosis of the noise alone; or that of one with a heavier `tail`. All in the type of the
    mean: a guess needs no more digits than the row has.
    """
    T = type(mean)
    zero, one = T(0), T(1)
    centre, own, excess = moments(curve)
    odds = natural_log((T(n) - T(k)) / T(k))
    spread = spread_of_distribution(curve, variance)
    share = T(own) / (spread * spread)  # of the variance, and its square of the excess
    peaked = share * share * T(excess / LOGISTIC_EXCESS)
    peaked = one if (peaked > one) | (tail > zero) else zero if peaked < zero else peaked
    logistic = T(SCALE) * odds * (one + tail * (abs(odds) - T(EVEN_ODDS)))
    blurred = peaked * logistic + (one - peaked) * normal_quantile(odds)
    return mean - T(centre) + spread * blurred


@scalar
def normal_quantile(odds):
    """The z with log(Phi(z)/Phi(-z)) = odds, to 0.01 for |odds| up to 5, and 0.03 up to 10.

    Those odds are about a cubic in z. This is one Newton step from close to its root.
    """
    T = type(odds)
    most, linear, cubic = T(36), T(1.5976), T(0.070566)
    square = odds * odds
    square = most if square > most else square
    near = odds * (T(0.6262) - square * (T(0.00842) - T(0.0001117) * square))
    square = near * near
    return (odds + T(2) * cubic * near * square) / (linear + T(3) * cubic * square)


@scalar
def by_distribution(residual, k, n, spread):
    """The step to the threshold by the distribution of the row alone, whatever entries lie nearby.

    Quantiles of a logistic distribution differ by its scale times the difference of their log odds:
    2 artanh(u), u = n r/(m (n - k) + k (n - m)), m = k + r. Here 2 u is accurate enough, and |r| is
    taken as at least half an entry.
    """
    mass = k + residual
    far = residual if abs(residual) > 0.5 else 0.5 if residual > 0.0 else -0.5
    return 2.0 * SCALE * spread * n * far / (mass * (n - k) + k * (n - mass))


@scalar
def distribution_of(mean, square, distance):
    """(variance, tail, misled) of the distribution that the means of z, z^2 and |z| suggest.

    A few outliers determine the variance of a row with heavy tails, rather than the bulk of it.
    There its spread is taken from the mean distance, sqrt(2/pi) of a normal distribution's own.
    `misled`: a normal distribution would be far from the row's own, as it also is where the pivot
    is at the end of a wide row: many entries may be there, and none near the mean.
    """
    T = type(mean)
    variance = square - mean * mean
    # From a pivot away from the mean, the mean distance m is larger, by about mean^2/(pi m).
    middle = distance - mean * mean / (T(math.pi) * distance)
    narrow = T(0.5 * math.pi) * middle * middle
    heavy = variance > T(HEAVY) * narrow
    at_end = (mean * mean >= T(AT_END) * distance * distance) & (variance > T(WIDE))
    misled = (variance > T(MOST_SPREAD) * narrow) | at_end
    return narrow if heavy else variance, T(TAIL) if heavy else T(0), misled
