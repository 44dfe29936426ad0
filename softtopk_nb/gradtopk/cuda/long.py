"""GradTopK of long rows on a device, in parts as in `_cuda.long_rows`.

The tilt comes from the threshold search over parts. Then each launch writes to memory what the
warps of a block would pass to each other (`cuda.contour`): sums, and the core's products at each
node. In the next one the warps of every block of the row read them, in their order, and continue
alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import MANY
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.row_kernels import NUMBERS, ROWS, PartKernel
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._curves.registry import CURVES
from ..._nonfinite import WITH_INFINITIES
from ..._threshold.cuda.long import search
from ..._threshold.methods import Newton
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import ABOVE, KIND, C, D
from ..nodes import NODES
from ..records import CODE, SOLUTION
from .contour import CORE_SIZE, LESS, PRODUCTS, arrange, contours, keep, shared_by, sums_of, times
from .nodes import choose_whole, lane
from .rows import log_sums


class Columns(NamedTuple):
    """Sums of each warp, passed from a block to the warps of another one."""

    #: leave(partial, sums, here): writes the sums over a part
    leave: Any
    #: take(sums, here, partial): each warp adds up those of every W-th part, W warps
    take: Any


@made_once
def make_columns(group: ThreadGroup, columns: int, stride: int) -> Columns:
    """`Columns` for `columns` numbers of each warp, which lie `stride` apart."""
    lanes, warps = group.lanes, group.lanes // 32

    @device
    def leave(partial, sums, here):
        cuda.syncthreads()
        for m in range(cuda.threadIdx.x, columns, lanes):
            total = 0.0
            for w in range(warps):
                total += partial[w * stride + m]
            sums[(here.row * here.parts + here.part) * columns + m] = total

    @device
    def take(sums, here, partial):
        warp = cuda.threadIdx.x // 32
        for m in range(lane(), columns, 32):
            total = 0.0
            for part in range(warp, here.parts, warps):
                total += sums[(here.row * here.parts + part) * columns + m]
            partial[warp * stride + m] = total

    return Columns(leave, take)


class Parted(NamedTuple):
    """The steps of a row's blocks once its tilt is known."""

    #: nodes(sums, here, k, inv, memory): chooses the nodes, by the sums over all parts
    nodes: Any
    #: leave(products, here, memory): writes the core's products over a part
    leave: Any
    #: weights(sums, products, here, k, inv, memory): as `cuda.contour.weigh_nodes`
    weights: Any


@made_once
def _make_parted(T: Any, group: ThreadGroup, enough: float) -> Parted:
    t, do, warps = tools(T, group), contours(T, group, enough), group.lanes // 32
    take_sums = make_columns(group, sums_of(T)[1], PRODUCTS).take

    @device
    def nodes(sums, here, k, inv, memory):
        take_sums(sums, here, memory.partial)
        do.choose_nodes(k, inv, memory)

    @device
    def leave(products, here, memory):
        t.meet()
        if t.rank() < NODES:
            at = (here.row * here.parts + here.part) * PRODUCTS + lane()
            products[at], products[at + NODES] = do.product(memory.partial, 1.0, 0.0)

    @device
    def take_products(products, here, partial):
        warp, re, im = cuda.threadIdx.x // 32, 1.0, 0.0
        for part in range(warp, here.parts, warps):
            at = (here.row * here.parts + part) * PRODUCTS + lane()
            re, im = times(re, im, products[at], products[at + NODES])
        partial[warp * PRODUCTS + lane()], partial[warp * PRODUCTS + NODES + lane()] = re, im

    @device
    def weights(sums, products, here, k, inv, memory):
        nodes(sums, here, k, inv, memory)
        if memory.notes[CORE_SIZE] > 0.0:
            take_products(products, here, memory.partial)
        return do.weigh_nodes(memory)

    return Parted(nodes, leave, weights)


class _Launches(NamedTuple):
    """Kernels that take the records of the tilts, then the sums and products of the parts."""

    gather: PartKernel  # sums over the parts
    multiply: PartKernel  # products of the core's entries, if there are any


@made_once
def _make_launches(T: Any, group: ThreadGroup, enough: float) -> _Launches:
    do, place, parted = (
        contours(T, group, enough),
        make_place(T, group),
        _make_parted(T, group, enough),
    )
    leave_sums = make_columns(group, sums_of(T)[1], PRODUCTS).leave

    @device
    def gather(here, s, batch, given):
        records, sums, _ = given
        memory = arrange(s.record)
        place.fetch(records, here.row, memory.record)
        if memory.record[KIND] <= WITH_INFINITIES:
            level = do.opened(memory.record, of_row(batch.temperature, here.row))
            do.gather(here.span, level, s, memory.partial)
            leave_sums(memory.partial, sums, here)

    @device
    def multiply(here, s, batch, given):
        records, sums, products = given
        memory = arrange(s.record)
        place.fetch(records, here.row, memory.record)
        if memory.record[KIND] <= WITH_INFINITIES:
            level = do.opened(memory.record, of_row(batch.temperature, here.row))
            parted.nodes(sums, here, of_row(batch.k, here.row), level.inv, memory)
            if memory.notes[CORE_SIZE] > 0.0:
                do.multiply(here.span, level, 0, s, memory)
                parted.leave(products, here, memory)

    how = (NUMBERS,) * 3, MANY, shared_by(group.lanes)
    return _Launches(*(PartKernel(T, group, visit, *how) for visit in (gather, multiply)))


@made_once
def _make_fill(T: Any, group: ThreadGroup, enough: float, keeps: bool) -> PartKernel:
    """A kernel that writes p, part by part, and solutions to `solution` if `keeps`."""
    t, do, place = tools(T, group), contours(T, group, enough), make_place(T, group)
    weigh = _make_parted(T, group, enough).weights

    @device
    def fill(here, s, batch, given):
        records, sums, products, out, solution = given
        memory = arrange(s.record)
        place.fetch(records, here.row, memory.record)
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        code, base = memory.record[KIND], here.row * SOLUTION
        if keeps and here.part == 0 and t.rank() == 0:
            solution[base + CODE] = code
        if code > WITH_INFINITIES:
            do.constant(here.span, code, k, s, out)
        else:
            level = do.opened(memory.record, tau)
            weights = weigh(sums, products, here, k, level.inv, memory)
            if keeps and here.part == 0 and t.rank() < NODES:
                keep(weights, level, memory.notes, solution, base)
            do.marginals(here.span, tau, s, out)

    given = NUMBERS, NUMBERS, NUMBERS, ROWS, NUMBERS
    return PartKernel(T, group, fill, given, MANY, shared_by(group.lanes))


@made_once
def _make_log_sums(T: Any, group: ThreadGroup) -> PartKernel:
    """A kernel that writes the smoothed sums over the parts."""
    up, place = log_sums(T, group), make_place(T, group)

    @device
    def smoothed(here, s, batch, given):
        records, levels = given
        memory = arrange(s.record)
        place.fetch(records, here.row, memory.record)
        tau, code = of_row(batch.temperature, here.row), memory.record[KIND]
        c, d = float64(T(memory.record[C])), float64(T(memory.record[D]))
        total, upper = up.sums(here.span, code, tau, c, d, memory.sums_shared)
        place.leave(levels, here, (total, upper, 0.0, 0.0, 0.0, 0.0))

    return PartKernel(T, group, smoothed, (NUMBERS, NUMBERS), MANY, shared_by(group.lanes))


@made_once
def _make_potential(T: Any, group: ThreadGroup, enough: float) -> PartKernel:
    """A kernel for the potential: a block for each row adds up the sums of its parts."""
    t, up, place = tools(T, group), log_sums(T, group), make_place(T, group)
    weigh, one = _make_parted(T, group, enough).weights, T(1)

    @device
    def potential(here, s, batch, given):
        records, sums, products, levels, phi = given
        memory = arrange(s.record)
        record = memory.record
        place.fetch(records, here.row, record)
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        total, upper, _, _ = place.gather(levels, here, memory.sums_shared)
        code, log_p = record[KIND], 0.0
        if code <= WITH_INFINITIES:
            inv = inverse_temperature_of(tau, one)
            _, _, log_p = weigh(sums, products, here, k, inv, memory)
        if t.rank() == 0:
            c, d = float64(T(record[C])), float64(T(record[D]))
            found = total, upper
            phi[here.row] = up.potential(found, code, k, record[ABOVE], tau, c, d, log_p)

    return PartKernel(T, group, potential, (NUMBERS,) * 5, MANY, shared_by(group.lanes))


class _Quadrature(NamedTuple):
    """Records, sums and products of rows, in memory, before their nodes get weights."""

    records: Buffer
    sums: Buffer
    products: Buffer


def _start(rows: Rows, enough: float) -> _Quadrature:
    """Launch the search for the tilts, and the sums and products over the parts."""
    group, blocks = choose_whole(rows.n, rows.dtype), rows.rows * parts_of(rows).parts
    records = search(rows, CURVES["sigmoid"], Newton(enough), less=LESS)
    sums = rows.empty(blocks * sums_of(rows.dtype)[1], np.float64)
    known = _Quadrature(records, sums, rows.empty(blocks * PRODUCTS, np.float64))
    for kernel in _make_launches(rows.dtype, group, enough):
        kernel.run(rows, *known)
    return known


def solve(rows: Rows, enough: float, out: Buffer, solution: Buffer) -> None:
    """Solve rows, as the kernel of `cuda.rows.make_solve`: p, and solutions unless not wanted."""
    group, keeps = choose_whole(rows.n, rows.dtype), solution is not rows.nothing
    known = _start(rows, enough)
    _make_fill(rows.dtype, group, enough, keeps).run(rows, *known, out, solution)


def potential(rows: Rows, enough: float, phi: Buffer) -> None:
    """Write phi, the potential of each row."""
    group, known = choose_whole(rows.n, rows.dtype), _start(rows, enough)
    levels = rows.empty(rows.rows * parts_of(rows).parts * SUMS, np.float64)
    _make_log_sums(rows.dtype, group).run(rows, known.records, levels)
    _make_potential(rows.dtype, group, enough).run(rows, *known, levels, phi, whole=True)
