"""ThreTopK's derivatives and potential on a device for long rows, in parts (`_cuda.long_rows`).

One launch leaves the sums over the parts of a row; in the next, every block of the row adds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import MIXED, UNDEFINED
from ..._threshold.cuda.rows import registers_for
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import CODE, SOLUTION, C, D
from ..formulas import centre
from .rows import derivatives, heights

_numbers = pointer_to(np.float64)
_per_row = (_numbers, float64, int32)
_shape = (int64, int32, int64, int64)


@made_once
def _make_moments(T: Any, team: Team, curve: Any) -> Kernel:
    do, place = derivatives(T, team, curve), make_place(T, team)
    held = team.held

    def moments(x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, v, sums):
        regs = cuda.local.array(held, T)
        more = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        base = row * SOLUTION
        if solution[base + CODE] <= MIXED:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), T(1))
            c, d = T(solution[base + C]), T(solution[base + D])
            w0, wv, wt, wvt = do.moments(x, v, start, size, wide, c, inv, d, regs, more, room)
            place.leave(sums, row, parts, part, w0, wv, wt, wvt, 0.0)

    real = pointer_to(T)
    arguments = (real, *_shape, *_per_row, _numbers, real, _numbers)
    return Kernel(moments, arguments, team.threads, registers_for(curve))


@made_once
def _make_push(T: Any, team: Team, curve: Any) -> Kernel:
    do, place = derivatives(T, team, curve), make_place(T, team)
    held, nan, zero = team.held, T(np.nan), T(0)

    def push(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, v, sums,
        dks, dk_all, dk_per_row, dtaus, dtau_all, dtau_per_row, out,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        more = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, _, start, size = place.part(n, parts, length)
        base = row * SOLUTION
        code = solution[base + CODE]
        if code > MIXED:
            do.constant(start, size, wide, nan if code == UNDEFINED else zero, more, out)
            return
        dk = argument(dks, dk_all, dk_per_row, row)
        dtau = argument(dtaus, dtau_all, dtau_per_row, row)
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), T(1))
        c, d = T(solution[base + C]), T(solution[base + D])
        w0, wv, wt, _ = place.gather(sums, row, parts, room)
        mean = T(centre(w0, wv - dtau * wt - dk / inv))
        do.spread(x, v, start, size, wide, c, inv, d, mean, T(dtau), regs, more, out)

    real = pointer_to(T)
    arguments = (real, *_shape, *_per_row, _numbers, real, _numbers, *_per_row, *_per_row, real)
    return Kernel(push, arguments, team.threads, registers_for(curve))


@made_once
def _make_pull(T: Any, team: Team, curve: Any) -> Kernel:
    t, do, place = tools(T, team), derivatives(T, team, curve), make_place(T, team)
    held, nan, zero = team.held, T(np.nan), T(0)

    def pull(
        x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, g, sums, gx, gk, gtau
    ):
        regs = cuda.local.array(held, T)
        more = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        base, writes = row * SOLUTION, part == 0 and t.rank() == 0
        code = solution[base + CODE]
        if code > MIXED:
            nothing = nan if code == UNDEFINED else zero
            if writes:
                gk[row], gtau[row] = nothing, nothing
            do.constant(start, size, wide, nothing, more, gx)
            return
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), T(1))
        c, d = T(solution[base + C]), T(solution[base + D])
        w0, wg, wt, wgt = place.gather(sums, row, parts, room)
        mean = centre(w0, wg)
        if writes:
            gk[row], gtau[row] = mean, -inv * (wgt - mean * wt)
        do.spread(x, g, start, size, wide, c, inv, d, T(mean), zero, regs, more, gx)

    real = pointer_to(T)
    arguments = (real, *_shape, *_per_row, _numbers, real, _numbers, real, _numbers, _numbers)
    return Kernel(pull, arguments, team.threads, registers_for(curve))


@made_once
def _make_heights(T: Any, team: Team, curve: Any) -> Kernel:
    do, place = heights(T, team, curve), make_place(T, team)
    held = team.held

    def smoothed(x, n, wide, parts, length, taus, tau_all, tau_per_row, solution, sums):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        tau = argument(taus, tau_all, tau_per_row, row)
        total, upper, above = do.sums(
            x, start, size, wide, tau, solution, row * SOLUTION, regs, room
        )
        place.leave(sums, row, parts, part, total, upper, above, 0.0, 0.0)

    arguments = (pointer_to(T), *_shape, *_per_row, _numbers, _numbers)
    return Kernel(smoothed, arguments, team.threads, registers_for(curve))


@made_once
def _make_potential(T: Any, team: Team, curve: Any) -> Kernel:
    t, do, place = tools(T, team), heights(T, team, curve), make_place(T, team)

    def potential(parts, ks, k_all, k_per_row, taus, tau_all, tau_per_row, solution, sums, out):
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x)
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        total, upper, above, _ = place.gather(sums, row, parts, room)
        if t.rank() == 0:
            out[row] = do.potential(total, upper, above, k, tau, solution, row * SOLUTION)

    arguments = (int64, *_per_row, *_per_row, _numbers, _numbers, _numbers)
    return Kernel(potential, arguments, team.threads, registers_for(curve))


def push(
    rows: Rows, curve: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, dp: Buffer
) -> None:
    """Write dp along (dx, dk, dtau)."""
    team, count, length = parts_of(rows)
    sums = rows.empty(rows.rows * count * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(dx, dp), count, length, *rows.temperature
    common = (*row, state.pointer, dx.pointer, sums.pointer)
    blocks = rows.rows * count
    _make_moments(rows.dtype, team, curve)(blocks, rows.stream, *common)
    _make_push(rows.dtype, team, curve)(blocks, rows.stream, *common, *dk, *dtau, dp.pointer)


def pull(
    rows: Rows, curve: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>."""
    team, count, length = parts_of(rows)
    sums = rows.empty(rows.rows * count * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(g, gx), count, length, *rows.temperature
    common = (*row, state.pointer, g.pointer, sums.pointer)
    results = gx.pointer, gk.pointer, gtau.pointer
    blocks = rows.rows * count
    _make_moments(rows.dtype, team, curve)(blocks, rows.stream, *common)
    _make_pull(rows.dtype, team, curve)(blocks, rows.stream, *common, *results)


def potential(rows: Rows, curve: Any, state: Buffer, out: Buffer) -> None:
    """Write phi, one number for each row."""
    team, count, length = parts_of(rows)
    sums = rows.empty(rows.rows * count * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(), count, length, *rows.temperature
    _make_heights(rows.dtype, team, curve)(
        rows.rows * count, rows.stream, *row, state.pointer, sums.pointer
    )
    numbers = *rows.k, *rows.temperature
    _make_potential(rows.dtype, team, curve)(
        rows.rows, rows.stream, count, *numbers, state.pointer, sums.pointer, out.pointer
    )
