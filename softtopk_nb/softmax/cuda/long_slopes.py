"""Derivatives of softmax, its logarithm and logsumexp on a device for long rows.

One launch leaves the sums over the parts of a row; in the next, every block of the row adds them.
What is one number for each row has a last launch, of one block for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from .long import PER_ROW, SHAPE
from .rows import passes
from .slopes import frame, pull_passes, push_passes, sum_passes

_numbers = pointer_to(np.float64)


@made_once
def _make_push_add(T: Any, team: Team, f: str) -> Kernel:
    """Add up <p, d> of each part."""
    do, slopes, place = passes(T, team, f), push_passes(T, team, f), make_place(T, team)
    held, read = team.held, frame(T)

    def add(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, record, dx,
        dtaus, dtau_all, dtau_per_row, sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        dtau = T(argument(dtaus, dtau_all, dtau_per_row, row))
        m, _, scale = read(record, row)
        s = slopes.add(x, dx, start, size, wide, m, inv, scale, dtau, regs, moves, room)
        place.leave(sums, row, parts, part, s, 0.0, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    return Kernel(add, (real, *SHAPE, _numbers, real, *PER_ROW, _numbers), team.threads)


@made_once
def _make_push(T: Any, team: Team, f: str) -> Kernel:
    """Write the derivative of softmax or of its logarithm along a direction."""
    do, slopes, place = passes(T, team, f), push_passes(T, team, f), make_place(T, team)
    held, read = team.held, frame(T)

    def push(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, record, dx,
        dtaus, dtau_all, dtau_per_row, sums, dp,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, _, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        dtau = T(argument(dtaus, dtau_all, dtau_per_row, row))
        m, _, scale = read(record, row)
        mean = T(place.gather(sums, row, parts, room)[0])
        slopes.write(x, dx, start, size, wide, m, inv, scale, dtau, mean, regs, moves, dp)

    real = pointer_to(T)
    return Kernel(push, (real, *SHAPE, _numbers, real, *PER_ROW, _numbers, real), team.threads)


@made_once
def _make_pull_add(T: Any, team: Team, f: str) -> Kernel:
    """Add up <p, g> of each part, or for the logarithm g."""
    do, slopes, place = passes(T, team, f), pull_passes(T, team, f), make_place(T, team)
    held, read = team.held, frame(T)

    def add(x, n, wide, parts, length, taus, tau_all, tau_per_row, record, g, sums):
        regs = cuda.local.array(held, T)
        pulls = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, _, scale = read(record, row)
        s = slopes.add(x, g, start, size, wide, m, inv, scale, regs, pulls, room)
        place.leave(sums, row, parts, part, s, 0.0, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    return Kernel(add, (real, *SHAPE, _numbers, real, _numbers), team.threads)


@made_once
def _make_pull(T: Any, team: Team, f: str) -> Kernel:
    """Write the gradient in x; leaves its products with z, which that in the temperature is."""
    do, slopes, place = passes(T, team, f), pull_passes(T, team, f), make_place(T, team)
    held, read = team.held, frame(T)

    def pull(x, n, wide, parts, length, taus, tau_all, tau_per_row, record, g, sums, gx, products):
        regs = cuda.local.array(held, T)
        pulls = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, _, scale = read(record, row)
        mean = T(place.gather(sums, row, parts, room)[0])
        s = slopes.write(x, g, start, size, wide, m, inv, scale, mean, regs, pulls, room, gx)
        place.leave(products, row, parts, part, s, 0.0, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    arguments = (real, *SHAPE, _numbers, real, _numbers, real, _numbers)
    return Kernel(pull, arguments, team.threads)


@made_once
def _make_pull_total(T: Any, team: Team) -> Kernel:
    """Write the gradient in the temperature: a block for each row."""
    t, place = tools(T, team), make_place(T, team)

    def total(parts, products, gtau):
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x)
        in_tau = place.gather(products, row, parts, room)[0]
        if t.rank() == 0:
            gtau[row] = -in_tau

    return Kernel(total, (int64, _numbers, _numbers), team.threads)


@made_once
def _make_push_sum_add(T: Any, team: Team) -> Kernel:
    """Add up <p, dx> and <p, z> of each part."""
    do, slopes, place = passes(T, team, "logsumexp"), sum_passes(T, team), make_place(T, team)
    held, read = team.held, frame(T)

    def add(x, n, wide, parts, length, taus, tau_all, tau_per_row, record, dx, sums):
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, _, scale = read(record, row)
        moved, mean_z = slopes.add(x, dx, start, size, wide, m, inv, scale, regs, moves, room)
        place.leave(sums, row, parts, part, moved, mean_z, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    return Kernel(add, (real, *SHAPE, _numbers, real, _numbers), team.threads)


@made_once
def _make_push_sum(T: Any, team: Team) -> Kernel:
    """Write the derivative of logsumexp along a direction: a block for each row."""
    t, slopes, place = tools(T, team), sum_passes(T, team), make_place(T, team)
    read = frame(T)

    def push(parts, record, sums, dtaus, dtau_all, dtau_per_row, out):
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x)
        m, excess, _ = read(record, row)
        moved, mean_z, _, _ = place.gather(sums, row, parts, room)
        if t.rank() == 0:
            dtau = argument(dtaus, dtau_all, dtau_per_row, row)
            out[row] = slopes.along(m, excess, moved, mean_z, dtau)

    return Kernel(push, (int64, _numbers, _numbers, *PER_ROW, _numbers), team.threads)


@made_once
def _make_pull_sum(T: Any, team: Team) -> Kernel:
    """Write logsumexp's gradient in x; leaves <p, z> of each part."""
    do, slopes, place = passes(T, team, "logsumexp"), sum_passes(T, team), make_place(T, team)
    held, read = team.held, frame(T)

    def pull(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, record, gs, g_all, g_per_row,
        gx, sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, _, scale = read(record, row)
        g = T(argument(gs, g_all, g_per_row, row))
        mean_z = slopes.write(x, start, size, wide, m, inv, scale, g, regs, room, gx)
        place.leave(sums, row, parts, part, mean_z, 0.0, 0.0, 0.0, 0.0)

    real = pointer_to(T)
    return Kernel(pull, (real, *SHAPE, _numbers, *PER_ROW, real, _numbers), team.threads)


@made_once
def _make_pull_sum_total(T: Any, team: Team) -> Kernel:
    """Write logsumexp's gradient in the temperature: a block for each row."""
    t, slopes, place = tools(T, team), sum_passes(T, team), make_place(T, team)
    read = frame(T)

    def total(parts, record, gs, g_all, g_per_row, sums, gtau):
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x)
        m, excess, _ = read(record, row)
        mean_z = place.gather(sums, row, parts, room)[0]
        if t.rank() == 0:
            g = argument(gs, g_all, g_per_row, row)
            gtau[row] = g * slopes.entropy(m, excess, mean_z)

    return Kernel(total, (int64, _numbers, *PER_ROW, _numbers, _numbers), team.threads)


def push(rows: Rows, f: str, record: Buffer, dx: Buffer, dtau: Argument, dp: Buffer) -> None:
    """Write the derivative of softmax or of its logarithm along a direction."""
    team, count, length = parts_of(rows)
    blocks, T = rows.rows * count, rows.dtype
    sums = rows.empty(blocks * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(dx, dp), count, length, *rows.temperature
    common = (*row, record.pointer, dx.pointer, *dtau, sums.pointer)
    _make_push_add(T, team, f)(blocks, rows.stream, *common)
    _make_push(T, team, f)(blocks, rows.stream, *common, dp.pointer)


def pull(rows: Rows, f: str, record: Buffer, g: Buffer, gx: Buffer, gtau: Buffer) -> None:
    """Write the gradients of softmax or of its logarithm."""
    team, count, length = parts_of(rows)
    blocks, T = rows.rows * count, rows.dtype
    sums, products = (rows.empty(blocks * SUMS, np.float64) for _ in range(2))
    row = rows.x.pointer, rows.n, rows.wide(g, gx), count, length, *rows.temperature
    common = (*row, record.pointer, g.pointer, sums.pointer)
    _make_pull_add(T, team, f)(blocks, rows.stream, *common)
    _make_pull(T, team, f)(blocks, rows.stream, *common, gx.pointer, products.pointer)
    _make_pull_total(T, team)(rows.rows, rows.stream, count, products.pointer, gtau.pointer)


def push_sum(rows: Rows, record: Buffer, dx: Buffer, dtau: Argument, out: Buffer) -> None:
    """Write the derivative of logsumexp along a direction."""
    team, count, length = parts_of(rows)
    blocks, T = rows.rows * count, rows.dtype
    sums = rows.empty(blocks * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(dx), count, length, *rows.temperature
    _make_push_sum_add(T, team)(blocks, rows.stream, *row, record.pointer, dx.pointer, sums.pointer)
    _make_push_sum(T, team)(
        rows.rows, rows.stream, count, record.pointer, sums.pointer, *dtau, out.pointer
    )


def pull_sum(rows: Rows, record: Buffer, g: Argument, gx: Buffer, gtau: Buffer) -> None:
    """Write the gradients of logsumexp."""
    team, count, length = parts_of(rows)
    blocks, T = rows.rows * count, rows.dtype
    sums = rows.empty(blocks * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(gx), count, length, *rows.temperature
    _make_pull_sum(T, team)(blocks, rows.stream, *row, record.pointer, *g, gx.pointer, sums.pointer)
    _make_pull_sum_total(T, team)(
        rows.rows, rows.stream, count, record.pointer, *g, sums.pointer, gtau.pointer
    )
