"""Gumbel noise for long rows on a device, in parts as in `_cuda.long_rows`.

The first launch finds the largest entry of each part. Rows with noise take one more launch. Draws
take one for each index: every part writes its largest entry after the last one drawn, by value and
then by position, and its position; the next launch finds the largest of all parts. As the noise is
recomputed in every launch, k indices cost O(n k), in one block or in many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.row_kernels import NUMBERS, ROWS, Part, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import Span, ThreadGroup, beside, made_once, of_row, tools
from .gumbel import Draw, noise
from .rows import passes

BEST = 2  # numbers that a part writes for a draw: its largest entry, and its position in the row
AT_ONCE = 256  # draws from a row: the numbers their parts write take less memory than the row


@made_once
def make_look(T: Any, group: ThreadGroup, finite: bool) -> PartKernel:
    """A kernel that writes the largest entry of each part, or the largest `finite` one."""
    do, place = passes(T, group, "softmax"), make_place(T, group)
    look_at = do.look_at_finite if finite else do.look

    @device
    def look(here, s, batch, given):
        bad, top = look_at(here.span, s)
        place.leave(given[0], here, (0.0, 0.0, 0.0, 0.0, bad, top))

    return PartKernel(T, group, look, (NUMBERS,))


@device
def part_of(here, batch, row):
    """The part of row `row` of x at the same place as `here` in a draw, and its first position."""
    first = here.span.start - here.row * batch.n
    span = Span(batch.x, row * batch.n + first, here.span.n, batch.wide)
    return Part(row, here.part, here.parts, span), first


@made_once
def _make_perturb(T: Any, group: ThreadGroup, stays: bool) -> PartKernel:
    """A kernel that writes rows with noise, part by part, as `cuda.noise.make_perturb`."""
    do, place = passes(T, group, "softmax"), make_place(T, group)
    with_noise = noise(T, group, stays)

    @device
    def perturb(here, s, batch, given):
        seed, draws, tops, out = given
        source = Draw(seed, here.row // draws, here.row % draws)
        there, first = part_of(here, batch, source.row)
        bad, top = place.extremes(tops, there, s.shared)
        m = do.maximum(bad, top, 1.0)
        with_noise.write(there.span, first, source, m, s, beside(here.span, out))

    return PartKernel(T, group, perturb, (uint64, int64, NUMBERS, ROWS))


@made_once
def _make_pick(T: Any, group: ThreadGroup) -> PartKernel:
    """A kernel that writes index r - 1 of each draw, and finds index r in each part if r < k.

    These are `draws` of the row's `total` draws, from draw `since` on.
    """
    t, do, place = tools(T, group), passes(T, group, "softmax"), make_place(T, group)
    with_noise, infinity = noise(T, group, False), T(np.inf)

    @device
    def last_drawn(found, here, shared):
        """The largest entry of all parts, and its position in the row."""
        best, best_at = -infinity, int64(-1)
        for j in range(t.rank(), here.parts, group.lanes):
            at = (here.row * here.parts + j) * BEST
            v = T(found[at])
            if v > best:
                best, best_at = v, int64(found[at + 1])
        return with_noise.agree(best, best_at, shared)

    @device
    def pick(here, s, batch, given):
        seed, (since, draws, total), k, r, tops, found, new_found, out = given
        source = Draw(seed, here.row // draws, since + here.row % draws)
        last, last_at = infinity, int64(-1)
        if r > 0:
            last, last_at = last_drawn(found, here, s.shared)
            if here.part == 0 and t.rank() == 0:
                out[(source.row * total + source.draw) * k + r - 1] = last_at
        if r < k:
            there, first = part_of(here, batch, source.row)
            tau = of_row(batch.temperature, source.row)
            bad, top = place.extremes(tops, there, s.shared)
            m, inv = do.maximum(bad, top, tau), do.inverse(tau)
            best, best_at = with_noise.pick(there.span, first, source, m, inv, last, last_at, s)
            best, best_at = with_noise.agree(best, best_at, s.shared)
            if t.rank() == 0:
                at = (here.row * here.parts + here.part) * BEST
                new_found[at], new_found[at + 1] = best, best_at

    counts = (int64, int64, int64), int64, int64
    memory = NUMBERS, NUMBERS, NUMBERS, pointer_to(np.int64)
    return PartKernel(T, group, pick, (uint64, *counts, *memory))


def _tops(rows: Rows, finite: bool) -> Buffer:
    """The largest entry of each part, or the largest `finite` one."""
    group, parts, _ = parts_of(rows)
    tops = rows.empty(rows.rows * parts * SUMS, np.float64)
    make_look(rows.dtype, group, finite).run(rows, tops)
    return tops


def perturb(rows: Rows, seed: int, draws: int, stays: bool, out: Buffer) -> None:
    """Write rows of scores with noise, `draws` for each row."""
    kernel = _make_perturb(rows.dtype, parts_of(rows).group, stays)
    kernel.run(rows, seed, draws, _tops(rows, stays), out, units=rows.rows * draws)


def draw(rows: Rows, seed: int, draws: int, k: int, out: Buffer) -> None:
    """Write k indices for each draw from each row, as int64."""
    group, parts, _ = parts_of(rows)
    pick, tops = _make_pick(rows.dtype, group), _tops(rows, False)
    units = rows.rows * min(draws, AT_ONCE)
    found, new_found = (rows.empty(units * parts * BEST, np.float64) for _ in range(2))
    for since in range(0, draws, AT_ONCE):
        some = min(draws - since, AT_ONCE)
        for r in range(k + 1):
            given = seed, (since, some, draws), k, r, tops, found, new_found, out
            pick.run(rows, *given, units=rows.rows * some)
            found, new_found = new_found, found
