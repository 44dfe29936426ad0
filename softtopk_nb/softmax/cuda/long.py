"""softmax, its logarithm and logsumexp on a device for long rows, in parts (`_cuda.long_rows`).

Three launches: the largest entry of each part; the sums of exponentials relative to that of the
row; and the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from .rows import conclusion, passes

PER_ROW = (pointer_to(np.float64), float64, int32)  # arguments that stand for a number of each row
SHAPE = (int64, int32, int64, int64, *PER_ROW)  # n, wide, parts, length and the temperature

_numbers = pointer_to(np.float64)


@made_once
def make_look(T: Any, team: Team, finite: bool) -> Kernel:
    """Find the largest entry of each part, or the largest `finite` one."""
    do, place = passes(T, team, "softmax"), make_place(T, team)
    held = team.held
    look_at = do.look_at_finite if finite else do.look

    def look(x, n, wide, parts, length, taus, tau_all, tau_per_row, sums):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        bad, top = look_at(x, start, size, wide, regs, room)
        place.leave(sums, row, parts, part, 0.0, 0.0, 0.0, bad, top)

    return Kernel(look, (pointer_to(T), *SHAPE, _numbers), team.threads)


@made_once
def _make_gather(T: Any, team: Team) -> Kernel:
    """Add up the exponentials of each part; every part passes on what the largest entry is."""
    do, place = passes(T, team, "softmax"), make_place(T, team)
    held = team.held

    def gather(x, n, wide, parts, length, taus, tau_all, tau_per_row, tops, sums):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        tau = argument(taus, tau_all, tau_per_row, row)
        bad, top = place.extremes(tops, row, parts, room)
        m, inv = do.judge(bad, top, tau), do.inverse(tau)
        rest, largest = do.gather(x, start, size, wide, m, inv, regs, room)
        place.leave(sums, row, parts, part, rest, largest, 0.0, bad, top)

    return Kernel(gather, (pointer_to(T), *SHAPE, _numbers, _numbers), team.threads)


@made_once
def _make_fill(T: Any, team: Team, f: str, keeps: bool) -> Kernel:
    """Write the value, and the record if it is kept."""
    t, do, place = tools(T, team), passes(T, team, f), make_place(T, team)
    held, sums_up = team.held, f == "logsumexp"
    conclude = conclusion(sums_up, keeps)

    def fill(x, n, wide, parts, length, taus, tau_all, tau_per_row, sums, out, record):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        if sums_up and part > 0:
            return
        tau = argument(taus, tau_all, tau_per_row, row)
        bad, top = place.extremes(sums, row, parts, room)
        rest, largest, _, _ = place.gather(sums, row, parts, room)
        m = do.judge(bad, top, tau)
        excess = do.excess(m, rest, largest)
        if not sums_up:
            do.fill(x, start, size, wide, m, do.inverse(tau), excess, regs, out)
        if part == 0 and t.rank() == 0:
            conclude(row, m, excess, tau, out, record)

    real = pointer_to(T)
    arguments = (real, *SHAPE, _numbers, _numbers if sums_up else real, _numbers)
    return Kernel(fill, arguments, team.threads)


def solve(rows: Rows, f: str, out: Buffer, record: Buffer, keeps: bool) -> None:
    """Write the value, and the records if they are kept."""
    team, count, length = parts_of(rows)
    wide = rows.wide() if f == "logsumexp" else rows.wide(out)
    row = rows.x.pointer, rows.n, wide, count, length, *rows.temperature
    blocks, T = rows.rows * count, rows.dtype
    tops, sums = (rows.empty(blocks * SUMS, np.float64) for _ in range(2))
    make_look(T, team, False)(blocks, rows.stream, *row, tops.pointer)
    _make_gather(T, team)(blocks, rows.stream, *row, tops.pointer, sums.pointer)
    results = out.pointer, record.pointer
    _make_fill(T, team, f, keeps)(blocks, rows.stream, *row, sums.pointer, *results)
