"""What the last pass and the last step of a search need of each curve, for `curves` to choose from.

``slope``: the sum of f' over a row, where sums of f tell. ``bend``: f''(t). ``clearance``: how far
the threshold may move before an entry passes a corner. ``reach``: a step as `shifted` takes it.
``shifted``: f(t - step). ``within``: p back in [0, 1].
"""

from __future__ import annotations

from .._compile import scalar
from .._scalars import exp_neg, fma

__all__ = [
    "as_it_is",
    "as_long_as_it_is",
    "bend_of_normal",
    "bend_of_sigmoid",
    "bend_unknown",
    "clamped",
    "clearance_of_clip",
    "clearance_of_one_corner",
    "never_clear",
    "of_exponentials",
    "shifted_by_slope",
    "shifted_clip",
    "shifted_exp",
    "shifted_laplace",
    "shifted_normal",
    "shifted_sigmoid",
    "slope_as_summed",
    "slope_of_exp",
    "slope_of_laplace",
]


@scalar
def as_long_as_it_is(curve, step):
    return step, step


@scalar
def of_exponentials(curve, step):
    """1 - e^-step and e^step - 1, in float64."""
    e = exp_neg(-abs(step))
    back = 1.0 / e
    below, above = (1.0 - e, back - 1.0) if step >= 0.0 else (1.0 - back, e - 1.0)
    tiny = abs(step) < 2.0**-27  # where the square is below rounding, and 1 - e is nothing but
    return step if tiny else below, step if tiny else above


@scalar
def shifted_exp(curve, p, w, t, below, above):
    T = type(p)
    return p - (p if p < T(1) else T(0)) * below


@scalar
def shifted_laplace(curve, p, w, t, below, above):
    q = type(p)(1) - p
    lower = p < q
    return p - (p if lower else q) * (below if lower else above)


@scalar
def shifted_sigmoid(curve, p, w, t, below, above):
    T = type(p)
    q = T(1) - p
    return p - (p * q) * (below * (T(1) - T(0.5) * below * (q - p)))


@scalar
def shifted_normal(curve, p, w, t, below, above):
    T = type(p)
    return p - w * (below * (T(1) + T(0.5) * below * _where_dense(t)))


@scalar
def shifted_clip(curve, p, w, t, below, above):
    T = type(p)
    return p - (T(1) if (p > T(0)) & (p < T(1)) else T(0)) * below


@scalar
def shifted_by_slope(curve, p, w, t, below, above):
    return p - w * below


@scalar
def _where_dense(t):
    """t, or 0 where the normal density is 0: t may be infinite there."""
    T = type(t)
    return t if abs(t) < T(64) else T(0)


@scalar
def bend_unknown(curve, t, a, b, w):
    return type(t)(0)


@scalar
def bend_of_sigmoid(curve, t, a, b, w):
    T = type(t)
    upper = t >= T(0)
    size = w * fma(T(-2), a if upper else b, T(1))
    return -size if upper else size


@scalar
def bend_of_normal(curve, t, a, b, w):
    return -_where_dense(t) * w


@scalar
def never_clear(curve, t):
    return type(t)(0)


@scalar
def clearance_of_one_corner(curve, t):
    return abs(t)


@scalar
def clearance_of_clip(curve, t):
    below, above = abs(t), abs(t - type(t)(1))
    return below if below < above else above


@scalar
def as_it_is(curve, p):
    return p


@scalar
def clamped(curve, p):
    T = type(p)
    return T(0) if p < T(0) else T(1) if p > T(1) else p


@scalar
def slope_of_exp(curve, a, b, w):
    return b


@scalar
def slope_of_laplace(curve, a, b, w):
    return a + b


@scalar
def slope_as_summed(curve, a, b, w):
    return w
