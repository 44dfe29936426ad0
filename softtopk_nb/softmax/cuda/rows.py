"""The passes of a group over a row, or a part of one, for softmax, its logarithm and logsumexp.

The steps are those of the CPU, in the same order; the record of a row for its derivatives is two
numbers, from which they compute the probabilities again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._cuda.row_kernels import NUMBERS, ROWS, Stage, Staged
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, beside, made_once, of_row, tools
from ..._math.elementary import exp_neg
from ..formulas import inverse, z_of
from ..records import EXCESS, RECORD, TOP


class Passes(NamedTuple):
    """The passes of a group over a row, or over a part of one; `s` is its `Scratch`."""

    #: inverse(tau) -> 1/tau in the rows' type, finite
    inverse: Any
    #: look(span, s) -> (less than 0 if there is a NaN, the largest entry)
    look: Any
    #: look_at_finite(span, s) -> (0, the largest finite entry)
    look_at_finite: Any
    #: maximum(bad, top, tau) -> the largest entry, NaN if the row is to be NaN
    maximum: Any
    #: whole(a, ta, s), both(a, b, ta, tb, s) -> sums over the group of each thread's sums, a and b
    #: in the rows' type (if it holds the row) or ta and tb in float64 (if it streams)
    whole: Any
    both: Any
    #: gather(span, m, inv, s) -> (sum exp z over z < 0, number of z = 0), z = (x - m)/tau
    gather: Any
    #: fill(span, m, inv, excess, s, out): writes the function's value
    fill: Any


@made_once
def passes(T: Any, group: ThreadGroup, f: str) -> Passes:
    """The passes over a row of type T for the function of this name."""
    t = tools(T, group)
    held, logs = group.held, f == "log_softmax"
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def inverse_of(tau):
        return inverse(np.float64(tau), one)

    @device
    def view(v, m, inv):
        """z of an entry if the value is a logarithm, otherwise e^z."""
        z = z_of(v, m, inv)
        return z if logs else exp_neg(z)

    @device
    def look(span, s):
        top, bad = -infinity, zero
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                v = s.regs[j]
                top = v if v > top else top
                bad = bad if v == v else -one
        return t.extremes(bad, top, s.shared)

    @device
    def look_at_finite(span, s):
        top = -infinity
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                v = s.regs[j]
                top = v if v > top and v < infinity else top
        return t.extremes(zero, top, s.shared)

    @device
    def maximum(bad, top, tau):
        return T(top) if bad == zero and tau > 0.0 and tau < np.inf else T(np.nan)

    @device
    def whole(a, ta, s):
        """The sum over the group of its threads' sums."""
        if group.streams:
            return t.total(ta, s.shared)
        return t.total(a, s.shared)

    @device
    def both(a, b, ta, tb, s):
        """The sums over the group of two of its threads' sums."""
        if group.streams:
            return t.totals(ta, tb, 0.0, 0.0, s.shared)[:2]
        return t.totals(a, b, zero, zero, s.shared)[:2]

    @device
    def gather(span, m, inv, s):
        rest, ties = zero, zero
        total_rest, total_ties = 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                z = z_of(s.regs[j], m, inv)
                e = exp_neg(z)
                rest += e if z < zero else zero
                ties += one if z == zero else zero
                s.regs[j] = z if logs else e
            if group.streams:
                # At most a few entries are added in float32 before float64.
                total_rest += rest
                total_ties += ties
                rest, ties = zero, zero
        return both(rest, ties, total_rest, total_ties, s)

    @device
    def fill(span, m, inv, excess, s, out):
        scale, log_s = T(1.0 / (1.0 + excess)), T(math.log1p(T(excess)))
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                w = view(s.regs[j], m, inv) if group.streams else s.regs[j]
                s.regs[j] = w - log_s if logs else w * scale
            t.store(s.regs, beside(span, out), piece)

    return Passes(inverse_of, look, look_at_finite, maximum, whole, both, gather, fill)


@made_once
def make_value(T: Any, group: ThreadGroup, f: str, keeps: bool) -> Staged:
    """A kernel for each row's value (a float64 for logsumexp), and its record if it `keeps` it."""
    t, do, sums = tools(T, group), passes(T, group, f), f == "logsumexp"

    @device
    def look(here, s, batch, given, found):
        bad, top = do.look(here.span, s)
        return 0.0, 0.0, 0.0, 0.0, bad, top

    @device
    def gather(here, s, batch, given, found):
        tau = of_row(batch.temperature, here.row)
        m = do.maximum(found[4], found[5], tau)
        rest, largest = do.gather(here.span, m, do.inverse(tau), s)
        return rest, largest, 0.0, 0.0, found[4], found[5]

    @device
    def fill(here, s, batch, given, found):
        out, record = given
        tau = of_row(batch.temperature, here.row)
        m = do.maximum(found[4], found[5], tau)
        # The 1 of the largest entry is left out of the sum, as on the CPU, so that log p keeps its
        # relative accuracy where p is close to 1 (prop-stable); other entries equal to it are
        # counted.
        excess = found[0] + (found[1] - 1.0) if m == m else np.nan
        if not sums:
            do.fill(here.span, m, do.inverse(tau), excess, s, out)
        if here.part == 0 and t.rank() == 0:
            if sums:
                # -inf in a row without entries, as log 0 is.
                out[here.row] = np.float64(m) + tau * math.log1p(excess)
            if keeps:
                record[here.row * RECORD + TOP], record[here.row * RECORD + EXCESS] = m, excess

    stages = (
        Stage(look, sums=False, extremes=True),
        Stage(gather, extremes=True),
        Stage(fill, once=sums),
    )
    return Staged(T, group, (NUMBERS if sums else ROWS, NUMBERS), stages)
