"""What the last pass and the last step of a search need of each curve, for `curves` to choose from.

``slope``: the sum of f' over a row, where sums of f tell. ``bend``: f''(t) and two more, which
summed up tell ``derivatives``: the sums of the second to the fourth. ``clearance``: how far the
threshold may move before an entry passes a corner. ``reach``: a step as `shifted` takes it.
``shifted``: f(t - step). ``within``: p back in [0, 1].
"""

from __future__ import annotations

import numpy as np

from .._compile import scalar
from .._scalars import exp_neg, fma, limits, quotient
from .pieces import split_entmax

__all__ = [
    "as_it_is",
    "as_long_as_it_is",
    "bend_of_normal",
    "bend_of_normal_in_brief",
    "bend_of_sigmoid",
    "bend_of_sigmoid_in_brief",
    "bend_unknown",
    "clamped",
    "clearance_of_clip",
    "clearance_of_one_corner",
    "derivatives_in_brief",
    "derivatives_of_normal",
    "derivatives_of_sigmoid",
    "derivatives_unknown",
    "never_clear",
    "of_exponentials",
    "shifted_by_slope",
    "shifted_clip",
    "shifted_entmax",
    "shifted_exp",
    "shifted_laplace",
    "shifted_normal",
    "shifted_sigmoid",
    "slope_as_summed",
    "slope_of_exp",
    "slope_of_laplace",
    "to_fifth_order",
]


@scalar
def to_fifth_order(t):
    """Whether last steps are, of numbers of this type; known to the compiler.

    Before the last pass in float64 others in float32 lead so near that third order is enough.
    """
    return limits(t)[0] > 1e-10


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
    # The odds are divided by e^step, however long it is.
    one = type(p)(1)
    y = (one - p) * above
    return quotient(p, one + y) if to_fifth_order(p) else p - p * y * (one - y)


@scalar
def _moment(h, i, factorial):
    """The integral of u^i e^(h u^2) over [0, 1] for small h, divided by i!."""
    T = type(h)
    each = T(1 / (i + 1)), T(1 / (i + 3)), T(0.5 / (i + 5))
    return (each[0] + h * (each[1] + h * each[2])) * T(1 / factorial)


@scalar
def shifted_normal(curve, p, w, t, below, above):
    # The integral of the density w e^(y u - s^2 u^2/2), y = s t, over u in [0, 1]: a power series
    # in y, whose coefficients are integrals of u^i e^(-s^2 u^2/2)/i!.
    T = type(p)
    y, h = below * _where_dense(t), T(-0.5) * below * below
    if not to_fifth_order(p):
        return p - w * (below * (T(1) + T(0.5) * y))
    total = fma(_moment(h, 5, 120), y, _moment(h, 4, 24))
    total = fma(fma(total, y, _moment(h, 3, 6)), y, _moment(h, 2, 2))
    total = fma(fma(total, y, _moment(h, 1, 1)), y, _moment(h, 0, 1))
    return p - w * (below * total)  # a product of its own with w might be subnormal, and slow


@scalar
def shifted_entmax(curve, p, w, t, below, above):
    # The slope of a steep curve changes by orders of magnitude on the way.
    if curve.alpha > 2.0:
        full, _, p, _ = split_entmax(curve, t - below)
        return p if full == type(t)(0) else full
    return p - w * below


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
    zero = type(t)(0)
    return zero, zero, zero


@scalar
def _second_of_sigmoid(t, a, b, w):
    T = type(t)
    upper = t >= T(0)
    size = w * fma(T(-2), a if upper else b, T(1))
    return -size if upper else size


@scalar
def bend_of_sigmoid_in_brief(curve, t, a, b, w):
    zero = type(t)(0)
    return _second_of_sigmoid(t, a, b, w), zero, zero


@scalar
def bend_of_sigmoid(curve, t, a, b, w):
    T = type(t)
    v = _second_of_sigmoid(t, a, b, w)
    # The square of any other number would be subnormal, which takes its time.
    dense = w if (w > T(1e-18)) & to_fifth_order(t) else T(0)
    return v, dense * dense, dense * v


@scalar
def bend_of_normal_in_brief(curve, t, a, b, w):
    zero = type(t)(0)
    return -_where_dense(t) * w, zero, zero


@scalar
def bend_of_normal(curve, t, a, b, w):
    t = _where_dense(t)
    v = -t * w
    tv = t * v if to_fifth_order(t) else type(t)(0)
    return v, tv, t * tv


@scalar
def derivatives_unknown(curve, w, v, second, third):
    return np.nan, np.nan, np.nan


@scalar
def derivatives_in_brief(curve, w, v, second, third):
    return v, np.nan, np.nan


@scalar
def derivatives_of_sigmoid(curve, w, v, second, third):
    # The sums of w^2 and w v: each follows from w = f (1 - f).
    return v, w - 6.0 * second, v - 12.0 * third


@scalar
def derivatives_of_normal(curve, w, v, second, third):
    # The sums of t v and t^2 v: Hermite's polynomials of t times w, where v = -t w.
    return v, -second - w, third - 3.0 * v


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
