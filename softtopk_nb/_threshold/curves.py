"""The curves f of ThreTopK: one value of one type each, and the few functions that tell them apart.

A curve is a NamedTuple; compiled code chooses by its type, so that a kernel holds the one curve
it is compiled for and its loops vectorise.

``split(curve, t)``     p = f(t) in pieces: (u, a, b, w) with p = u - a + b, w = f'(t).
                        u is 1 on the upper side and 0 on the lower, a = 1 - f(t) there and
                        b = f(t) here, so that neither tail is computed by cancellation.
                        In the type of t where a loop over it vectorises. A user's curve in
                        float64, since sums that run one after the other need it.
``excess(curve, t)``    F(t) - max(t, 0), F the antiderivative of f that vanishes at -inf. At inf,
                        minus the mean of the law with CDF f.
``quantile(curve, u)``  the t with f(t) = u, for the bracket.
``law(curve)``          mean, variance and excess kurtosis of the law with CDF f, for a first
                        guess.
``origin(curve)``       where the t of all these begins: f is what its formula says of t + origin,
                        and the threshold is lower by as many temperatures.
``slope(curve, a, b, w)``  the sum of w over a row, from the sums of all three.
``smooth(curve)``       whether f' is continuous, so that a step of length s leaves an error of
                        order s^2.
``exponential(curve)``  whether the tails are modelled as exponentials; else steps are Newton's.
``bends(curve)``        whether f'' and more are known in closed form: the sums of what
                        ``bend(curve, t, a, b, w)`` gives tell ``derivatives(curve, w, ...)``,
                        those of the second to the fourth, which are NaN otherwise.
``cornered(curve)``     whether the solver's model is exact until an entry passes a corner of f.
``clearance(curve, t)``  how far t is from the nearest of them; 0 for other curves.
``brief(curve)``        what a pass over float32 that only leads on takes for it: if it is
                        ``abridged``, another.
``shortened(curve)``    whether float32 is enough for the first passes over a float64 row.
``autonomous(curve)``   whether `shifted` needs neither t nor f'(t), but f(t) alone.
``reach(curve, step)``  a step of the threshold as `shifted` takes it: two numbers, for entries
                        below and above it.
``shifted(curve, p, w, t, below, above)``  p = f(t) after the step: exact if no corner is passed and
                        there are corners; of second order where f'' is known; else of first.
``within(curve, p)``    what `shifted` gives, kept in [0, 1] where f has kinks.
What is true or false is known to the compiler.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._compile import in_memory, overload_scalar
from . import last_step, laws, pieces
from .curve_types import (
    Clip,
    Entmax,
    Exp,
    Laplace,
    Normal,
    NormalInBrief,
    Sigmoid,
    SigmoidInBrief,
    UserCurve,
)

__all__ = [
    "CURVES",
    "Clip",
    "Entmax",
    "Exp",
    "Laplace",
    "Normal",
    "NormalInBrief",
    "Sigmoid",
    "UserCurve",
    "abridged",
    "autonomous",
    "bend",
    "bends",
    "brief",
    "clearance",
    "cornered",
    "derivatives",
    "excess",
    "exponential",
    "kernel_for",
    "law",
    "origin",
    "quantile",
    "reach",
    "shifted",
    "shortened",
    "slope",
    "smooth",
    "split",
    "steep",
    "within",
]


CURVES: dict[str, Any] = {
    "exp": Exp(),
    "sigmoid": Sigmoid(),
    "laplace": Laplace(),
    "clip": Clip(),
    "normal": Normal(),
}


class _Traits(NamedTuple):
    split: Any
    excess: Any
    quantile: Any
    law: Any
    within: Any = last_step.clamped
    slope: Any = last_step.slope_as_summed
    shifted: Any = last_step.shifted_by_slope
    reach: Any = last_step.as_long_as_it_is
    clearance: Any = last_step.never_clear
    bend: Any = last_step.bend_unknown
    derivatives: Any = last_step.derivatives_unknown
    origin: Any = laws.no_origin
    autonomous: bool = True
    shortened: bool = True
    smooth: bool = False
    exponential: bool = True


_TRAITS: dict[type, _Traits] = {
    Exp: _Traits(
        pieces.split_exp,
        laws.excess_exp,
        laws.quantile_exp,
        laws.law_exp,
        slope=last_step.slope_of_exp,
        shifted=last_step.shifted_exp,
        reach=last_step.of_exponentials,
        clearance=last_step.clearance_of_one_corner,
    ),
    Sigmoid: _Traits(
        pieces.split_sigmoid,
        laws.excess_sigmoid,
        laws.quantile_sigmoid,
        laws.law_sigmoid,
        last_step.as_it_is,
        shifted=last_step.shifted_sigmoid,
        reach=last_step.of_exponentials,
        bend=last_step.bend_of_sigmoid,
        derivatives=last_step.derivatives_of_sigmoid,
        smooth=True,
    ),
    Laplace: _Traits(
        pieces.split_laplace,
        laws.excess_laplace,
        laws.quantile_laplace,
        laws.law_laplace,
        last_step.as_it_is,
        last_step.slope_of_laplace,
        last_step.shifted_laplace,
        last_step.of_exponentials,
        last_step.clearance_of_one_corner,
        smooth=True,
    ),
    Clip: _Traits(
        pieces.split_clip,
        laws.excess_clip,
        laws.quantile_clip,
        laws.law_clip,
        shifted=last_step.shifted_clip,
        clearance=last_step.clearance_of_clip,
        exponential=False,
    ),
    Normal: _Traits(
        pieces.split_normal,
        laws.excess_normal,
        laws.quantile_normal,
        laws.law_normal,
        last_step.as_it_is,
        shifted=last_step.shifted_normal,
        bend=last_step.bend_of_normal,
        derivatives=last_step.derivatives_of_normal,
        autonomous=False,
        smooth=True,
    ),
    Entmax: _Traits(
        pieces.split_entmax,
        laws.excess_entmax,
        laws.quantile_entmax,
        laws.law_entmax,
        shifted=last_step.shifted_entmax,
        origin=laws.origin_entmax,
        autonomous=False,
        exponential=False,
    ),
    UserCurve: _Traits(
        pieces.split_user,
        laws.excess_user,
        laws.quantile_user,
        laws.law_user,
        autonomous=False,
        shortened=False,
    ),
}
_TRAITS[SigmoidInBrief] = _TRAITS[Sigmoid]._replace(
    bend=last_step.bend_of_sigmoid_in_brief, derivatives=last_step.derivatives_in_brief
)
_TRAITS[NormalInBrief] = _TRAITS[Normal]._replace(
    split=pieces.split_normal_in_brief,
    bend=last_step.bend_of_normal_in_brief,
    derivatives=last_step.derivatives_in_brief,
)
_IN_BRIEF = {Sigmoid: SigmoidInBrief(), Normal: NormalInBrief()}


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
    """(mean, variance, excess kurtosis) of the law whose CDF is f."""
    return _traits(curve).law(curve)


def origin(curve: Any) -> Any:
    """Where the t of `split` begins, in temperatures above that of the formula of f."""
    return _traits(curve).origin(curve)


def steep(curve: Any) -> bool:
    """Whether f' is infinite somewhere: there p has only digits that float64 has."""
    return isinstance(curve, Entmax) and curve.alpha > 2.0


def within(curve, p):
    """p + O(rounding) in [0, 1]: a step taken within a rounding of a kink can leave it."""
    return _traits(curve).within(curve, p)


def slope(curve, a, b, w):
    """Sum of f' over a row, from the sums of `split`: w itself, unless it is known without."""
    return _traits(curve).slope(curve, a, b, w)


def bend(curve, t, a, b, w):
    """f''(t) and two more, for `derivatives`, from what `split` gives; 0 if not known."""
    return _traits(curve).bend(curve, t, a, b, w)


def derivatives(curve, w, v, second, third):
    """Sums of the second to the fourth derivative over a row, from those of f' and `bend`."""
    return _traits(curve).derivatives(curve, w, v, second, third)


def clearance(curve, t):
    """The distance from t to the nearest corner; 0 for a curve without."""
    return _traits(curve).clearance(curve, t)


def reach(curve, step):
    """(below, above): a step of the threshold, in temperatures, as `shifted` takes it."""
    return _traits(curve).reach(curve, step)


def shifted(curve, p, w, t, below, above):
    """f(t - step) from p = f(t), w = f'(t) and what `reach` makes of the step."""
    return _traits(curve).shifted(curve, p, w, t, below, above)


def autonomous(curve):
    """Whether `shifted` needs p alone."""
    return _traits(curve).autonomous


def smooth(curve):
    """Whether f' is continuous."""
    return _traits(curve).smooth


def exponential(curve):
    """Whether the solver models the tails as exponentials."""
    return _traits(curve).exponential


def brief(curve):
    """The curve that stands for this one in passes over float32 rows that only lead on."""
    return _IN_BRIEF.get(getattr(curve, "instance_class", type(curve)), curve)


def abridged(curve):
    """Whether that is another one."""
    return brief(curve) is not curve


def shortened(curve):
    """Whether f may be taken in float32 on the way to the threshold of a float64 row."""
    return _traits(curve).shortened


def bends(curve):
    """Whether f'' is known."""
    return _traits(curve).bend is not last_step.bend_unknown


def cornered(curve):
    """Whether the solver's model is exact until an entry passes a corner."""
    return _traits(curve).clearance is not last_step.never_clear


def _known_to_the_compiler(trait):
    """Compiled, a trait that is true or false is a constant."""

    @overload_scalar(trait)
    def known(curve):
        if trait(curve):
            return lambda curve: True
        return lambda curve: False


@overload_scalar(brief, inline=True)
def _brief(curve):
    cheaper = brief(curve)
    return (lambda curve: cheaper) if abridged(curve) else (lambda curve: curve)


for _trait in (abridged, autonomous, bends, cornered, exponential, shortened, smooth):
    _known_to_the_compiler(_trait)


@overload_scalar(bend)
def _bend(curve, t, a, b, w):
    return _traits(curve).bend


@overload_scalar(derivatives)
def _derivatives(curve, w, v, second, third):
    return _traits(curve).derivatives


@overload_scalar(clearance)
def _clearance(curve, t):
    return _traits(curve).clearance


@overload_scalar(reach)
def _reach(curve, step):
    return _traits(curve).reach


@overload_scalar(shifted)
def _shifted(curve, p, w, t, below, above):
    return _traits(curve).shifted


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


@overload_scalar(origin)
def _origin(curve):
    return _traits(curve).origin


@overload_scalar(within)
def _within(curve, p):
    return _traits(curve).within


@overload_scalar(slope)
def _slope(curve, a, b, w):
    return _traits(curve).slope
