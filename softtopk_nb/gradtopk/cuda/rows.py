"""GradTopK on a device: a row read once, solved and written by a team of whole warps.

The tilt is searched for in the registers that the marginals are then computed from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import MANY, Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import Team, argument, made_once, tools
from ..._nonfinite import ALL, MIXED, UNDEFINED
from ..._threshold.cuda.rows import ABOVE
from ..._threshold.newton import inverse_temperature_of
from ..formulas import softplus
from ..nodes import NODES
from ..records import CODE, SOLUTION
from .contour import arrange, contours, keep, shared_by


class Heights(NamedTuple):
    """The potential, tau log Z_k(x/tau) (Theorem thm-grad-tilt)."""

    #: sums(x, start, n, code, tau, c, d, room) -> smoothed sum, entries above the tilt
    sums: Any
    #: potential(total, upper, code, k, above, tau, c, d, log_p) -> phi; above: entries at +inf
    potential: Any


@made_once
def heights(T: Any, team: Team) -> Heights:
    """What a team does for the potential of a row."""
    t = tools(T, team)

    @device
    def sums(x, start, n, code, tau, c, d, room):
        total, upper = 0.0, 0.0
        for i in range(t.rank(), n, team.lanes):  # log1p once: too long to be repeated held times
            v = float64(x[start + i])
            if abs(v) < np.inf and code <= ALL:
                u, tail = softplus(v, tau, c, d)
                total += v if u >= 0.0 or code == ALL else 0.0
                total += tail if code <= MIXED else 0.0
                upper += 1.0 if u >= 0.0 else 0.0
        total, upper, _, _ = t.totals(total, upper, 0.0, 0.0, room)
        return total, upper

    @device
    def potential(total, upper, code, k, above, tau, c, d, log_p):
        if code == UNDEFINED:
            return np.nan
        if k == 0.0:
            return 0.0
        if above > 0.0:
            return np.inf
        return total if code == ALL else total + (k - upper) * (c + tau * d) + tau * log_p

    return Heights(sums, potential)


@made_once
def make_solve(T: Any, team: Team, enough: float, writes: bool, keeps: bool) -> Kernel:
    """Solve every row: p to `out` if it `writes`, the potential to `phi` if not.

    What derivatives need goes to `solution` if it `keeps`.
    """
    t, do, up = tools(T, team), contours(T, team, enough), heights(T, team)
    rows_of_block, held, size = team.rows, team.held, shared_by(team.lanes)

    def solve(
        x, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, out, solution, phi
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        shared = cuda.shared.array((rows_of_block, size), float64)
        slot = t.slot() if rows_of_block > 1 else 0  # known to the compiler
        row = int64(cuda.blockIdx.x) * rows_of_block + slot
        if row >= rows:
            return
        memory = arrange(shared[slot])
        record, start, base = memory.record, row * n, row * SOLUTION
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        code = do.tilt(x, start, n, wide, k, tau, regs, memory)
        c, d, log_p = T(0), T(0), 0.0
        if keeps and t.rank() == 0:
            solution[base + CODE] = code
        if code > MIXED:
            if writes:
                do.constant(x, start, n, wide, code, k, regs, record, out)
        else:
            inv = inverse_temperature_of(tau, T(1))
            c, d, cut = do.opened(record, inv)
            re, im, log_p = do.quadrature(x, start, n, wide, k, c, inv, d, cut, regs, memory)
            if keeps and t.rank() < NODES:
                keep(re, im, log_p, c, d, cut, memory.notes, solution, base)
            if writes:
                do.marginals(x, start, n, wide, inv, regs, memory, out)
        if not writes:
            tilt, over = float64(c), float64(d)
            total, upper = up.sums(x, start, n, code, tau, tilt, over, memory.room)
            if t.rank() == 0:
                above = record[ABOVE]
                phi[row] = up.potential(total, upper, code, k, above, tau, tilt, over, log_p)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, *per_row, real, numbers, numbers)
    return Kernel(solve, arguments, team.threads, MANY)
