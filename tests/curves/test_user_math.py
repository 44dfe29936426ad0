"""What stands in for the functions of `math` in a user's own curve."""

from __future__ import annotations

import math
from math import atan, exp

import mpmath
import numpy as np
import pytest
from numba import njit

import softtopk_nb as stk
from softtopk_nb._curves import user_math

RANGES = {  # of t; and of the error, in units of 2^-52
    "exp": ((-700.0, 700.0), 3.0),
    "log": ((1e-300, 1e300), 3.0),
    "log1p": ((-0.999, 1e3), 4.0),
    "tanh": ((-30.0, 30.0), 6.0),
    "atan": ((-1e9, 1e9), 5.0),
    "erf": ((-7.0, 7.0), 4.0),
    "erfc": ((-7.0, 26.0), 8.0),
}


@pytest.mark.parametrize("name", RANGES)
def test_accuracy(name, rng):
    """Relative, of small results too, at any order of magnitude; and what they say at the ends."""
    (low, high), most = RANGES[name]
    form = user_math.FORMS[getattr(math, name)]
    compiled = njit(error_model="numpy")(lambda t: form(t))
    near = np.concatenate([10.0 ** rng.uniform(-290, 2, 500), rng.uniform(0, 3, 500)])
    t = np.concatenate([near, -near, rng.uniform(max(low, -1e3), min(high, 1e3), 500)])
    exact, worst = getattr(mpmath, name), 0.0
    with mpmath.workdps(40):
        for each in t[(t >= low) & (t <= high) & (t != 0.0)].tolist():
            value = exact(mpmath.mpf(each))
            if abs(value) > 1e-290:
                worst = max(worst, float(abs((mpmath.mpf(compiled(each)) - value) / value)))
    assert 0.1 < worst * 2.0**52 < most
    assert math.isnan(compiled(math.nan))
    assert compiled(math.inf) == {"exp": math.inf, "log": math.inf, "log1p": math.inf}.get(
        name, {"erfc": 0.0, "atan": math.atan(math.inf)}.get(name, 1.0)
    )


def sigmoid(t):
    return 1.0 / (1.0 + math.exp(-t)) if t >= 0.0 else exp(t) / (1.0 + exp(t))


def test_names_that_are_replaced():
    """By the module, by their own name, and held by a closure; nothing else changes."""
    tangent, number = atan, 2.0

    def held(t):
        return 0.5 + tangent(t) / (math.pi * (number - 1.0))

    for function in (sigmoid, held):
        other = user_math.vectorised(function)
        assert other is not function
        assert other.__code__ is function.__code__
        for t in (-3.0, 0.0, 0.4):
            assert abs(njit(other)(t) - function(t)) < 1e-15
    assert user_math.vectorised(lambda t: t + number) is None
    assert user_math.vectorised(math.exp) is None
    assert sigmoid.__globals__["exp"] is math.exp


@pytest.mark.slow
def test_curves_are_those_built_in(rng):
    x = 3.0 * rng.normal(size=(20, 200))
    mine = {
        "sigmoid": stk.Curve(sigmoid, lambda t: exp(-abs(t)) / (1.0 + exp(-abs(t))) ** 2),
        "cauchy": stk.Curve(
            lambda t: 0.5 + math.atan(t) / math.pi, lambda t: 1.0 / (math.pi * (1.0 + t * t))
        ),
        "normal": stk.Curve(
            lambda t: 0.5 * math.erfc(-t / math.sqrt(2.0)),
            lambda t: math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi),
        ),
    }
    for name, curve in mine.items():
        for k in (1, 30, 199):
            expected = stk.thretopk(x, k, curve=name, temperature=0.5)
            p = stk.thretopk(x, k, curve=curve, temperature=0.5)
            np.testing.assert_allclose(p, expected, rtol=1e-9, atol=1e-13)


def test_a_form_that_differs_is_not_taken(monkeypatch):
    """Beyond rounding: then a curve is left as it was written."""
    wrong = user_math.FORMS[math.tanh]
    monkeypatch.setitem(user_math.FORMS, math.exp, wrong)
    monkeypatch.setattr(user_math._MATH, "exp", wrong)
    curve = stk.Curve(sigmoid, lambda t: exp(-abs(t)) / (1.0 + exp(-abs(t))) ** 2)
    assert curve.compiled.cdf.py_func is sigmoid
    p = stk.thretopk([3.0, 1.0, 2.0, 0.5], 2, curve=curve)
    np.testing.assert_allclose(
        p, stk.thretopk([3.0, 1.0, 2.0, 0.5], 2, curve="sigmoid"), atol=1e-12
    )
