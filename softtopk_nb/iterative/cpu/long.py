"""Rows that take long, a bounded part of the work in each call: Python handles signals in between.

The loops are those of `rows`, and so are the bits. One row is not shared out among threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..._compile import subnormals
from ..._compile.array_intrinsics import APART, borrowed
from ..._compile.decorators import kernel
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES, expand, fill_constant
from ..._threads import pool
from . import rows
from .rows import ADJ, ALPHA, BETA, DP, DZ, GZ, A, E, P, S
from .steps import FACTS, begin

# Entries times steps that a call visits, 4 to 20 ms; at least one step. Rows of more work than this
# are not shared out among threads either: no two of them are in one slice of the pool's.
AT_ONCE = 1 << 21


@kernel
def _open(kind, x, k, tau, scratch, facts):
    scratch, facts = borrowed(scratch), borrowed(facts)
    return rows.prepare(kind, x, k, tau, scratch[A], scratch[E], facts)


@kernel
def _fill_constant(x, k, code, above, out):
    fill_constant(x, k, code, above, out)


@kernel
def _iterate(kind, run, first, last, n, scratch, facts, done):
    scratch, facts = borrowed(scratch), borrowed(facts)
    a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
    return rows.iterate(kind, run, first, last, a, facts, p, e, s, done)


@kernel
def _take(x, values, out):
    rows.take_finite(x, values, borrowed(out))


@kernel
def _close(x, values, fill, out):
    expand(x, borrowed(values), fill, out)


@kernel
def _aim(n, scratch, facts, dtau):
    """From a direction in S: dz."""
    scratch, facts = borrowed(scratch), borrowed(facts)
    rows.directions(scratch[A, :n], facts, scratch[S, :n], dtau, scratch[DZ, :n])


@kernel
def _move(kind, first, last, n, scratch, facts):
    scratch, facts = borrowed(scratch), borrowed(facts)
    a, p, s, e = scratch[A, :n], scratch[P, :n], scratch[S, :n], scratch[E, :n]
    dz, dp = scratch[DZ, :n], scratch[DP, :n]
    alpha, beta = scratch[ALPHA, :n], scratch[BETA, :n]
    if first == 0:
        begin(kind, e, facts, p)
    rows.move(kind, first, last, a, facts, p, e, s, alpha, beta, dz, dp)


@kernel
def _retrace(kind, start, first, last, n, scratch, facts, ps, ss, totals):
    scratch, facts, totals = borrowed(scratch), borrowed(facts), borrowed(totals)
    ps, ss = borrowed(ps), borrowed(ss)
    a, p, e = scratch[A, :n], scratch[P, :n], scratch[E, :n]
    if first == start:
        begin(kind, e, facts, p)
    rows.retrace(kind, start, first, last, a, facts, p, e, ps, ss, totals)


@kernel
def _go_back(kind, start, first, last, n, scratch, facts, ps, ss, totals):
    scratch, facts, totals = borrowed(scratch), borrowed(facts), borrowed(totals)
    ps, ss = borrowed(ps), borrowed(ss)
    a, e = scratch[A, :n], scratch[E, :n]
    gz, adj = scratch[GZ, :n], scratch[ADJ, :n]
    alpha, beta = scratch[ALPHA, :n], scratch[BETA, :n]
    rows.go_back(kind, start, first, last, a, facts, e, alpha, beta, ps, ss, totals, gz, adj)


@kernel
def _gather(n, scratch, facts):
    scratch, facts = borrowed(scratch), borrowed(facts)
    return rows.gather(scratch[A, :n], facts, scratch[GZ, :n], scratch[S, :n])


def over(
    whole: Any, in_steps: Callable[..., None], x: Any, k: Any, tau: Any, kind: Any, *args: Any
) -> None:
    """The kernel `whole` on all rows, or `in_steps` on each of those that take long."""
    n, most = x.shape[1], int(k.max(initial=1))
    if n * most <= AT_ONCE:
        # Each step visits all entries, for an exponential or a division.
        pool.over(len(x), 2 * x.size * most, whole, x, k, tau, kind, *args)
        return
    for i in range(len(x)):
        row = slice(i, i + 1)
        one = x[row], k[row], tau[row], kind, *(a[row] for a in args)
        # By its own k alone, so that its bits do not depend on the other rows.
        if n * int(k[i]) <= AT_ONCE:
            pool.over(1, 2 * n * int(k[i]), whole, *one)
        else:
            with subnormals.kept():
                in_steps(*one)


def _groups(first: int, last: int, n: int) -> Iterator[tuple[int, int]]:
    """The steps first .. last, as many in each group as one call may make."""
    several = max(1, AT_ONCE // n)
    for t in range(first, last, several):
        yield t, min(t + several, last)


def _run(kind: Any, run: tuple[int, int], n: int, scratch: Any, facts: Any) -> None:
    """A run of steps from p."""
    done = 0.0
    for first, last in _groups(*run, n):
        done = _iterate(kind, run, first, last, n, scratch, facts, done)


def solve(x: Any, k: Any, tau: Any, kind: Any, out: Any) -> None:
    """One row, as `rows.solve`."""
    scratch, facts = np.empty((E + 1, x.shape[1] + APART)), np.empty(FACTS)
    code, n, above, left = _open(kind, x[0], k[0], tau[0], scratch, facts)
    if code > WITH_INFINITIES and code != ALL:
        _fill_constant(x[0], k[0], code, above, out[0])
        return
    scratch[P] = 0.0
    _run(kind, (0, left), n, scratch, facts)
    _close(x[0], scratch[P, :n], 1.0, out[0])


def jvp(x: Any, k: Any, tau: Any, kind: Any, v: Any, dtau: Any, out: Any) -> None:
    """One row, as `rows.jvp`."""
    scratch, facts = np.empty((rows.ROWS, x.shape[1] + APART)), np.empty(FACTS)
    code, n, _, left = _open(kind, x[0], k[0], tau[0], scratch, facts)
    if code > WITH_INFINITIES and code != ALL:
        out[...] = np.nan if code == UNDEFINED else 0.0
        return
    scratch[P] = 0.0
    scratch[DP] = 0.0
    _take(x[0], v[0], scratch[S, :n])
    _aim(n, scratch, facts, dtau[0])
    for first, last in _groups(0, left, n):
        _move(kind, first, last, n, scratch, facts)
    _close(x[0], scratch[DP, :n], 0.0, out[0])


def vjp(x: Any, k: Any, tau: Any, kind: Any, g: Any, gx: Any, gtau: Any) -> None:
    """One row, as `rows.vjp`."""
    scratch, facts = np.empty((rows.ROWS, x.shape[1] + APART)), np.empty(FACTS)
    code, n, _, left = _open(kind, x[0], k[0], tau[0], scratch, facts)
    if code > WITH_INFINITIES and code != ALL:
        gx[...] = gtau[...] = np.nan if code == UNDEFINED else 0.0
        return
    m = math.ceil(math.sqrt(left))
    marks, totals = np.empty((m, x.shape[1] + APART)), np.empty(m)
    ps, ss = np.empty_like(marks), np.empty_like(marks)
    p, kept = scratch[P, :n], (n, scratch, facts, ps, ss, totals)
    scratch[P] = 0.0
    scratch[GZ] = 0.0
    _take(x[0], g[0], scratch[ADJ, :n])
    starts = range(0, left, m)
    for j, start in enumerate(starts):
        marks[j, :n] = p
        if start != starts[-1]:
            _run(kind, (start, start + m), n, scratch, facts)
    for j, start in reversed([*enumerate(starts)]):
        groups = [*_groups(start, min(left, start + m), n)]
        p[:] = marks[j, :n]
        for first, last in groups:
            _retrace(kind, start, first, last, *kept)
        for first, last in reversed(groups):
            _go_back(kind, start, first, last, *kept)
    gtau[0] = _gather(n, scratch, facts)
    _close(x[0], scratch[S, :n], 0.0, gx[0])
