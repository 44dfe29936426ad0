"""The iterations on rows: value, derivative and VJP, each for rows lo .. hi of a batch.

All of it is in float64, whatever the type of the row: a step multiplies the errors of the one
before (Proposition prop-iter-error), and float32 would soon lose all digits.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import APART, borrowed
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import pack
from ..._math.elementary import from_ordinal, wide_vectors
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES, classify, expand, fill_constant, survey
from ..formulas import (
    adjoint_p,
    adjoint_temperature,
    adjoint_x,
    adjoint_z,
    lies_at_zero,
    scale,
    tangent_p,
    tangent_q,
    tangent_z,
)
from .steps import COUNT, FACTS, INV, RATE, REF, begin, open_row, shares, slopes, unnormalized

A, P, S, E = 0, 1, 2, 3  # rows of scratch: entries, p, shares, the construction's vector
DZ, DP, ALPHA, BETA = 4, 5, 6, 7
GZ, ADJ = 4, 5
ROWS = 8


@scalar
def take_finite(x, values, out):
    """Write the values at the finite entries of x to `out`, which has their number."""
    wide_vectors()
    if out.shape[0] < x.shape[0]:
        pack(x, values, out)
        return
    for i in range(x.shape[0]):
        out[i] = values[i]


@scalar
def prepare(kind, x, k, tau, a, e, facts):
    """Write the finite entries to a; returns (code, their number, number of +inf, k left for them).

    A row with k left for every finite entry (ALL) is iterated as any other: p is not bounded by 1.
    """
    code, n, above, left, least, most = classify(x, k, *survey(x))
    if code <= WITH_INFINITIES or code == ALL:
        a = a[:n]
        take_finite(x, x, a)
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
def add(s, scale, p):
    """p += scale * s."""
    wide_vectors()
    for i in range(p.shape[0]):
        p[i] += scale * s[i]


@scalar
def iterate(kind, run, first, last, a, facts, p, e, s, done):
    """Steps first .. last of a run of steps; returns what the shares of the last are multiplied by.

    These are added to p where the run ends, and else by the steps that follow, from `done` on.
    """
    start, stop = run
    if first == start:
        begin(kind, e, facts, p)
        s[:] = 0.0
        done = 0.0
    for t in range(first, last):
        done = 1.0 / unnormalized(kind, t, a, facts, p, e, s, done)
    if last == stop:
        add(s, done, p)
    return done


@scalar
def solve_row(kind, x, k, tau, scratch, facts, out):
    """Write p of one row."""
    scratch, facts = borrowed(scratch), borrowed(facts)
    code, n, above, left = prepare(kind, x, k, tau, scratch[A], scratch[E], facts)
    if code > WITH_INFINITIES and code != ALL:
        fill_constant(x, k, code, above, out)
        return
    a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
    p[:] = 0.0
    iterate(kind, (0, left), 0, left, a, facts, p, e, s, 0.0)
    expand(x, p, 1.0, out)


@kernel
def solve(lo, hi, x, k, tau, kind, out):
    """Write p of rows lo .. hi to `out`."""
    x, out = borrowed(x), borrowed(out)
    scratch, facts = np.empty((E + 1, x.shape[1] + APART)), np.empty(FACTS)
    for i in range(lo, hi):
        solve_row(kind, x[i], k[i], tau[i], scratch, facts, out[i])


@summing
def directions(a, facts, v, dtau, dz):
    """Write dz along dx = v and dtau, with v taken relative to that of the entry where z is 0.

    Where z is 0 at several entries (the smallest of a row, say), the mean of their v is used.
    """
    wide_vectors()
    base = 0.0
    for i in range(a.shape[0]):
        base += v[i] if a[i] == facts[REF] else 0.0
    base /= facts[COUNT]
    for i in range(a.shape[0]):
        dz[i] = tangent_z(a[i], v[i], base, dtau, facts[REF], facts[INV], facts[RATE])


@summing
def tangent(a, facts, kappa, s, alpha, beta, dz, dp):
    """Update dp by one step (Theorem thm-iter-derivatives)."""
    wide_vectors()
    mean = others = total = 0.0
    if kappa > 0.0:
        for i in range(a.shape[0]):
            mean += dp[i] if a[i] == facts[REF] else 0.0
            others += dp[i] if a[i] != facts[REF] else 0.0
        mean /= facts[COUNT]
    for i in range(a.shape[0]):
        at_zero = a[i] == facts[REF]
        alpha[i] = tangent_q(alpha[i], beta[i], dz[i], dp[i], at_zero, mean, kappa, others)
        total += alpha[i]
    for i in range(a.shape[0]):
        dp[i] = tangent_p(dp[i], alpha[i], s[i], total)


@scalar
def move(kind, first, last, a, facts, p, e, s, alpha, beta, dz, dp):
    """Move p and dp over the steps first .. last."""
    for t in range(first, last):
        total = shares(kind, t, a, facts, p, e, s)
        kappa = slopes(kind, t, a, facts, p, e, s, total, alpha, beta)
        tangent(a, facts, kappa, s, alpha, beta, dz, dp)
        add(s, 1.0, p)


@summing
def adjoint(a, facts, kappa, s, alpha, beta, gz, adj):
    """Propagate the gradient in p back over one step, and add to that in z."""
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
        gz[i] = adjoint_z(gz[i], alpha[i], b)
        adj[i] = adjoint_p(adj[i], beta[i], b, at_zero, mean, kappa, total)


@scalar
def retrace(kind, start, first, last, a, facts, p, e, ps, ss, totals):
    """Steps first .. last once more; p before each, its shares and their sum are kept.

    `start` is the step that is kept first.
    """
    n = p.shape[0]
    for t in range(first, last):
        step = ss[t - start, :n]
        ps[t - start, :n] = p
        totals[t - start] = shares(kind, t, a, facts, p, e, step)
        add(step, 1.0, p)


@scalar
def go_back(kind, start, first, last, a, facts, e, alpha, beta, ps, ss, totals, gz, adj):
    """Move the gradients back over the steps first .. last, the last one first."""
    n = a.shape[0]
    for t in range(last - 1, first - 1, -1):
        before, step, total = ps[t - start, :n], ss[t - start, :n], totals[t - start]
        kappa = slopes(kind, t, a, facts, before, e, step, total, alpha, beta)
        adjoint(a, facts, kappa, step, alpha, beta, gz, adj)


@summing
def gather(a, facts, gz, gx):
    """Write the gradient in the entries from that in z; returns the one in the temperature."""
    wide_vectors()
    total = turned = 0.0
    for i in range(a.shape[0]):
        total += gz[i]
        turned += adjoint_temperature(a[i], gz[i], facts[REF], facts[INV])
    base = total / facts[COUNT]
    for i in range(a.shape[0]):
        gx[i] = adjoint_x(gz[i], a[i] == facts[REF], base, facts[RATE])
    return -turned * facts[RATE]


@scalar
def jvp_row(kind, x, k, tau, v, dtau, scratch, facts, out):
    """Write the derivative of one row along v and dtau."""
    T = x.dtype.type
    scratch, facts = borrowed(scratch), borrowed(facts)
    code, n, _, left = prepare(kind, x, k, tau, scratch[A], scratch[E], facts)
    if code > WITH_INFINITIES and code != ALL:
        out[:] = T(np.nan) if code == UNDEFINED else T(0)
        return
    a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
    dz, dp = scratch[DZ, :n], scratch[DP, :n]
    alpha, beta = scratch[ALPHA, :n], scratch[BETA, :n]
    take_finite(x, v, s)
    directions(a, facts, s, dtau, dz)
    p[:] = 0.0
    dp[:] = 0.0
    begin(kind, e, facts, p)
    move(kind, 0, left, a, facts, p, e, s, alpha, beta, dz, dp)
    expand(x, dp, 0.0, out)


@kernel
def jvp(lo, hi, x, k, tau, kind, v, dtau, out):
    """Write dp of rows lo .. hi along (v, dtau)."""
    x, v, out = borrowed(x), borrowed(v), borrowed(out)
    scratch, facts = np.empty((ROWS, x.shape[1] + APART)), np.empty(FACTS)
    for i in range(lo, hi):
        jvp_row(kind, x[i], k[i], tau[i], v[i], dtau[i], scratch, facts, out[i])


@scalar
def vjp_row(kind, x, k, tau, g, scratch, facts, marks, ps, ss, totals, gx):
    """Write the gradient in x to `gx`; returns the one in the temperature.

    Proposition prop-iter-checkpoint: the loop is run once to store p before every m-th step, and
    once more, from one of these to the next, backwards; m is the square root of k.
    """
    T = x.dtype.type
    scratch, facts, totals = borrowed(scratch), borrowed(facts), borrowed(totals)
    marks, ps, ss = borrowed(marks), borrowed(ps), borrowed(ss)
    code, n, _, left = prepare(kind, x, k, tau, scratch[A], scratch[E], facts)
    if code > WITH_INFINITIES and code != ALL:
        constant = np.nan if code == UNDEFINED else 0.0
        gx[:] = T(constant)
        return constant
    a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
    gz, adj = scratch[GZ, :n], scratch[ADJ, :n]
    alpha, beta = scratch[ALPHA, :n], scratch[BETA, :n]
    p[:] = 0.0
    gz[:] = 0.0
    take_finite(x, g, adj)
    m = math.ceil(math.sqrt(left))
    segments = (left + m - 1) // m
    for j in range(segments):
        marks[j, :n] = p
        if j < segments - 1:
            first, last = j * m, (j + 1) * m
            iterate(kind, (first, last), first, last, a, facts, p, e, s, 0.0)
    for j in range(segments - 1, -1, -1):
        first, last = j * m, min(left, (j + 1) * m)
        p[:] = marks[j, :n]
        begin(kind, e, facts, p)
        retrace(kind, first, first, last, a, facts, p, e, ps, ss, totals)
        go_back(kind, first, first, last, a, facts, e, alpha, beta, ps, ss, totals, gz, adj)
    in_tau = gather(a, facts, gz, s)
    expand(x, s, 0.0, gx)
    return in_tau


@kernel
def vjp(lo, hi, x, k, tau, kind, g, gx, gtau):
    """Write the gradients of <g, p> of rows lo .. hi, those in x to `gx`."""
    x, g, gx = borrowed(x), borrowed(g), borrowed(gx)
    scratch, facts = np.empty((ROWS, x.shape[1] + APART)), np.empty(FACTS)
    most = 1
    for i in range(lo, hi):
        most = max(most, k[i])
    stride = math.ceil(math.sqrt(most))
    marks = np.empty((stride, x.shape[1] + APART))
    ps, ss = np.empty_like(marks), np.empty_like(marks)
    totals = np.empty(stride)
    for i in range(lo, hi):
        gtau[i] = vjp_row(
            kind, x[i], k[i], tau[i], g[i], scratch, facts, marks, ps, ss, totals, gx[i]
        )
