"""The curves f of ThreTopK: one value of one type each, and the few functions that tell them apart.

A curve is a NamedTuple; compiled code chooses by its type, so that a kernel holds the one curve
it is compiled for and its loops vectorise. All arithmetic stays in the type of the argument t.

``split(curve, t)``     p = f(t) in pieces: (u, a, b, w) with p = u - a + b, w = f'(t).
                        u is 1 on the upper side and 0 on the lower, a = 1 - f(t) there and
                        b = f(t) here, so that neither tail is computed by cancellation.
``excess(curve, t)``    F(t) - max(t, 0), F the antiderivative of f that vanishes at -inf.
``quantile(curve, u)``  the t with f(t) = u, for the bracket.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._compile import in_memory, overload_scalar, scalar
from .._scalars import exp_neg

__all__ = [
    "CURVES",
    "Clip",
    "Entmax",
    "Exp",
    "Laplace",
    "Normal",
    "Sigmoid",
    "UserCurve",
    "excess",
    "is_exponential",
    "is_smooth",
    "kernel_for",
    "quantile",
    "split",
    "zero_sum",
]


class Exp(NamedTuple):
    """f(t) = min(1, e^t)."""

    tag: int = 0


class Sigmoid(NamedTuple):
    """f(t) = 1/(1 + e^-t)."""

    tag: int = 0


class Laplace(NamedTuple):
    """f(t) = e^t/2 below 0, 1 - e^-t/2 above."""

    tag: int = 0


class Clip(NamedTuple):
    """f(t) = t clipped to [0, 1]."""

    tag: int = 0


class Normal(NamedTuple):
    """f = Phi, the normal CDF."""

    tag: int = 0


class Entmax(NamedTuple):
    """f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1]."""

    alpha: float


class UserCurve(NamedTuple):
    """A CDF, its density and its antiderivative (or None), each compiled by Numba."""

    cdf: Any
    pdf: Any
    integral: Any


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
    e = zero if upper else exp_neg(min(t, zero))
    return T(1) if upper else zero, zero, e, e


@scalar
def _split_sigmoid(curve, t):
    T = type(t)
    zero = T(0)
    upper = t >= zero
    e = exp_neg(-abs(t))
    tail = e / (T(1) + e)
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
    tail = T(0.5) * T(math.erfc(abs(t) * T(math.sqrt(0.5))))
    w = T(1 / math.sqrt(2 * math.pi)) * exp_neg(T(-0.5) * t * t)
    return T(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def _split_entmax(curve, t):
    # In float64: for alpha close to 1 the exponent is large and magnifies what rounding does.
    T = type(t)
    zero, one = T(0), T(1)
    s = (curve.alpha - 1.0) * t
    if s >= 1.0:
        return one, zero, zero, zero
    if not s > 0.0:
        return zero, zero, zero, zero
    p = math.pow(s, 1.0 / (curve.alpha - 1.0))
    # f' = f/s: an infinite slope at the edge of the support when alpha > 2.
    return zero, zero, T(p), T(p / s)


@scalar
def _split_user(curve, t):
    T = type(t)
    zero, one = T(0), T(1)
    p, w = T(curve.cdf(t)), T(curve.pdf(t))
    if p >= T(0.5):
        return one, one - p, zero, w
    return zero, zero, p, w


@scalar
def _excess_exp(curve, t):
    return 1.0 if t >= 0.0 else math.exp(t)


@scalar
def _excess_sigmoid(curve, t):
    return math.log1p(math.exp(-abs(t)))


@scalar
def _excess_laplace(curve, t):
    return 0.5 * math.exp(-abs(t))


@scalar
def _excess_clip(curve, t):
    s = min(max(t, 0.0), 1.0)
    return 0.5 * s * s - s


@scalar
def _excess_normal(curve, t):
    s = abs(t)
    density = math.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
    # s = inf: both terms vanish, their product form would be inf * 0.
    return density - s * 0.5 * math.erfc(s * math.sqrt(0.5)) if s < 40.0 else 0.0


@scalar
def _excess_entmax(curve, t):
    alpha = curve.alpha
    s = min(max((alpha - 1.0) * t, 0.0), 1.0)
    return math.pow(s, alpha / (alpha - 1.0)) / alpha - s / (alpha - 1.0)


@scalar
def _excess_user(curve, t):
    return curve.integral(t) - max(t, 0.0)


@scalar
def _quantile_exp(curve, u):
    return math.log(u)


@scalar
def _quantile_sigmoid(curve, u):
    return math.log(u) - math.log1p(-u)


@scalar
def _quantile_laplace(curve, u):
    return math.log(2 * u) if u < 0.5 else -math.log(2 * (1 - u))


@scalar
def _quantile_clip(curve, u):
    return u


@scalar
def _quantile_entmax(curve, u):
    return math.pow(u, curve.alpha - 1.0) / (curve.alpha - 1.0)


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
    smooth: bool  # f' is continuous: a step of length s leaves an error of order s^2
    exponential: bool  # the tails are steered by the exponential model, not by Newton
    vectorised: bool  # a loop over `split` runs in SIMD lanes


_TRAITS: dict[type, _Traits] = {
    Exp: _Traits(_split_exp, _excess_exp, _quantile_exp, False, True, True),
    Sigmoid: _Traits(_split_sigmoid, _excess_sigmoid, _quantile_sigmoid, True, True, True),
    Laplace: _Traits(_split_laplace, _excess_laplace, _quantile_laplace, True, True, True),
    Clip: _Traits(_split_clip, _excess_clip, _quantile_clip, False, False, True),
    Normal: _Traits(_split_normal, _excess_normal, _quantile_search, True, True, False),
    Entmax: _Traits(_split_entmax, _excess_entmax, _quantile_entmax, False, False, False),
    UserCurve: _Traits(_split_user, _excess_user, _quantile_search, False, True, False),
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


def is_smooth(curve):
    """Whether f' is continuous."""
    return _traits(curve).smooth


def is_exponential(curve):
    """Whether the solver models the tails as exponentials."""
    return _traits(curve).exponential


def zero_sum(curve, t):
    """The 0 that a sum over some hundred entries starts from.

    In lanes a sum in the type of t keeps its accuracy; one after the other it would not.
    """
    return type(t)(0) if _traits(curve).vectorised else 0.0


@overload_scalar(split)
def _split(curve, t):
    return _traits(curve).split


@overload_scalar(excess)
def _excess(curve, t):
    return _traits(curve).excess


@overload_scalar(quantile)
def _quantile(curve, u):
    return _traits(curve).quantile


@overload_scalar(is_smooth)
def _is_smooth(curve):
    smooth = _traits(curve).smooth
    return lambda curve: smooth


@overload_scalar(is_exponential)
def _is_exponential(curve):
    exponential = _traits(curve).exponential
    return lambda curve: exponential


@overload_scalar(zero_sum)
def _zero_sum(curve, t):
    zero = t(0) if _traits(curve).vectorised else 0.0
    return lambda curve, t: zero
