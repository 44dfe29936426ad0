"""Rows with Gumbel noise on a device, and the indices of their largest entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, uint64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import choose, pointer_to
from ..._cuda.long_rows import is_long
from ..._cuda.row_kernels import ROWS, RowKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import Span, ThreadGroup, beside, made_once, of_row, tools
from . import long_noise
from .gumbel import Draw, noise
from .rows import passes

MOST_HELD = 64  # bytes of a row that a thread holds at most


@made_once
def make_perturb(T: Any, group: ThreadGroup, stays: bool) -> RowKernel:
    """A kernel that writes x - m + G, `draws` rows of it for each row.

    m is the largest entry, by the rules of `operator.from_largest`; if `stays`, the largest finite
    one, and infinite and NaN entries are left as they are.
    """
    do, with_noise = passes(T, group, "softmax"), noise(T, group, stays)
    look = do.look_at_finite if stays else do.look

    @device
    def perturb(here, s, batch, given):
        seed, draws, out = given
        row, draw = here.row // draws, here.row % draws
        span = Span(batch.x, row * batch.n, batch.n, batch.wide)
        bad, top = look(span, s)
        m = do.maximum(bad, top, 1.0)
        with_noise.write(span, 0, Draw(seed, row, draw), m, s, beside(here.span, out))

    return RowKernel(T, group, perturb, (uint64, int64, ROWS))


@made_once
def make_draw(T: Any, group: ThreadGroup) -> RowKernel:
    """A kernel for the indices of the k largest of x/tau + G in order, or -1: O(n k) per draw."""
    t, do, with_noise = tools(T, group), passes(T, group, "softmax"), noise(T, group, False)
    infinity = T(np.inf)

    @device
    def pick(here, s, batch, given):
        seed, draws, k, out = given
        row, draw = here.row // draws, here.row % draws
        span, source = Span(batch.x, row * batch.n, batch.n, batch.wide), Draw(seed, row, draw)
        tau = of_row(batch.temperature, row)
        inv = do.inverse(tau)
        bad, top = do.look(span, s)
        m = do.maximum(bad, top, tau)
        if not group.streams:
            with_noise.disturb(s.regs, 0, 0, source, m, inv)
        # Drawn are the entries up to the last one drawn, by value and then by position.
        last, last_at = infinity, int64(-1)
        for r in range(k):
            best, best_at = with_noise.pick(span, 0, source, m, inv, last, last_at, s)
            last, last_at = with_noise.agree(best, best_at, s.shared)
            if t.rank() == 0:
                out[here.row * k + r] = last_at

    return RowKernel(T, group, pick, (uint64, int64, int64, pointer_to(np.int64)))


def group_for(n: int, T: Any) -> ThreadGroup:
    """The group for rows of n entries; more threads where each would hold too many to unroll."""
    group = choose(n, T)
    much = group.held * np.dtype(T).itemsize > MOST_HELD
    return ThreadGroup(2 * group.lanes, group.held // 2) if much else group


def perturb(rows: Rows, seed: int, draws: int, stays: bool, out: Buffer) -> None:
    """Write rows of scores with noise, `draws` for each row."""
    if is_long(rows):
        long_noise.perturb(rows, seed, draws, stays, out)
        return
    kernel = make_perturb(rows.dtype, group_for(rows.n, rows.dtype), stays)
    kernel.run(rows, seed, draws, out, units=rows.rows * draws)


def draw(rows: Rows, seed: int, draws: int, k: int, out: Buffer) -> None:
    """Write k indices for each draw from each row, as int64."""
    if is_long(rows):
        long_noise.draw(rows, seed, draws, k, out)
        return
    kernel = make_draw(rows.dtype, group_for(rows.n, rows.dtype))
    kernel.run(rows, seed, draws, k, out, units=rows.rows * draws)
