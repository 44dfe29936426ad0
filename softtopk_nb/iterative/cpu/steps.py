"""One step of an iteration: the shares s that it adds to p, and their derivatives in z and p.

Both constructions repeat p += s(z, p) with shares u / sum(u). A step needs one pass: it adds the
shares of the step before, which were kept as u, and computes its own u. The derivative of a step is
given by two vectors, alpha and beta,

    ds = q - s sum(q),   q = alpha dz - beta dp

(and a term of rank one, see `slopes`), so that derivatives of either iteration are the same loop. A
row is kept as `a`, its entries in float64, and `facts`, numbers about it;
z = (a - facts[REF]) * facts[INV]. The formulas for one entry are in `formulas`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import overload_scalar, scalar, summing
from ..._math.elementary import exp_neg, from_ordinal, to_ordinal, wide_vectors
from ..formulas import Plain, Weighted, ahead, plain_slope, relative, score, weight, weighted_slope

# Numbers about a row. It is halved where its range overflows: INV is the reciprocal temperature of
# the halved row, RATE that of the row as given.
INV, RATE = 0, 1
REF, COUNT = 2, 3  # the entry where z is 0, and the number of such entries
TOP = 4  # the maximum that Plain's scores are relative to, in the units of x
FACTS = 5

# An earlier maximum of the scores is kept while the sum of the exponentials is at least this
# (Proposition prop-iter-maximum).
FADED = 2.0**-60


@scalar
def _open_plain(kind, a, facts, e):
    wide_vectors()
    ref = facts[REF]
    for i in range(a.shape[0]):
        e[i] = a[i] - ref


@scalar
def _begin_plain(kind, e, facts, p):
    wide_vectors()
    # In the units of x until the maximum is subtracted: nothing overflows to +inf, and what
    # overflows to -inf has the exponential 0.
    highest = to_ordinal(-np.inf)
    for i in range(e.shape[0]):
        o = to_ordinal(score(e[i], p[i]))
        highest = o if o > highest else highest
    facts[TOP] = from_ordinal(highest)


@summing
def _exponentials(e, facts, p, u, done):
    wide_vectors()
    inv, top = facts[INV], facts[TOP]
    total = 0.0
    for i in range(e.shape[0]):
        p[i] += done * u[i]
        u[i] = exp_neg((score(e[i], p[i]) - top) * inv)
        total += u[i]
    return total


@scalar
def _plain_step(kind, t, a, facts, p, e, u, done):
    total = _exponentials(e, facts, p, u, done)
    if total < FADED:
        _begin_plain(kind, e, facts, p)
        total = _exponentials(e, facts, p, u, 0.0)
    return total


@summing
def _plain_slopes(kind, t, a, facts, p, e, s, total, alpha, beta):
    wide_vectors()
    ref, inv = facts[REF], facts[INV]
    for i in range(a.shape[0]):
        alpha[i], beta[i] = plain_slope(a[i], p[i], s[i], ref, inv)
    return 0.0


@scalar
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
def _weights(p, e, u, done):
    wide_vectors()
    total = 0.0
    for i in range(p.shape[0]):
        p[i] += done * u[i]
        u[i] = weight(p[i], e[i])
        total += u[i]
    return total


@summing
def _settle(a, facts, p, u):
    """Set the shares of the maxima from the p of the other entries; returns sum(u).

    After as many steps as there are maxima, 1 - p of a maximum is the sum of the others' p, divided
    by the number of maxima (Proposition prop-iter-maxima): as a difference from 1 it would lose as
    many digits as the maxima are ahead, and the others' u is no larger.
    """
    wide_vectors()
    ref = facts[REF]
    left = total = 0.0
    for i in range(a.shape[0]):
        left += p[i] if a[i] < ref else 0.0
    left /= facts[COUNT]
    for i in range(a.shape[0]):
        u[i] = left if a[i] == ref else u[i]
        total += u[i]
    return total


@scalar
def _weighted_step(kind, t, a, facts, p, e, u, done):
    total = _weights(p, e, u, done)
    return _settle(a, facts, p, u) if t == facts[COUNT] else total


@summing
def _weighted_slopes(kind, t, a, facts, p, e, s, total, alpha, beta):
    wide_vectors()
    for i in range(a.shape[0]):
        alpha[i], beta[i] = weighted_slope(s[i], e[i], total)
    # Settled maxima are equal, but may have different derivatives: the mean of their dw is the sum
    # of the others' dp over their number, and e = 1.
    return 1.0 / (total * facts[COUNT]) if t == facts[COUNT] else 0.0


@summing
def shares(kind, t, a, facts, p, e, s):
    """Write the shares of step t = 0, 1, ... from p to s; returns their sum before division."""
    wide_vectors()
    s[:] = 0.0
    total = unnormalized(kind, t, a, facts, p, e, s, 0.0)
    per_total = 1.0 / total
    for i in range(s.shape[0]):
        s[i] *= per_total
    return total


@scalar
def _begin_weighted(kind, e, facts, p):
    return None


_OPEN: dict[type, Any] = {Plain: _open_plain, Weighted: _open_weighted}
_BEGIN: dict[type, Any] = {Plain: _begin_plain, Weighted: _begin_weighted}
_STEPS: dict[type, Any] = {Plain: _plain_step, Weighted: _weighted_step}
_SLOPES: dict[type, Any] = {Plain: _plain_slopes, Weighted: _weighted_slopes}


def open_row(kind, a, facts, e):
    """Write the vector of the construction, which all steps of this row share, to e."""
    return _OPEN[type(kind)](kind, a, facts, e)


def begin(kind, e, facts, p):
    """Prepare for steps from a p that is not that of the step before."""
    return _BEGIN[type(kind)](kind, e, facts, p)


def unnormalized(kind, t, a, facts, p, e, u, done):
    """p += done u, and write the shares of step t times their sum to u; returns that sum.

    e is the vector of the construction.
    """
    return _STEPS[type(kind)](kind, t, a, facts, p, e, u, done)


def slopes(kind, t, a, facts, p, e, s, total, alpha, beta):
    """Write alpha and beta of a step with shares s and their sum `total`; returns kappa.

    If kappa is not 0, the entries at z = 0 have their mean subtracted from dp, and kappa times the
    sum of dp over all other entries added to q.
    """
    return _SLOPES[type(kind)](kind, t, a, facts, p, e, s, total, alpha, beta)


@overload_scalar(open_row)
def _open_row(kind, a, facts, e):
    own = _OPEN[kind.instance_class]
    return lambda kind, a, facts, e: own(kind, a, facts, e)


@overload_scalar(begin)
def _begin(kind, e, facts, p):
    own = _BEGIN[kind.instance_class]
    return lambda kind, e, facts, p: own(kind, e, facts, p)


@overload_scalar(unnormalized)
def _unnormalized(kind, t, a, facts, p, e, u, done):
    own = _STEPS[kind.instance_class]
    return lambda kind, t, a, facts, p, e, u, done: own(kind, t, a, facts, p, e, u, done)


@overload_scalar(slopes)
def _slopes(kind, t, a, facts, p, e, s, total, alpha, beta):
    own = _SLOPES[kind.instance_class]
    return lambda kind, t, a, facts, p, e, s, total, alpha, beta: own(
        kind, t, a, facts, p, e, s, total, alpha, beta
    )
