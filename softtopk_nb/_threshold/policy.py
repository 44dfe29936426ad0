"""What ends a search, and when: every tolerance, and whether a pass may be the last one."""

from __future__ import annotations

import numpy as np
from numba import types

from .._compile.decorators import overload_scalar, scalar
from .._curves.base import (
    exact_between_kinks,
    float32_comes_near,
    has_cheap_approximation,
    has_second_derivative,
    shifts_by_value_alone,
)
from .._math.elementary import exp_neg
from .._math.special import natural_log

TELLING = 0.1  # temperatures that a sample may be off by, for a first pass to be worth keeping


@scalar
def resembles(share, weight):
    """Whether a sample tells the threshold of its row so well that a first pass may be the last.

    What entries of it sum up to varies by the root of sum p^2, about share - weight, weight the sum
    of p'; and the threshold by so much over that.
    """
    return abs(share - weight) < (TELLING * weight) ** 2


CUBE_32, CUBE_64 = 2.0 ** (-26 / 3), 2.0 ** (-55 / 3)  # eps^(1/3)/2 of either type
FIFTH_32 = 2.0**-3.85  # 2^(3/4) eps^(1/5): float64 makes do with third order
BLUR = 2.0**-10  # temperatures that a light pass may be wrong by where it says too low, too high
# Steps that may pass many entries: from so many temperatures on, and so many clearances.
FAR, FAR_BY_CORNERS, CROWD = 0.25, 2.0**-10, 4.0
FREE = 4.0  # temperatures that a last step may lead up, away from all entries
MOST_PASSES = 500  # a guard; the most hostile rows in the tests take 200, ordinary ones 4


@scalar
def enough_for(method, n):
    """The length of a step that ends a search over n entries, in temperatures."""
    enough = method.enough
    if method.fades > 0.0:
        most = method.fades * exp_neg(natural_log(np.float64(n if n > 1 else 1)) * (-1.0 / 6.0))
        enough = most if most < enough else enough
    return enough


FAINT = 1e-24  # k below is not to be searched in float32, where tails below 1e-37 are 0
ROUGH = 0.02
# Temperatures squared: rows of less variance start near. Less of it where a first pass that keeps p
# costs more than twice as much as one that does not.
NARROW, NARROWER = 9.0, 2.5


def searches_in_float32(curve, x):
    """Whether a search over x spends its first passes in float32: enough to come near.

    Not where a first step can be exact (`exact_between_kinks`), nor with a user's functions.
    """
    return (
        float32_comes_near(curve)
        and not exact_between_kinks(curve)
        and x.dtype in (np.float64, types.float64)
    )


@overload_scalar(searches_in_float32)
def _compiled_patient(curve, x):
    if searches_in_float32(curve, x):
        return lambda curve, x: True
    return lambda curve, x: False


def has_light_passes(curve, x):
    """Whether passes far from the end are light ones, on which no search may end.

    Where nearly every pass may be the last one a second kind of pass is not worth compiling.
    """
    return searches_in_float32(curve, x) or (
        has_cheap_approximation(curve) and not exact_between_kinks(curve)
    )


@overload_scalar(has_light_passes)
def _compiled_skims(curve, x):
    if has_light_passes(curve, x):
        return lambda curve, x: True
    return lambda curve, x: False


@scalar
def final_pass_radius(curve, x):
    """After a step so short a pass may be the last one of a search.

    A step without a corner in its way can be exact however long it is.
    """
    if not searches_in_float32(curve, x):
        return 1.0
    return 2.0**-4 if has_second_derivative(curve) else 2.0**-5


@scalar
def one_pass_variance(curve, x):
    """The variance, in temperatures, up to which a first pass over a row is often the last one."""
    if exact_between_kinks(curve):
        return np.inf
    if searches_in_float32(curve, x) or not has_second_derivative(curve):
        return 0.0
    return NARROW if shifts_by_value_alone(curve) else NARROWER
