"""GradTopK's derivative of long rows on a device, in parts, from the nodes of a solved row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import MANY
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.row_kernels import NUMBERS, PER_ROW, ROWS, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._nonfinite import UNDEFINED, WITH_INFINITIES
from ..nodes import NODES
from ..records import CODE, DIRECTION_SUMS, SOLUTION
from .long import make_columns
from .tangent import arrange, open_table, shared_by, tangents


@made_once
def _make_weigh(T: Any, group: ThreadGroup) -> PartKernel:
    """A kernel for the sums along v over the parts."""
    do, leave = tangents(T, group, False), make_columns(group, DIRECTION_SUMS, DIRECTION_SUMS).leave

    @device
    def weigh(here, s, batch, given):
        solution, v, dtaus, flows = given
        if solution[here.row * SOLUTION + CODE] <= WITH_INFINITIES:
            do.weigh(here, s, batch, solution, v, of_row(dtaus, here.row))
            leave(arrange(s.record).partial, flows, here)

    given = NUMBERS, ROWS, PER_ROW, NUMBERS
    return PartKernel(T, group, weigh, given, MANY, shared_by(group.lanes))


@made_once
def _make_spread(T: Any, group: ThreadGroup, is_vjp: bool) -> PartKernel:
    """A kernel that writes J (v - t dtau) and, if `is_vjp`, its sums with t over the parts."""
    t, do, place = tools(T, group), tangents(T, group, is_vjp), make_place(T, group)
    take = make_columns(group, DIRECTION_SUMS, DIRECTION_SUMS).take

    @device
    def spread(here, s, batch, given):
        solution, v, dtaus, flows, out, pairs = given
        base = here.row * SOLUTION
        code, memory = solution[base + CODE], arrange(s.record)
        if code > WITH_INFINITIES:
            do.constant(here, s, code, out)
            return
        take(flows, here, memory.partial)
        if t.rank() < NODES:
            open_table(solution, base, memory.table)
        dtau = of_row(dtaus, here.row)
        paired = do.write(here, s, batch, solution, v, dtau, out)
        if is_vjp:
            place.leave(pairs, here, (paired, 0.0, 0.0, 0.0, 0.0, 0.0))

    given = NUMBERS, ROWS, PER_ROW, NUMBERS, ROWS, NUMBERS
    return PartKernel(T, group, spread, given, MANY, shared_by(group.lanes))


@made_once
def _make_pair(T: Any, group: ThreadGroup) -> PartKernel:
    """A kernel for the gradient in the temperature, -<t, J v>, with a block for each row."""
    t, place = tools(T, group), make_place(T, group)

    @device
    def pair(here, s, batch, given):
        solution, pairs, gtau = given
        code = solution[here.row * SOLUTION + CODE]
        total = place.gather(pairs, here, s.shared)[0]
        if t.rank() == 0:
            gtau[here.row] = (
                -total if code <= WITH_INFINITIES else np.nan if code == UNDEFINED else 0.0
            )

    return PartKernel(T, group, pair, (NUMBERS,) * 3, MANY)


def jvp(
    rows: Rows,
    group: ThreadGroup,
    solution: Buffer,
    v: Buffer,
    dtau: Argument,
    out: Buffer,
    gtau: Buffer,
) -> None:
    """Write dp as the kernel of `cuda.tangent.make_jvp`; it is a VJP unless gtau is nothing."""
    blocks, is_vjp = rows.rows * parts_of(rows).parts, gtau is not rows.nothing
    flows = rows.empty(blocks * DIRECTION_SUMS, np.float64)
    pairs = rows.empty(blocks * SUMS, np.float64) if is_vjp else rows.nothing
    common = solution, v, dtau, flows
    _make_weigh(rows.dtype, group).run(rows, *common)
    _make_spread(rows.dtype, group, is_vjp).run(rows, *common, out, pairs)
    if is_vjp:
        _make_pair(rows.dtype, group).run(rows, solution, pairs, gtau, whole=True)
