"""Every tolerance of a search: when it ends, and whether a pass may be the last one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from .._compile.decorators import scalar, specialized
from .._curves.base import (
    exact_between_kinks,
    float32_comes_near,
    has_cheap_approximation,
    has_continuous_slope,
    has_second_derivative,
    least_share,
    shifts_by_value_alone,
)
from .._math.elementary import exp_neg, limits
from .._math.special import natural_log

# Lengths of steps and distances are in units of the temperature.

CUBE_32, CUBE_64 = 2.0 ** (-26 / 3), 2.0 ** (-55 / 3)  # eps^(1/3)/2 of either type
FIFTH_32 = 2.0**-3.85  # 2^(3/4) eps^(1/5): float64 makes do with third order
BLUR = 2.0**-10  # the error that a cheap pass may have in deciding between too low and too high
# Steps that may pass many entries: at least this long, and this many clearances.
FAR, FAR_BY_KINKS, CROWD = 0.25, 2.0**-10, 4.0
# A residual of several entries where few lie near the threshold, by the sum of p', so that no local
# model locates it, unless the first few passes have come nearer.
SEVERAL, SPARSE, FIRST_FEW = 1.5, 0.5, 3.0
FREE = 4.0  # how far a last step may lead up, away from all entries
MOST_PASSES = 500  # of the robust search; the most hostile rows in the tests take 200
MOST_FAST_PASSES = 16.0  # then a row is left to the robust search; ordinary rows take 1 to 4
FAINT = 1e-24  # a smaller k is not searched in float32, where tails below 1e-37 are 0
ROUGH = 0.02  # the step that ends the search over a sample
TELLING = 0.1  # the error of a sample for which a first pass is worth keeping
# Rows of less variance start near their thresholds. The limit is lower where a first pass that
# keeps p costs more than twice as much as one that does not.
NARROW, NARROWER = 9.0, 2.5
# Long rows whose moments serve better than a sample: narrower than the noise, and with a number of
# entries chosen, or not chosen, that is not so small.
BLURRED, SMALL = 4.0, 128.0


def tolerances(curve: Any, eps: float) -> tuple[float, float, float]:
    """The longest last step of first, third and fifth order.

    A step s leaves an error of order s^2 where f' is continuous; elsewhere entries that cross a
    kink leave one of order s.
    """
    first = 0.5 * math.sqrt(eps) if has_continuous_slope(curve) else 4.0 * eps
    return first, CUBE_32 if eps > 1e-10 else CUBE_64, FIFTH_32


@specialized
def searched(curve, k, n, one):
    """k, or the least k to search for over n entries if that is larger."""
    eps, _, _ = limits(one)
    least = least_share(curve)[0 if eps > 1e-10 else 1]

    def at_least(curve, k, n, one):
        return k if k > n * least else n * least

    return at_least


@scalar
def enough_for(method, n):
    """The length of a step that ends a search over n entries."""
    enough = method.enough
    if method.fades > 0.0:
        most = method.fades * exp_neg(natural_log(np.float64(n if n > 1 else 1)) * (-1.0 / 6.0))
        enough = most if most < enough else enough
    return enough


@scalar
def resembles(share, weight):
    """Whether a sample gives the threshold of its row so well that a first pass may be the last.

    The sum of p over the sample varies by the root of sum p^2, about share - weight, with weight
    the sum of p'; and the threshold by that over weight.
    """
    return abs(share - weight) < (TELLING * weight) ** 2


def searches_in_float32(curve: Any, x: Any) -> bool:
    """Whether a search over x makes its first passes in float32, which is enough to come near.

    It does not where a first step can be exact (`exact_between_kinks`), nor with a user's
    functions.
    """
    wide = x.dtype in (np.float64, types.float64)
    return wide and float32_comes_near(curve) and not exact_between_kinks(curve)


def has_cheap_passes(curve: Any, x: Any) -> bool:
    """Whether passes far from the end are cheaper ones, on which no search may end.

    Where nearly every pass may be the last one, a second kind of pass is not worth compiling.
    """
    cheap = has_cheap_approximation(curve) and not exact_between_kinks(curve)
    return cheap or searches_in_float32(curve, x)


def final_pass_radius(curve: Any, x: Any) -> float:
    """The longest step after which a pass may be the last one of a search.

    A step without a kink in its way can be exact however long it is.
    """
    if not searches_in_float32(curve, x):
        return 1.0
    return 2.0**-4 if has_second_derivative(curve) else 2.0**-5


def one_pass_variance(curve: Any, x: Any) -> float:
    """The variance up to which a first pass over a row is often the last one."""
    if exact_between_kinks(curve):
        return math.inf
    if searches_in_float32(curve, x) or not has_second_derivative(curve):
        return 0.0
    return NARROW if shifts_by_value_alone(curve) else NARROWER


@specialized
def when_final(curve, x):
    """(`final_pass_radius`, `one_pass_variance`) of a search over x."""
    radius, variance = final_pass_radius(curve, x), one_pass_variance(curve, x)
    return lambda curve, x: (radius, variance)
