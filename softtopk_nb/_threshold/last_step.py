"""What the last pass and the last step of a search need of each curve, for `curves` to choose from.

``slope``: the sum of f' over a row, where sums of f tell. ``rate``: f'(t) from f(t). ``within``: p
back in [0, 1]. ``clearance``: how far the threshold may move while f stays linear at an entry.
"""

from __future__ import annotations

from .._compile import scalar

__all__ = [
    "as_it_is",
    "clamped",
    "clearance_of_clip",
    "never_clear",
    "rate_as_computed",
    "rate_of_clip",
    "rate_of_exp",
    "rate_of_laplace",
    "rate_of_sigmoid",
    "slope_as_summed",
    "slope_of_exp",
    "slope_of_laplace",
]


@scalar
def rate_of_exp(curve, p, w):
    T = type(p)
    return p if p < T(1) else T(0)


@scalar
def rate_of_sigmoid(curve, p, w):
    return p * (type(p)(1) - p)


@scalar
def rate_of_laplace(curve, p, w):
    q = type(p)(1) - p
    return p if p < q else q


@scalar
def rate_of_clip(curve, p, w):
    T = type(p)
    return T(1) if (p > T(0)) & (p < T(1)) else T(0)


@scalar
def rate_as_computed(curve, p, w):
    return w


@scalar
def never_clear(curve, t):
    return type(t)(0)


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
