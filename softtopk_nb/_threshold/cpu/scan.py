"""The algorithm of Su (2024): sort the row, and try every number m of entries above the threshold.

With the entries sorted, sums over the m largest and over the rest follow from one m to the next
by recurrences whose exponents are never positive, so that nothing overflows. All m from 0 to n
are tried, n included: for laplace the threshold lies below every entry when k is close to n
(Proposition prop-scan).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._compile.decorators import overload_scalar, scalar
from ..._curves.clip import Clip
from ..._curves.exp import Exp
from ..._curves.laplace import Laplace
from ..closed_form import below, beyond, within


@scalar
def scan(x, curve, k, inv):
    """(pivot, d): the threshold is pivot + tau d, for the curves exp, laplace and clip."""
    ascending = np.sort(x)
    n = x.shape[0]
    pivot = np.float64(ascending[n - 1])
    z = np.empty(n)  # descending, in units of the temperature, from 0 down
    for j in range(n):
        z[j] = (np.float64(ascending[n - 1 - j]) - pivot) * inv
    return pivot, scan_sorted(curve, z, k)


@scalar
def lower_sums(z):
    """b_j = sum over i > j of e^(z_i - z_j)."""
    b = np.empty(z.shape[0])
    b[-1] = 0.0
    for j in range(z.shape[0] - 2, -1, -1):
        b[j] = (1.0 + b[j + 1]) * math.exp(z[j + 1] - z[j])
    return b


@scalar
def _scan_exp(curve, z, k):
    # At l = z_j the mass is (j + 1) + b_j: it grows with j, and the first to reach k ends m = j.
    b = lower_sums(z)
    m = 0
    while m < z.shape[0] - 1 and (m + 1) + b[m] < k:
        m += 1
    return beyond(z[m], b[m], k - m)


@scalar
def _scan_laplace(curve, z, k):
    # At l = z_j the mass is (j + 1) - a_j/2 + b_j/2, a_j = sum over i <= j of e^(z_j - z_i).
    n = z.shape[0]
    b = lower_sums(z)
    above = 0.0  # a_(m-1), relative to z_(m-1)
    m = 0
    while m < n:
        a = 1.0 + (above * math.exp(z[m] - z[m - 1]) if m > 0 else 0.0)
        if (m + 1) - 0.5 * a + 0.5 * b[m] >= k:
            break
        above = a
        m += 1
    if m == 0:
        return beyond(z[0], b[0], 2.0 * k)
    if m == n:
        return below(z[n - 1], above, n - k)
    return within(z[m - 1], z[m], above, 1.0 + b[m], k - m)


@scalar
def _scan_clip(curve, z, k):
    # The sum of p is linear in lambda between the points where lambda passes a z_j (that entry
    # leaves 0) or a z_j - 1 (it reaches 1). `full` entries are 1, those up to `some` lie between
    # and sum to `mass` at lambda; only differences of these points are used, so that nothing
    # cancels. From 2^53 temperatures on z_j - 1 is z_j, and such an interval becomes a point.
    n = z.shape[0]
    lam, full, some, mass = z[0], 0, 0, 0.0
    while full < n:
        enters = z[some] if some < n else -np.inf
        leaves = z[full] - 1.0
        end = max(enters, leaves)
        inside = some - full
        if inside > 0:
            if full + mass + inside * (lam - end) >= k:
                return lam - (k - full - mass) / inside  # Theorem thm-closed-form-clip
            mass += inside * (lam - end)
        lam = end
        if some < n and enters >= leaves:
            some += 1
        else:
            full += 1
            mass = max(mass - 1.0, 0.0)
            if full >= k:
                return lam
    return lam


@scalar
def _scan_none(curve, z, k):
    return np.nan  # no closed form: the operator refuses method="scan" for such a curve


_SCANS = {Exp: _scan_exp, Laplace: _scan_laplace, Clip: _scan_clip}


#: Types of the curves that have an analytic scan.
SCANNED = tuple(_SCANS)


def scan_sorted(curve: Any, z: Any, k: float) -> float:
    """The threshold of a row sorted in descending order, at temperature 1."""
    return _SCANS[type(curve)](curve, z, k)


@overload_scalar(scan_sorted)
def _scan_sorted(curve, z, k):
    return _SCANS.get(curve.instance_class, _scan_none)
