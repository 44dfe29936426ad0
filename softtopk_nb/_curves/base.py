"""The interface of a curve f of ThreTopK, and the functions by which compiled code uses it.

A curve is a NamedTuple, and has a file of its own that hands its `Traits` to `register`. Compiled
code chooses by the type of the curve, so that a kernel contains only the curve it is compiled for
and its loops vectorise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._compile.decorators import in_memory, overload_scalar, scalar
from .._math.elementary import exp_neg, limits

# Forms that several curves share, and the defaults of `Traits`.


@scalar
def split_by_tail(t, tail, w):
    """`split` of a curve with f(t) = 1 - f(-t), from its smaller tail and w = f'(t)."""
    zero = type(t)(0)
    upper = t >= zero
    return type(t)(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def to_fifth_order(t):
    """Whether the last steps are of fifth order for the type of t; a constant when compiled.

    In float64 the search begins in float32 and comes so near that third order is enough.
    """
    return limits(t)[0] > 1e-10


@scalar
def shift_factors_of_exponentials(curve, step):
    """1 - e^-step and e^step - 1, in float64."""
    e = exp_neg(-abs(step))
    back = 1.0 / e
    below, above = (1.0 - e, back - 1.0) if step >= 0.0 else (1.0 - back, e - 1.0)
    tiny = abs(step) < 2.0**-27  # where 1 - e is mostly rounding error, and step^2 is negligible
    return step if tiny else below, step if tiny else above


@scalar
def distance_to_0(curve, t):
    return abs(t)


@scalar
def second_derivative_alone(curve, w, v, second, third):
    return v, np.nan, np.nan


@scalar
def as_it_is(curve, p):
    return p


@scalar
def _clamped(curve, p):
    T = type(p)
    return T(0) if p < T(0) else T(1) if p > T(1) else p


@scalar
def _at_0(curve):
    return 0.0


@scalar
def _first_moment(curve):
    return moments(curve)[0]


@scalar
def no_mean(curve):
    """The `mean` of a curve whose F cannot vanish at -inf."""
    return np.inf


@scalar
def _slope_as_summed(curve, a, b, w):
    return w


@scalar
def _step_itself(curve, step):
    return step, step


@scalar
def _along_slope(curve, p, w, t, below, above):
    return p - w * below


@scalar
def _not_summed(curve, t, a, b, w):
    zero = type(t)(0)
    return zero, zero, zero


@scalar
def _unknown(curve, w, v, second, third):
    return np.nan, np.nan, np.nan


@scalar
def _no_kink(curve, t):
    return type(t)(0)


def _never(curve: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Functions and properties of a curve, documented at the functions of these names below."""

    split: Any
    excess: Any
    quantile: Any
    moments: Any
    mean: Any = _first_moment
    origin: Any = _at_0
    slope_sum: Any = _slope_as_summed
    second_derivative_sums: Any = _not_summed
    higher_derivatives: Any = _unknown
    distance_to_kink: Any = _no_kink
    curvature: Any = None
    shift_factors: Any = _step_itself
    cdf_after_shift: Any = _along_slope
    clamp: Any = _clamped
    is_steep: Callable[[Any], bool] = _never
    shifts_by_value_alone: bool = True
    float32_comes_near: bool = True
    has_continuous_slope: bool = False
    has_exponential_tails: bool = True
    least_share: tuple[float, float] = 2.0**-1020, 2.0**-1020  # for rows of float32, of float64
    cheap: Any = None  # the curve that is its `cheap_approximation`
    cached: bool = True  # whether its kernels are kept on disk


_TRAITS: dict[type, Traits] = {}


def register(curve: type, traits: Traits) -> None:
    """Register the traits of a type of curves."""
    _TRAITS[curve] = traits


def _type_of(curve: Any) -> type:
    """The type of a curve, given the curve or its Numba type."""
    found: type = getattr(curve, "instance_class", type(curve))
    return found


def _traits(curve: Any) -> Traits:
    return _TRAITS[_type_of(curve)]


def kernel_for(curve: Any, kernel: Any) -> Any:
    """The kernel to call with this curve: not cached on disk if the curve's code is not."""
    return kernel if _traits(curve).cached else in_memory(kernel)


# f as the CDF of a distribution.


def split(curve, t):
    """(u, a, b, w): f(t) = u - a + b and w = f'(t).

    u is 1 on the upper side and 0 on the lower, a = 1 - f(t) on the upper side and b = f(t) on the
    lower, so that neither tail is computed by cancellation. They have the type of t if a loop over
    it vectorises; for a user's curve float64, since sequential sums need it.
    """
    return _traits(curve).split(curve, t)


def curvature(curve, t, a, b, w):
    """f''(t) from the results of `split`, where it exists: jumps of f' at kinks are left out."""
    return _traits(curve).curvature(curve, t, a, b, w)


def has_curvature(curve: Any) -> bool:
    """Whether f'' is known."""
    return _traits(curve).curvature is not None


def excess(curve, t):
    """F(t) - max(t, 0), F the antiderivative of f that vanishes at -inf.

    If the distribution has no mean (`has_mean`), F is the antiderivative that vanishes at 0.
    """
    return _traits(curve).excess(curve, t)


def quantile(curve, u):
    """The t with f(t) = u, for 0 < u < 1."""
    return _traits(curve).quantile(curve, u)


def moments(curve):
    """(mean, variance, excess kurtosis) of the distribution with CDF f, for a first guess.

    If the distribution has none, numbers that serve as well.
    """
    return _traits(curve).moments(curve)


def mean_of_distribution(curve):
    """The mean of the distribution with CDF f, lim t - F(t) at inf; inf where that diverges."""
    return _traits(curve).mean(curve)


def has_mean(curve):
    """Whether F vanishes at -inf: the distribution's lower tail must have a mean."""
    return _traits(curve).mean is not no_mean


def origin(curve: Any) -> Any:
    """The shift of t: f(t) is the curve's formula at t + origin.

    The threshold is lower by origin times the temperature.
    """
    return _traits(curve).origin(curve)


def is_steep(curve: Any) -> bool:
    """Whether f' is infinite somewhere: p is then computed in float64, for its digits."""
    return _traits(curve).is_steep(curve)


# For the threshold search.


def has_continuous_slope(curve):
    """Whether f' is continuous, so that a step of length s leaves an error of order s^2."""
    return _traits(curve).has_continuous_slope


def has_exponential_tails(curve):
    """Whether the solver models the tails as exponentials; otherwise it takes Newton steps."""
    return _traits(curve).has_exponential_tails


def least_share(curve):
    """The least k/n to search for, (float32, float64), below which p or f' would underflow."""
    return _traits(curve).least_share


def slope_sum(curve, a, b, w):
    """The sum of f' over a row, from the sums of the a, b and w of `split`."""
    return _traits(curve).slope_sum(curve, a, b, w)


def sums_its_slope(curve):
    """Whether f' itself is summed; otherwise `slope_sum` computes it from the sums of a and b."""
    return _traits(curve).slope_sum is _slope_as_summed


def has_second_derivative(curve):
    """Whether f'' and higher derivatives are known in closed form."""
    return _traits(curve).second_derivative_sums is not _not_summed


def second_derivative_sums(curve, t, a, b, w):
    """f''(t) and two numbers to sum for `higher_derivatives`, from `split`; 0 if not known."""
    return _traits(curve).second_derivative_sums(curve, t, a, b, w)


def higher_derivatives(curve, w, v, second, third):
    """Sums of f'', f''' and f'''' over a row, from the sums of f' and `second_derivative_sums`.

    NaN where they are not known.
    """
    return _traits(curve).higher_derivatives(curve, w, v, second, third)


def exact_between_kinks(curve):
    """Whether the solver's model is exact until an entry passes a kink of f."""
    return _traits(curve).distance_to_kink is not _no_kink


def distance_to_kink(curve, t):
    """The distance from t to the nearest kink of f, if the solver's model is exact up to there.

    0 otherwise.
    """
    return _traits(curve).distance_to_kink(curve, t)


def float32_comes_near(curve):
    """Whether f in float32 is enough for the first passes over a float64 row."""
    return _traits(curve).float32_comes_near


def cheap_approximation(curve):
    """The cheaper curve for non-final passes over float32 rows; the curve itself if it has none."""
    cheap = _traits(curve).cheap
    return curve if cheap is None else cheap


def has_cheap_approximation(curve):
    """Whether the curve has a cheaper one for non-final passes."""
    return _traits(curve).cheap is not None


# Correcting p for a step of the threshold.


def shifts_by_value_alone(curve):
    """Whether `cdf_after_shift` needs f(t) alone, neither t nor f'(t)."""
    return _traits(curve).shifts_by_value_alone


def shift_factors(curve, step):
    """(below, above): a step of the threshold, in temperatures, as `cdf_after_shift` takes it.

    `below` is for entries below the threshold, `above` for those above.
    """
    return _traits(curve).shift_factors(curve, step)


def cdf_after_shift(curve, p, w, t, below, above):
    """f(t - step) from p = f(t), w = f'(t) and the `shift_factors` of the step.

    It is exact for curves with kinks if none is passed, of second order where f'' is known, and of
    first order otherwise.
    """
    return _traits(curve).cdf_after_shift(curve, p, w, t, below, above)


def may_leave_range(curve):
    """Whether `cdf_after_shift` can leave [0, 1] by a rounding error."""
    return _traits(curve).clamp is not as_it_is


def clamp(curve, p):
    """p clipped to [0, 1], which a step that ends within a rounding error of a kink can leave."""
    return _traits(curve).clamp(curve, p)


# The compiled forms.


@overload_scalar(split)
def _split(curve, t):
    return _traits(curve).split


@overload_scalar(curvature)
def _curvature(curve, t, a, b, w):
    return _traits(curve).curvature


@overload_scalar(excess)
def _excess(curve, t):
    return _traits(curve).excess


@overload_scalar(quantile)
def _quantile(curve, u):
    return _traits(curve).quantile


@overload_scalar(moments)
def _moments(curve):
    return _traits(curve).moments


@overload_scalar(mean_of_distribution)
def _mean_of_distribution(curve):
    return _traits(curve).mean


@overload_scalar(origin)
def _origin(curve):
    return _traits(curve).origin


@overload_scalar(slope_sum)
def _slope_sum(curve, a, b, w):
    return _traits(curve).slope_sum


@overload_scalar(second_derivative_sums)
def _second_derivative_sums(curve, t, a, b, w):
    return _traits(curve).second_derivative_sums


@overload_scalar(higher_derivatives)
def _higher_derivatives(curve, w, v, second, third):
    return _traits(curve).higher_derivatives


@overload_scalar(distance_to_kink)
def _distance_to_kink(curve, t):
    return _traits(curve).distance_to_kink


@overload_scalar(shift_factors)
def _shift_factors(curve, step):
    return _traits(curve).shift_factors


@overload_scalar(cdf_after_shift)
def _cdf_after_shift(curve, p, w, t, below, above):
    return _traits(curve).cdf_after_shift


@overload_scalar(clamp)
def _clamp(curve, p):
    return _traits(curve).clamp


@overload_scalar(has_mean)
def _has_mean(curve):
    if has_mean(curve):
        return lambda curve: True
    return lambda curve: False
