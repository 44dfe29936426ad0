"""The k entries of each row that the hard top-k marks, with their weights, in a chosen order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.target import cuda
from ..._cuda.thread_groups import made_once

THREADS = 128


@made_once
def make_list(T: Any) -> Kernel:
    """A kernel that lists the marked entries in the order of their indices: one block for each row.

    Where fewer than k are marked, as in rows of NaN, others fill the list, with a score of -inf.
    """
    one, excluded = T(1), T(-np.inf)

    def kernel(mask, x, n, k, indices, scores):
        counts = cuda.shared.array(THREADS, int64)
        row, thread = int64(cuda.blockIdx.x), cuda.threadIdx.x
        each = (n + THREADS - 1) // THREADS
        start = min(thread * each, n)
        end = min(start + each, n)
        own = int64(0)
        for i in range(start, end):
            own += 1 if mask[row * n + i] == one else 0
        counts[thread] = own
        cuda.syncthreads()
        before, total = int64(0), int64(0)  # marked ones ahead of the entry, and in the row
        for j in range(THREADS):
            before += counts[j] if j < thread else 0
            total += counts[j]
        spare = k - total
        for i in range(start, end):
            marked, others = mask[row * n + i] == one, i - before
            if marked or others < spare:
                place = row * k + before + min(others, spare)
                indices[place] = i
                scores[place] = x[row * n + i] if marked else excluded
            before += 1 if marked else 0

    rows, numbers = pointer_to(T), pointer_to(np.int64)
    return Kernel(kernel, (rows, rows, int64, int64, numbers, rows), THREADS)


@made_once
def make_weights(T: Any) -> Kernel:
    """A kernel that writes the listed indices and their p, in the order of scores if it `sorts`."""

    def kernel(total, n, k, sorts, listed, scores, p, indices, out):
        i = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i >= total:
            return
        row = i // k
        first = row * k
        place = i - first
        if sorts:
            own, rank = scores[i], int64(0)
            for j in range(k):
                other = scores[first + j]
                rank += 1 if other > own or (other == own and j < place) else 0
            place = rank
        indices[first + place] = listed[i]
        out[first + place] = p[row * n + listed[i]]

    rows, numbers = pointer_to(T), pointer_to(np.int64)
    given = int64, int64, int64, int32, numbers, rows, rows, numbers, rows
    return Kernel(kernel, given, THREADS)


def select(
    rows: Rows, k: int, sorts: bool, mask: Buffer, p: Buffer, out: tuple[Buffer, ...]
) -> None:
    """Write the weights of the k entries that the mask marks, and their indices."""
    weights, indices = out
    total = rows.rows * k
    listed, scores = rows.empty(total, np.int64), rows.empty(total, rows.dtype)
    make_list(rows.dtype)(
        rows.rows,
        rows.stream,
        *(mask.pointer, rows.x.pointer, rows.n, k, listed.pointer, scores.pointer),
    )
    make_weights(rows.dtype)(
        -(-total // THREADS),
        rows.stream,
        *(total, rows.n, k, int(sorts), listed.pointer, scores.pointer, p.pointer),
        *(indices.pointer, weights.pointer),
    )
