"""The curve f = Phi, the normal CDF."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .._compile.decorators import scalar
from .._math.elementary import fma
from .._math.special import cheap_normal_tail, normal_tail
from .base import Traits, as_it_is, register, second_derivative_alone, split_by_tail, to_fifth_order


class Normal(NamedTuple):
    """f = Phi, the normal CDF."""


class CheapNormal(NamedTuple):
    """Phi with relative errors up to 2e-4 and without higher derivatives, for non-final passes."""


@scalar
def _split(curve, t):
    tail, w = normal_tail(abs(t))
    return split_by_tail(t, tail, w)


@scalar
def _split_cheaply(curve, t):
    tail, w = cheap_normal_tail(abs(t))
    return split_by_tail(t, tail, w)


@scalar
def _excess(curve, t):
    # At s = inf both terms vanish, but their product form would be inf * 0.
    s = min(abs(t), 40.0)
    tail, density = normal_tail(s)
    return density - s * tail


@scalar
def _quantile(curve, u):
    # Newton steps on log Phi, which is concave: from the left they approach the root and never pass
    # it. Phi(t) <= e^(-t^2/2)/2 gives the start.
    share = u if u < 0.5 else 1.0 - u
    t = -math.sqrt(-2.0 * math.log(2.0 * share))
    for _ in range(6):
        tail, density = normal_tail(-t)
        if not (tail > 0.0 and density > 0.0):
            break
        t = min(0.0, t + math.log(share / tail) * tail / density)
    return t if u < 0.5 else -t


@scalar
def _moments(curve):
    return 0.0, 1.0, 0.0


@scalar
def _where_dense(t):
    """t, or 0 where the normal density is 0, since t may be infinite there."""
    T = type(t)
    return t if abs(t) < T(64) else T(0)


@scalar
def _curvature(curve, t, a, b, w):
    return -_where_dense(t) * w


@scalar
def _second_derivative_alone(curve, t, a, b, w):
    zero = type(t)(0)
    return _curvature(curve, t, a, b, w), zero, zero


@scalar
def _second_derivative_sums(curve, t, a, b, w):
    t = _where_dense(t)
    v = -t * w
    tv = t * v if to_fifth_order(t) else type(t)(0)
    return v, tv, t * tv


@scalar
def _higher_derivatives(curve, w, v, second, third):
    # From the sums of t v and t^2 v: Hermite polynomials of t times w, where v = -t w.
    return v, -second - w, third - 3.0 * v


@scalar
def _integral_of_power(h, i, factorial):
    """The integral of u^i e^(h u^2) over [0, 1] for small h, divided by i!."""
    T = type(h)
    each = T(1 / (i + 1)), T(1 / (i + 3)), T(0.5 / (i + 5))
    return (each[0] + h * (each[1] + h * each[2])) * T(1 / factorial)


@scalar
def _cdf_after_shift(curve, p, w, t, below, above):
    # The integral of the density w e^(y u - s^2 u^2/2), y = s t, over u in [0, 1]: a power series
    # in y, whose coefficients are integrals of u^i e^(-s^2 u^2/2)/i!.
    T = type(p)
    y, h = below * _where_dense(t), T(-0.5) * below * below
    if not to_fifth_order(p):
        return p - w * (below * (T(1) + T(0.5) * y))
    total = fma(_integral_of_power(h, 5, 120), y, _integral_of_power(h, 4, 24))
    total = fma(fma(total, y, _integral_of_power(h, 3, 6)), y, _integral_of_power(h, 2, 2))
    total = fma(fma(total, y, _integral_of_power(h, 1, 1)), y, _integral_of_power(h, 0, 1))
    return p - w * (below * total)  # a product of its own with w might be subnormal, and slow


_TRAITS = Traits(
    split=_split,
    curvature=_curvature,
    excess=_excess,
    quantile=_quantile,
    moments=_moments,
    second_derivative_sums=_second_derivative_sums,
    higher_derivatives=_higher_derivatives,
    cdf_after_shift=_cdf_after_shift,
    clamp=as_it_is,
    shifts_by_value_alone=False,
    has_continuous_slope=True,
    cheap=CheapNormal(),
)
register(Normal, _TRAITS)
register(
    CheapNormal,
    replace(
        _TRAITS,
        split=_split_cheaply,
        second_derivative_sums=_second_derivative_alone,
        higher_derivatives=second_derivative_alone,
        cheap=None,
    ),
)
