"""Sorting rows on a device in descending order.

Batcher's bitonic network, in the form whose comparators all point the same way: two sorted runs are
merged by comparing each entry with its mirror image in the other run first, and then at distances
that halve. Positions beyond the end of a row count as -inf and would never move, so comparators
that reach there are skipped, and a row of any length is sorted in place.

A comparator of a network is a pair of positions that differ by a mask: `width - 1` for mirror
images within `width` positions, the distance itself afterwards. A warp keeps its row in registers,
where most comparators need no other thread; longer rows are sorted in chunks in shared memory, and
the chunks merged in launches over all of the row, whose number follows from its length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64

from .arrays import Buffer, Rows
from .launch import Kernel, choose, pointer_to
from .target import cuda, device
from .thread_groups import Span, ThreadGroup, made_once, tools

CHUNK = 4096  # entries sorted in shared memory: 32 KB of 8 bytes each
THREADS = 512


def _own_masks(held: int) -> tuple[int, ...]:
    """The masks of the comparators that sort `held` positions."""
    masks = []
    width = 2
    while width <= held:
        masks += [width - 1, *(width >> j for j in range(2, width.bit_length()))]
        width *= 2
    return tuple(masks)


@made_once
def in_registers(T: Any, group: ThreadGroup) -> tuple[Any, Any]:
    """(sort, entry) for a group within a warp.

    sort(regs) sorts what the group holds: entry i of the result is the (i % held)-th in thread
    i // held, wherever `tools.load` had put it. entry(regs, i) returns that entry to every thread.
    """
    t, lanes, held = tools(T, group), group.lanes, group.held
    half = held // 2
    own, closing = _own_masks(held), tuple(half >> j for j in range(half.bit_length()))

    @device
    def compare(regs, i, j):
        a, b = regs[i], regs[j]
        regs[i] = b if a < b else a
        regs[j] = a if a < b else b

    @device
    def compare_own(regs, mask):
        for j in range(held):
            if j < j ^ mask:
                compare(regs, j, j ^ mask)

    @device
    def better(mine, other, first):
        """The larger of both in the thread that comes first, the smaller in the other."""
        return other if (other > mine) == first else mine

    @device
    def sort(regs):
        for mask in own:
            compare_own(regs, mask)
        lane, members = t.rank(), t.mask()
        width = 2  # threads
        while width <= lanes:
            first = lane & (width >> 1) == 0
            for j in range(half):
                i = held - 1 - j
                a = cuda.shfl_xor_sync(members, regs[i], width - 1)
                b = cuda.shfl_xor_sync(members, regs[j], width - 1)
                regs[j] = better(regs[j], a, first)
                regs[i] = better(regs[i], b, first)
            distance = width >> 2
            while distance > 0:
                first = lane & distance == 0
                for j in range(held):
                    other = cuda.shfl_xor_sync(members, regs[j], distance)
                    regs[j] = better(regs[j], other, first)
                distance >>= 1
            for mask in closing:
                compare_own(regs, mask)
            width <<= 1

    @device
    def entry(regs, i):
        place, v = i % held, regs[0]
        for j in range(1, held):
            w = regs[j]  # read in any case: a conditional read would move regs to memory
            v = w if j == place else v
        first = cuda.threadIdx.x & 31 & ~(lanes - 1)
        return cuda.shfl_sync(t.mask(), v, first + i // held)

    return sort, entry


@device
def step(values, start, n, pairs, first, stride, distance, mask):
    """Apply comparators `first`, `first + stride`, ... of the pairs at one distance."""
    for pair in range(first, pairs, stride):
        i = ((pair & -distance) << 1) | (pair & (distance - 1))
        j = i ^ mask
        if j < n:
            a, b = values[start + i], values[start + j]
            if a < b:
                values[start + i], values[start + j] = b, a


@made_once
def make_short(T: Any, group: ThreadGroup) -> Kernel:
    """A kernel that sorts rows which fit into the registers of a warp."""
    t, held, rows_of_block = tools(T, group), group.held, group.rows
    sort, _ = in_registers(T, group)
    least = T(-np.inf)

    def short(x, rows, n, wide, out):
        regs = cuda.local.array(held, T)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        t.load(Span(x, row * n, n, wide), 0, least, regs)
        sort(regs)
        for j in range(held):
            at = t.rank() * held + j
            if at < n:
                out[row * n + at] = regs[j]

    real = pointer_to(T)
    return Kernel(short, (real, int64, int64, int32, real), group.threads)


@made_once
def make_chunks(T: Any, size: int, merges: bool) -> Kernel:
    """A kernel that sorts chunks of `size`; if `merges`, they are two sorted, mirrored runs."""
    pairs = size // 2
    threads = min(THREADS, pairs)

    def chunks(x, n, out):
        values = cuda.shared.array(size, T)
        parts = (n + size - 1) // size
        row = int64(cuda.blockIdx.x) // parts
        begin = (int64(cuda.blockIdx.x) - row * parts) * size
        start, count = row * n + begin, min(n - begin, size)
        for i in range(cuda.threadIdx.x, count, threads):
            values[i] = x[start + i]
        width = size if merges else 2
        while width <= size:
            distance = width >> 1
            mask = distance if merges else width - 1
            while distance > 0:
                cuda.syncthreads()
                step(values, 0, count, pairs, cuda.threadIdx.x, threads, distance, mask)
                distance >>= 1
                mask = distance
            width <<= 1
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, count, threads):
            out[start + i] = values[i]

    real = pointer_to(T)
    return Kernel(chunks, (real, int64, real), threads)


@made_once
def make_step(T: Any) -> Kernel:
    """A kernel for all comparators of one distance, in rows of any length."""

    def one_step(values, n, blocks, pairs, distance, mask):
        row = int64(cuda.blockIdx.x) // blocks
        block = int64(cuda.blockIdx.x) - row * blocks
        first = block * THREADS + cuda.threadIdx.x
        step(values, row * n, n, pairs, first, pairs, distance, mask)

    return Kernel(one_step, (pointer_to(T), *(int64,) * 5), THREADS)


def descending(rows: Rows) -> Buffer:
    """The rows, each sorted in descending order: +inf first, excluded entries last.

    The result for a row with a NaN is unspecified, and may hold other entries than the row.
    """
    T, n = rows.dtype, rows.n
    out = rows.empty(rows.rows * n, T)
    group = choose(n, T)
    if group.lanes <= 32:
        wide = rows.wide()
        short = make_short(T, group)
        short(group.blocks(rows.rows), rows.stream, rows.x.pointer, rows.rows, n, wide, out.pointer)
        return out
    size = min(CHUNK, 1 << (n - 1).bit_length())
    blocks = rows.rows * -(-n // size)
    make_chunks(T, size, False)(blocks, rows.stream, rows.x.pointer, n, out.pointer)
    merge, compare = make_chunks(T, size, True), make_step(T)
    width = 2 * size
    while width < 2 * n:
        pairs = (1 << (n - 1).bit_length()) // 2
        blocks_of_row = -(-pairs // THREADS)
        distance, mask = width // 2, width - 1
        while distance >= size:
            compare(
                rows.rows * blocks_of_row,
                rows.stream,
                out.pointer,
                n,
                blocks_of_row,
                pairs,
                distance,
                mask,
            )
            distance //= 2
            mask = distance
        merge(blocks, rows.stream, out.pointer, n, out.pointer)
        width *= 2
    return out
