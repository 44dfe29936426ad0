"""The steps of an iteration on a device, each shared by a team of threads.

A thread sees to the entries at its place and at every whole team further on, in all vectors alike:
what it reads of a vector it has written itself. Only sums pass between threads. Vectors lie in
memory, in float64 as on the CPU and for its reasons. Infinities are not set aside but skipped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from .._cuda import device
from .._rows import ALL, MIXED, SHARED, UNDEFINED, verdict
from .._scalars import exp_neg
from .._team import Team, made_once, tools
from . import entry

__all__ = ["Row", "Steps", "iterated", "steps"]


class Row(NamedTuple):
    """A row that is iterated, and the memory for its vectors; z = (a - ref) * inv."""

    x: Any
    start: Any  # of the row in x
    n: Any
    half: Any  # a = x * half
    inv: Any
    rate: Any
    ref: Any
    count: Any  # entries at z = 0
    work: Any


class Steps(NamedTuple):
    """What a team does with a row. A vector is the place in `row.work` where it begins."""

    #: survey(x, start, n, k, tau, room) -> (code, left, top, low, high): k left to the finite
    #: entries and the smallest and largest of these; the value of +inf entries
    survey: Any
    #: open(x, start, n, low, high, tau, work, e, room) -> row; writes to the vector e
    open: Any
    #: entry(row, i), present(row, i): the i-th entry; whether it is finite
    entry: Any
    present: Any
    #: weigh(step, row, p, e, u, room) -> (total, settled): the shares of a step are u / total
    weigh: Any
    #: slope(row, a, p, e, s, total) -> (alpha, beta) of an entry
    slope: Any
    #: iterate(first, last, row, p, e, u, room): moves p over steps first .. last
    iterate: Any


@device
def iterated(code):
    """Whether the finite entries are iterated; k = n is as any other."""
    return code <= MIXED or code == ALL


def _of_plain(t: Any, lanes: int, entry_of: Any, present: Any) -> tuple[Any, Any, Any]:
    """(relate, weigh, slope) of `Plain`."""
    score, plain_slope = device(entry.score), device(entry.plain_slope)

    @device
    def relate(row, e, room):
        pass

    @device
    def weigh(step, row, p, e, u, room):
        # y stays in the units of x until its maximum is taken off, as on the CPU.
        top = -np.inf
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i), row.work[p + i], row.ref)
                top = y if y > top else top
        _, top = t.extremes(top, top, room)
        total = 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                y = score(entry_of(row, i), row.work[p + i], row.ref)
                share = exp_neg((y - top) * row.inv)
                row.work[u + i] = share
                total += share
        return t.total(total, room), False

    @device
    def slope(row, a, p, e, s, total):
        return plain_slope(a, p, s, row.ref, row.inv)

    return relate, weigh, slope


def _of_weighted(t: Any, lanes: int, entry_of: Any, present: Any) -> tuple[Any, Any, Any]:
    """(relate, weigh, slope) of `Weighted`."""
    weight, weighted_slope = device(entry.weight), device(entry.weighted_slope)

    @device
    def relate(row, e, room):
        second = -np.inf
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                second = a if a < row.ref and a > second else second
        _, second = t.extremes(second, second, room)
        gap = entry.ahead(row.ref, second, row.inv)
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                a = entry_of(row, i)
                row.work[e + i] = entry.relative(a, row.ref, second, row.inv, gap)

    @device
    def weigh(step, row, p, e, u, room):
        # 1 - p of settled leaders is what the others have (Proposition prop-iter-leaders).
        settled = step == row.count
        left = 0.0
        if settled:
            for i in range(t.rank(), row.n, lanes):
                if present(row, i) and entry_of(row, i) < row.ref:
                    left += row.work[p + i]
            left = t.total(left, room) / row.count
        total = 0.0
        for i in range(t.rank(), row.n, lanes):
            if present(row, i):
                known = settled and entry_of(row, i) == row.ref
                share = left if known else weight(row.work[p + i], row.work[e + i])
                row.work[u + i] = share
                total += share
        return t.total(total, room), settled

    @device
    def slope(row, a, p, e, s, total):
        return weighted_slope(s, e, total)

    return relate, weigh, slope


@made_once
def steps(team: Team, kind: Any) -> Steps:
    """The steps of a construction for a team."""
    t, lanes = tools(np.float64, team), team.lanes
    most = float(np.finfo(np.float64).max)

    @device
    def survey(x, start, n, k, tau, room):
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
        if not (bad == 0.0 and k >= 0.0 and k <= n and tau > 0.0 and tau < np.inf):
            return UNDEFINED, int64(0), np.nan, low, high
        code = verdict(n, int64(n - above - absent), k - above)
        top = k / above if code == SHARED else 1.0
        return code, int64(k - above), top, low, high

    @device
    def present(row, i):
        return abs(row.x[row.start + i]) < np.inf

    @device
    def entry_of(row, i):
        a = float64(row.x[row.start + i]) * row.half
        return row.ref if entry.lies_at_zero(kind, a, row.ref, row.inv) else a

    own = _of_plain if isinstance(kind, entry.Plain) else _of_weighted
    relate, weigh, slope = own(t, lanes, entry_of, present)

    @device
    def open_row(x, start, n, low, high, tau, work, e, room):
        half, inv, rate, ref = entry.scale(kind, low, high, tau)
        row = Row(x, start, n, half, inv, rate, ref, 0.0, work)
        count = 0.0
        for i in range(t.rank(), n, lanes):
            if present(row, i) and entry_of(row, i) == ref:
                count += 1.0
        count = t.total(count, room)
        row = Row(x, start, n, half, inv, rate, ref, count, work)
        relate(row, e, room)
        return row

    @device
    def iterate(first, last, row, p, e, u, room):
        for step in range(first, last):
            total, _ = weigh(step, row, p, e, u, room)
            for i in range(t.rank(), row.n, lanes):
                if present(row, i):
                    row.work[p + i] += row.work[u + i] / total

    return Steps(survey, open_row, entry_of, present, weigh, slope, iterate)
