"""What is known of each curve as the CDF of a law: integral, quantile, mean and variance.

The functions that `curves` chooses from, by the type of the curve.
"""

from __future__ import annotations

import math

from .._compile import scalar
from .._special import normal_tail

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
    "quantile_clip",
    "quantile_entmax",
    "quantile_exp",
    "quantile_laplace",
    "quantile_normal",
    "quantile_sigmoid",
]


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
    alpha = curve.alpha
    s = min(max((alpha - 1.0) * t, 0.0), 1.0)
    return math.pow(s, alpha / (alpha - 1.0)) / alpha - s / (alpha - 1.0)


@scalar
def excess_user(curve, t):
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
    return math.pow(u, curve.alpha - 1.0) / (curve.alpha - 1.0)


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
    # Of q U^(1/q), U uniform.
    q = 1.0 / (curve.alpha - 1.0)
    share = q / (q + 1.0)
    variance = share * share / (q * (q + 2.0))  # of U^(1/q): its j-th moment is q/(q + j)
    third, fourth = q / (q + 3.0), q / (q + 4.0)
    central = (
        fourth - 4.0 * share * third + share * share * (6.0 * q / (q + 2.0) - 3.0 * share * share)
    )
    return q * share, q * q * variance, central / (variance * variance) - 3.0


@scalar
def law_user(curve):
    return 0.0, 2.0, 3.0  # not known; as good as any
