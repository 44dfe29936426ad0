"""What a curve f of ThreTopK is made of, and the functions by which compiled code asks for it.

A curve is a NamedTuple, and has a file of its own that hands its `Traits` to `register`. Compiled
code chooses by the type of the curve, so that a kernel holds the one curve it is compiled for and
its loops vectorise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._compile.decorators import in_memory, overload_scalar, scalar
from .._math.elementary import exp_neg, limits

# What several curves share, and what a curve has unless it says otherwise.


@scalar
def split_by_tail(t, tail, w):
    """`split` of a curve that is 1 - f(-t), from its smaller tail."""
    zero = type(t)(0)
    upper = t >= zero
    return type(t)(1) if upper else zero, tail if upper else zero, zero if upper else tail, w


@scalar
def to_fifth_order(t):
    """Whether last steps are of fifth order for numbers of this type; a constant when compiled.

    In float64 the search begins in float32 and comes so near that third order is enough.
    """
    return limits(t)[0] > 1e-10


@scalar
def shift_factors_of_exponentials(curve, step):
    """1 - e^-step and e^step - 1, in float64."""
    e = exp_neg(-abs(step))
    back = 1.0 / e
    below, above = (1.0 - e, back - 1.0) if step >= 0.0 else (1.0 - back, e - 1.0)
    tiny = abs(step) < 2.0**-27  # where the square is below rounding, and 1 - e is nothing but
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
    """What is known of a curve; the functions below say what each part is."""

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
    least_share: tuple[float, float] = 2.0**-1020, 2.0**-1020  # of rows of float32, of float64
    cheap: Any = None  # the curve that is its `cheap_approximation`
    cached: bool = True  # whether its kernels are kept on disk


_TRAITS: dict[type, Traits] = {}


def register(curve: type, traits: Traits) -> None:
    """Make a type of curves known."""
    _TRAITS[curve] = traits


def _type_of(curve: Any) -> type:
    """The type of a curve, also from the Numba type of one."""
    found: type = getattr(curve, "instance_class", type(curve))
    return found


def _traits(curve: Any) -> Traits:
    return _TRAITS[_type_of(curve)]


def kernel_for(curve: Any, kernel: Any) -> Any:
    """The kernel to call with this curve."""
    return kernel if _traits(curve).cached else in_memory(kernel)


# As the CDF of a distribution.


def split(curve, t):
    """(u, a, b, w): f(t) = u - a + b and w = f'(t).

    u is 1 on the upper side and 0 on the lower, a = 1 - f(t) there and b = f(t) here, so that
    neither tail is computed by cancellation. In the type of t where a loop over it vectorises; of a
    user's curve in float64, since sums that run one after the other need it.
    """
    return _traits(curve).split(curve, t)


def curvature(curve, t, a, b, w):
    """f''(t) from `split`, where it exists: what a kink of f adds is left out."""
    return _traits(curve).curvature(curve, t, a, b, w)


def has_curvature(curve: Any) -> bool:
    """Whether f'' is known."""
    return _traits(curve).curvature is not None


def excess(curve, t):
    """F(t) - max(t, 0), F the antiderivative of f that vanishes at -inf.

    Without a mean (`has_mean`) there is none, and F is the one that vanishes at 0.
    """
    return _traits(curve).excess(curve, t)


def quantile(curve, u):
    """The t with f(t) = u, 0 < u < 1."""
    return _traits(curve).quantile(curve, u)


def moments(curve):
    """(mean, variance, excess kurtosis) of the distribution with CDF f: for a first guess.

    Numbers that serve as well where the distribution has none.
    """
    return _traits(curve).moments(curve)


def mean_of_distribution(curve):
    """The mean of the distribution with CDF f: -lim F(t) - t at inf; inf where that diverges."""
    return _traits(curve).mean(curve)


def has_mean(curve):
    """Whether F vanishes at -inf, for which the lower tail of the distribution must have a mean."""
    return _traits(curve).mean is not no_mean


def origin(curve: Any) -> Any:
    """Where t begins: f is what its formula says of t + origin.

    The threshold is lower by as many temperatures.
    """
    return _traits(curve).origin(curve)


def is_steep(curve: Any) -> bool:
    """Whether f' is infinite somewhere: there p has only digits that float64 has."""
    return _traits(curve).is_steep(curve)


# In a search for the threshold.


def has_continuous_slope(curve):
    """Whether f' is continuous, so that a step of length s leaves an error of order s^2."""
    return _traits(curve).has_continuous_slope


def has_exponential_tails(curve):
    """Whether the solver models the tails as exponentials; else its steps are Newton's."""
    return _traits(curve).has_exponential_tails


def least_share(curve):
    """The least k/n that is searched for, in float32 and in float64: there p and f' are numbers."""
    return _traits(curve).least_share


def slope_sum(curve, a, b, w):
    """The sum of f' over a row, from the sums of a, b and w of `split`."""
    return _traits(curve).slope_sum(curve, a, b, w)


def sums_its_slope(curve):
    """Whether the sum of f' is summed; else it follows from those of a and b (`slope_sum`)."""
    return _traits(curve).slope_sum is _slope_as_summed


def has_second_derivative(curve):
    """Whether f'' and more are known in closed form."""
    return _traits(curve).second_derivative_sums is not _not_summed


def second_derivative_sums(curve, t, a, b, w):
    """f''(t) and two more to sum for `higher_derivatives`, from `split`; 0 if not known."""
    return _traits(curve).second_derivative_sums(curve, t, a, b, w)


def higher_derivatives(curve, w, v, second, third):
    """Sums of f'', f''' and f'''' over a row, from those of f' and of `second_derivative_sums`.

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
    """The cheaper curve of non-final passes over float32 rows; the curve itself without one."""
    cheap = _traits(curve).cheap
    return curve if cheap is None else cheap


def has_cheap_approximation(curve):
    """Whether there is such a cheaper curve."""
    return _traits(curve).cheap is not None


# Moving p along when the threshold moves.


def shifts_by_value_alone(curve):
    """Whether `cdf_after_shift` needs neither t nor f'(t), but f(t) alone."""
    return _traits(curve).shifts_by_value_alone


def shift_factors(curve, step):
    """(below, above): a step of the threshold, in temperatures, as `cdf_after_shift` takes it.

    One number for entries below the threshold, one for those above.
    """
    return _traits(curve).shift_factors(curve, step)


def cdf_after_shift(curve, p, w, t, below, above):
    """f(t - step) from p = f(t), w = f'(t) and the `shift_factors` of the step.

    Exact for curves with kinks if none is passed; of second order where f'' is known; else of
    first.
    """
    return _traits(curve).cdf_after_shift(curve, p, w, t, below, above)


def may_leave_range(curve):
    """Whether `cdf_after_shift` can leave [0, 1], by a rounding."""
    return _traits(curve).clamp is not as_it_is


def clamp(curve, p):
    """p in [0, 1], which a step taken within a rounding of a kink can leave."""
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
