"""Formulas for one entry, shared by the CPU and a device."""

from __future__ import annotations

import numpy as np

from .._compile.decorators import scalar
from .._curves.base import curvature, excess, has_mean, split
from .._math.elementary import fma


@scalar
def weight(curve, t):
    """w = f'(t)."""
    _, _, _, w = split(curve, t)
    return w


@scalar
def weight_and_curvature(curve, t):
    """w = f'(t), and f''(t), 0 where the entry is saturated."""
    _, a, b, w = split(curve, t)
    zero = type(t)(0)
    return w, curvature(curve, t, a, b, w) if w > zero else zero


@scalar
def weighted_t(w, t):
    """w t, and 0 for w = 0: t of a saturated entry may be infinite, and 0 * inf is not 0."""
    T = type(t)
    return w * t if w > T(0) else T(0)


@scalar
def tangent(w, t, v, inv, mean, dtau):
    """The derivative of p, (w/tau) (v - t dtau - mean): thm-jacobian, thm-derivatives-k-tau."""
    T = type(t)
    move = v - mean
    if dtau != T(0) and w > T(0):
        move -= t * dtau
    return w * inv * move


@scalar
def motion(w, t, v, inv, mean, dtau):
    """The derivative of t along a direction, (v - t dtau - mean)/tau; 0 for a saturated entry."""
    T = type(t)
    move = v - mean
    if dtau != T(0):
        move -= t * dtau
    return inv * move if w > T(0) else T(0)


@scalar
def second_motion(w, u, z, y, dz, dy):
    """s of Theorem thm-second-derivative: f'' z y - f' (z dy + y dz).

    z, y: of `motion` along two directions, which move the temperature by tau dz and tau dy.
    """
    return u * z * y - w * (z * dy + y * dz)


@scalar
def centre(w0, moved):
    """The derivative of the threshold, if the entries alone change the sum of p by `moved`/tau."""
    # All weights are zero: every entry is saturated, and nothing moves.
    return moved / w0 if w0 > 0.0 else 0.0


@scalar
def smoothed(curve, value, tau, c, d):
    """(tau F(t) - tau max(t, 0), the entry itself if t >= 0 else 0, whether t >= 0).

    For t >= 0, tau F(t) + lambda is x plus a tail: summing t would only cancel again.
    """
    zero = type(value)(0)
    t = (value - c) / tau - d
    upper = t >= zero
    return tau * excess(curve, t), value if upper else zero, upper


@scalar
def potential_of_nothing(curve, entries):
    """phi at k = 0 for a row of `entries` entries: the sum of F(-inf)."""
    return 0.0 if has_mean(curve) or entries == 0 else -np.inf


# With costs: sum c p = k and p = f((x - lambda c)/tau), lambda = lam + tau d.


@scalar
def priced_t(x, c, lam, inv, d, shift):
    """t = (x - lambda c)/tau - shift, where the first difference is rounded once."""
    return fma(-lam, c, x) * inv - c * d - shift


@scalar
def priced_tangent(w, t, v, c, inv, price, dtau):
    """The derivative of p, (w/tau) (v - t dtau - price c): thm-prices-derivatives."""
    T = type(t)
    move = v - price * c
    if dtau != T(0) and w > T(0):
        move -= t * dtau
    return w * inv * move
