"""Formulas for one entry, shared by loops on the CPU and threads of a device.

An entry is a, in float64; z = (a - ref) * inv. On the CPU the formulas inside sums are compiled
with the flags of their loops; a device compiles the same functions without flags.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._compile.decorators import scalar, summing
from .._math.elementary import exp_neg

TIED = 2.0**-48  # temperatures; Weighted: entries this close below the largest count as equal to it
FAR = 500.0  # temperatures; e^-500 is negligible beside 1, and its reciprocal far from overflow
LARGEST = 1e250  # derivatives are clipped to this: an overflow must not turn into inf - inf
TINY = 2.0**-1022  # the smallest normal number; shorter temperatures act as this one


class Plain(NamedTuple):
    """s = softmax((1 - p) z), z = 0 at the smallest entry."""

    lowest: bool = True
    tied: float = 0.0


class Weighted(NamedTuple):
    """s = (1 - p) e^z / sum((1 - p) e^z), z = 0 at the largest entry."""

    lowest: bool = False
    tied: float = TIED


@scalar
def scale(kind, low, high, tau):
    """(half, inv, rate, ref) of a row with range low .. high, to be multiplied by `half`."""
    half = 1.0 if high - low < np.inf else 0.5
    rate = 1.0 / (tau if tau > TINY else TINY)
    return half, rate / half, rate, (low if kind.lowest else high) * half


@scalar
def lies_at_zero(kind, a, ref, inv):
    """Whether an entry counts as equal to the one at z = 0.

    A sum of weights that are differences from 1 cannot resolve such entries.
    """
    return abs(a - ref) * inv <= kind.tied


@scalar
def hold(v):
    """v clipped to +-LARGEST; NaN stays NaN."""
    return LARGEST if v > LARGEST else -LARGEST if v < -LARGEST else v


@summing
def z_of(a, ref, inv):
    """z, clipped to where derivatives can use it."""
    return hold((a - ref) * inv)


# The shares of a step, and their derivatives q = alpha dz - beta dp.


@scalar
def score(b, p):
    """(1 - p) z in the units of x, b = a - ref; rounded alike everywhere, to be compared."""
    return (1.0 - p) * b


@summing
def plain_slope(a, p, s, ref, inv):
    """(alpha, beta): dy = (1 - p) dz - z dp, and q = s dy."""
    return s * (1.0 - p), s * z_of(a, ref, inv)


@scalar
def ahead(ref, second, inv):
    """The distance of the maxima from the largest other entry, in temperatures, at most FAR."""
    gap = (ref - second) * inv
    return FAR if gap > FAR else gap


@scalar
def relative(a, ref, second, inv, gap):
    """e^z relative to the maxima.

    The other entries are computed relative to their largest, so that a maximum far away costs them
    no digits, and the maxima are at most FAR above it: beyond that they are saturated (Proposition
    prop-iter-maxima).
    """
    t = (a - second) * inv - gap
    return exp_neg(t) if a < ref else 1.0


@summing
def weight(p, e):
    """(1 - p) e^z, the weight of an entry; settled maxima have another formula."""
    return (1.0 - p) * e


@summing
def weighted_slope(s, e, total):
    """(alpha, beta): q = s dz + (e / sum) dw, dw = -dp."""
    return s, e / total


# Derivatives of the iteration (Theorem thm-iter-derivatives).


@summing
def tangent_z(a, v, base, dtau, ref, inv, rate):
    """dz along dx = v and dtau; `base` is v at the zero of z."""
    turned = hold(z_of(a, ref, inv) * hold(dtau * rate))
    return hold(hold((v - base) * rate) - turned)


@summing
def tangent_q(alpha, beta, dz, dp, at_zero, mean, kappa, others):
    """q of an entry; at z = 0 with the term of settled maxima from the others' dp."""
    q = alpha * dz - beta * (dp - mean if at_zero else dp)
    return hold(q + kappa * others if at_zero else q)


@summing
def tangent_p(dp, q, s, total):
    """Update dp by a step."""
    return hold(dp + (q - s * total))


@summing
def adjoint_z(gz, alpha, b):
    """Add the contribution of a step to the gradient in z; b is the gradient in q."""
    return hold(gz + alpha * b)


@summing
def adjoint_p(adj, beta, b, at_zero, mean, kappa, total):
    """Propagate the gradient in p back over a step."""
    before = adj - beta * (b - mean if at_zero else b)
    return hold(before if at_zero else before + kappa * total)


@summing
def adjoint_temperature(a, gz, ref, inv):
    """The contribution of an entry to the gradient in the temperature."""
    return hold(gz * z_of(a, ref, inv))


@summing
def adjoint_x(gz, at_zero, base, rate):
    """The gradient in an entry from that in z."""
    return (gz - (base if at_zero else 0.0)) * rate
