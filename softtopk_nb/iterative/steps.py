"""One step of an iteration: the shares s that it adds to p, and how they change with z and p.

Both constructions repeat p += s(z, p) with shares that sum to 1. The slopes of a step are two rows,

    ds = q - s sum(q),   q = alpha dz - beta dp

(and a term of rank one, see `slopes`), so that derivatives of either iteration are the same loop.
A row is kept as `a`, its entries in float64, and `facts`, numbers about it;
z = (a - facts[REF]) * facts[INV].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._compile import overload_scalar, row, scalar, summing
from .._scalars import exp_neg, from_ordinal, to_ordinal

__all__ = [
    "COUNT",
    "FACTS",
    "INV",
    "RATE",
    "REF",
    "Plain",
    "Weighted",
    "hold",
    "open_row",
    "shares",
    "slopes",
]

# Numbers about a row. It is halved where its spread overflows: INV is the reciprocal temperature
# of the halved row, RATE that of the row as given.
INV, RATE = 0, 1
REF, COUNT = 2, 3  # where z is 0, and how many entries lie there
FACTS = 4

TIED = 2.0**-48  # temperatures; Weighted: entries this close below the largest count as equal
FAR = 500.0  # temperatures; e^-500 is nothing beside 1, and its reciprocal far from overflow
LARGEST = 1e250  # derivatives stop here: an overflow must not turn into inf - inf


class Plain(NamedTuple):
    """s = softmax((1 - p) z), z = 0 at the smallest entry."""

    lowest: bool = True
    tied: float = 0.0


class Weighted(NamedTuple):
    """s = (1 - p) e^z / sum((1 - p) e^z), z = 0 at the largest entry."""

    lowest: bool = False
    tied: float = TIED


@scalar
def hold(v):
    """Keep v within +-LARGEST, NaN as it is."""
    return LARGEST if v > LARGEST else -LARGEST if v < -LARGEST else v


@summing
def _plain_shares(kind, t, a, facts, p, e, s):
    # y stays in the units of x until its maximum is taken off: nothing overflows on the way up,
    # and what overflows on the way down has the exponential 0.
    ref, inv = facts[REF], facts[INV]
    highest = to_ordinal(-np.inf)
    for i in range(a.shape[0]):
        s[i] = (1.0 - p[i]) * (a[i] - ref)
        o = to_ordinal(s[i])
        highest = o if o > highest else highest
    top = from_ordinal(highest)
    total = 0.0
    for i in range(a.shape[0]):
        s[i] = exp_neg((s[i] - top) * inv)
        total += s[i]
    for i in range(a.shape[0]):
        s[i] /= total


@summing
def _plain_slopes(kind, t, a, facts, p, e, s, alpha, beta):
    # dy = (1 - p) dz - z dp, and q = s dy.
    ref, inv = facts[REF], facts[INV]
    for i in range(a.shape[0]):
        alpha[i] = s[i] * (1.0 - p[i])
        beta[i] = s[i] * hold((a[i] - ref) * inv)
    return 0.0


@row
def _open_weighted(kind, a, facts, e):
    # e^z relative to the leaders, the entries at the maximum. All others are seen from the largest
    # of them, so that a leader far away costs them no digits, and the leaders are at most FAR
    # above it: what lies further is saturated (Proposition prop-iter-leaders).
    ref, inv = facts[REF], facts[INV]
    highest = to_ordinal(-np.inf)
    for i in range(a.shape[0]):
        o = to_ordinal(a[i] if a[i] < ref else -np.inf)
        highest = o if o > highest else highest
    second = from_ordinal(highest)
    gap = (ref - second) * inv
    gap = FAR if gap > FAR else gap
    for i in range(a.shape[0]):
        t = (a[i] - second) * inv - gap
        e[i] = exp_neg(t) if a[i] < ref else 1.0


@summing
def _weights(t, a, facts, p, e, u):
    """Write u = (1 - p) e^z; returns sum(u), and whether 1 - p of the leaders came from the others.

    After as many steps as there are leaders, 1 - p of a leader is what the others have received,
    shared among the leaders (Proposition prop-iter-leaders): as a difference from 1 it would lose
    as many digits as the leaders lie ahead, and the others' u is no larger.
    """
    ref, leaders = facts[REF], facts[COUNT]
    settled = t == leaders
    left = 0.0
    if settled:
        for i in range(a.shape[0]):
            left += p[i] if a[i] < ref else 0.0
        left /= leaders
    total = 0.0
    for i in range(a.shape[0]):
        u[i] = left if settled and a[i] == ref else (1.0 - p[i]) * e[i]
        total += u[i]
    return total, settled


@summing
def _weighted_shares(kind, t, a, facts, p, e, s):
    total, _ = _weights(t, a, facts, p, e, s)
    for i in range(a.shape[0]):
        s[i] /= total


@summing
def _weighted_slopes(kind, t, a, facts, p, e, s, alpha, beta):
    # q = s dz + (e / sum) dw, dw = -dp. Settled leaders are equal, but may move apart: the mean of
    # their dw is the sum of the others' dp, shared, and e = 1.
    total, settled = _weights(t, a, facts, p, e, beta)
    for i in range(a.shape[0]):
        alpha[i] = s[i]
        beta[i] = e[i] / total
    return 1.0 / (total * facts[COUNT]) if settled else 0.0


@scalar
def _open_plain(kind, a, facts, e):
    return None


_OPEN: dict[type, Any] = {Plain: _open_plain, Weighted: _open_weighted}
_SHARES: dict[type, Any] = {Plain: _plain_shares, Weighted: _weighted_shares}
_SLOPES: dict[type, Any] = {Plain: _plain_slopes, Weighted: _weighted_slopes}


def open_row(kind, a, facts, e):
    """Write what all steps of this row share to e."""
    return _OPEN[type(kind)](kind, a, facts, e)


def shares(kind, t, a, facts, p, e, s):
    """Write the shares of step t = 0, 1, ... from p to s; e is the construction's own."""
    return _SHARES[type(kind)](kind, t, a, facts, p, e, s)


def slopes(kind, t, a, facts, p, e, s, alpha, beta):
    """Write alpha and beta of a step whose shares are s; returns kappa.

    Unless it is 0, the entries at z = 0 have their mean taken off dp, and kappa times the sum of
    dp over all other entries added to q.
    """
    return _SLOPES[type(kind)](kind, t, a, facts, p, e, s, alpha, beta)


@overload_scalar(open_row, inline=True)
def _open_row(kind, a, facts, e):
    own = _OPEN[kind.instance_class]
    return lambda kind, a, facts, e: own(kind, a, facts, e)


@overload_scalar(shares, inline=True)
def _shares(kind, t, a, facts, p, e, s):
    own = _SHARES[kind.instance_class]
    return lambda kind, t, a, facts, p, e, s: own(kind, t, a, facts, p, e, s)


@overload_scalar(slopes, inline=True)
def _slopes(kind, t, a, facts, p, e, s, alpha, beta):
    own = _SLOPES[kind.instance_class]
    return lambda kind, t, a, facts, p, e, s, alpha, beta: own(
        kind, t, a, facts, p, e, s, alpha, beta
    )
