"""What a team does with a row, or with a part, for softmax, its logarithm and logsumexp.

The steps are those of `rows`, in the same order; what a derivative needs of a row is two numbers,
from which it makes the probabilities again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._math.elementary import exp_neg
from ..formulas import inverse, z_of
from ..records import EXCESS, RECORD, TOP


class Passes(NamedTuple):
    """What a team does with a row, or with a part of one."""

    #: inverse(tau): 1/tau in the rows' type, finite
    inverse: Any
    #: look(x, start, n, wide, regs, room): less than 0 if there is a NaN; the largest entry
    look: Any
    #: look_at_finite(x, start, n, wide, regs, room): 0; the largest finite entry
    look_at_finite: Any
    #: judge(bad, top, tau): the largest entry, NaN if the row is to be NaN
    judge: Any
    #: survey(x, start, n, wide, tau, regs, room): both, for a whole row
    survey: Any
    #: whole(s, ts, room), both(a, b, ta, tb, room): sums over the team, of one thread's sums in
    #: the rows' type (if it holds the row) and in float64 (if it streams)
    whole: Any
    both: Any
    #: gather(x, start, n, wide, m, inv, regs, room): sum exp z over z < 0, and how many z are 0,
    #: where z = (x - m)/tau
    gather: Any
    #: excess(m, rest, largest): sum exp z - 1 over the row
    excess: Any
    #: fill(x, start, n, wide, m, inv, excess, regs, out): writes the function's value
    fill: Any


@made_once
def passes(T: Any, team: Team, f: str) -> Passes:
    """The passes over a row of type T for the function of this name."""
    t = tools(T, team)
    held, logs = team.held, f == "log_softmax"
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def inverse_of(tau):
        return inverse(np.float64(tau), one)

    @device
    def view(v, m, inv):
        """What of an entry the value is made of."""
        z = z_of(v, m, inv)
        return z if logs else exp_neg(z)

    @device
    def look(x, start, n, wide, regs, room):
        top, bad = -infinity, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                top = v if v > top else top
                bad = bad if v == v else -one
        return t.extremes(bad, top, room)

    @device
    def look_at_finite(x, start, n, wide, regs, room):
        top = -infinity
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                top = v if v > top and v < infinity else top
        return t.extremes(zero, top, room)

    @device
    def judge(bad, top, tau):
        return top if bad == zero and tau > 0.0 and tau < np.inf else T(np.nan)

    @device
    def survey(x, start, n, wide, tau, regs, room):
        bad, top = look(x, start, n, wide, regs, room)
        return judge(bad, top, tau)

    @device
    def whole(s, ts, room):
        """The sum over the team of what its threads have added up."""
        if team.streams:
            return t.total(ts, room)
        return t.total(s, room)

    @device
    def both(a, b, ta, tb, room):
        """As `whole`, of two sums."""
        if team.streams:
            return t.totals(ta, tb, 0.0, 0.0, room)[:2]
        return t.totals(a, b, zero, zero, room)[:2]

    @device
    def gather(x, start, n, wide, m, inv, regs, room):
        s, ties = zero, zero
        ts, tt = 0.0, 0.0
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                z = z_of(regs[j], m, inv)
                e = exp_neg(z)
                s += e if z < zero else zero
                ties += one if z == zero else zero
                regs[j] = z if logs else e
            if team.streams:
                # Not more than a few entries in a row of float32 additions.
                ts += s
                tt += ties
                s, ties = zero, zero
        return both(s, ties, ts, tt, room)

    @device
    def excess(m, rest, largest):
        # The 1 of the largest entry is left out of the sum, as on the CPU, so that log p keeps its
        # relative accuracy where p is close to 1 (prop-stable); entries equal to it are counted.
        return rest + (largest - 1.0) if m == m else np.nan

    @device
    def fill(x, start, n, wide, m, inv, excess, regs, out):
        scale, log_s = T(1.0 / (1.0 + excess)), T(math.log1p(T(excess)))
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                w = view(regs[j], m, inv) if team.streams else regs[j]
                regs[j] = w - log_s if logs else w * scale
            t.store(regs, start, n, wide, piece, out)

    looks, sums = (look, look_at_finite, judge, survey), (whole, both)
    return Passes(inverse_of, *looks, *sums, gather, excess, fill)


@made_once
def conclusion(sums: bool, keeps: bool) -> Any:
    """What one thread writes of a row: the value if it is a number, its record if it is kept."""

    @device
    def conclude(row, m, excess, tau, out, record):
        if sums:
            # -inf in a row without entries, as log 0 is.
            out[row] = np.float64(m) + tau * math.log1p(excess)
        if keeps:
            record[row * RECORD + TOP], record[row * RECORD + EXCESS] = m, excess

    return conclude


@made_once
def make_value(T: Any, team: Team, f: str, keeps: bool) -> Kernel:
    """The value of each row; logsumexp, one number a row, in float64. It may keep a record."""
    t, do = tools(T, team), passes(T, team, f)
    rows_of_block, held, sums = team.rows, team.held, f == "logsumexp"
    conclude = conclusion(sums, keeps)

    def kernel(x, rows, n, wide, taus, tau_all, tau_per_row, out, record):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        tau = argument(taus, tau_all, tau_per_row, row)
        inv = do.inverse(tau)
        m = do.survey(x, start, n, wide, tau, regs, room)
        rest, largest = do.gather(x, start, n, wide, m, inv, regs, room)
        excess = do.excess(m, rest, largest)
        if not sums:
            do.fill(x, start, n, wide, m, inv, excess, regs, out)
        if t.rank() == 0:
            conclude(row, m, excess, tau, out, record)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    arguments = (real, int64, int64, int32, numbers, float64, int32)
    return Kernel(kernel, (*arguments, numbers if sums else real, numbers), team.threads)
