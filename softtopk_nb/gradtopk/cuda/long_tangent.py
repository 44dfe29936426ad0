"""GradTopK's tangent on a device for long rows, in parts, from the nodes of a solved row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import MANY, Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import MIXED, UNDEFINED
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import C, D
from ..nodes import NODES, SQUARE
from ..records import AT_NODES, CODE, CORE_LIMIT, DIRECTION_SUMS, SOLUTION, TANGENT_FIELDS, USED
from .long import make_columns
from .nodes import lane
from .tangent import Memory, open_table, tangents

_numbers = pointer_to(np.float64)
_per_row = (_numbers, float64, int32)
_row = (int64, int32, int64, int64, *_per_row, _numbers)


@made_once
def _make_weigh(T: Any, team: Team) -> Kernel:
    """Flows over the parts."""
    t, do, place = tools(T, team), tangents(T, team, False), make_place(T, team)
    leave = make_columns(team, DIRECTION_SUMS, DIRECTION_SUMS).leave
    held, size, one = team.held, team.lanes // 32 * DIRECTION_SUMS, T(1)

    def weigh(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, v,
        dtaus, dtau_all, dtau_per_row, flows,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        partial = cuda.shared.array(size, float64)
        table = cuda.shared.array((TANGENT_FIELDS, NODES), float64)
        row, part, start, entries = place.part(n, parts, length)
        base = row * SOLUTION
        if solution[base + CODE] <= MIXED:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            drift = T(argument(dtaus, dtau_all, dtau_per_row, row))
            c, d, limit = (
                T(solution[base + C]),
                T(solution[base + D]),
                T(solution[base + CORE_LIMIT]),
            )
            if t.rank() < NODES:
                open_table(solution, base, table)
            t.meet()
            g = table[SQUARE, lane()]
            do.weigh(x, v, start, entries, wide, c, inv, d, drift, limit, g, regs, moves, partial)
            leave(partial, flows, row, parts, part)

    real = pointer_to(T)
    return Kernel(weigh, (real, *_row, real, *_per_row, _numbers), team.threads, MANY)


@made_once
def _make_spread(T: Any, team: Team, pulls: bool) -> Kernel:
    """The tangent, and if it `pulls` the sums of <t, tangent> over the parts."""
    t, do, place = tools(T, team), tangents(T, team, pulls), make_place(T, team)
    take = make_columns(team, DIRECTION_SUMS, DIRECTION_SUMS).take
    held, size = team.held, team.lanes // 32 * DIRECTION_SUMS
    nan, zero, one = T(np.nan), T(0), T(1)

    def spread(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, v,
        dtaus, dtau_all, dtau_per_row, flows, out, pairs,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        partial = cuda.shared.array(size, float64)
        sums = cuda.shared.array(AT_NODES, float64)
        table = cuda.shared.array((TANGENT_FIELDS, NODES), float64)
        polynomials = cuda.shared.array(NODES, float64)
        row, part, start, entries = place.part(n, parts, length)
        base = row * SOLUTION
        code = solution[base + CODE]
        if code > MIXED:
            do.constant(start, entries, wide, nan if code == UNDEFINED else zero, moves, out)
            return
        memory = Memory(room, partial, sums, table, polynomials)
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
        drift = T(argument(dtaus, dtau_all, dtau_per_row, row))
        c, d, limit = T(solution[base + C]), T(solution[base + D]), T(solution[base + CORE_LIMIT])
        take(flows, row, parts, partial)
        if t.rank() < NODES:
            open_table(solution, base, table)
        t.meet()
        if t.rank() < NODES:
            do.steer(memory)
        t.meet()
        used = int32(solution[base + USED])
        paired = do.spread(
            x, v, start, entries, wide, c, inv, d, drift, limit, used, regs, moves, memory, out
        )
        if pulls:
            paired = t.total(paired, room)
            place.leave(pairs, row, parts, part, paired, 0.0, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    arguments = (real, *_row, real, *_per_row, _numbers, real, _numbers)
    return Kernel(spread, arguments, team.threads, MANY)


@made_once
def _make_pair(T: Any, team: Team) -> Kernel:
    """The gradient in the temperature, -<t, tangent>: a block for each row."""
    t, place = tools(T, team), make_place(T, team)

    def pair(parts, solution, pairs, gtau):
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x)
        code = solution[row * SOLUTION + CODE]
        total, _, _, _ = place.gather(pairs, row, parts, room)
        if t.rank() == 0:
            gtau[row] = -total if code <= MIXED else np.nan if code == UNDEFINED else 0.0

    return Kernel(pair, (int64, _numbers, _numbers, _numbers), team.threads, MANY)


def push(
    rows: Rows, team: Team, solution: Buffer, v: Buffer, dtau: Argument, out: Buffer, gtau: Buffer
) -> None:
    """As the kernel of `cuda.tangent.make_push`; it pulls unless gtau is nothing."""
    _, count, length = parts_of(rows)
    blocks, pulls = rows.rows * count, gtau is not rows.nothing
    flows = rows.empty(blocks * DIRECTION_SUMS, np.float64)
    pairs = rows.empty(blocks * SUMS, np.float64) if pulls else rows.nothing
    row = rows.x.pointer, rows.n, rows.wide(v, out), count, length, *rows.temperature
    common = (*row, solution.pointer, v.pointer, *dtau, flows.pointer)
    _make_weigh(rows.dtype, team)(blocks, rows.stream, *common)
    _make_spread(rows.dtype, team, pulls)(blocks, rows.stream, *common, out.pointer, pairs.pointer)
    if pulls:
        memory = solution.pointer, pairs.pointer, gtau.pointer
        _make_pair(rows.dtype, team)(rows.rows, rows.stream, count, *memory)
