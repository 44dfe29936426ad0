"""A user's own curve."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher

from .._threshold.curves import UserCurve

__all__ = ["Curve", "check_integral"]

# Where a curve is looked at before it is accepted.
_PROBES = (-30.0, -3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0, 10.0, 30.0)


class Curve:
    """A curve for `thretopk` from two scalar functions that Numba can compile.

    Parameters
    ----------
    cdf : callable
        f(t): non-decreasing, continuous, from 0 at -inf to 1 at +inf; float to float.
    pdf : callable
        f'(t). It steers the solver and is the weight of every derivative.
    name : str, optional
        What to call the curve in messages; the name of `cdf` by default.
    integral : callable, optional
        The antiderivative of `cdf` that vanishes at -inf, for `thretopk.potential` only.

    Raises
    ------
    TypeError
        Something is not callable, or does not return a real number.
    ValueError
        `cdf` leaves [0, 1] or decreases, or `pdf` is negative, at one of a few points looked at.

    Notes
    -----
    Plain Python functions are compiled by Numba at the first use, which takes a few seconds for
    each operator method and type; nothing of it is kept on disk. Functions that are compiled
    already are used as they are. A tail is computed as 1 - cdf(t): unlike the built-in curves,
    p close to 1 has an absolute accuracy of rounding, not a relative one.

    Examples
    --------
    >>> import math
    >>> import softtopk_nb as stk
    >>> cauchy = stk.Curve(
    ...     lambda t: 0.5 + math.atan(t) / math.pi,
    ...     lambda t: 1 / (math.pi * (1 + t * t)),
    ...     name="cauchy",
    ... )
    >>> stk.thretopk([3.0, 2.0, 1.0, 4.0], 2, curve=cauchy, temperature=0.1).round(3)
    array([0.937, 0.063, 0.021, 0.979])
    """

    def __init__(
        self,
        cdf: Callable[[float], float],
        pdf: Callable[[float], float],
        *,
        name: str | None = None,
        integral: Callable[[float], float] | None = None,
    ) -> None:
        _probe(cdf, "cdf", 1.0)
        _probe(pdf, "pdf", np.inf)
        values = [float(cdf(t)) for t in _PROBES]
        if any(b < a for a, b in itertools.pairwise(values)):
            raise ValueError(f"cdf decreases between some of {_PROBES}; expected a CDF")
        if integral is not None and not callable(integral):
            raise TypeError(f"integral is {integral!r}; expected a function of one number")
        self.name = str(name or getattr(cdf, "__name__", "curve"))
        self.compiled = UserCurve(
            _compiled(cdf), _compiled(pdf), None if integral is None else _compiled(integral)
        )

    def __repr__(self) -> str:
        return f"Curve({self.name!r})"


def check_integral(curve: Any, name: str) -> None:
    """Raise unless the curve can have a potential."""
    if isinstance(curve, UserCurve) and curve.integral is None:
        raise ValueError(f"curve {name!r} has no antiderivative; give Curve an integral=...")


def _compiled(function: Any) -> Any:
    if isinstance(function, Dispatcher):
        return function
    return njit(fastmath=False, error_model="numpy")(function)


def _probe(function: Any, name: str, most: float) -> None:
    if not callable(function):
        raise TypeError(f"{name} is {function!r}; expected a function of one number")
    for t in _PROBES:
        value = function(t)
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"{name}({t}) is {value!r}; expected a real number")
        if not 0.0 <= value <= most:
            raise ValueError(f"{name}({t}) is {value}; expected at least 0 and at most {most}")
