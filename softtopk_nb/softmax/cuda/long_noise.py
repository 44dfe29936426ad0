"""Gumbel noise on a device for long rows, in parts as `_cuda.long_rows` says.

First the largest entry of each part. Rows with noise take one more launch. Draws take one for each
index: every part leaves the largest entry that comes after the last one drawn, by value and then by
place, and where that is; the next launch knows the largest of all parts. As the noise is made anew
in every launch, k indices cost O(n k), in one block or in many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int64, uint64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from .gumbel import noise
from .long import SHAPE, make_look
from .rows import passes

BEST = 2  # numbers that a part leaves for a draw: its largest entry, and the place of it in the row
AT_ONCE = 256  # draws from a row: what their parts leave takes less memory than the row

_numbers = pointer_to(np.float64)


@made_once
def _make_perturb(T: Any, team: Team, stays: bool) -> Kernel:
    """As `cuda.noise.make_perturb`, part by part."""
    do, place = passes(T, team, "softmax"), make_place(T, team)
    with_noise, held = noise(T, team, stays), team.held

    def perturb(x, n, wide, parts, length, seed, draws, tops, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        unit, part, to, size = place.part(n, parts, length)
        row, draw, first = unit // draws, unit % draws, part * length
        bad, top = place.extremes(tops, row, parts, room)
        m, start = do.judge(bad, top, 1.0), row * n + first
        with_noise.write(x, start, first, size, wide, seed, row, draw, m, regs, out, to)

    real = pointer_to(T)
    arguments = (real, *SHAPE[:4], uint64, int64, _numbers, real)
    return Kernel(perturb, arguments, team.threads)


@made_once
def _make_pick(T: Any, team: Team) -> Kernel:
    """Write index r - 1 of each draw, and find index r in each part if there is one more.

    These are `draws` of the row's `total` ones, from `since` on.
    """
    t, do, place = tools(T, team), passes(T, team, "softmax"), make_place(T, team)
    with_noise, held, infinity = noise(T, team, False), team.held, T(np.inf)

    @device
    def last_drawn(found, unit, parts, room):
        """The largest entry of all parts, and its place in the row."""
        best, best_at = -infinity, int64(-1)
        for j in range(t.rank(), parts, team.lanes):
            at = (unit * parts + j) * BEST
            v = T(found[at])
            if v > best:
                best, best_at = v, int64(found[at + 1])
        return with_noise.agree(best, best_at, room)

    def pick(
        x, n, wide, parts, length, taus, tau_all, tau_per_row,
        seed, since, draws, total, k, r, tops, found, new_found, out,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        unit, part, _, size = place.part(n, parts, length)
        row, draw, first = unit // draws, since + unit % draws, part * length
        last, last_at = infinity, int64(-1)
        if r > 0:
            last, last_at = last_drawn(found, unit, parts, room)
            if part == 0 and t.rank() == 0:
                out[(row * total + draw) * k + r - 1] = last_at
        if r < k:
            tau, start = argument(taus, tau_all, tau_per_row, row), row * n + first
            bad, top = place.extremes(tops, row, parts, room)
            m, inv = do.judge(bad, top, tau), do.inverse(tau)
            best, best_at = with_noise.pick(
                x, start, first, size, wide, seed, row, draw, m, inv, last, last_at, regs
            )
            best, best_at = with_noise.agree(best, best_at, room)
            if t.rank() == 0:
                at = (unit * parts + part) * BEST
                new_found[at], new_found[at + 1] = best, best_at

    counts = (int64,) * 5
    arguments = (pointer_to(T), *SHAPE, uint64, *counts, *(_numbers,) * 3, pointer_to(np.int64))
    return Kernel(pick, arguments, team.threads)


def _tops(rows: Rows, finite: bool) -> Buffer:
    """The largest entry of each part, or the largest `finite` one."""
    team, count, length = parts_of(rows)
    blocks = rows.rows * count
    tops = rows.empty(blocks * SUMS, np.float64)
    row = rows.x.pointer, rows.n, rows.wide(), count, length, *rows.temperature
    make_look(rows.dtype, team, finite)(blocks, rows.stream, *row, tops.pointer)
    return tops


def perturb(rows: Rows, seed: int, draws: int, stays: bool, out: Buffer) -> None:
    """Write rows of scores with noise, `draws` for each row."""
    team, count, length = parts_of(rows)
    tops = _tops(rows, stays)
    _make_perturb(rows.dtype, team, stays)(
        rows.rows * draws * count,
        rows.stream,
        rows.x.pointer,
        rows.n,
        rows.wide(out),
        count,
        length,
        seed,
        draws,
        tops.pointer,
        out.pointer,
    )


def draw(rows: Rows, seed: int, draws: int, k: int, out: Buffer) -> None:
    """Write k indices for each draw from each row, as int64."""
    team, count, length = parts_of(rows)
    pick, tops = _make_pick(rows.dtype, team), _tops(rows, False)
    row = rows.x.pointer, rows.n, rows.wide(), count, length, *rows.temperature
    units = rows.rows * min(draws, AT_ONCE)
    found, new_found = (rows.empty(units * count * BEST, np.float64) for _ in range(2))
    for since in range(0, draws, AT_ONCE):
        some = min(draws - since, AT_ONCE)
        for r in range(k + 1):
            memory = (buffer.pointer for buffer in (tops, found, new_found, out))
            blocks = rows.rows * some * count
            pick(blocks, rows.stream, *row, seed, since, some, draws, k, r, *memory)
            found, new_found = new_found, found
