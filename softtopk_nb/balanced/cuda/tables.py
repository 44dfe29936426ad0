"""Kernels over the entries of a matrix on a device, and sums over its columns.

Sums are added in an order that follows from the shape alone: those of a block of rows first, then
those of the blocks. Nothing is added by atomic operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64, types

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import SHARED_SUMS, Span, ThreadGroup, made_once, tools

THREADS = 256
HEIGHT = 256  # rows of a block, of sums over columns
WIDTH = 32  # columns of it
_TALL = THREADS // WIDTH
TILE = 32  # columns of a block of products, and the rows that it holds at a time
_SIDE = TILE // 2  # threads along each side: a thread has four products
MOST_BLOCKS = 256  # of a survey
FOUND = 5  # numbers that each of them finds
_GROUP = ThreadGroup(THREADS, 4, streams=True)

_NUMBERS, _WHOLE = pointer_to(np.float64), pointer_to(np.int64)


@made_once
def make_less(T: Any, axis: int) -> Kernel:
    """A kernel that writes x - b, b a number for each row (axis 0) or each column; rounded once."""
    of_rows = axis == 0

    def less(total, n, x, b, out):
        i = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < total:
            out[i] = T(x[i] - b[i // n if of_rows else i % n])

    return Kernel(less, (int64, int64, pointer_to(T), _NUMBERS, pointer_to(T)), THREADS)


# Terms of a sum over columns, of an entry v; `given` has a number for each column or each row.


@device
def entry(v, given, i, j):
    """The entry."""
    return float64(v)


@device
def present(v, given, i, j):
    """Whether it takes part, as NaN does."""
    return 1.0 if v != -np.inf else 0.0


@device
def of_present(v, given, i, j):
    """The entry, if it takes part."""
    return float64(v) if v > -np.inf else 0.0


@device
def square(v, given, i, j):
    """The square of its distance from the number of its column, if it takes part."""
    return (v - given[j]) ** 2 if v > -np.inf else 0.0


@device
def above(v, given, i, j):
    """Whether it is +inf."""
    return 1.0 if v == np.inf else 0.0


@device
def finite(v, given, i, j):
    """The number of its row, if it is finite."""
    return given[i] if abs(v) < np.inf else 0.0


@made_once
def make_column_sums(T: Any, term: Any) -> Kernel:
    """A kernel for the sums of a term over blocks of rows: one number for each and each column.

    `steps` is the distance between rows and that between columns, which may exchange their parts.
    """

    def sums(size, steps, table, given, out):
        shared = cuda.shared.array(THREADS, float64)
        (m, n), (down, along) = size, steps
        across = (n + WIDTH - 1) // WIDTH
        block = int64(cuda.blockIdx.x)
        part = block // across
        j = block % across * WIDTH + cuda.threadIdx.x % WIDTH
        total = 0.0
        if j < n:
            first = part * HEIGHT + cuda.threadIdx.x // WIDTH
            for i in range(first, min((part + 1) * HEIGHT, m), _TALL):
                total += term(table[i * down + j * along], given, i, j)
        shared[cuda.threadIdx.x] = total
        cuda.syncthreads()
        if cuda.threadIdx.x < WIDTH and j < n:
            total = 0.0
            for k in range(_TALL):
                total += shared[k * WIDTH + cuda.threadIdx.x]
            out[part * n + j] = total

    pair = types.UniTuple(int64, 2)
    return Kernel(sums, (pair, pair, pointer_to(T), _NUMBERS, _NUMBERS), THREADS)


@made_once
def make_products(T: Any) -> Kernel:
    """A kernel for v^T v over parts of `length` rows: a block for each 32 x 32 of the products.

    32 products are added in the type of v, and their sums in float64.
    """
    zero = T(0)

    def products(m, n, length, v, out):
        left = cuda.shared.array((TILE, TILE), T)
        right = cuda.shared.array((TILE, TILE), T)
        across = (n + TILE - 1) // TILE
        block, me = int64(cuda.blockIdx.x), cuda.threadIdx.x
        part, tile = block // (across * across), block % (across * across)
        first, second = tile // across * TILE, tile % across * TILE
        i, j = me // _SIDE, me % _SIDE
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        end = min((part + 1) * length, m)
        for start in range(part * length, end, TILE):
            cuda.syncthreads()
            for at in range(me, TILE * TILE, THREADS):
                row, column = at // TILE, at % TILE
                place = (start + row) * n + column
                there = start + row < end
                left[row, column] = v[place + first] if there and first + column < n else zero
                right[row, column] = v[place + second] if there and second + column < n else zero
            cuda.syncthreads()
            pa, pb, pc, pd = zero, zero, zero, zero
            for row in range(TILE):
                p, q = left[row, i], left[row, i + _SIDE]
                x, y = right[row, j], right[row, j + _SIDE]
                pa += p * x
                pb += p * y
                pc += q * x
                pd += q * y
            a += pa
            b += pb
            c += pc
            d += pd
        place = (part * n + first + i) * n + second + j
        low, near = first + i + _SIDE < n, second + j + _SIDE < n
        if first + i < n and second + j < n:
            out[place] = a
        if first + i < n and near:
            out[place + _SIDE] = b
        if low and second + j < n:
            out[place + _SIDE * n] = c
        if low and near:
            out[place + _SIDE * n + _SIDE] = d

    return Kernel(products, (int64, int64, int64, pointer_to(T), _NUMBERS), THREADS)


@made_once
def make_survey(T: Any) -> Kernel:
    """A kernel that counts NaN, +inf and -inf and finds the finite extremes: FOUND per block."""
    t, held = tools(T, _GROUP), _GROUP.held
    zero, infinity, most = T(0), T(np.inf), T(np.finfo(T).max)

    def survey(total, x, out):
        regs, shared = cuda.local.array(held, T), cuda.shared.array(SHARED_SUMS, float64)
        block, span = int64(cuda.blockIdx.x), Span(x, int64(0), total, 0)
        lo, hi, bad, up, down = most, -most, 0.0, 0.0, 0.0
        for piece in range(block, t.pieces(total), int64(cuda.gridDim.x)):
            t.load(span, piece, zero, regs)
            for j in range(held):
                if t.position(piece, j) < total:
                    v = regs[j]
                    bad += 0.0 if v == v else 1.0
                    up += 1.0 if v == infinity else 0.0
                    down += 1.0 if v == -infinity else 0.0
                    finite = abs(v) < infinity
                    lo = v if finite and v < lo else lo
                    hi = v if finite and v > hi else hi
        bad, up, down, _ = t.totals(bad, up, down, 0.0, shared)
        lo, hi = t.extremes(lo, hi, shared)
        if cuda.threadIdx.x == 0:
            at = block * FOUND
            out[at], out[at + 1], out[at + 2], out[at + 3], out[at + 4] = bad, up, down, lo, hi

    return Kernel(survey, (int64, pointer_to(T), _NUMBERS), THREADS)


# Rows and columns that are left, among all.


@made_once
def make_gather(T: Any, of_finite: bool) -> Kernel:
    """A kernel that copies entries of some rows and columns; if `of_finite`, others are -inf."""
    infinity = T(np.inf)

    def gather(total, width, n, x, places, out):
        i = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < total:
            rows, columns = places
            v = x[rows[i // width] * n + columns[i % width]]
            if of_finite:
                v = v if abs(v) < infinity else -infinity
            out[i] = v

    given = int64, int64, int64, pointer_to(T), types.UniTuple(_WHOLE, 2), pointer_to(T)
    return Kernel(gather, given, THREADS)


class Rest(NamedTuple):
    """The entries of rows and columns that are left, as arguments of a kernel.

    A row or a column that is not left has the place -1.
    """

    table: Any
    width: Any
    rows: Any
    columns: Any


@made_once
def make_spread_out(T: Any, decides: bool) -> Kernel:
    """A kernel that writes a whole matrix: the rest, and if it `decides`, 1 for entries that are 1.

    `turns` are those of `reduction.Decided`, of rows and of columns.
    """
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def decided(v, of_row, of_column):
        earlier = of_column == 0 or (of_row != 0 and abs(of_row) < abs(of_column))
        turn = of_row if earlier else of_column
        return one if v == infinity or (turn > 0 and abs(v) < infinity) else zero

    def spread_out(total, n, x, turns, rest, out):
        i = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < total:
            row, column = i // n, i % n
            value = zero
            if decides:
                value = decided(x[i], turns[0][row], turns[1][column])
            a, b = rest.rows[row], rest.columns[column]
            if a >= 0 and b >= 0:
                value += rest.table[a * rest.width + b]
            out[i] = value

    members = pointer_to(T), int64, _WHOLE, _WHOLE
    rest = types.NamedTuple(members, Rest)
    given = int64, int64, pointer_to(T), types.UniTuple(_WHOLE, 2), rest, pointer_to(T)
    return Kernel(spread_out, given, THREADS)
