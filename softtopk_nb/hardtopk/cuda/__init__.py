"""The hard top-k on a device.

A row of at most 32 entries is sorted in the registers of a few threads. A longer one is bisected
for its k-th largest value, as on the CPU: at most 32 counting passes in float32, 64 in float64,
over entries that its team holds in registers if it can. Which of those that equal this value get a
one is found by the same bisection over places: up to which place there are as many as are wanted.
The longest rows are cut into parts (`cuda.long`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, choose, pointer_to
from ..._cuda.long_rows import is_long
from ..._cuda.sorting import in_registers
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._math.elementary import from_ordinal, to_ordinal
from ..formulas import middle_of
from . import long
from .rows import halve, passes, wanted

SORTED = 32  # entries: rows up to this length are sorted


@made_once
def row_value(T: Any, team: Team, sorts: bool) -> Any:
    """What writes one row: f(x, start, n, wide, k, regs, room, out), NaN for a k of -1.

    Ones at the k largest entries, ties to the lowest index. `sorts`: the k-th largest
    is found by sorting, which takes a team within a warp.
    """
    t, do = tools(T, team), passes(T, team)
    absent, zero = T(-np.inf), T(0)

    if sorts:
        sort, entry = in_registers(T, team)

        @device
        def find(x, start, n, wide, k, lo, hi, regs, room):
            sort(regs)
            kth = entry(regs, max(k - 1, 0))
            t.load(x, start, n, wide, 0, absent, regs)
            return kth

    else:

        @device
        def find(x, start, n, wide, k, lo, hi, regs, room):
            # Zeros of both signs are equal, and threads must not differ in which of them they hold.
            lo, hi = to_ordinal(lo + zero), to_ordinal(hi + zero)
            while lo < hi:
                middle = middle_of(lo, hi)
                found = do.at_least(x, start, n, wide, from_ordinal(middle), regs, room)
                lo, hi = halve(lo, hi, middle, found, k)
            return from_ordinal(lo)

    @device
    def fill(x, start, n, wide, k, regs, room, out):
        bad, present, lo, hi = do.survey(x, start, n, wide, regs, room)
        defined = bad == 0.0 and 0 <= k <= present
        value, last = zero, int64(-1)
        if defined:
            value = find(x, start, n, wide, k, lo, hi, regs, room)
            if k > 0:
                last = n
                if do.at_least(x, start, n, wide, value, regs, room) > k:
                    last = do.last_tied(x, start, n, wide, value, k, regs, room)
        do.mark(x, start, n, wide, value, last, defined, regs, out)

    return fill


@made_once
def make_hard(T: Any, team: Team, sorts: bool) -> Kernel:
    """Write every row; see `row_value`."""
    t, fill = tools(T, team), row_value(T, team, sorts)
    rows_of_block, held = team.rows, team.held

    def hard(x, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        k = wanted(
            argument(ks, k_all, k_per_row, row), argument(taus, tau_all, tau_per_row, row), n
        )
        fill(x, row * n, n, wide, k, regs, room, out)

    per_row = (pointer_to(np.float64), float64, int32)
    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *per_row, *per_row, real)
    return Kernel(hard, arguments, team.threads)


def value(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write p."""
    if is_long(rows):
        long.value(rows, out)
        return
    team = choose(rows.n, rows.dtype)
    make_hard(rows.dtype, team, rows.n <= SORTED)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(out),
        *rows.k,
        *rows.temperature,
        out.pointer,
    )
