"""Gumbel noise on a device: the passes of a group over a row, or over a part of one.

The noise of an entry is a function of the seed, the row, the draw and the entry, and of the rows'
type: the entries that a thread reads at once share one counter of `philox`. So it is the same
however the row is cut; `first` is the position in its row where a part begins, a multiple of the
number of entries read at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.target import WIDE, device
from ..._cuda.thread_groups import ThreadGroup, made_once, tools
from ..formulas import z_of
from .philox import gumbel, philox, uniform32, uniform64


class Draw(NamedTuple):
    """The arguments of the noise, beside the entry."""

    seed: Any
    row: Any
    draw: Any


class Noise(NamedTuple):
    """The passes of a group with noise; `s.regs` hold the row already, unless the group streams."""

    #: disturb(regs, piece, first, source, m, inv): turns entries into (x - m)/tau + G, all NaN if m
    #: is; if `stays`, infinite and NaN entries are left as they are
    disturb: Any
    #: write(span, first, source, m, s, target): writes x - m + G to another span
    write: Any
    #: pick(span, first, source, m, inv, last, last_at, s) -> the largest entry of a thread after
    #: the last one drawn, by value and then by position, and its position in the row; -inf and -1
    #: if there is none. In a group that holds its row, regs have noise already
    pick: Any
    #: agree(best, best_at, shared) -> the largest of all threads' picks, the first of equal ones
    agree: Any


@made_once
def noise(T: Any, group: ThreadGroup, stays: bool) -> Noise:
    """The passes with noise, for rows of type T."""
    t = tools(T, group)
    counts = tools(np.float64, ThreadGroup(group.lanes, 2))
    held, streams = group.held, group.streams
    wide_count = WIDE // np.dtype(T).itemsize
    vectors = held // wide_count
    zero, one, infinity, nan = T(0), T(1), T(np.inf), T(np.nan)
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
    def disturb(regs, piece, first, source, m, inv):
        seed, r, d = np.uint64(source.seed), np.uint64(source.row), np.uint64(source.draw)
        for g in range(vectors):
            count = np.uint64((first + t.position(piece, g * wide_count)) // wide_count)
            a, b, c, e = philox(seed, count, d, r & word, r >> np.uint64(32))
            gumbels = numbers(a, b, c, e)
            for j in range(wide_count):
                v = regs[g * wide_count + j]
                moved = z_of(v, m, inv) + gumbels[j]
                if stays:
                    moved = moved if abs(v) < infinity else v
                else:
                    moved = moved if m == m else nan
                regs[g * wide_count + j] = moved

    @device
    def write(span, first, source, m, s, target):
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, -infinity, s.regs)
            disturb(s.regs, piece, first, source, m, one)
            t.store(s.regs, target, piece)

    @device
    def pick(span, first, source, m, inv, last, last_at, s):
        best, best_at = -infinity, int64(-1)
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, -infinity, s.regs)
                disturb(s.regs, piece, first, source, m, inv)
            for j in range(held):
                v, at = s.regs[j], int64(first + t.position(piece, j))
                left = v < last or (v == last and at > last_at)
                if left and v > best:
                    best, best_at = v, at
        return best, best_at

    @device
    def agree(best, best_at, shared):
        top = t.extremes(zero, best, shared)[1]
        at = float64(best_at) if best == top else np.inf
        return top, int64(counts.extremes(at, 0.0, shared)[0])

    return Noise(disturb, write, pick, agree)
