"""The curve f(t) = 1/(1 + e^-t), the logistic CDF."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .._compile.decorators import scalar
from .._math.elementary import exp_neg, fma, quotient
from .._math.special import log_of_one_and
from .base import (
    Traits,
    as_it_is,
    register,
    second_derivative_alone,
    shift_factors_of_exponentials,
    split_by_tail,
    to_fifth_order,
)


class Sigmoid(NamedTuple):
    """f(t) = 1/(1 + e^-t)."""


class CheapSigmoid(NamedTuple):
    """The sigmoid without higher derivatives, for non-final passes over float32 rows."""


@scalar
def _split(curve, t):
    T = type(t)
    e = exp_neg(-abs(t))
    tail = quotient(e, T(1) + e)
    return split_by_tail(t, tail, tail * (T(1) - tail))


@scalar
def _excess(curve, t):
    return log_of_one_and(exp_neg(-abs(t)))


@scalar
def _quantile(curve, u):
    return math.log(u) - math.log1p(-u)


@scalar
def _moments(curve):
    return 0.0, math.pi * math.pi / 3.0, 1.2


@scalar
def _curvature(curve, t, a, b, w):
    T = type(t)
    upper = t >= T(0)
    size = w * fma(T(-2), a if upper else b, T(1))
    return -size if upper else size


@scalar
def _second_derivative_alone(curve, t, a, b, w):
    zero = type(t)(0)
    return _curvature(curve, t, a, b, w), zero, zero


@scalar
def _second_derivative_sums(curve, t, a, b, w):
    T = type(t)
    v = _curvature(curve, t, a, b, w)
    # The square of a smaller number would be subnormal, which is slow.
    dense = w if (w > T(1e-18)) & to_fifth_order(t) else T(0)
    return v, dense * dense, dense * v


@scalar
def _higher_derivatives(curve, w, v, second, third):
    # From the sums of w^2 and w v; both follow from w = f (1 - f).
    return v, w - 6.0 * second, v - 12.0 * third


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    # The odds are divided by e^step, however long the step is.
    one = type(p)(1)
    y = (one - p) * above
    return quotient(p, one + y) if to_fifth_order(p) else p - p * y * (one - y)


_TRAITS = Traits(
    split=_split,
    curvature=_curvature,
    excess=_excess,
    quantile=_quantile,
    moments=_moments,
    second_derivative_sums=_second_derivative_sums,
    higher_derivatives=_higher_derivatives,
    shift_factors=shift_factors_of_exponentials,
    cdf_after_shift=_cdf_after_shift,
    clamp=as_it_is,
    has_continuous_slope=True,
    cheap=CheapSigmoid(),
)
register(Sigmoid, _TRAITS)
register(
    CheapSigmoid,
    replace(
        _TRAITS,
        second_derivative_sums=_second_derivative_alone,
        higher_derivatives=second_derivative_alone,
        cheap=None,
    ),
)
