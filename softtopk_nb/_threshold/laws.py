"""What is known of each curve as the CDF of a law: integral, quantile, moments, origin.

The functions that `curves` chooses from, by the type of the curve.
"""

from __future__ import annotations

import math

from .._compile import scalar
from .._special import normal_tail
from .curve_types import FARTHEST
from .pieces import lifted, split_user

__all__ = [
    "excess_clip",
    "excess_entmax",
    "excess_exp",
    "excess_laplace",
    "excess_normal",
    "excess_sigmoid",
    "excess_user",
    "law_clip",
    "law_entmax",
    "law_exp",
    "law_laplace",
    "law_normal",
    "law_sigmoid",
    "law_user",
    "no_origin",
    "origin_entmax",
    "quantile_clip",
    "quantile_entmax",
    "quantile_exp",
    "quantile_laplace",
    "quantile_normal",
    "quantile_sigmoid",
    "quantile_user",
]


@scalar
def no_origin(curve):
    return 0.0


@scalar
def origin_entmax(curve):
    return 1.0 / (curve.alpha - 1.0) if lifted(curve) else 0.0


@scalar
def excess_exp(curve, t):
    return 1.0 if t >= 0.0 else math.exp(t)


@scalar
def excess_sigmoid(curve, t):
    return math.log1p(math.exp(-abs(t)))


@scalar
def excess_laplace(curve, t):
    return 0.5 * math.exp(-abs(t))


@scalar
def excess_clip(curve, t):
    s = min(max(t, 0.0), 1.0)
    return 0.5 * s * s - s


@scalar
def excess_normal(curve, t):
    s = abs(t)
    density = math.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
    # s = inf: both terms vanish, their product form would be inf * 0.
    return density - s * 0.5 * math.erfc(s * math.sqrt(0.5)) if s < 40.0 else 0.0


@scalar
def excess_entmax(curve, t):
    alpha, rate = curve.alpha, curve.alpha - 1.0
    if lifted(curve):
        if t >= 0.0:
            return 1.0 / alpha
        y = rate * t
        return math.exp(math.log1p(y) * (alpha / rate)) / alpha if y > -1.0 else 0.0
    s = min(max(rate * t, 0.0), 1.0)
    return math.pow(s, alpha / rate) / alpha - s / rate


@scalar
def excess_user(curve, t):
    if abs(t) > FARTHEST:
        return 0.0 if t < 0.0 else -curve.mean
    return curve.integral(t) - max(t, 0.0)


@scalar
def quantile_exp(curve, u):
    return math.log(u)


@scalar
def quantile_sigmoid(curve, u):
    return math.log(u) - math.log1p(-u)


@scalar
def quantile_laplace(curve, u):
    return math.log(2 * u) if u < 0.5 else -math.log(2 * (1 - u))


@scalar
def quantile_clip(curve, u):
    return u


@scalar
def quantile_entmax(curve, u):
    rate = curve.alpha - 1.0
    return math.expm1(rate * math.log(u)) / rate + (0.0 if lifted(curve) else 1.0 / rate)


@scalar
def quantile_normal(curve, u):
    # Newton on log Phi, which is concave: from the left it climbs to the root and never passes
    # it. Phi(t) <= e^(-t^2/2)/2 says where to begin.
    share = u if u < 0.5 else 1.0 - u
    t = -math.sqrt(-2.0 * math.log(2.0 * share))
    for _ in range(6):
        tail, density = normal_tail(-t)
        if not (tail > 0.0 and density > 0.0):
            break
        t = min(0.0, t + math.log(share / tail) * tail / density)
    return t if u < 0.5 else -t


@scalar
def _cdf(curve, t):
    u, a, b, _ = split_user(curve, t)
    return u - a + b


@scalar
def quantile_user(curve, u):
    # The inverse has no formula: double until it is bracketed, then halve.
    reach = 1.0
    while reach < 1e300 and (_cdf(curve, -reach) > u or _cdf(curve, reach) < u):
        reach *= 2.0
    lo, hi = -reach, reach
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if mid <= lo or mid >= hi:
            break
        if _cdf(curve, mid) < u:
            lo = mid
        else:
            hi = mid
    return 0.5 * (lo + hi)


@scalar
def law_exp(curve):
    return -1.0, 1.0, 6.0


@scalar
def law_sigmoid(curve):
    return 0.0, math.pi * math.pi / 3.0, 1.2


@scalar
def law_laplace(curve):
    return 0.0, 2.0, 3.0


@scalar
def law_clip(curve):
    return 0.5, 1.0 / 12.0, -1.2


@scalar
def law_normal(curve):
    return 0.0, 1.0, 0.0


@scalar
def law_entmax(curve):
    # Of q U^(1/q), less q if it is lifted, q = 1/rate and U uniform.
    rate = curve.alpha - 1.0
    mean = 1.0 / curve.alpha
    variance = mean * mean / (1.0 + 2.0 * rate)
    skewed = (1.0 - rate) * (1.0 - rate) * (1.0 + 2.0 * rate) - rate * (1.0 + 3.0 * rate)
    excess = 6.0 * skewed / ((1.0 + 3.0 * rate) * (1.0 + 4.0 * rate))
    return -mean if lifted(curve) else mean / rate, variance, excess


@scalar
def law_user(curve):
    return 0.0, 2.0, 3.0  # not known; as good as any
