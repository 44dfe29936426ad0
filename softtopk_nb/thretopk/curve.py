"""A user's own curve, and the checks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core.dispatcher import Dispatcher

from .._compile.decorators import own
from .._curves.base import has_curvature
from .._curves.user import UserCurve
from .._curves.user_math import vectorised
from .._nonfinite import UNDEFINED
from .._threshold.records import CODE

Array = npt.NDArray[Any]

# The grid on which a curve is checked: dense where most curves rise, and far out.
_REACHED = np.concatenate([np.arange(1, 641) / 16, 10.0 ** np.arange(-8, 30.5, 0.5)])
_GRID = np.array(sorted({*-_REACHED, 0.0, *_REACHED}))
_ROUNDING = 64 * np.finfo(np.float64).eps  # tolerance for a value near 1
_LIMIT = 1e-3  # the largest distance from 0 and 1 at the farthest points
_SETTLED, _SLOPE = 2e-3, 1e-2  # tolerances: among slopes, and with the given derivative
_SAME, _LEAST = 1e-12, 1e-300  # relative and absolute tolerance for two forms of one function
_LOWER = 0.158655  # the part of a normal distribution more than a standard deviation below its mean
_MASS = 1e-7  # of max(1, k): the tolerance for the sum of p in a solved row


class Curve:
    """A curve for `thretopk` from two scalar functions that Numba can compile.

    Parameters
    ----------
    cdf : callable
        f(t): non-decreasing, continuous, from 0 at -inf to 1 at +inf; float to float.
    pdf : callable
        f'(t). It steers the solver and is the weight of every derivative.
    name : str, default=None
        What to call the curve in messages; the name of `cdf` by default.
    integral : callable, default=None
        The antiderivative of `cdf` that vanishes at -inf, for `thretopk.potential` only.
    slope : callable, default=None
        f''(t), the derivative of `pdf`, for second derivatives (`thretopk.hvp`) only.

    Raises
    ------
    TypeError
        Something is not callable, or does not return a real number.
    ValueError
        On a grid of some 1400 points up to 1e30, most between -40 and 40: `cdf` leaves [0, 1],
        decreases, or is not within 1e-3 of 0 and 1 at the ends; `pdf` is negative or not the slope
        of `cdf`; `integral` not the antiderivative that vanishes at -inf; or `slope` not that of
        `pdf`. It says where.

    Notes
    -----
    The functions are compiled by Numba when the curve is made, and for each operator method at its
    first use, which takes a few seconds; nothing of it is kept on disk. Functions that are compiled
    already are used as they are. float32 rows are worked on in float64. A tail is computed as
    1 - cdf(t): unlike the built-in curves, p close to 1 has an absolute accuracy of rounding, not a
    relative one.

    ``math.exp``, ``log``, ``log1p``, ``tanh``, ``atan``, ``erf`` and ``erfc`` in a function of
    Python are replaced by forms that vectorise, with errors of a few units in the last place,
    unless a value on the grid changes by more than 1e-12 of it: then it is left as written. A later
    call takes 3 to 6 times as long as the same curve built in; with other functions, 10 to 40.

    Kinks pass, and so does whatever is steep but continuous; slopes are compared where differences
    over a ten-thousandth of t agree that there is one. Heavy tails pass down to about t^(-1/10). A
    jump, or a fault between the points, can pass too: a row for which no threshold gives mass k (to
    1e-7 max(1, k)) then raises ValueError, on the CPU. Where a jump lies on a threshold, entries
    there cannot share what is left.

    A distribution without a mean has no antiderivative that vanishes at -inf if its lower tail is
    too heavy, as Cauchy's is: `potential` says so. If only the upper one is, the potential is -inf
    at k = n.

    Examples
    --------
    >>> import math
    >>> import softtopk_nb as stk
    >>> student = stk.Curve(
    ...     lambda t: 0.5 + 0.5 * t / math.sqrt(2 + t * t),
    ...     lambda t: (2 + t * t) ** -1.5,
    ...     name="student, 2 degrees of freedom",
    ... )
    >>> stk.thretopk([3.0, 2.0, 1.0, 4.0], 2, curve=student, temperature=0.1).round(3)
    array([0.981, 0.019, 0.002, 0.998])
    """

    def __init__(
        self,
        cdf: Callable[[float], float],
        pdf: Callable[[float], float],
        *,
        name: str | None = None,
        integral: Callable[[float], float] | None = None,
        slope: Callable[[float], float] | None = None,
    ) -> None:
        f, density = _compiled(cdf, "cdf"), _compiled(pdf, "pdf")
        _check_cdf(f)
        _check_pdf(density)
        _check_slope(f, "cdf", density, "pdf", np.ones(len(_GRID)))
        second = None
        if slope is not None:
            second = _compiled(slope, "slope")
            _check_slope(
                density, "pdf", second, "slope", np.maximum(1.0, _at(density, "pdf", _GRID))
            )
        area, mean = None, 0.0
        if integral is not None:
            area = _compiled(integral, "integral")
            _check_slope(area, "integral", f, "cdf", np.maximum(1.0, abs(_GRID)))
            mean = _mean(f, density, area)
        self.name = str(name or getattr(cdf, "__name__", "curve"))
        low, high = np.interp([_LOWER, 1.0 - _LOWER], _at(f, "cdf", _GRID), _GRID)
        middle, spread = 0.5 * (low + high), 0.5 * (high - low)
        self.compiled = UserCurve(f, density, area, mean, middle, spread, second)

    def __repr__(self) -> str:
        return f"Curve({self.name!r})"


def check_integral(curve: Any, name: str) -> None:
    """Raise ValueError unless the curve has a potential."""
    if not isinstance(curve, UserCurve):
        return
    if curve.integral is None:
        raise ValueError(f"curve {name!r} has no antiderivative; give Curve an integral=...")
    if np.isnan(curve.mean):
        raise ValueError(
            f"curve {name!r} has no potential: the integral of its cdf from -inf diverges, "
            "as the distribution has no mean"
        )


def check_slope(curve: Any, name: str) -> None:
    """Raise ValueError unless the curve has second derivatives."""
    if not has_curvature(curve) or (isinstance(curve, UserCurve) and curve.slope is None):
        raise ValueError(f"curve {name!r} has no second derivative; give Curve a slope=...")


def misses(k: Any, mass: Any) -> Any:
    """Whether the search for the threshold has failed, for rows whose p sums to `mass`."""
    return ~(abs(mass - k) <= _MASS * np.maximum(1.0, k))


def missing_mass(k: Array, p: Array, solution: Array) -> Array:
    """The indices of rows for which the search for the threshold has failed."""
    return np.flatnonzero(misses(k, p.sum(axis=1)) & (solution[:, CODE] != UNDEFINED))


def check_mass(name: str, k: Array, p: Array, solution: Array) -> None:
    """Raise ValueError if the search has failed for any row."""
    missed = missing_mass(k, p, solution)
    if len(missed):
        row = int(missed[0])
        check_one_mass(name, k[row], p[row].sum(), f"row {row}")


def check_one_mass(name: str, k: float, mass: float, row: str = "a row") -> None:
    """Raise ValueError if the sum of p in a row is not k, within the tolerance."""
    if misses(k, mass):
        raise ValueError(
            f"curve {name!r} has no threshold at which {row} has mass k = {k:.10g}: the "
            f"search ended at {mass:.10g}; expected a cdf without jumps"
        )


def _compiled(function: Any, name: str) -> Any:
    if not callable(function):
        raise TypeError(f"{name} is {function!r}; expected a function of one number")
    if isinstance(function, Dispatcher):
        return function
    as_written, other = own(function), vectorised(function)
    if other is not None:
        form = own(other)
        if _agree(_at(as_written, name, _GRID), _at(form, name, _GRID)):
            return form
    return as_written


def _agree(values: Array, others: Array) -> bool:
    """Whether two ways to compute a function differ by rounding alone.

    A small multiple of 2^-55 is the difference of two larger numbers: its last digits are rounding
    errors.
    """
    with np.errstate(invalid="ignore"):  # a slope may be infinite
        noise = np.where(values * 2.0**55 % 1.0 == 0.0, 4.0 * np.finfo(np.float64).eps, _LEAST)
        near = abs(others - values) <= _SAME * abs(values) + noise
    return bool((near | (values == others) | (np.isnan(values) & np.isnan(others))).all())


def _at(function: Any, name: str, points: Array) -> Array:
    """The values of a function at the points; raises TypeError unless they are real numbers."""
    values = [function(t) for t in points.tolist()]
    for t, value in zip(points, values, strict=True):
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"{name}({t}) is {value!r}; expected a real number")
    return np.array(values, np.float64)


def _check_cdf(cdf: Any) -> None:
    values = _at(cdf, "cdf", _GRID)
    for t, p in zip(_GRID, values, strict=True):
        if not -_ROUNDING <= p <= 1.0 + _ROUNDING:
            raise ValueError(f"cdf({t}) is {p}; expected at least 0 and at most 1")
    falls = np.flatnonzero(np.diff(values) < -_ROUNDING)
    if len(falls):
        i = int(falls[0])
        raise ValueError(
            f"cdf decreases: cdf({_GRID[i]}) is {values[i]}, and cdf({_GRID[i + 1]}) is "
            f"{values[i + 1]}; expected a CDF"
        )
    for i, limit in ((0, 0), (-1, 1)):
        if abs(values[i] - limit) > _LIMIT:
            raise ValueError(f"cdf({_GRID[i]}) is {values[i]}; expected about {limit}, its limit")


def _check_pdf(pdf: Any) -> None:
    for t, w in zip(_GRID, _at(pdf, "pdf", _GRID), strict=True):
        if not w >= 0.0:
            raise ValueError(f"pdf({t}) is {w}; expected at least 0")


def _check_slope(function: Any, name: str, derivative: Any, its_name: str, scale: Array) -> None:
    """Raise unless the derivative agrees with difference quotients, where these are reliable."""
    some = _GRID != 0.0
    t = _GRID[some]
    here, h = _at(function, name, t), abs(t) * 2.0**-13
    steps = [h, 0.5 * h, -0.5 * h, -h]
    slopes = [(_at(function, name, t + s) - here) / s for s in steps]
    lowest, highest = np.min(slopes, axis=0), np.max(slopes, axis=0)
    expected, noise = 0.5 * (lowest + highest), _ROUNDING * scale[some] / h
    given = _at(derivative, its_name, t)
    settled = highest - lowest <= _SETTLED * abs(expected) + noise
    right = abs(given - expected) <= _SLOPE * abs(expected) + noise
    wrong = np.flatnonzero(settled & ~right)
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"{its_name}({t[i]}) is {given[i]}; expected about {expected[i]:.6g}, the slope of "
            f"{name} there"
        )


def _mean(cdf: Any, pdf: Any, integral: Any) -> float:
    """The mean of the distribution, lim t - F(t) at inf; NaN if F cannot vanish at -inf."""
    lower = -_far_enough(lambda a: cdf(-a))
    upper = _far_enough(lambda a: 1.0 - cdf(a))
    below, _ = _tail(lambda s: pdf(-s), -lower)
    if not below < np.inf:
        return np.nan
    found = float(integral(lower))
    if not abs(found - below) <= 1e-6 * max(1.0, -lower):
        raise ValueError(
            f"integral({lower}) is {found}; expected about {below:.6g}: the antiderivative of cdf "
            "that vanishes at -inf"
        )
    above, error = _tail(pdf, upper)
    mean = upper - float(integral(upper)) + above
    return mean if abs(mean) > error + _ROUNDING * upper else 0.0


def _far_enough(tail: Callable[[float], float]) -> float:
    """A distance beyond which at most a hundredth of the distribution is left."""
    return float(next((a for a in 2.0 ** np.arange(5, 100) if tail(a) <= 0.01), 2.0**100))


def _tail(pdf: Any, a: float) -> tuple[float, float]:
    """The integral of (s - a) pdf(s) from a to inf, and its error; inf if it diverges."""
    from scipy import integrate  # takes a while to import, and few need it

    value, error, *rest = integrate.quad(
        lambda v: a * a * v * pdf(a * (1.0 + v)),
        0.0,
        np.inf,
        limit=500,
        epsabs=1e-14,
        epsrel=1e-12,
        full_output=1,
    )
    divergent = len(rest) > 1 and "divergent" in rest[1]
    if divergent or not 0.0 <= value < np.inf or error > 1e-6 * max(1.0, value):
        return np.inf, 0.0
    return float(value), float(error)
