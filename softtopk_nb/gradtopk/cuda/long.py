"""GradTopK on a device for long rows, in parts as `_cuda.long_rows` says.

The tilt comes from the threshold's search over parts. Then each launch leaves what the warps of a
block would leave to each other (`cuda.contour`): sums, and the core's products at each node. In the
next one the warps of every block of the row take them over, in their order, and go on alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import MANY, Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import Team, argument, made_once, tools
from ..._curves.registry import CURVES
from ..._nonfinite import MIXED
from ..._threshold.cuda.long import search
from ..._threshold.cuda.rows import ABOVE, KIND
from ..._threshold.methods import Newton
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import C, D
from ..nodes import NODES
from ..records import CODE, SOLUTION
from .contour import CORE_SIZE, LESS, PRODUCTS, arrange, contours, keep, shared_by, sums_of, times
from .nodes import choose_whole, lane
from .rows import heights

_numbers = pointer_to(np.float64)
_per_row = (_numbers, float64, int32)
_shape = (int64, int32, int64, int64)


class Columns(NamedTuple):
    """Sums of each warp, from a block to the warps of another one."""

    #: leave(partial, sums, row, parts, part): writes the sums over a part
    leave: Any
    #: take(sums, row, parts, partial): each warp adds up those of every so many parts
    take: Any


@made_once
def make_columns(team: Team, columns: int, stride: int) -> Columns:
    """For `columns` numbers of each warp, which lie `stride` apart."""
    lanes, warps = team.lanes, team.lanes // 32

    @device
    def leave(partial, sums, row, parts, part):
        cuda.syncthreads()
        for m in range(cuda.threadIdx.x, columns, lanes):
            total = 0.0
            for w in range(warps):
                total += partial[w * stride + m]
            sums[(row * parts + part) * columns + m] = total

    @device
    def take(sums, row, parts, partial):
        warp = cuda.threadIdx.x // 32
        for m in range(lane(), columns, 32):
            total = 0.0
            for part in range(warp, parts, warps):
                total += sums[(row * parts + part) * columns + m]
            partial[warp * stride + m] = total

    return Columns(leave, take)


class Parted(NamedTuple):
    """What the blocks of a row do once its tilt is known."""

    #: nodes(sums, row, parts, k, inv, memory): chooses them, by the sums over all parts
    nodes: Any
    #: leave(products, row, parts, part, memory): writes the core's products over a part
    leave: Any
    #: weights(sums, products, row, parts, k, inv, memory): as `cuda.contour.weigh_nodes`
    weights: Any


@made_once
def _make_parted(T: Any, team: Team, enough: float) -> Parted:
    t, do, warps = tools(T, team), contours(T, team, enough), team.lanes // 32
    take_sums = make_columns(team, sums_of(T)[1], PRODUCTS).take

    @device
    def nodes(sums, row, parts, k, inv, memory):
        take_sums(sums, row, parts, memory.partial)
        do.choose_nodes(k, inv, memory)

    @device
    def leave(products, row, parts, part, memory):
        t.meet()
        if t.rank() < NODES:
            at = (row * parts + part) * PRODUCTS + lane()
            products[at], products[at + NODES] = do.product(memory.partial, 1.0, 0.0)

    @device
    def take_products(products, row, parts, partial):
        warp, re, im = cuda.threadIdx.x // 32, 1.0, 0.0
        for part in range(warp, parts, warps):
            at = (row * parts + part) * PRODUCTS + lane()
            re, im = times(re, im, products[at], products[at + NODES])
        partial[warp * PRODUCTS + lane()], partial[warp * PRODUCTS + NODES + lane()] = re, im

    @device
    def weights(sums, products, row, parts, k, inv, memory):
        nodes(sums, row, parts, k, inv, memory)
        if memory.notes[CORE_SIZE] > 0.0:
            take_products(products, row, parts, memory.partial)
        return do.weigh_nodes(memory)

    return Parted(nodes, leave, weights)


class _Launches(NamedTuple):
    """Kernels of the same arguments.

    These are x, n, wide, parts, length, k and temperature, the records of the tilts, then the sums
    and the products of the parts.
    """

    gather: Kernel  # sums over the parts
    multiply: Kernel  # products of the core's entries, if there are any


@made_once
def _make_launches(T: Any, team: Team, enough: float) -> _Launches:
    do, place, parted = (
        contours(T, team, enough),
        make_place(T, team),
        _make_parted(T, team, enough),
    )
    leave_sums = make_columns(team, sums_of(T)[1], PRODUCTS).leave
    held, size, one = team.held, shared_by(team.lanes), T(1)

    def gather(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, products,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        shared = cuda.shared.array(size, float64)
        memory = arrange(shared)
        row, part, start, entries = place.part(n, parts, length)
        place.fetch(records, row, memory.record)
        if memory.record[KIND] <= MIXED:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            c, d, cut = do.opened(memory.record, inv)
            do.gather(x, start, entries, wide, c, inv, d, cut, regs, memory.partial)
            leave_sums(memory.partial, sums, row, parts, part)

    def multiply(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, products,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        shared = cuda.shared.array(size, float64)
        memory = arrange(shared)
        row, part, start, entries = place.part(n, parts, length)
        place.fetch(records, row, memory.record)
        if memory.record[KIND] <= MIXED:
            k = argument(ks, k_all, k_per_row, row)
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            parted.nodes(sums, row, parts, k, inv, memory)
            if memory.notes[CORE_SIZE] > 0.0:
                c, d, cut = do.opened(memory.record, inv)
                do.multiply(x, start, entries, wide, c, inv, d, cut, 0, regs, memory)
                parted.leave(products, row, parts, part, memory)

    arguments = (pointer_to(T), *_shape, *_per_row, *_per_row, _numbers, _numbers, _numbers)
    return _Launches(*(Kernel(f, arguments, team.threads, MANY) for f in (gather, multiply)))


@made_once
def _make_fill(T: Any, team: Team, enough: float, keeps: bool) -> Kernel:
    """Write p, part by part; what derivatives need to `solution` if it `keeps`."""
    t, do, place = tools(T, team), contours(T, team, enough), make_place(T, team)
    weights = _make_parted(T, team, enough).weights
    held, size, one = team.held, shared_by(team.lanes), T(1)

    def fill(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, products, out, solution,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        shared = cuda.shared.array(size, float64)
        memory = arrange(shared)
        row, part, start, entries = place.part(n, parts, length)
        place.fetch(records, row, memory.record)
        k, code, base = argument(ks, k_all, k_per_row, row), memory.record[KIND], row * SOLUTION
        if keeps and part == 0 and t.rank() == 0:
            solution[base + CODE] = code
        if code > MIXED:
            do.constant(x, start, entries, wide, code, k, regs, memory.record, out)
            return
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
        c, d, cut = do.opened(memory.record, inv)
        re, im, log_p = weights(sums, products, row, parts, k, inv, memory)
        if keeps and part == 0 and t.rank() < NODES:
            keep(re, im, log_p, c, d, cut, memory.notes, solution, base)
        do.marginals(x, start, entries, wide, inv, regs, memory, out)

    real = pointer_to(T)
    arguments = (real, *_shape, *_per_row, *_per_row, *(_numbers,) * 3, real, _numbers)
    return Kernel(fill, arguments, team.threads, MANY)


@made_once
def _make_heights(T: Any, team: Team) -> Kernel:
    """Smoothed sums over the parts."""
    up, place, size = heights(T, team), make_place(T, team), shared_by(team.lanes)

    def smoothed(x, n, wide, parts, length, taus, tau_all, tau_per_row, records, levels):
        shared = cuda.shared.array(size, float64)
        memory = arrange(shared)
        row, part, start, entries = place.part(n, parts, length)
        place.fetch(records, row, memory.record)
        tau, code = argument(taus, tau_all, tau_per_row, row), memory.record[KIND]
        c, d = float64(T(memory.record[C])), float64(T(memory.record[D]))
        total, upper = up.sums(x, start, entries, code, tau, c, d, memory.room)
        place.leave(levels, row, parts, part, total, upper, 0.0, 0.0, 0.0)

    arguments = (pointer_to(T), *_shape, *_per_row, _numbers, _numbers)
    return Kernel(smoothed, arguments, team.threads, MANY)


@made_once
def _make_potential(T: Any, team: Team, enough: float) -> Kernel:
    """A block for each row: adds up what the parts have left."""
    t, up, place = tools(T, team), heights(T, team), make_place(T, team)
    weights = _make_parted(T, team, enough).weights
    size, one = shared_by(team.lanes), T(1)

    def potential(
        parts, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, products, levels, phi,
    ):  # fmt: skip
        shared = cuda.shared.array(size, float64)
        memory = arrange(shared)
        record, row = memory.record, int64(cuda.blockIdx.x)
        place.fetch(records, row, record)
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        total, upper, _, _ = place.gather(levels, row, parts, memory.room)
        code, log_p = record[KIND], 0.0
        if code <= MIXED:
            inv = inverse_temperature_of(tau, one)
            _, _, log_p = weights(sums, products, row, parts, k, inv, memory)
        if t.rank() == 0:
            c, d = float64(T(record[C])), float64(T(record[D]))
            phi[row] = up.potential(total, upper, code, k, record[ABOVE], tau, c, d, log_p)

    arguments = (int64, *_per_row, *_per_row, *(_numbers,) * 5)
    return Kernel(potential, arguments, team.threads, MANY)


class _Quadrature(NamedTuple):
    """What is known of rows, in memory, before their nodes are weighed."""

    team: Team
    records: Buffer
    sums: Buffer
    products: Buffer


def _start(rows: Rows, enough: float) -> _Quadrature:
    """Launch the search for the tilts, and sums and products over the parts."""
    team, (_, count, length) = choose_whole(rows.n, rows.dtype), parts_of(rows)
    records = search(rows, CURVES["sigmoid"], Newton(enough), less=LESS)
    blocks, columns = rows.rows * count, sums_of(rows.dtype)[1]
    sums = rows.empty(blocks * columns, np.float64)
    products = rows.empty(blocks * PRODUCTS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(), count, length
    for kernel in _make_launches(rows.dtype, team, enough):
        numbers = *rows.k, *rows.temperature
        memory = records.pointer, sums.pointer, products.pointer
        kernel(blocks, rows.stream, *row, *numbers, *memory)
    return _Quadrature(team, records, sums, products)


def solve(rows: Rows, enough: float, out: Buffer, solution: Buffer) -> None:
    """As the kernel of `cuda.rows.make_solve`: p, and what derivatives need if that is wanted."""
    team, records, sums, products = _start(rows, enough)
    _, count, length = parts_of(rows)
    _make_fill(rows.dtype, team, enough, solution is not rows.nothing)(
        rows.rows * count,
        rows.stream,
        rows.x.pointer,
        rows.n,
        rows.wide(out),
        count,
        length,
        *rows.k,
        *rows.temperature,
        records.pointer,
        sums.pointer,
        products.pointer,
        out.pointer,
        solution.pointer,
    )


def potential(rows: Rows, enough: float, phi: Buffer) -> None:
    """Write phi, one number for each row."""
    team, records, sums, products = _start(rows, enough)
    _, count, length = parts_of(rows)
    levels = rows.empty(rows.rows * count * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(), count, length
    memory = records.pointer, sums.pointer, products.pointer, levels.pointer, phi.pointer
    _make_heights(rows.dtype, team)(
        rows.rows * count, rows.stream, *row, *rows.temperature, records.pointer, levels.pointer
    )
    _make_potential(rows.dtype, team, enough)(
        rows.rows, rows.stream, count, *rows.k, *rows.temperature, *memory
    )
