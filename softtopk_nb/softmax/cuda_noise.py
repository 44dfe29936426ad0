"""Gumbel noise on a device: rows with noise added, and the indices of the largest of them.

The noise of an entry is a function of the seed, the row, the draw and the entry, and of the rows'
type: so many entries as a thread reads at once share one counter of `philox`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64, uint64

from .._cuda import WIDE, cuda, device
from .._device import Buffer, Rows
from .._launch import Kernel, choose, pointer_to
from .._team import ROOM, Team, argument, made_once, tools
from .cuda_rows import passes
from .philox import gumbel, philox, uniform32, uniform64

__all__ = ["draw", "make_draw", "make_perturb", "perturb", "team_for"]

MOST_HELD = 64  # bytes


@made_once
def disturbance(T: Any, team: Team, stays: bool) -> Any:
    """The function that adds noise to entries; where `stays`, only to the finite ones."""
    t, place = tools(T, team), passes(T, team, "softmax").place
    wide_count = WIDE // np.dtype(T).itemsize
    groups = team.held // wide_count
    infinity, nan = T(np.inf), T(np.nan)
    word = np.uint64(0xFFFFFFFF)

    @device
    def four(a, b, c, d):
        return (
            gumbel(uniform32(a)),
            gumbel(uniform32(b)),
            gumbel(uniform32(c)),
            gumbel(uniform32(d)),
        )

    @device
    def two(a, b, c, d):
        return gumbel(uniform64(a, b)), gumbel(uniform64(c, d))

    numbers = four if wide_count == 4 else two

    @device
    def disturb(regs, piece, seed, row, draw, m, inv):
        """Entries to (x - m)/tau + G, all NaN if m is."""
        seed, r, d = np.uint64(seed), np.uint64(row), np.uint64(draw)
        for g in range(groups):
            count = np.uint64(t.position(piece, g * wide_count) // wide_count)
            a, b, c, e = philox(seed, count, d, r & word, r >> np.uint64(32))
            noise = numbers(a, b, c, e)
            for j in range(wide_count):
                v = regs[g * wide_count + j]
                moved = place(v, m, inv) + noise[j]
                if stays:
                    moved = moved if abs(v) < infinity else v
                else:
                    moved = moved if m == m else nan
                regs[g * wide_count + j] = moved

    return disturb


@made_once
def make_perturb(T: Any, team: Team, stays: bool) -> Kernel:
    """x - m + G, `draws` rows of it for each row.

    m is the largest entry, by the rules of `calls.shifted`; where `stays`, the largest finite one,
    and what is not finite stays as it is.
    """
    t, do, disturb = tools(T, team), passes(T, team, "softmax"), disturbance(T, team, stays)
    rows_of_block, held = team.rows, team.held
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def highest(x, start, n, wide, regs, room):
        top = -infinity
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                top = v if v > top and v < infinity else top
        return t.extremes(zero, top, room)[1]

    @device
    def largest(x, start, n, wide, regs, room):
        return do.survey(x, start, n, wide, 1.0, regs, room)

    top_of = highest if stays else largest

    def kernel(x, units, n, wide, seed, draws, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        unit = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if unit >= units:
            return
        row, draw = unit // draws, unit % draws
        start = row * n
        m = top_of(x, start, n, wide, regs, room)
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            disturb(regs, piece, seed, row, draw, m, one)
            t.store(regs, unit * n, n, wide, piece, out)

    real = pointer_to(T)
    return Kernel(kernel, (real, int64, int64, int32, uint64, int64, real), team.threads)


@made_once
def make_draw(T: Any, team: Team) -> Kernel:
    """The k largest of x/tau + G in order, -1 where there is none: O(n k) for each draw."""
    t, do, disturb = tools(T, team), passes(T, team, "softmax"), disturbance(T, team, False)
    counts = tools(np.float64, Team(team.lanes, 2))
    rows_of_block, held = team.rows, team.held
    zero, infinity = T(0), T(np.inf)

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
            disturb(regs, 0, seed, row, draw, m, inv)
        # What has been drawn is what comes before the last one drawn, by value and then by place.
        last, last_at = infinity, int64(-1)
        for r in range(k):
            best, best_at = -infinity, int64(-1)
            for piece in range(t.pieces(n)):
                if team.streams:
                    t.load(x, start, n, wide, piece, -infinity, regs)
                    disturb(regs, piece, seed, row, draw, m, inv)
                for j in range(held):
                    v, at = regs[j], int64(t.position(piece, j))
                    left = v < last or (v == last and at > last_at)
                    if left and v > best:
                        best, best_at = v, at
            last = t.extremes(zero, best, room)[1]
            at = float64(best_at) if best == last else np.inf
            last_at = int64(counts.extremes(at, 0.0, room)[0])
            if t.rank() == 0:
                out[unit * k + r] = last_at if last > -infinity else -1

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
