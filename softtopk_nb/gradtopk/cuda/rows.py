"""GradTopK on a device: a row is read once, and solved and written by a group of whole warps.

The tilt is searched for over the same registers from which the marginals are then computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64

from ..._cuda.launch import MANY
from ..._cuda.row_kernels import NUMBERS, ROWS, RowKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES
from ..._threshold.records import ABOVE
from ..formulas import smoothed
from ..nodes import NODES
from ..records import CODE, SOLUTION
from .contour import arrange, contours, keep, shared_by


class LogSums(NamedTuple):
    """The potential, tau log Z_k(x/tau) (Theorem thm-grad-tilt)."""

    #: sums(span, code, tau, c, d, shared) -> smoothed sum, number of entries above the tilt
    sums: Any
    #: potential(sums, code, k, above, tau, c, d, log_p) -> phi; above: number of entries at +inf
    potential: Any


@made_once
def log_sums(T: Any, group: ThreadGroup) -> LogSums:
    """The functions of a group for the potential of a row."""
    t = tools(T, group)

    @device
    def sums(span, code, tau, c, d, shared):
        total, upper = 0.0, 0.0
        for i in range(t.rank(), span.n, group.lanes):  # one log1p: too long to be unrolled
            v = float64(span.x[span.start + i])
            if abs(v) < np.inf and code <= ALL:
                tail, whole, above = smoothed(v, tau, c, d)
                total += v if code == ALL else whole
                total += tail if code <= WITH_INFINITIES else 0.0
                upper += 1.0 if above else 0.0
        total, upper, _, _ = t.totals(total, upper, 0.0, 0.0, shared)
        return total, upper

    @device
    def potential(sums, code, k, above, tau, c, d, log_p):
        total, upper = sums
        if code == UNDEFINED:
            return np.nan
        if k == 0.0:
            return 0.0
        if above > 0.0:
            return np.inf
        return total if code == ALL else total + (k - upper) * (c + tau * d) + tau * log_p

    return LogSums(sums, potential)


@made_once
def make_solve(T: Any, group: ThreadGroup, enough: float, writes: bool, keeps: bool) -> RowKernel:
    """A kernel that solves rows: p to `out` if it `writes`, otherwise the potential to `phi`.

    The solutions for derivatives go to `solution` if it `keeps`.
    """
    t, do, up = tools(T, group), contours(T, group, enough), log_sums(T, group)

    @device
    def solve(here, s, batch, given):
        out, solution, phi = given
        span, base, memory = here.span, here.row * SOLUTION, arrange(s.record)
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        code = do.tilt(span, k, tau, s)
        c, d, log_p = T(0), T(0), 0.0
        if keeps and t.rank() == 0:
            solution[base + CODE] = code
        if code > WITH_INFINITIES:
            if writes:
                do.constant(span, code, k, s, out)
        else:
            level = do.opened(memory.record, tau)
            weights = do.quadrature(span, k, level, s)
            c, d, log_p = level.c, level.d, weights[2]
            if keeps and t.rank() < NODES:
                keep(weights, level, memory.notes, solution, base)
            if writes:
                do.marginals(span, tau, s, out)
        if not writes:
            tilt, over = float64(c), float64(d)
            sums = up.sums(span, code, tau, tilt, over, memory.sums_shared)
            if t.rank() == 0:
                above = memory.record[ABOVE]
                phi[here.row] = up.potential(sums, code, k, above, tau, tilt, over, log_p)

    return RowKernel(T, group, solve, (ROWS, NUMBERS, NUMBERS), MANY, shared_by(group.lanes))
