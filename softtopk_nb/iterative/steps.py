# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-calls=False
# mypy: check-untyped-defs=False, warn-return-any=False
"""One step of an iteration: the shares s that it adds to p, and how they change with z and p.

Both constructions repeat p += s(z, p) with shares that sum to 1. The slopes of a step are two rows,

    ds = q - s sum(q),   q = alpha dz - beta dp,

so that derivatives of either iteration are the same loop. A row is kept as `a`, its entries in
float64, and `facts`, numbers about it; z = (a - facts[REF]) * facts[INV].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._compile import overload_scalar, row, scalar, summing
from .._scalars import exp_neg, from_ordinal, to_ordinal

__all__ = [
    "COUNT",
    "FACTS",
    "HIGHEST",
    "INV",
    "LEADER",
    "LOWEST",
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
LOWEST, HIGHEST, INV, RATE = 0, 1, 2, 3
REF, COUNT = 4, 5  # where z is 0, and how many entries lie there
SCALE = 6  # Weighted: the exponentials at hand are relative to this entry, NaN if to another
LEADER, SECOND = 7, 8  # Weighted: index of a largest entry, and the largest of the others
TAIL, RHO = 9, 10  # sums of the others' exponentials relative to SECOND and to the leader
FACTS = 11

APART = 0.5  # the leader stands apart if the others' exponentials sum to less than this share of it
LARGEST = 1e250  # derivatives stop here: an overflow must not turn into inf - inf


class Plain(NamedTuple):
    """s = softmax((1 - p) z), z = 0 at the smallest entry."""

    lowest: bool = True


class Weighted(NamedTuple):
    """s = (1 - p) e^z / sum((1 - p) e^z)."""

    lowest: bool = False


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


@summing
def _exponentials(a, c, inv, e):
    """Write e^((a - c)/tau), 1 above c; returns their sum."""
    total = 0.0
    for i in range(a.shape[0]):
        t = (a[i] - c) * inv
        e[i] = exp_neg(t if t < 0.0 else 0.0)
        total += e[i]
    return total


@row
def _open_weighted(kind, k, a, facts, e):
    # Proposition prop-iter-leader: how the largest entry compares with all the others.
    facts[SCALE], facts[RHO] = np.nan, np.inf
    if k < 2:
        return
    leader, second = -1, to_ordinal(-np.inf)
    for i in range(a.shape[0]):
        if leader < 0 and a[i] == facts[REF]:
            leader = i
        else:
            o = to_ordinal(a[i])
            second = o if o > second else second
    facts[LEADER], facts[SECOND] = leader, from_ordinal(second)
    facts[TAIL] = _exponentials(a, facts[SECOND], facts[INV], e) - 1.0
    facts[RHO] = facts[TAIL] * np.exp((facts[SECOND] - facts[REF]) * facts[INV])


@summing
def _weights(t, a, facts, p, e, u):
    """Write u = (1 - p) e^z up to a factor; returns sum(u), and whether it is a leader's step.

    The exponentials are relative to the largest entry whose weight is not exactly 0. In the
    second step of a row whose leader stands apart, they are relative to the second largest entry,
    and the leader's u comes without the difference 1 - p, from Proposition prop-iter-leader.
    """
    leads = t == 1 and facts[RHO] < APART
    if leads:
        _exponentials(a, facts[SECOND], facts[INV], e)
        e[int(facts[LEADER])] = 0.0
        facts[SCALE] = np.nan
    else:
        highest = lowest = to_ordinal(-np.inf)
        for i in range(a.shape[0]):
            o = to_ordinal(a[i]) if p[i] != 1.0 else lowest
            highest = o if o > highest else highest
        scale = from_ordinal(highest)
        if scale != facts[SCALE]:
            _exponentials(a, scale, facts[INV], e)
            facts[SCALE] = scale
    total = 0.0
    for i in range(a.shape[0]):
        u[i] = (1.0 - p[i]) * e[i]
        total += u[i]
    if leads:
        lead = facts[TAIL] / (1.0 + facts[RHO])
        u[int(facts[LEADER])] = lead
        total += lead
    return total, leads


@summing
def _weighted_shares(kind, t, a, facts, p, e, s):
    total, _ = _weights(t, a, facts, p, e, s)
    for i in range(a.shape[0]):
        s[i] /= total


@summing
def _weighted_slopes(kind, t, a, facts, p, e, s, alpha, beta):
    # q = s dz + (e / sum) dw with dw = -dp.
    total, leads = _weights(t, a, facts, p, e, beta)
    for i in range(a.shape[0]):
        alpha[i], beta[i] = s[i], e[i] / total
    if not leads:
        return 0.0
    # The leader's weight is rho/(1 + rho): its logarithm moves by sum(e (dz - dz_leader))/tail,
    # divided by 1 + rho, and p has no part in it.
    leader = int(facts[LEADER])
    alpha[leader] = s[leader] * facts[RHO] / (1.0 + facts[RHO])
    return s[leader] / ((1.0 + facts[RHO]) * facts[TAIL])


@scalar
def _open_plain(kind, k, a, facts, e):
    facts[LEADER] = -1


_OPEN: dict[type, Any] = {Plain: _open_plain, Weighted: _open_weighted}
_SHARES: dict[type, Any] = {Plain: _plain_shares, Weighted: _weighted_shares}
_SLOPES: dict[type, Any] = {Plain: _plain_slopes, Weighted: _weighted_slopes}


def open_row(kind, k, a, facts, e):
    """Find what the steps of this row need to know beside its range."""
    return _OPEN[type(kind)](kind, k, a, facts, e)


def shares(kind, t, a, facts, p, e, s):
    """Write the shares of step t = 0, 1, ... from p to s; e is the construction's own."""
    return _SHARES[type(kind)](kind, t, a, facts, p, e, s)


def slopes(kind, t, a, facts, p, e, s, alpha, beta):
    """Write alpha and beta of a step whose shares are s.

    Returns kappa: q at the leader is larger by kappa sum(e dz).
    """
    return _SLOPES[type(kind)](kind, t, a, facts, p, e, s, alpha, beta)


@overload_scalar(open_row, inline=True)
def _open_row(kind, k, a, facts, e):
    own = _OPEN[kind.instance_class]
    return lambda kind, k, a, facts, e: own(kind, k, a, facts, e)


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
