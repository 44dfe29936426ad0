"""The steps of an iteration on a device, each shared by a group of threads.

A thread computes the entries at its index and at every whole group further on, in all vectors: what
it reads of a vector it has written itself. Only sums pass between threads. Vectors are in memory,
in float64 as on the CPU and for its reasons. Infinities are not removed but skipped.

Each pass is over a row or a part of one, and ends where a sum over the whole row is needed. A group
that has the whole row continues at once (`whole`); for a row in parts, the next launch does
(`cuda.long`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, tools
from ..._math.elementary import exp_neg
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES, constant_values, verdict_of
from .. import formulas

P, U, E = 0, 1, 2  # vectors: p, the shares before division, the vector of the construction
DZ, DP, Q = 3, 4, 5
GZ, ADJ = 3, 4
VALUE, JVP, PULL = 3, 6, 5  # their number; a VJP function stores p of earlier steps in further ones


class Row(NamedTuple):
    """A row that is iterated or a part of it, and memory for its vectors; z = (a - ref) * inv."""

    x: Any
    start: Any  # in x
    n: Any
    half: Any  # a = x * half
    inv: Any
    rate: Any
    ref: Any
    count: Any  # number of entries of the whole row at z = 0
    work: Any
    at: Any  # vector v begins at at + v * stride
    stride: Any


@device
def vector(row, v):
    """Where vector v begins in `row.work`."""
    return row.at + v * row.stride


class _Own(NamedTuple):
    """The functions that differ between the constructions."""

    #: runner_up(row, shared) -> the largest entry that is not at z = 0, if it is needed
    runner_up: Any
    #: relate(row, second): writes the vector E; `second` is the runner-up of the whole row
    relate: Any
    #: settled(step, row): whether in this step the maxima's 1 - p is computed from the others' p
    settled: Any
    #: look(step, row, p, shared) -> (sum of the others' p, largest score), which the shares need
    look: Any
    #: weigh(step, row, p, others, top, shared) -> sum of U; writes U: the shares are U over the sum
    #: over the whole row
    weigh: Any
    #: slope(row, a, p, e, s, total) -> (alpha, beta) of an entry
    slope: Any


class Steps(NamedTuple):
    """The passes of a group over a row or a part of it; results are sums and extremes over that.

    p, source and target are indices of vectors.
    """

    #: survey(x, start, n, shared) -> (NaN, +inf and -inf entries, smallest and largest finite one)
    survey: Any
    #: classify(n, k, tau, nans, above, excluded) -> (code, left, top): k left to the finite entries
    #: of a row; the value of its +inf entries
    classify: Any
    #: tied(row, shared) -> number of entries at z = 0
    tied: Any
    #: entry(row, i), present(row, i): the i-th entry; whether it is finite
    entry: Any
    present: Any
    #: clear(row, p): sets p to 0
    clear: Any
    #: add(row, source, total, target): target = source + U / total
    add: Any
    own: _Own


@device
def iterated(code):
    """Whether the finite entries are iterated; k = n is no special case."""
    return code <= WITH_INFINITIES or code == ALL


def _of_plain(t: Any, lanes: int, entry_of: Any, present: Any) -> _Own:
    score, plain_slope = device(formulas.score), device(formulas.plain_slope)

    @device
    def runner_up(row, shared):
        return 0.0

    @device
    def relate(row, second):
        pass

    @device
    def settled(step, row):
        return False

    @device
    def look(step, row, p, shared):
        # y is in the units of x until its maximum is subtracted, as on the CPU.
        top, p = -np.inf, vector(row, p)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i) - row.ref, row.work[p + i])
                top = y if y > top else top
        _, top = t.extremes(top, top, shared)
        return 0.0, top

    @device
    def weigh(step, row, p, others, top, shared):
        total, p, u = 0.0, vector(row, p), vector(row, U)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i) - row.ref, row.work[p + i])
                share = exp_neg((y - top) * row.inv)
                row.work[u + i] = share
                total += share
        return t.total(total, shared)

    @device
    def slope(row, a, p, e, s, total):
        return plain_slope(a, p, s, row.ref, row.inv)

    return _Own(runner_up, relate, settled, look, weigh, slope)


def _of_weighted(t: Any, lanes: int, entry_of: Any, present: Any) -> _Own:
    weight, weighted_slope = device(formulas.weight), device(formulas.weighted_slope)

    @device
    def runner_up(row, shared):
        second = -np.inf
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                second = a if a < row.ref and a > second else second
        _, second = t.extremes(second, second, shared)
        return second

    @device
    def relate(row, second):
        gap, e = formulas.ahead(row.ref, second, row.inv), vector(row, E)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                row.work[e + i] = formulas.relative(a, row.ref, second, row.inv, gap)

    @device
    def settled(step, row):
        # 1 - p of settled maxima is computed from the others' p (Proposition prop-iter-maxima).
        return step == row.count

    @device
    def look(step, row, p, shared):
        others, p = 0.0, vector(row, p)
        if settled(step, row):
            for i in range(t.rank(), row.n, lanes):
                if present(row, i) and entry_of(row, i) < row.ref:
                    others += row.work[p + i]
            others = t.total(others, shared)
        return others, 0.0

    @device
    def weigh(step, row, p, others, top, shared):
        total, now_settled = 0.0, settled(step, row)
        left = others / row.count if now_settled else 0.0
        p, u, e = vector(row, p), vector(row, U), vector(row, E)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                known = now_settled and entry_of(row, i) == row.ref
                share = left if known else weight(row.work[p + i], row.work[e + i])
                row.work[u + i] = share
                total += share
        return t.total(total, shared)

    @device
    def slope(row, a, p, e, s, total):
        return weighted_slope(s, e, total)

    return _Own(runner_up, relate, settled, look, weigh, slope)


@made_once
def steps(group: ThreadGroup, kind: Any) -> Steps:
    """The steps of a construction for a group."""
    t, lanes = tools(np.float64, group), group.lanes
    most = float(np.finfo(np.float64).max)

    @device
    def survey(x, start, n, shared):
        low, high, above, excluded, nans = most, -most, 0.0, 0.0, 0.0
        for i in range(t.rank(), n, lanes):
            v = float64(x[start + i])
            nans += 0.0 if v == v else 1.0
            above += 1.0 if v == np.inf else 0.0
            excluded += 1.0 if v == -np.inf else 0.0
            finite = abs(v) < np.inf
            low = v if finite and v < low else low
            high = v if finite and v > high else high
        nans, above, excluded, _ = t.totals(nans, above, excluded, 0.0, shared)
        low, high = t.extremes(low, high, shared)
        return nans, above, excluded, low, high

    @device
    def classify(n, k, tau, nans, above, excluded):
        code = verdict_of(n, k, tau, nans, above, excluded)
        _, top, _ = constant_values(code, k, above, 1.0)
        return code, int64(0) if code == UNDEFINED else int64(k - above), top

    @device
    def present(row, i):
        return abs(row.x[row.start + i]) < np.inf

    @device
    def entry_of(row, i):
        a = float64(row.x[row.start + i]) * row.half
        return row.ref if formulas.lies_at_zero(kind, a, row.ref, row.inv) else a

    @device
    def tied(row, shared):
        count = 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i) and entry_of(row, i) == row.ref:
                count += 1.0
        return t.total(count, shared)

    @device
    def clear(row, p):
        p = vector(row, p)
        for i in range(t.rank(), row.n, lanes):
            row.work[p + i] = 0.0

    @device
    def add(row, source, total, target):
        source, u, target = vector(row, source), vector(row, U), vector(row, target)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                row.work[target + i] = row.work[source + i] + row.work[u + i] / total

    of_kind = _of_plain if isinstance(kind, formulas.Plain) else _of_weighted
    own = of_kind(t, lanes, entry_of, present)
    return Steps(survey, classify, tied, entry_of, present, clear, add, own)


class Whole(NamedTuple):
    """The steps of a group that has a whole row."""

    #: open(span, k, tau, work, at, shared) -> (code, left, top, row), with p = 0 and E written if
    #: it is iterated; its vectors begin at `at` in `work`
    open: Any
    #: weigh(step, row, p, shared) -> total: the shares of a step are U / total
    weigh: Any
    #: iterate(first, last, row, p, shared): updates the vector p by steps first .. last
    iterate: Any


@made_once
def whole(group: ThreadGroup, kind: Any) -> Whole:
    """The steps of a construction for a group that has a whole row."""
    do = steps(group, kind)
    own = do.own

    @device
    def open_row(span, k, tau, work, at, shared):
        nans, above, excluded, low, high = do.survey(span.x, span.start, span.n, shared)
        code, left, top = do.classify(span.n, k, tau, nans, above, excluded)
        half, inv, rate, ref = formulas.scale(kind, low, high, tau)
        memory = work, at, span.n
        row = Row(span.x, span.start, span.n, half, inv, rate, ref, 0.0, *memory)
        if iterated(code):
            count = do.tied(row, shared)
            row = Row(span.x, span.start, span.n, half, inv, rate, ref, count, *memory)
            own.relate(row, own.runner_up(row, shared))
            do.clear(row, P)
        return code, left, top, row

    @device
    def weigh(step, row, p, shared):
        others, top = own.look(step, row, p, shared)
        return own.weigh(step, row, p, others, top, shared)

    @device
    def iterate(first, last, row, p, shared):
        for step in range(first, last):
            do.add(row, p, weigh(step, row, p, shared), p)

    return Whole(open_row, weigh, iterate)


class Results(NamedTuple):
    """Copies from vectors to the arrays that are returned, for a row or a part of one."""

    #: value(row, code, top, out): writes p; `top` for +inf entries, 0 for -inf ones
    value: Any
    #: slope(row, code, source, out): writes a derivative, 0 for infinite entries
    slope: Any


@made_once
def results(T: Any, group: ThreadGroup) -> Results:
    """The functions of a group that write to rows of type T."""
    t, lanes = tools(np.float64, group), group.lanes

    @device
    def value(row, code, top, out):
        p = vector(row, P)
        for i in range(t.rank(), row.n, lanes):
            v = row.x[row.start + i]
            if iterated(code) and abs(v) < np.inf:
                out[row.start + i] = T(row.work[p + i])
            else:
                out[row.start + i] = T(np.nan if code == UNDEFINED else top if v == np.inf else 0.0)

    @device
    def slope(row, code, source, out):
        constant, source = np.nan if code == UNDEFINED else 0.0, vector(row, source)
        for i in range(t.rank(), row.n, lanes):
            solved = iterated(code) and abs(row.x[row.start + i]) < np.inf
            out[row.start + i] = T(row.work[source + i] if solved else constant)

    return Results(value, slope)
