"""Vectorising forms of functions of the module `math`, for a user's own curve.

Numba calls the C library for each number, and a loop with such a call is not vectorised. These are
accurate to a few units in the last place, for small results too.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

from .._compile.decorators import scalar
from .._math.elementary import exp_neg, fma
from .._math.special import log_of_sum, natural_log, normal_tail
from .cauchy import cauchy_tail

TINY = 2.0**-1022
_ROOT_2, _REST = math.sqrt(2.0), -9.667293313452913e-17  # the square root of 2 is their sum
# erf(t)/t in powers of t^2, for |t| < 1/2.
_TAYLOR = tuple(
    (-1) ** j * 2 / math.sqrt(math.pi) / math.factorial(j) / (2 * j + 1) for j in range(13)
)


@scalar
def _exp(t):
    t = float(t)
    e = exp_neg(-abs(t))
    return t if t != t else e if t <= 0.0 else 1.0 / e


@scalar
def _log(s):
    s = float(s)
    usual = (s >= TINY) & (s < math.inf)
    found = natural_log(s if usual else 1.0)
    edge = s if s == math.inf else -math.inf if s == 0.0 else math.nan
    return found if usual else edge


@scalar
def _log1p(s):
    s = float(s)
    whole = 1.0 + s
    usual = (whole >= TINY) & (whole < math.inf)
    found = log_of_sum(whole if usual else 1.0, s - (whole - 1.0) if usual else 0.0)
    edge = whole if whole == math.inf else -math.inf if whole == 0.0 else math.nan
    return found if usual else edge


@scalar
def _tanh(t):
    # 1 - e with e = e^-s is (1 - e) s/-log(e), in which the rounding error of e cancels (Kahan).
    s = 2.0 * abs(float(t))
    e = exp_neg(-s)
    usual = (e < 1.0) & (e >= TINY)
    lacks = (1.0 - e) * (s / -natural_log(e if usual else 0.5) if usual else 1.0)
    return t if t != t else math.copysign((lacks if e < 1.0 else s) / (1.0 + e), t)


@scalar
def _atan(t):
    s = abs(float(t))
    tail = cauchy_tail(1.0 / (1.0 if s == 0.0 else s))
    return math.copysign(math.pi * tail if s != 0.0 else 0.0, t)


@scalar
def _erfc(t):
    t = float(t)
    s = abs(t) if abs(t) < 64.0 else 64.0
    u = _ROOT_2 * s
    tail, density = normal_tail(u)
    tail -= (fma(_ROOT_2, s, -u) + _REST * s) * density  # corrects for the rounding error of u
    return t if t != t else 2.0 * tail if t >= 0.0 else 2.0 - 2.0 * tail


@scalar
def _erf(t):
    t = float(t)
    s = abs(t)
    z = s * s if s < 0.5 else 0.25
    series = _TAYLOR[-1]
    for j in range(len(_TAYLOR) - 2, -1, -1):
        series = fma(series, z, _TAYLOR[j])
    return t if t != t else math.copysign(s * series if s < 0.5 else 1.0 - _erfc(s), t)


FORMS: dict[Any, Any] = {
    math.exp: _exp,
    math.log: _log,
    math.log1p: _log1p,
    math.tanh: _tanh,
    math.atan: _atan,
    math.erfc: _erfc,
    math.erf: _erf,
}
_MATH = types.ModuleType("math")
_MATH.__dict__.update(vars(math), **{function.__name__: FORMS[function] for function in FORMS})


def _form_of(value: Any, used: set[str]) -> Any:
    """The vectorising form of a value, for a function that uses the names `used`, or the value."""
    if value is math:
        return _MATH if used & {function.__name__ for function in FORMS} else math
    try:
        return FORMS.get(value, value)
    except TypeError:  # not hashable
        return value


def vectorised(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A copy of a Python function with these forms in place of `math`'s; None if it uses none."""
    if not isinstance(function, types.FunctionType):
        return None
    used = set(function.__code__.co_names)
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    known = {name: function.__globals__.get(name) for name in used}
    forms = {name: _form_of(value, used) for name, value in known.items()}
    cells = [_form_of(value, used) for value in held]
    if all(forms[name] is known[name] for name in known) and all(
        a is b for a, b in zip(cells, held, strict=True)
    ):
        return None
    other = types.FunctionType(
        function.__code__,
        {**function.__globals__, **{n: f for n, f in forms.items() if f is not known[n]}},
        function.__name__,
        function.__defaults__,
        tuple(types.CellType(value) for value in cells),
    )
    other.__kwdefaults__ = function.__kwdefaults__
    return other
