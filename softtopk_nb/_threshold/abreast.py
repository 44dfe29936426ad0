"""The thresholds of many rows side by side: what `rows.solve` does, for rows that need no more.

A search is a few passes over a row, and some arithmetic on a few numbers between them. In a short
row that arithmetic would take longer than the passes; here it is done for a group of rows at once,
one in each SIMD lane, without branches. Rows that need no search, or whose search does not end
soon, are left open, for `rows.solve`. What becomes of a row depends on that row alone.
"""

from __future__ import annotations

import numpy as np

from .._compile import kernel, row, scalar
from .._rows import FINITE, survey
from .._scalars import from_ordinal, to_ordinal, wide_vectors
from .._views import borrowed, held, layout_known, window
from .curves import autonomous
from .rows import CODE, LARGEST_SAMPLE, OPEN, ROUGH, SAMPLED, SEEN, TAKEN, WEIGHT
from .solver import (
    REST,
    C,
    D,
    correct,
    inverse_temperature,
    judge,
    measure,
    nearest,
    quantile_of_law,
    sample,
    spread_of_law,
    tally,
)

__all__ = ["solve"]

# A table has a column for each row of a group, and these fields; C, D and REST are the solver's.
LOW, HIGH, INV, WIDTH = 3, 4, 5, 6  # range of the entries; the reciprocal temperature, and its own
COUNT, LEFT = 7, 8  # entries searched, and what p sums to over them
PIVOT, MEAN, VARIANCE = 9, 10, 11
M, A, B, W = 12, 13, 14, 15  # the sums of a pass
STATUS, PASSES = 16, 17
# Temperatures above the pivot: the highest threshold known to be too low, the lowest known to be
# too high, and the residuals there; and how wide the row is.
LO, LO_R, HI, HI_R, SPREAD = 18, 19, 20, 21, 22
LAST = 23  # d of the last pass
MOVE = 24  # how far the threshold has moved since
FIELDS = 25
LANES = 16  # rows of a group, at most
WIDE = 8  # columns are worked on so many at a time, whether they are in use or not

SEEKING, FOUND, LOST = 0.0, 1.0, 2.0

GROUP = 1 << 12  # entries of a group, about: from pass to pass they stay in the fastest cache
MOST_PASSES = 16.0  # ordinary rows take 2 to 4
CLOSE = 1.0  # after a step so short, a pass may be the last one, and keeps p; after none other


_known = layout_known(FIELDS, LANES)


@scalar
def begin(table, columns, curve, one):
    """Set each threshold to where its search begins."""
    wide_vectors()
    table = _known(table)
    for r in range(columns):
        mean, variance, n, k = table[MEAN, r], table[VARIANCE, r], table[COUNT, r], table[LEFT, r]
        guess = quantile_of_law(curve, mean, variance, n, k)
        inv, width = type(one)(table[INV, r]), table[WIDTH, r]
        c, d = nearest(table[LOW, r], table[HIGH, r], table[PIVOT, r], guess, inv, width)
        table[C, r], table[D, r], table[REST, r] = c, d, 0.0
        table[SPREAD, r] = spread_of_law(curve, variance)


@scalar
def inside(at, residual, step, lo, lo_r, hi, hi_r, spread):
    """The step, if it ends within the bracket; else one that does."""
    share = lo_r / (lo_r - hi_r)  # regula falsi, kept off the ends
    share = 0.1 if share < 0.1 else 0.9 if share > 0.9 else share
    within = lo + share * (hi - lo) - at
    outward = spread if residual > 0.0 else -spread
    other = within if (lo > -np.inf) & (hi < np.inf) else outward
    return step if (at + step > lo) & (at + step < hi) else other


@scalar
def advance(table, columns, curve, one, enough):
    """Take the sums of each row's pass: move its threshold, or say that it is found or lost."""
    wide_vectors()
    table = _known(table)
    for r in range(columns):
        c, d, rest = table[C, r], table[D, r], table[REST, r]
        k, passes, status = table[LEFT, r], table[PASSES, r] + 1.0, table[STATUS, r]
        sums = table[M, r], table[A, r], table[B, r], table[W, r]
        residual, step, moved, stays, arrives = judge(curve, k, sums, d, one, True, enough)
        inv, width = type(one)(table[INV, r]), table[WIDTH, r]
        at = (c - table[PIVOT, r]) * inv + d
        low = residual > 0.0
        lo, lo_r = at if low else table[LO, r], residual if low else table[LO_R, r]
        hi, hi_r = table[HI, r] if low else at, table[HI_R, r] if low else residual
        move = inside(at, residual, step, lo, lo_r, hi, hi_r, table[SPREAD, r])
        move = 0.0 if stays & (residual == residual) else step if arrives else move
        near, near_d = nearest(table[LOW, r], table[HIGH, r], c, d + move, inv, width)
        ends = (stays | arrives) & (residual == residual) & (table[MOVE, r] <= CLOSE)
        arrives = arrives & ends & (not stays)
        goes_on = (not ends) & (passes <= MOST_PASSES) & (abs(move) < np.inf)
        seen = d
        if status == SEEKING:
            status = FOUND if ends else SEEKING if goes_on else LOST
            rest = d + step - moved if arrives else 0.0
            d = moved if arrives else near_d if goes_on else d
            c = near if goes_on else c
        else:
            passes -= 1.0
            seen, move = table[LAST, r], table[MOVE, r]
        table[LO, r], table[LO_R, r], table[HI, r], table[HI_R, r] = lo, lo_r, hi, hi_r
        table[C, r], table[D, r], table[REST, r] = c, d, rest
        table[STATUS, r], table[PASSES, r], table[LAST, r] = status, passes, seen
        table[MOVE, r] = abs(move)


@row
def admit(x, k, tau, table, r):
    """Note a row in column r; say whether there is anything to search."""
    T = x.dtype.type
    lo, hi = survey(x)
    finite = to_ordinal(T(-np.inf)) < lo and hi < to_ordinal(T(np.inf))
    if not (finite and 0.0 < k < x.shape[0]):
        return False
    inv = inverse_temperature(tau, x)
    table[LOW, r], table[HIGH, r] = from_ordinal(lo), from_ordinal(hi)
    table[INV, r], table[WIDTH, r] = inv, 1.0 / inv
    return True


@row
def look(part, k, rough, starts, table, r):
    """Make column r ready for a search over `part` of its row; it `starts`, or goes on."""
    table[COUNT, r], table[LEFT, r] = part.shape[0], k
    table[STATUS, r], table[PASSES, r] = SEEKING, 0.0
    table[LO, r], table[HI, r] = -np.inf, np.inf
    table[LO_R, r], table[HI_R, r] = part.shape[0], -k
    table[MOVE, r] = 0.0 if rough else np.inf
    if starts:
        inv = part.dtype.type(table[INV, r])
        pivot, mean, variance = measure(part, table[LOW, r], table[HIGH, r], inv)
        table[PIVOT, r], table[MEAN, r], table[VARIANCE, r] = pivot, mean, variance


@kernel
def solve(lo, hi, x, sizes, k, tau, curve, method, out, solution, left_open):
    """Rows lo .. hi: p to `out` (unless its rows are empty), the thresholds to `solution`.

    A row is as long as `sizes` says, if that is not empty, and skipped if that is negative. A row
    that is not searched, or in vain, has the CODE OPEN afterwards, and `left_open` is set.
    """
    T, n, cut = x.dtype.type, x.shape[1], sizes.shape[0] > 0
    writes = out.shape[1] > 0
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    own_table, own_rows = np.empty((FIELDS, LANES)), np.empty((2, LANES), np.int64)
    own_few = np.empty((1, LARGEST_SAMPLE if n // 16 > LARGEST_SAMPLE else n // 16), x.dtype)
    table, few = borrowed(own_table), borrowed(own_few)
    rows = borrowed(own_rows)  # of the group, and columns still searched
    own_slopes = np.empty((1 if n >= SAMPLED else LANES, 0 if autonomous(curve) else n), x.dtype)
    slopes = borrowed(own_slopes)
    for r in range(LANES):  # subnormal numbers in columns that are not used would take their time
        for field in range(FIELDS):
            table[field, r] = 1.0
    group = 1 if n >= SAMPLED else LANES if n * LANES <= GROUP else GROUP // n
    for first in range(lo, hi, group):
        count = 0
        for i in range(first, first + group if first + group < hi else hi):
            size = sizes[i] if cut else n
            if size >= 0:
                solution[i, CODE] = OPEN
                if admit(window(x[i], 0, size), k[i], tau[i], table, count):
                    table[COUNT, count] = size
                    rows[0, count] = i
                    count += 1
                else:
                    left_open[0] = True
        columns = (count + WIDE - 1) // WIDE * WIDE
        # A row of a length to be sampled is a group of its own.
        sampled = method.sampled and count > 0 and table[COUNT, 0] >= SAMPLED
        for rough in range(1 if sampled else 0, -1, -1):
            starts = rough or not sampled
            for r in range(count):
                i = rows[0, r]
                size = sizes[i] if cut else n
                part, share = window(x[i], 0, size), k[i]
                if rough:
                    part = few[0, : min(size // 16, LARGEST_SAMPLE)]
                    sample(window(x[i], 0, size), part)
                    share = share * part.shape[0] / size
                look(part, share, rough, starts, table, r)
                rows[1, r] = r
            if starts:
                begin(table, columns, curve, T(1))
            left = count
            while left > 0:
                for j in range(left):
                    r = rows[1, j]
                    i, size = rows[0, r], int(table[COUNT, r])
                    part = window(few[0], 0, size) if rough else window(x[i], 0, size)
                    c, d, inv = T(table[C, r]), T(table[D, r]), T(table[INV, r])
                    if writes and not rough and table[MOVE, r] <= CLOSE:
                        m, a, b, w = tally(part, c, inv, d, curve, out[i], slopes[r])
                    else:
                        m, a, b, w = tally(part, c, inv, d, curve)
                    table[M, r], table[A, r], table[B, r], table[W, r] = m, a, b, w
                advance(table, columns, curve, T(1), ROUGH if rough else method.enough)
                still = 0
                for j in range(left):
                    r = rows[1, j]
                    rows[1, still] = r
                    still += table[STATUS, r] == SEEKING
                left = still
        for r in range(count):
            if table[STATUS, r] != FOUND:
                left_open[0] = True
                continue
            i = rows[0, r]
            answer = solution[i]
            c, d, rest = table[C, r], table[D, r], table[REST, r]
            answer[C], answer[D], answer[REST] = c, d, rest
            answer[CODE], answer[TAKEN], answer[WEIGHT] = FINITE, table[PASSES, r], table[W, r]
            answer[SEEN] = table[LAST, r]
            rest = T(d + rest - table[LAST, r])
            if writes and rest != T(0):
                correct(out[i], slopes[r], rest, curve)
    held((own_table, own_rows, own_few, own_slopes))
