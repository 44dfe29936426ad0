"""The curves f of ThreTopK: one value of one type each, and the few functions that tell them apart.

A curve is a NamedTuple; compiled code chooses by its type, so that a kernel holds the one curve
it is compiled for and its loops vectorise. Its fields steer the solver: `smooth` if f' is
continuous, so that a step of length s leaves an error of order s^2; `exponential` if the tails are
modelled as exponentials.

``split(curve, t)``     p = f(t) in pieces: (u, a, b, w) with p = u - a + b, w = f'(t).
                        u is 1 on the upper side and 0 on the lower, a = 1 - f(t) there and
                        b = f(t) here, so that neither tail is computed by cancellation.
                        In the type of t where a loop over it vectorises. A user's curve in
                        float64, since sums that run one after the other need it.
``excess(curve, t)``    F(t) - max(t, 0), F the antiderivative of f that vanishes at -inf.
``quantile(curve, u)``  the t with f(t) = u, for the bracket.
``law(curve)``          mean and variance of the law with CDF f, for a first guess.
``slope(curve, a, b, w)``  the sum of w over a row, from the sums of all three.
``autonomous(curve)``   whether f' is a simple function of f, known to the compiler.
``rate(curve, p, w)``   f'(t) from p = f(t) alone if the curve is autonomous, else w, which it is.
``linear(curve)``       whether f is linear between its corners, known to the compiler.
``clearance(curve, t)``  how far t is from the nearest of them; 0 for other curves.
``within(curve, p)``    p after a last correction of first order, kept in [0, 1] where f has kinks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._compile import in_memory, overload_scalar, scalar
from .._scalars import exp_neg, quotient
from .._special import normal_tail, power_of_fraction
from . import last_step, laws

__all__ = [
    "CURVES",
    "Clip",
    "Entmax",
    "Exp",
    "Laplace",
    "Normal",
    "Sigmoid",
    "UserCurve",
    "autonomous",
    "clearance",
    "excess",
    "kernel_for",
    "law",
    "linear",
    "quantile",
    "rate",
    "slope",
    "split",
    "within",
]


class Exp(NamedTuple):
    """f(t) = min(1, e^t)."""

    smooth: bool = False
    exponential: bool = True


class Sigmoid(NamedTuple):
    """f(t) = 1/(1 + e^-t)."""

    smooth: bool = True
    exponential: bool = True


class Laplace(NamedTuple):
    """f(t) = e^t/2 below 0, 1 - e^-t/2 above."""

    smooth: bool = True
    exponential: bool = True


class Clip(NamedTuple):
    """f(t) = t clipped to [0, 1]."""

    smooth: bool = False
    exponential: bool = False


class Normal(NamedTuple):
    """f = Phi, the normal CDF."""

    smooth: bool = True
    exponential: bool = True


class Entmax(NamedTuple):
    """f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1]."""

    alpha: float
    smooth: bool = False
    exponential: bool = False


class UserCurve(NamedTuple):
    """A CDF, its density and its antiderivative (or None), each compiled by Numba."""

    cdf: Any
    pdf: Any
    integral: Any
    smooth: bool = False
    exponential: bool = True


CURVES: dict[str, Any] = {
    "exp": Exp(),
    "sigmoid": Sigmoid(),
    "laplace": Laplace(),
    "clip": Clip(),
    "normal": Normal(),
}


@scalar
def _split_exp(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    e = zero if upper else exp_neg(zero if upper else t)
    return T(1) if upper else zero, zero, e, e


@scalar
def _split_sigmoid(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    e = exp_neg(-abs(t))
    tail = quotient(e, T(1) + e)
    w = tail * (T(1) - tail)
    return T(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def _split_laplace(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    tail = T(0.5) * exp_neg(-abs(t))
    return T(1) if upper else zero, tail if upper else zero, zero if upper else tail, tail


@scalar
def _split_clip(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    inside = (t > zero) & (t < one)
    return one if t >= one else zero, zero, t if inside else zero, one if inside else zero


@scalar
def _split_normal(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    tail, w = normal_tail(abs(t))
    return T(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def _split_entmax(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    s = T(curve.alpha - 1.0) * t
    inside = (s > zero) & (s < one)
    fraction = s if inside else one
    p = power_of_fraction(fraction, T(1.0 / (curve.alpha - 1.0)))
    # f' = f/s: an infinite slope at the edge of the support when alpha > 2.
    w = quotient(p, fraction)
    return one if s >= one else zero, zero, p if inside else zero, w if inside else zero


@scalar
def _split_user(curve, t):
    p, w = np.float64(curve.cdf(t)), np.float64(curve.pdf(t))
    return (1.0, 1.0 - p, 0.0, w) if p >= 0.5 else (0.0, 0.0, p, w)


@scalar
def _cdf(curve, t):
    u, a, b, _ = split(curve, t)
    return u - a + b


@scalar
def _quantile_search(curve, u):
    """A curve whose inverse has no formula: double until it is bracketed, then halve."""
    reach = 1.0
    while reach < 1e300 and (_cdf(curve, -reach) > u or _cdf(curve, reach) < u):
        reach *= 2.0
    lo, hi = -reach, reach
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if mid <= lo or mid >= hi:
            break
        if _cdf(curve, mid) < u:
            lo = mid
        else:
            hi = mid
    return 0.5 * (lo + hi)


class _Traits(NamedTuple):
    split: Any
    excess: Any
    quantile: Any
    law: Any
    within: Any = last_step.clamped
    slope: Any = last_step.slope_as_summed
    rate: Any = last_step.rate_as_computed
    clearance: Any = last_step.never_clear


_TRAITS: dict[type, _Traits] = {
    Exp: _Traits(
        _split_exp,
        laws.excess_exp,
        laws.quantile_exp,
        laws.law_exp,
        slope=last_step.slope_of_exp,
        rate=last_step.rate_of_exp,
    ),
    Sigmoid: _Traits(
        _split_sigmoid,
        laws.excess_sigmoid,
        laws.quantile_sigmoid,
        laws.law_sigmoid,
        last_step.as_it_is,
        rate=last_step.rate_of_sigmoid,
    ),
    Laplace: _Traits(
        _split_laplace,
        laws.excess_laplace,
        laws.quantile_laplace,
        laws.law_laplace,
        last_step.as_it_is,
        last_step.slope_of_laplace,
        last_step.rate_of_laplace,
    ),
    Clip: _Traits(
        _split_clip,
        laws.excess_clip,
        laws.quantile_clip,
        laws.law_clip,
        rate=last_step.rate_of_clip,
        clearance=last_step.clearance_of_clip,
    ),
    Normal: _Traits(
        _split_normal, laws.excess_normal, laws.quantile_normal, laws.law_normal, last_step.as_it_is
    ),
    Entmax: _Traits(_split_entmax, laws.excess_entmax, laws.quantile_entmax, laws.law_entmax),
    UserCurve: _Traits(_split_user, laws.excess_user, _quantile_search, laws.law_user),
}


def kernel_for(curve: Any, kernel: Any) -> Any:
    """The kernel to call with this curve."""
    return in_memory(kernel) if isinstance(curve, UserCurve) else kernel


def _traits(curve: Any) -> _Traits:
    """Traits of a curve, or of the Numba type of one."""
    return _TRAITS[getattr(curve, "instance_class", type(curve))]


def split(curve, t):
    """(u, a, b, w): f(t) = u - a + b without cancellation, and w = f'(t)."""
    return _traits(curve).split(curve, t)


def excess(curve, t):
    """F(t) - max(t, 0)."""
    return _traits(curve).excess(curve, t)


def quantile(curve, u):
    """The t with f(t) = u, 0 < u < 1."""
    return _traits(curve).quantile(curve, u)


def law(curve):
    """(mean, variance) of the law whose CDF is f."""
    return _traits(curve).law(curve)


def within(curve, p):
    """p + O(rounding) in [0, 1]: a first order taken within a rounding of a kink can leave it."""
    return _traits(curve).within(curve, p)


def slope(curve, a, b, w):
    """Sum of f' over a row, from the sums of `split`: w itself, unless it is known without."""
    return _traits(curve).slope(curve, a, b, w)


def autonomous(curve):
    """Whether `rate` needs p alone."""
    return _traits(curve).rate is not last_step.rate_as_computed


def linear(curve):
    """Whether f is linear between its corners."""
    return _traits(curve).clearance is not last_step.never_clear


def clearance(curve, t):
    """The distance from t to the nearest corner of a linear curve; 0 for another."""
    return _traits(curve).clearance(curve, t)


def rate(curve, p, w):
    """f'(t) where f(t) = p: from p alone if the curve is autonomous, else w itself."""
    return _traits(curve).rate(curve, p, w)


@overload_scalar(autonomous)
def _autonomous(curve):
    if autonomous(curve):
        return lambda curve: True
    return lambda curve: False


@overload_scalar(linear)
def _linear(curve):
    if linear(curve):
        return lambda curve: True
    return lambda curve: False


@overload_scalar(clearance)
def _clearance(curve, t):
    return _traits(curve).clearance


@overload_scalar(rate)
def _rate(curve, p, w):
    return _traits(curve).rate


@overload_scalar(split)
def _split(curve, t):
    return _traits(curve).split


@overload_scalar(excess)
def _excess(curve, t):
    return _traits(curve).excess


@overload_scalar(quantile)
def _quantile(curve, u):
    return _traits(curve).quantile


@overload_scalar(law)
def _law(curve):
    return _traits(curve).law


@overload_scalar(within)
def _within(curve, p):
    return _traits(curve).within


@overload_scalar(slope)
def _slope(curve, a, b, w):
    return _traits(curve).slope
