"""The curve f(t) = 1/2 + arctan(t)/pi, the Cauchy distribution's CDF, with tails like 1/t."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import types

from .._compile.decorators import overload_scalar, scalar
from .._math.elementary import circular, fma, limits, quotient
from .base import Traits, as_it_is, no_mean, register, split_by_tail, to_fifth_order

# The polynomial G(y^2) with arctan(y)/pi = y/pi + y^3 G(y^2) for |y| <= tan(pi/8), interpolated at
# Chebyshev's points: off by 0.02 units in either type.
_ARCTAN_32: tuple[float, ...] = (-0.10610329359769821, 0.06366051733493805, -0.04540356248617172)
_ARCTAN_32 += (0.034198157489299774, -0.020536458119750023)
_ARCTAN_64: tuple[float, ...] = (-0.10610329539459688, 0.06366197723674387, -0.04547284088006085)
_ARCTAN_64 += (0.03536776482619643, -0.028937248006735104, 0.024484979351435936)
_ARCTAN_64 += (-0.021213795868454247, 0.018647041646766095, -0.01618735589026336)
_ARCTAN_64 += (0.012487439369316632, -0.006103720891119935)
PER_PI = 1.0 / math.pi
FLAT = 1e-18  # squares of smaller densities would be subnormal, and slow


class Cauchy(NamedTuple):
    """f(t) = 1/2 + arctan(t)/pi."""


def cauchy_tail(s: float) -> float:
    """arctan(1/s)/pi for s >= 0, to 3 units in the last place, without branches."""
    return type(s)(math.atan2(1.0, s) / math.pi)


@overload_scalar(cauchy_tail)
def _cauchy_tail(s):
    T, c = (np.float32, _ARCTAN_32) if s is types.float32 else (np.float64, _ARCTAN_64)
    c, per_pi = tuple(map(T, c)), T(PER_PI)
    zero, quarter, half, one = T(0), T(0.25), T(0.5), T(1)
    low, high = T(math.sqrt(2) - 1), T(math.sqrt(2) + 1)
    short = len(c) == 5

    def impl(s):
        # arctan(1/s) is pi/2 - arctan(s), pi/4 - arctan((s - 1)/(s + 1)), or itself.
        small, large = s < low, s > high
        over = s if small else -one if large else s - one
        under = one if small else s if large else s + one
        y = quotient(over, under)
        z = y * y
        if short:
            g = c[4]
        else:
            g = fma(fma(fma(fma(fma(c[10], z, c[9]), z, c[8]), z, c[7]), z, c[6]), z, c[5])
            g = fma(g, z, c[4])
        g = fma(fma(fma(fma(g, z, c[3]), z, c[2]), z, c[1]), z, c[0])
        a = fma(y * z, g, y * per_pi)
        return (half if small else zero if large else quarter) - a

    return impl


@scalar
def _split(curve, t):
    T = type(t)
    s = abs(t)
    return split_by_tail(t, cauchy_tail(s), quotient(T(PER_PI), T(1) + s * s))


@scalar
def _excess(curve, t):
    # F(t) = t f(t) - log(1 + t^2)/(2 pi), which is 0 at 0. t^2 may overflow, and t be infinite.
    s, most = abs(t), limits(t)[2]
    s = s if s < most else most
    if s > 1e8:
        return -PER_PI * (1.0 + math.log(s))
    return -s * cauchy_tail(s) - 0.5 * PER_PI * math.log1p(s * s)


@scalar
def _quantile(curve, u):
    # -cot(pi u), from its nearest zero or pole.
    upper, middle = u > 0.75, abs(u - 0.5) <= 0.25
    c, s = circular(math.pi * (u - 0.5 if middle else 1.0 - u if upper else u))
    return s / c if middle else c / s if upper else -c / s


@scalar
def _moments(curve):
    # They do not exist. A variance of 4 suits the middle; from 2 to 20 searches take as long.
    return 0.0, 4.0, 3.0


@scalar
def _curvature(curve, t, a, b, w):
    T, zero = type(t), type(t)(0)
    h = w * T(math.pi) if w > T(FLAT) else zero
    return T(-2) * (h * (t if w > T(FLAT) else zero)) * w


@scalar
def _second_derivative_sums(curve, t, a, b, w):
    # With h = pi w = 1/(1 + t^2): f'' = -2 t h w, f''' = h (6 - 8 h) w, f'''' = 12 (1 - 2 h) h f''.
    T, zero = type(t), type(t)(0)
    v = _curvature(curve, t, a, b, w)
    h = w * T(math.pi) if (w > T(FLAT)) & to_fifth_order(t) else zero
    return v, h * fma(T(-8), h, T(6)) * w, T(12) * (h - T(2) * h * h) * v


@scalar
def _higher_derivatives(curve, w, v, second, third):
    return v, second, third


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    # arctan(t) - arctan(t - s) = arctan(s/(1 + t (t - s))), and of small numbers by its series.
    T = type(p)
    h = w * T(math.pi)
    far = (t if w > T(0) else T(0)) * h
    y = quotient(below * h, T(1) - below * far)
    z = y * y
    return p - T(PER_PI) * (y + y * z * (T(-1 / 3) + T(1 / 5) * z))


register(
    Cauchy,
    Traits(
        split=_split,
        curvature=_curvature,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        mean=no_mean,
        second_derivative_sums=_second_derivative_sums,
        higher_derivatives=_higher_derivatives,
        cdf_after_shift=_cdf_after_shift,
        clamp=as_it_is,
        shifts_by_value_alone=False,
        # A threshold may lie 10^5 temperatures from all entries, where float32 lacks the digits.
        float32_comes_near=False,
        has_continuous_slope=True,
        # There f' is about pi f^2, and t^2 does not overflow.
        least_share=(2.0**-60, 2.0**-500),
        # The tails are not exponential, but together with f'' that model takes 2.6 passes over
        # float32 rows where Newton steps take 3.9.
        has_exponential_tails=True,
    ),
)
