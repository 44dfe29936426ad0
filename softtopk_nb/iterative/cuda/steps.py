"""The steps of an iteration on a device, each shared by a team of threads.

A thread sees to the entries at its place and at every whole team further on, in all vectors alike:
what it reads of a vector it has written itself. Only sums pass between threads. Vectors lie in
memory, in float64 as on the CPU and for its reasons. Infinities are not set aside but skipped.

Each pass is over a row or a part of one, and ends where something about the whole row has to be
known. A team that has the row goes on at once (`whole`); where a row lies in parts, the next launch
does (`cuda.long`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.target import device
from ..._cuda.thread_groups import Team, made_once, tools
from ..._math.elementary import exp_neg
from ..._nonfinite import ALL, MIXED, SHARED, UNDEFINED, verdict
from .. import formulas


class Row(NamedTuple):
    """A row that is iterated or a part of it, and memory for its vectors; z = (a - ref) * inv."""

    x: Any
    start: Any  # in x
    n: Any
    half: Any  # a = x * half
    inv: Any
    rate: Any
    ref: Any
    count: Any  # entries of the whole row at z = 0
    work: Any


class _Own(NamedTuple):
    """What the constructions do differently."""

    #: runner_up(row, room) -> the largest entry that is not at z = 0, if it is needed
    runner_up: Any
    #: relate(row, second, e): writes to the vector e; `second` is the runner-up of the whole row
    relate: Any
    #: settled(step, row): whether the leaders' 1 - p comes from the others in this step
    settled: Any
    #: look(step, row, p, room) -> (the others' p, the largest score): what the shares need
    look: Any
    #: weigh(step, row, p, e, u, others, top, room) -> sum of u: the shares are u over that of a row
    weigh: Any
    #: slope(row, a, p, e, s, total) -> (alpha, beta) of an entry
    slope: Any


class Steps(NamedTuple):
    """What a team does with a row or a part of it; results are sums and extremes over that.

    A vector is the place in `row.work` where it begins.
    """

    #: survey(x, start, n, room) -> (NaN, +inf and -inf entries, smallest and largest finite one)
    survey: Any
    #: judge(n, k, tau, bad, above, absent) -> (code, left, top): k left to the finite entries of a
    #: row; the value of its +inf entries
    judge: Any
    #: tied(row, room) -> entries at z = 0
    tied: Any
    #: entry(row, i), present(row, i): the i-th entry; whether it is finite
    entry: Any
    present: Any
    #: clear(row, p): zeros
    clear: Any
    #: add(row, source, u, total, target): target = source + u / total
    add: Any
    own: _Own


@device
def iterated(code):
    """Whether the finite entries are iterated; k = n is as any other."""
    return code <= MIXED or code == ALL


def _of_plain(t: Any, lanes: int, entry_of: Any, present: Any) -> _Own:
    score, plain_slope = device(formulas.score), device(formulas.plain_slope)

    @device
    def runner_up(row, room):
        return 0.0

    @device
    def relate(row, second, e):
        pass

    @device
    def settled(step, row):
        return False

    @device
    def look(step, row, p, room):
        # y stays in the units of x until its maximum is taken off, as on the CPU.
        top = -np.inf
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i) - row.ref, row.work[p + i])
                top = y if y > top else top
        _, top = t.extremes(top, top, room)
        return 0.0, top

    @device
    def weigh(step, row, p, e, u, others, top, room):
        total = 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i) - row.ref, row.work[p + i])
                share = exp_neg((y - top) * row.inv)
                row.work[u + i] = share
                total += share
        return t.total(total, room)

    @device
    def slope(row, a, p, e, s, total):
        return plain_slope(a, p, s, row.ref, row.inv)

    return _Own(runner_up, relate, settled, look, weigh, slope)


def _of_weighted(t: Any, lanes: int, entry_of: Any, present: Any) -> _Own:
    weight, weighted_slope = device(formulas.weight), device(formulas.weighted_slope)

    @device
    def runner_up(row, room):
        second = -np.inf
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                second = a if a < row.ref and a > second else second
        _, second = t.extremes(second, second, room)
        return second

    @device
    def relate(row, second, e):
        gap = formulas.ahead(row.ref, second, row.inv)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                row.work[e + i] = formulas.relative(a, row.ref, second, row.inv, gap)

    @device
    def settled(step, row):
        # 1 - p of settled leaders is what the others have (Proposition prop-iter-leaders).
        return step == row.count

    @device
    def look(step, row, p, room):
        others = 0.0
        if settled(step, row):
            for i in range(t.rank(), row.n, lanes):
                if present(row, i) and entry_of(row, i) < row.ref:
                    others += row.work[p + i]
            others = t.total(others, room)
        return others, 0.0

    @device
    def weigh(step, row, p, e, u, others, top, room):
        total, now_settled = 0.0, settled(step, row)
        left = others / row.count if now_settled else 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                known = now_settled and entry_of(row, i) == row.ref
                share = left if known else weight(row.work[p + i], row.work[e + i])
                row.work[u + i] = share
                total += share
        return t.total(total, room)

    @device
    def slope(row, a, p, e, s, total):
        return weighted_slope(s, e, total)

    return _Own(runner_up, relate, settled, look, weigh, slope)


@made_once
def steps(team: Team, kind: Any) -> Steps:
    """The steps of a construction for a team."""
    t, lanes = tools(np.float64, team), team.lanes
    most = float(np.finfo(np.float64).max)

    @device
    def survey(x, start, n, room):
        low, high, above, absent, bad = most, -most, 0.0, 0.0, 0.0
        for i in range(t.rank(), n, lanes):
            v = float64(x[start + i])
            bad += 0.0 if v == v else 1.0
            above += 1.0 if v == np.inf else 0.0
            absent += 1.0 if v == -np.inf else 0.0
            finite = abs(v) < np.inf
            low = v if finite and v < low else low
            high = v if finite and v > high else high
        bad, above, absent, _ = t.totals(bad, above, absent, 0.0, room)
        low, high = t.extremes(low, high, room)
        return bad, above, absent, low, high

    @device
    def judge(n, k, tau, bad, above, absent):
        if not (bad == 0.0 and k >= 0.0 and k <= n and tau > 0.0 and tau < np.inf):
            return UNDEFINED, int64(0), np.nan
        code = verdict(n, int64(n - above - absent), k - above)
        top = k / above if code == SHARED else 1.0
        return code, int64(k - above), top

    @device
    def present(row, i):
        return abs(row.x[row.start + i]) < np.inf

    @device
    def entry_of(row, i):
        a = float64(row.x[row.start + i]) * row.half
        return row.ref if formulas.lies_at_zero(kind, a, row.ref, row.inv) else a

    @device
    def tied(row, room):
        count = 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i) and entry_of(row, i) == row.ref:
                count += 1.0
        return t.total(count, room)

    @device
    def clear(row, p):
        for i in range(t.rank(), row.n, lanes):
            row.work[p + i] = 0.0

    @device
    def add(row, source, u, total, target):
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                row.work[target + i] = row.work[source + i] + row.work[u + i] / total

    of_kind = _of_plain if isinstance(kind, formulas.Plain) else _of_weighted
    own = of_kind(t, lanes, entry_of, present)
    return Steps(survey, judge, tied, entry_of, present, clear, add, own)


class Whole(NamedTuple):
    """What a team does with a row that it has to itself."""

    #: survey(x, start, n, k, tau, room) -> (code, left, top, low, high): as `Steps.judge`, and the
    #: smallest and the largest finite entry
    survey: Any
    #: open(x, start, n, low, high, tau, work, e, room) -> row; writes to the vector e
    open: Any
    #: weigh(step, row, p, e, u, room) -> total: the shares of a step are u / total
    weigh: Any
    #: iterate(first, last, row, p, e, u, room): moves p over steps first .. last
    iterate: Any


@made_once
def whole(team: Team, kind: Any) -> Whole:
    """The steps of a construction for a team and its row."""
    do = steps(team, kind)
    own = do.own

    @device
    def survey(x, start, n, k, tau, room):
        bad, above, absent, low, high = do.survey(x, start, n, room)
        code, left, top = do.judge(n, k, tau, bad, above, absent)
        return code, left, top, low, high

    @device
    def open_row(x, start, n, low, high, tau, work, e, room):
        half, inv, rate, ref = formulas.scale(kind, low, high, tau)
        row = Row(x, start, n, half, inv, rate, ref, 0.0, work)
        row = Row(x, start, n, half, inv, rate, ref, do.tied(row, room), work)
        own.relate(row, own.runner_up(row, room), e)
        return row

    @device
    def weigh(step, row, p, e, u, room):
        others, top = own.look(step, row, p, room)
        return own.weigh(step, row, p, e, u, others, top, room)

    @device
    def iterate(first, last, row, p, e, u, room):
        for step in range(first, last):
            do.add(row, p, u, weigh(step, row, p, e, u, room), p)

    return Whole(survey, open_row, weigh, iterate)


class Results(NamedTuple):
    """From vectors to what is returned, for a row or a part of one."""

    #: value(x, start, n, code, top, work, p, out): p; `top` for +inf entries, 0 for -inf ones
    value: Any
    #: slope(x, start, n, code, work, source, out): a derivative, 0 for infinite entries
    slope: Any


@made_once
def results(T: Any, team: Team) -> Results:
    """What a team writes to rows of type T."""
    t, lanes = tools(np.float64, team), team.lanes

    @device
    def value(x, start, n, code, top, work, p, out):
        for i in range(t.rank(), n, lanes):
            v = x[start + i]
            if iterated(code) and abs(v) < np.inf:
                out[start + i] = T(work[p + i])
            else:
                out[start + i] = T(np.nan if code == UNDEFINED else top if v == np.inf else 0.0)

    @device
    def slope(x, start, n, code, work, source, out):
        constant = np.nan if code == UNDEFINED else 0.0
        for i in range(t.rank(), n, lanes):
            solved = iterated(code) and abs(x[start + i]) < np.inf
            out[start + i] = T(work[source + i] if solved else constant)

    return Results(value, slope)
