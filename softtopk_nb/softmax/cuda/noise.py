"""Rows with Gumbel noise added on a device, and the indices of the largest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64, uint64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, choose, pointer_to
from ..._cuda.long_rows import is_long
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from . import long_noise
from .gumbel import noise
from .rows import passes

MOST_HELD = 64  # bytes


@made_once
def make_perturb(T: Any, team: Team, stays: bool) -> Kernel:
    """x - m + G, `draws` rows of it for each row.

    m is the largest entry, by the rules of `calls.shifted`; where `stays`, the largest finite one,
    and what is not finite stays as it is.
    """
    t, do, with_noise = tools(T, team), passes(T, team, "softmax"), noise(T, team, stays)
    rows_of_block, held = team.rows, team.held
    look = do.look_at_finite if stays else do.look

    def kernel(x, units, n, wide, seed, draws, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        unit = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if unit >= units:
            return
        row, draw = unit // draws, unit % draws
        start = row * n
        bad, top = look(x, start, n, wide, regs, room)
        m = do.judge(bad, top, 1.0)
        with_noise.write(x, start, 0, n, wide, seed, row, draw, m, regs, out, unit * n)

    real = pointer_to(T)
    return Kernel(kernel, (real, int64, int64, int32, uint64, int64, real), team.threads)


@made_once
def make_draw(T: Any, team: Team) -> Kernel:
    """The k largest of x/tau + G in order, -1 where there is none: O(n k) for each draw."""
    t, do, with_noise = tools(T, team), passes(T, team, "softmax"), noise(T, team, False)
    rows_of_block, held, infinity = team.rows, team.held, T(np.inf)

    def kernel(x, units, n, wide, taus, tau_all, tau_per_row, seed, draws, k, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        unit = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if unit >= units:
            return
        row, draw = unit // draws, unit % draws
        start = row * n
        tau = argument(taus, tau_all, tau_per_row, row)
        inv = do.inverse(tau)
        m = do.survey(x, start, n, wide, tau, regs, room)
        if not team.streams:
            with_noise.disturb(regs, 0, 0, seed, row, draw, m, inv)
        # What has been drawn is what comes before the last one drawn, by value and then by place.
        last, last_at = infinity, int64(-1)
        for r in range(k):
            best, best_at = with_noise.pick(
                x, start, 0, n, wide, seed, row, draw, m, inv, last, last_at, regs
            )
            last, last_at = with_noise.agree(best, best_at, room)
            if t.rank() == 0:
                out[unit * k + r] = last_at

    numbers, real = pointer_to(np.float64), pointer_to(T)
    arguments = (real, int64, int64, int32, numbers, float64, int32, uint64, int64, int64)
    return Kernel(kernel, (*arguments, pointer_to(np.int64)), team.threads)


def team_for(n: int, T: Any) -> Team:
    """More threads where each would hold more entries than the compiler unrolls with noise."""
    team = choose(n, T)
    much = team.held * np.dtype(T).itemsize > MOST_HELD
    return Team(2 * team.lanes, team.held // 2) if much else team


def perturb(rows: Rows, seed: int, draws: int, stays: bool, out: Buffer) -> None:
    """Write rows of scores with noise, `draws` for each row."""
    if is_long(rows):
        long_noise.perturb(rows, seed, draws, stays, out)
        return
    team = team_for(rows.n, rows.dtype)
    units = rows.rows * draws
    make_perturb(rows.dtype, team, stays)(
        team.blocks(units),
        rows.stream,
        rows.x.pointer,
        units,
        rows.n,
        rows.wide(out),
        seed,
        draws,
        out.pointer,
    )


def draw(rows: Rows, seed: int, draws: int, k: int, out: Buffer) -> None:
    """Write k indices for each draw from each row, as int64."""
    if is_long(rows):
        long_noise.draw(rows, seed, draws, k, out)
        return
    team = team_for(rows.n, rows.dtype)
    units = rows.rows * draws
    make_draw(rows.dtype, team)(
        team.blocks(units),
        rows.stream,
        rows.x.pointer,
        units,
        rows.n,
        rows.wide(),
        *rows.temperature,
        seed,
        draws,
        k,
        out.pointer,
    )
