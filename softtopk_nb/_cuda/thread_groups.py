"""Thread groups: the threads of a device that work on one row together.

A *thread group* is a few lanes of a warp, a whole warp, or a block. Each of its threads holds some
entries of the row in registers; a row that is longer than what the group holds is read again, piece
by piece, in every pass over it. A kernel is written once, for any group: loops over the entries
held have a constant length, and the kind of group follows from its size.

Sums over a group are added in an order that depends on the group alone, so that equal rows give
equal bits wherever they are in a batch.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from .target import WIDE, cuda, device, load_wide, store_wide

#: Curves of different types can be equal as tuples: a cache must tell them apart.
made_once = functools.lru_cache(maxsize=None, typed=True)

FULL = 0xFFFFFFFF  # every lane of a warp
SHARED_SUMS = 4 * 32  # float64 that a group shares for its sums
SHARED_BLOCK = 128  # threads of a block that holds several groups


@device
def of_row(argument, row):
    """The k or temperature of a row, from a number per row or one for all."""
    return argument.pointer[row] if argument.per_row else argument.value


class Span(NamedTuple):
    """A row, or a part of one: `n` entries of `x` from `start` on."""

    x: Any
    start: Any
    n: Any
    wide: Any  # whether they can be read and written WIDE bytes at a time


@device
def beside(span, v):
    """The span of v at the same positions as `span` has in x."""
    return Span(v, span.start, span.n, span.wide)


class Entries(NamedTuple):
    """Access to the entries that a thread holds, by position; -1 is no position."""

    #: at(regs, place) -> the entry
    at: Any
    #: put(regs, place, value): overwrite the entry
    put: Any


@made_once
def entries_held(held: int) -> Entries:
    """Access by comparing with every position: a variable index would move regs to memory.

    A constant position costs nothing, so this also serves a loop that may not be unrolled.
    """

    @device
    def at(regs, place):
        value = regs[0]
        for j in range(1, held):
            entry = regs[j]
            value = entry if place == j else value
        return value

    @device
    def put(regs, place, value):
        for j in range(held):
            entry = regs[j]
            regs[j] = value if place == j else entry

    return Entries(at, put)


class ThreadGroup(NamedTuple):
    """The number of threads that share a row, and of the entries that each holds."""

    lanes: int  # a power of 2: part of a warp, a warp, or a block of whole warps
    held: int  # entries in the registers of each, a multiple of those read at once
    streams: bool = False  # whether rows may be longer than lanes * held

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return self.lanes if self.lanes > 32 else SHARED_BLOCK

    @property
    def rows(self) -> int:
        """Number of rows of a block."""
        return self.threads // self.lanes

    def blocks(self, rows: int) -> int:
        """Number of blocks that give each row a group."""
        return -(-rows // self.rows)


class Tools(NamedTuple):
    """Collective functions of a group's threads; `shared` is an array of SHARED_SUMS float64."""

    #: rank() -> the index of this thread in its group
    rank: Any
    #: slot() -> the index of its group in the block
    slot: Any
    #: mask() -> the lanes of this thread's warp that belong to the group
    mask: Any
    #: pieces(n) -> the number of times the group fills its registers to read n entries
    pieces: Any
    #: position(piece, j) -> the position in the row of the j-th entry held
    position: Any
    #: load(span, piece, pad, regs): fill the registers, with `pad` beyond the end
    load: Any
    #: store(regs, span, piece): write them where `load` reads them
    store: Any
    #: meet(): barrier of the group, after which all see what each has written
    meet: Any
    #: total(v, shared), totals(a, b, c, d, shared): sums over the group, in float64, in every
    #: thread
    total: Any
    totals: Any
    #: extremes(lo, hi, shared): smallest lo and largest hi; a 0 may differ in sign between threads
    extremes: Any


def _halves(count: int) -> tuple[int, ...]:
    """Distances between lanes for a butterfly sum over `count` lanes, a power of 2."""
    return tuple(1 << j for j in reversed(range(count.bit_length() - 1)))


@made_once
def tools(T: Any, group: ThreadGroup) -> Tools:
    """The functions of a group (`Tools`) for rows of type T."""
    lanes, held, streams = group
    wide_count = WIDE // np.dtype(T).itemsize
    vectors = held // wide_count
    warps = lanes // 32
    offsets = _halves(min(lanes, 32))
    warp_offsets = _halves(warps)
    whole = lanes >= 32
    lane_bits, last_lane = (1 << min(lanes, 32)) - 1, lanes - 1
    last_warp = warps - 1

    @device
    def rank():
        return cuda.threadIdx.x & last_lane

    @device
    def slot():
        return cuda.threadIdx.x // lanes

    @device
    def mask():
        return FULL if whole else lane_bits << (cuda.threadIdx.x & 31 & ~last_lane)

    @device
    def pieces(n):
        return (n + lanes * held - 1) // (lanes * held) if streams else 1

    @device
    def position(piece, j):
        vector, place = j // wide_count, j % wide_count
        return (piece * vectors + vector) * (lanes * wide_count) + rank() * wide_count + place

    @device
    def load(span, piece, pad, regs):
        x, start, n, wide = span
        for g in range(vectors):
            at = position(piece, g * wide_count)
            if wide and at < n:
                values = load_wide(x, start + at)
                for j in range(wide_count):
                    regs[g * wide_count + j] = values[j]
            else:
                for j in range(wide_count):
                    regs[g * wide_count + j] = x[start + at + j] if at + j < n else pad

    @device
    def store_four(regs, g, out, at):
        j = g * 4
        store_wide(out, at, (regs[j], regs[j + 1], regs[j + 2], regs[j + 3]))

    @device
    def store_two(regs, g, out, at):
        store_wide(out, at, (regs[g * 2], regs[g * 2 + 1]))

    store_vector = store_four if wide_count == 4 else store_two

    @device
    def store(regs, span, piece):
        out, start, n, wide = span
        for g in range(vectors):
            at = position(piece, g * wide_count)
            if wide and at < n:
                store_vector(regs, g, out, start + at)
            else:
                for j in range(wide_count):
                    if at + j < n:
                        out[start + at + j] = regs[g * wide_count + j]

    @device
    def meet_in_warp():
        cuda.syncwarp(mask())

    @device
    def meet_in_block():
        cuda.syncthreads()

    @device
    def warp_total(v):
        for offset in offsets:
            v += cuda.shfl_xor_sync(mask(), v, offset)
        return v

    @device
    def totals_in_warp(a, b, c, d, shared):
        return (
            np.float64(warp_total(a)),
            np.float64(warp_total(b)),
            np.float64(warp_total(c)),
            np.float64(warp_total(d)),
        )

    @device
    def total_in_warp(v, shared):
        return np.float64(warp_total(v))

    @device
    def of_warp(shared, place):
        """The sum left by one warp, another in each lane, for every warp to add up."""
        return shared[32 * place + (cuda.threadIdx.x & last_warp)]

    @device
    def total_of_warps(v):
        for offset in warp_offsets:
            v += cuda.shfl_xor_sync(FULL, v, offset)
        return v

    @device
    def totals_in_block(a, b, c, d, shared):
        a, b, c, d = warp_total(a), warp_total(b), warp_total(c), warp_total(d)
        warp = cuda.threadIdx.x >> 5
        cuda.syncthreads()  # its old contents have been read
        if cuda.threadIdx.x & 31 == 0:
            shared[warp], shared[32 + warp] = a, b
            shared[64 + warp], shared[96 + warp] = c, d
        cuda.syncthreads()
        a, b, c, d = of_warp(shared, 0), of_warp(shared, 1), of_warp(shared, 2), of_warp(shared, 3)
        return total_of_warps(a), total_of_warps(b), total_of_warps(c), total_of_warps(d)

    @device
    def total_in_block(v, shared):
        v = warp_total(v)
        cuda.syncthreads()
        if cuda.threadIdx.x & 31 == 0:
            shared[cuda.threadIdx.x >> 5] = v
        cuda.syncthreads()
        return total_of_warps(of_warp(shared, 0))

    @device
    def extremes_in_warp(lo, hi, shared):
        for offset in offsets:
            other_lo = cuda.shfl_xor_sync(mask(), lo, offset)
            other_hi = cuda.shfl_xor_sync(mask(), hi, offset)
            lo = other_lo if other_lo < lo else lo
            hi = other_hi if other_hi > hi else hi
        return lo, hi

    @device
    def extremes_in_block(lo, hi, shared):
        lo, hi = extremes_in_warp(lo, hi, shared)
        warp = cuda.threadIdx.x >> 5
        cuda.syncthreads()
        if cuda.threadIdx.x & 31 == 0:
            shared[warp], shared[32 + warp] = lo, hi
        cuda.syncthreads()
        lo, hi = T(of_warp(shared, 0)), T(of_warp(shared, 1))
        for offset in warp_offsets:
            other_lo = cuda.shfl_xor_sync(FULL, lo, offset)
            other_hi = cuda.shfl_xor_sync(FULL, hi, offset)
            lo = other_lo if other_lo < lo else lo
            hi = other_hi if other_hi > hi else hi
        return lo, hi

    if lanes <= 32:
        together = meet_in_warp, total_in_warp, totals_in_warp, extremes_in_warp
    else:
        together = meet_in_block, total_in_block, totals_in_block, extremes_in_block
    return Tools(rank, slot, mask, pieces, position, load, store, *together)
