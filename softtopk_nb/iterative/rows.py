"""The iterations on rows: value, tangent and pullback, each for rows lo .. hi of a batch.

All of it in float64, whatever the type of the row: a step multiplies the errors of the one before
(Proposition prop-iter-error), and float32 would not last long.
"""

from __future__ import annotations

import math

import numpy as np

from .._compile import kernel, row, summing
from .._rows import ALL, MIXED, UNDEFINED, classify, compress, expand, fill_constant, survey
from .._scalars import from_ordinal, wide_vectors
from .entry import back, carry, collect, lies_at_zero, scale, slide, swing, turn, unslide
from .steps import COUNT, FACTS, INV, RATE, REF, open_row, shares, slopes

__all__ = ["pull", "push", "solve"]

A, P, S, E = 0, 1, 2, 3  # rows of scratch: the entries, p, the shares, the construction's own
DZ, DP, ALPHA, BETA = 4, 5, 6, 7
GZ, ADJ = 4, 5
ROWS = 8


@row
def prepare(kind, x, k, tau, a, e, facts):
    """Lay out the finite entries in a; returns (code, how many, how many +inf, k left to them).

    A row with k left for every finite entry (ALL) is iterated as any other: p is not bounded by 1.
    """
    code, n, above, left, least, most = classify(x, k, *survey(x))
    if code <= MIXED or code == ALL:
        compress(x, x, a)
        a = a[:n]
        low, high = np.float64(from_ordinal(least)), np.float64(from_ordinal(most))
        half, facts[INV], facts[RATE], facts[REF] = scale(kind, low, high, tau)
        if half < 1.0:
            for i in range(n):
                a[i] *= half
        count = 0
        for i in range(n):
            if lies_at_zero(kind, a[i], facts[REF], facts[INV]):
                a[i] = facts[REF]
                count += 1
        facts[COUNT] = count
        open_row(kind, a, facts, e[:n])
    return code, n, above, left


@summing
def add(s, p):
    """p += s."""
    wide_vectors()
    for i in range(p.shape[0]):
        p[i] += s[i]


@row
def iterate(kind, first, last, a, facts, p, e, s):
    """Steps first .. last of the iteration."""
    for t in range(first, last):
        shares(kind, t, a, facts, p, e, s)
        add(s, p)


@kernel
def solve(lo, hi, x, k, tau, kind, out):
    """Rows lo .. hi: p to `out`."""
    scratch, facts = np.empty((E + 1, x.shape[1])), np.empty(FACTS)
    for i in range(lo, hi):
        code, n, above, left = prepare(kind, x[i], k[i], tau[i], scratch[A], scratch[E], facts)
        if code > MIXED and code != ALL:
            fill_constant(x[i], k[i], code, above, out[i])
            continue
        a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
        p[:] = 0.0
        iterate(kind, 0, left, a, facts, p, e, s)
        expand(x[i], p, 1.0, out[i])


@summing
def directions(a, facts, v, dtau, dz):
    """Write dz along dx = v and dtau; v is replaced by what it is relative to the zero of z.

    Where several entries are the zero of z (the smallest of a row, say), their v count equally.
    """
    wide_vectors()
    base = 0.0
    for i in range(a.shape[0]):
        base += v[i] if a[i] == facts[REF] else 0.0
    base /= facts[COUNT]
    for i in range(a.shape[0]):
        dz[i] = slide(a[i], v[i], base, dtau, facts[REF], facts[INV], facts[RATE])


@summing
def tangent(a, facts, kappa, s, alpha, beta, dz, dp):
    """Move dp over one step (Theorem thm-iter-derivatives)."""
    wide_vectors()
    mean = others = total = 0.0
    if kappa > 0.0:
        for i in range(a.shape[0]):
            mean += dp[i] if a[i] == facts[REF] else 0.0
            others += dp[i] if a[i] != facts[REF] else 0.0
        mean /= facts[COUNT]
    for i in range(a.shape[0]):
        at_zero = a[i] == facts[REF]
        alpha[i] = swing(alpha[i], beta[i], dz[i], dp[i], at_zero, mean, kappa, others)
        total += alpha[i]
    for i in range(a.shape[0]):
        dp[i] = carry(dp[i], alpha[i], s[i], total)


@summing
def adjoint(a, facts, kappa, s, alpha, beta, gz, adj):
    """Move the gradient in p back over one step, and collect that in z."""
    wide_vectors()
    centre = total = 0.0
    for i in range(a.shape[0]):
        centre += s[i] * adj[i]
    if kappa > 0.0:
        for i in range(a.shape[0]):
            total += adj[i] - centre if a[i] == facts[REF] else 0.0
    mean = total / facts[COUNT]
    for i in range(a.shape[0]):
        at_zero = a[i] == facts[REF]
        b = adj[i] - centre
        gz[i] = collect(gz[i], alpha[i], b)
        adj[i] = back(adj[i], beta[i], b, at_zero, mean, kappa, total)


@summing
def gather(a, facts, gz, gx):
    """Write the gradient in the entries from that in z; returns the one in the temperature."""
    wide_vectors()
    total = turned = 0.0
    for i in range(a.shape[0]):
        total += gz[i]
        turned += turn(a[i], gz[i], facts[REF], facts[INV])
    base = total / facts[COUNT]
    for i in range(a.shape[0]):
        gx[i] = unslide(gz[i], a[i] == facts[REF], base, facts[RATE])
    return -turned * facts[RATE]


@kernel
def push(lo, hi, x, k, tau, kind, v, dtau, out):
    """Rows lo .. hi: dp along (v, dtau)."""
    T = x.dtype.type
    scratch, facts = np.empty((ROWS, x.shape[1])), np.empty(FACTS)
    for i in range(lo, hi):
        code, n, _, left = prepare(kind, x[i], k[i], tau[i], scratch[A], scratch[E], facts)
        if code > MIXED and code != ALL:
            out[i] = T(np.nan) if code == UNDEFINED else T(0)
            continue
        a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
        dz, dp, alpha, beta = (
            scratch[DZ, :n],
            scratch[DP, :n],
            scratch[ALPHA, :n],
            scratch[BETA, :n],
        )
        compress(x[i], v[i], s)
        directions(a, facts, s, dtau[i], dz)
        p[:] = 0.0
        dp[:] = 0.0
        for t in range(left):
            shares(kind, t, a, facts, p, e, s)
            kappa = slopes(kind, t, a, facts, p, e, s, alpha, beta)
            tangent(a, facts, kappa, s, alpha, beta, dz, dp)
            add(s, p)
        expand(x[i], dp, 0.0, out[i])


@kernel
def pull(lo, hi, x, k, tau, kind, g, gx, gtau):
    """Rows lo .. hi: the gradients of <g, p>, those in x to `gx`.

    Proposition prop-iter-checkpoint: the loop is run once to keep p before every m-th step, and
    once more, from one of these to the next, backwards; m is the square root of k.
    """
    T = x.dtype.type
    scratch, facts = np.empty((ROWS, x.shape[1])), np.empty(FACTS)
    most = 1
    for i in range(lo, hi):
        most = max(most, k[i])
    stride = math.ceil(math.sqrt(most))
    marks = np.empty((stride, x.shape[1]))
    ps, ss = np.empty((stride, x.shape[1])), np.empty((stride, x.shape[1]))
    for i in range(lo, hi):
        code, n, _, left = prepare(kind, x[i], k[i], tau[i], scratch[A], scratch[E], facts)
        if code > MIXED and code != ALL:
            gtau[i] = np.nan if code == UNDEFINED else 0.0
            gx[i] = T(gtau[i])
            continue
        a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
        gz, adj, alpha, beta = (
            scratch[GZ, :n],
            scratch[ADJ, :n],
            scratch[ALPHA, :n],
            scratch[BETA, :n],
        )
        p[:] = 0.0
        gz[:] = 0.0
        compress(x[i], g[i], adj)
        m = math.ceil(math.sqrt(left))
        segments = (left + m - 1) // m
        for j in range(segments):
            marks[j, :n] = p
            if j < segments - 1:
                iterate(kind, j * m, (j + 1) * m, a, facts, p, e, s)
        for j in range(segments - 1, -1, -1):
            first, last = j * m, min(left, (j + 1) * m)
            p[:] = marks[j, :n]
            for t in range(first, last):
                ps[t - first, :n] = p
                shares(kind, t, a, facts, p, e, ss[t - first, :n])
                add(ss[t - first, :n], p)
            for t in range(last - 1, first - 1, -1):
                before, step = ps[t - first, :n], ss[t - first, :n]
                kappa = slopes(kind, t, a, facts, before, e, step, alpha, beta)
                adjoint(a, facts, kappa, step, alpha, beta, gz, adj)
        gtau[i] = gather(a, facts, gz, s)
        expand(x[i], s, 0.0, gx[i])
