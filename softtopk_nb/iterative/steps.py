"""One step of an iteration: the shares s that it adds to p, and how they change with z and p.

Both constructions repeat p += s(z, p) with shares that sum to 1. The slopes of a step are two rows,

    ds = q - s sum(q),   q = alpha dz - beta dp

(and a term of rank one, see `slopes`), so that derivatives of either iteration are the same loop.
A row is kept as `a`, its entries in float64, and `facts`, numbers about it;
z = (a - facts[REF]) * facts[INV]. What happens to one entry is in `entry`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._compile import overload_scalar, row, scalar, summing
from .._scalars import exp_neg, from_ordinal, to_ordinal, wide_vectors
from .entry import Plain, Weighted, ahead, plain_slope, relative, score, weight, weighted_slope

__all__ = ["COUNT", "FACTS", "INV", "RATE", "REF", "open_row", "shares", "slopes"]

# Numbers about a row. It is halved where its spread overflows: INV is the reciprocal temperature
# of the halved row, RATE that of the row as given.
INV, RATE = 0, 1
REF, COUNT = 2, 3  # where z is 0, and how many entries lie there
FACTS = 4


@summing
def _plain_shares(kind, t, a, facts, p, e, s):
    wide_vectors()
    # y stays in the units of x until its maximum is taken off: nothing overflows on the way up,
    # and what overflows on the way down has the exponential 0.
    ref, inv = facts[REF], facts[INV]
    highest = to_ordinal(-np.inf)
    for i in range(a.shape[0]):
        s[i] = score(a[i], p[i], ref)
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
    wide_vectors()
    ref, inv = facts[REF], facts[INV]
    for i in range(a.shape[0]):
        alpha[i], beta[i] = plain_slope(a[i], p[i], s[i], ref, inv)
    return 0.0


@row
def _open_weighted(kind, a, facts, e):
    wide_vectors()
    ref, inv = facts[REF], facts[INV]
    highest = to_ordinal(-np.inf)
    for i in range(a.shape[0]):
        o = to_ordinal(a[i] if a[i] < ref else -np.inf)
        highest = o if o > highest else highest
    second = from_ordinal(highest)
    gap = ahead(ref, second, inv)
    for i in range(a.shape[0]):
        e[i] = relative(a[i], ref, second, inv, gap)


@summing
def _weights(t, a, facts, p, e, u):
    """Write u = (1 - p) e^z; returns sum(u), and whether 1 - p of the leaders came from the others.

    After as many steps as there are leaders, 1 - p of a leader is what the others have received,
    shared among the leaders (Proposition prop-iter-leaders): as a difference from 1 it would lose
    as many digits as the leaders lie ahead, and the others' u is no larger.
    """
    wide_vectors()
    ref, leaders = facts[REF], facts[COUNT]
    settled = t == leaders
    left = 0.0
    if settled:
        for i in range(a.shape[0]):
            left += p[i] if a[i] < ref else 0.0
        left /= leaders
    total = 0.0
    for i in range(a.shape[0]):
        u[i] = left if settled and a[i] == ref else weight(p[i], e[i])
        total += u[i]
    return total, settled


@summing
def _weighted_shares(kind, t, a, facts, p, e, s):
    wide_vectors()
    total, _ = _weights(t, a, facts, p, e, s)
    for i in range(a.shape[0]):
        s[i] /= total


@summing
def _weighted_slopes(kind, t, a, facts, p, e, s, alpha, beta):
    wide_vectors()
    # Settled leaders are equal, but may move apart: the mean of their dw is the sum of the others'
    # dp, shared, and e = 1.
    total, settled = _weights(t, a, facts, p, e, beta)
    for i in range(a.shape[0]):
        alpha[i], beta[i] = weighted_slope(s[i], e[i], total)
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
