"""The thresholds of many rows side by side: what `rows.solve` does, for rows that need no more.

A search is a few passes over a row, and some arithmetic on a few numbers between them. In a short
row that arithmetic would take longer than the passes; here it is done for a group of rows at once,
one in each SIMD lane, without branches. Rows that need no search, or whose search does not end
soon, are left open, for `rows.solve`. What becomes of a row depends on that row alone.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, columns_from, held, layout_known, window
from ..._compile.decorators import kernel, row, scalar
from ..._curves.base import shift_factors, shifts_by_value_alone
from ..._math.elementary import wide_vectors
from ..._nonfinite import FINITE
from ..law import by_law, law_of, quantile_of_law, spread_of_law
from ..newton import inverse_temperature, judge, nearest
from ..policy import BLUR, FAINT, ROUGH, enough_for, final_pass_radius, one_pass_variance, resembles
from ..records import CODE, OPEN, REST, SEEN, TAKEN, WEIGHT, C, D
from .passes import correct, pass_room, search_pass
from .start import SAMPLED, finite, measure, part_of, pivot_of, sample_size

# A table has a column for each row of a group, and these fields; C, D and REST are the solver's.
INV, WIDTH = 3, 4  # the reciprocal temperature, and its own
COUNT, LEFT = 5, 6  # entries searched, and what p sums to over them
PIVOT, MEAN, SQUARE, DISTANCE = 7, 8, 9, 10  # of `start.measure`
M, A, B, W, V, V3, V4 = 11, 12, 13, 14, 15, 26, 27  # the sums of a pass
CLEAR = 16  # and how far the threshold may move before the model fails
# Temperatures above the pivot: the highest threshold known to be too low, the lowest known to be
# too high, and how wide the row is.
LO, HI, SPREAD = 17, 18, 19
LAST = 20  # d of the last pass
MOVE = 21  # how far the threshold has moved since
BELOW, ABOVE = 22, 23  # and that as `reach` gives it
STATUS, PASSES = 24, 25
ENOUGH = 28  # the length of a step that ends the search
FIELDS = 29
LANES = 32  # rows of a group, at most
WIDE = 8  # columns are worked on so many at a time, whether they are in use or not

SEEKING, FOUND, LOST = 0.0, 1.0, 2.0

# Of long rows, those whose moments tell more than a sample: narrower than the noise, in
# temperatures squared, and a share of entries chosen, or left, that is not so small.
BLURRED, SMALL = 4.0, 128.0
GROUP = 1 << 12  # entries of a group, about: from pass to pass they stay in the fastest cache
MOST_PASSES = 16.0  # ordinary rows take 1 to 4


_known = layout_known(FIELDS, LANES)


@scalar
def begin(table, columns, curve, one, starts, narrow):
    """Open each bracket, and set each threshold to where a search `starts`; else it goes on.

    Of rows with light tails and less than this variance the first pass may be the last one.
    """
    wide_vectors()
    table, T = _known(table), type(one)
    for r in range(columns):
        mean, n, k = T(table[MEAN, r]), table[COUNT, r], table[LEFT, r]
        variance, tail = law_of(mean, T(table[SQUARE, r]), T(table[DISTANCE, r]))
        guess = np.float64(quantile_of_law(curve, mean, variance, tail, n, k))
        inv, pivot = T(table[INV, r]), table[PIVOT, r]
        width = 1.0 / inv
        c, d = nearest(pivot + guess * width, pivot, guess, inv)
        table[C, r], table[D, r] = c if starts else table[C, r], d if starts else table[D, r]
        table[REST, r], table[WIDTH, r] = 0.0, width
        table[SPREAD, r] = spread_of_law(curve, variance)
        may_be_final = (narrow == np.inf) | ((variance < narrow) & (tail == 0.0))
        table[STATUS, r], table[PASSES, r] = SEEKING, 0.0
        table[MOVE, r] = 0.0 if may_be_final else np.inf
        table[LO, r], table[HI, r] = -np.inf, np.inf


@scalar
def inside(at, step, lo, hi, outward):
    """The step, if it ends within the bracket; else one that does, `outward` if it is open."""
    within = 0.5 * (lo + hi) - at
    other = within if abs(within) < np.inf else outward
    return step if (at + step > lo) & (at + step < hi) else other


@scalar
def advance(table, first, columns, curve, one, limit):
    """Take the sums of each row's pass: move its threshold, or say that it is found or lost.

    In so many columns from the `first` on. `limit`: after steps longer than this the pass was a
    light one, and is not the last.
    """
    wide_vectors()
    table = _known(columns_from(table, first))
    for r in range(columns):
        c, d, rest = table[C, r], table[D, r], table[REST, r]
        k, passes, status = table[LEFT, r], table[PASSES, r] + 1.0, table[STATUS, r]
        v, v3, v4 = table[V, r], table[V3, r], table[V4, r]
        sums = table[M, r], table[A, r], table[B, r], table[W, r], v, v3, v4
        residual, step, moved, stays, arrives = judge(
            curve, k, sums, table[CLEAR, r], d, one, True, table[ENOUGH, r]
        )
        inv, width = type(one)(table[INV, r]), table[WIDTH, r]
        at = (c - table[PIVOT, r]) * inv + d
        low, fine = residual > 0.0, table[MOVE, r] <= limit
        blur = 0.0 if fine else BLUR
        lo, hi = at - blur if low else table[LO, r], table[HI, r] if low else at + blur
        move = inside(at, step, lo, hi, by_law(residual, k, table[COUNT, r], table[SPREAD, r]))
        move = 0.0 if stays & (residual == residual) else step if arrives else move
        near, near_d = nearest(c + (d + move) * width, c, d + move, inv)
        ends = (stays | arrives) & (residual == residual) & fine
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
        table[LO, r], table[HI, r] = lo, hi
        table[C, r], table[D, r], table[REST, r] = c, d, rest
        table[STATUS, r], table[PASSES, r], table[LAST, r] = status, passes, seen
        # Tails that vanish in float32 may be there in float64.
        table[MOVE, r] = abs(move) if table[W, r] > 0.0 else 0.0


@scalar
def end(table, columns, curve):
    """Write how far p is to be moved, to the right and to the left of the threshold."""
    wide_vectors()
    table = _known(table)
    for r in range(columns):
        step = table[D, r] + table[REST, r] - table[LAST, r]
        table[BELOW, r], table[ABOVE, r] = shift_factors(curve, step)


@row
def admit(x, k, tau, few, table, r):
    """Note a row in column r; say of how many entries the moments are, 0 if there is no search.

    Of a row to be sampled, the sample is written to `few`. It starts from its own moments still, if
    both are narrow and k is no small share: they tell more then.
    """
    if not FAINT <= k < x.shape[0]:
        return 0
    if x.shape[0] >= SAMPLED and not finite(x):
        return 0
    part = part_of(x, few)
    seen = part.shape[0]
    pivot, inv = pivot_of(part), inverse_temperature(tau, x)
    mean, square, distance = measure(part, pivot, inv)
    if seen < x.shape[0] < SMALL * min(k, x.shape[0] - k):
        variance, tail = law_of(mean, square, distance)
        if variance < BLURRED and tail == 0.0:
            of_all = measure(x, pivot, inv)
            variance, tail = law_of(*of_all)
            if variance < BLURRED and tail == 0.0:  # no entries far out that the sample has not
                mean, square, distance = of_all
                seen = x.shape[0]
    table[INV, r], table[COUNT, r], table[LEFT, r] = inv, x.shape[0], k
    table[PIVOT, r], table[MEAN, r] = pivot, mean
    table[SQUARE, r], table[DISTANCE, r] = square, distance
    return seen if square < np.inf else 0  # the squares may be too large: left open too


# Longer than a screen: a call would hide which of its tables a group of rows leaves to the next.
@kernel
def solve(lo, hi, x, sizes, k, tau, curve, method, out, solution, left_open):
    """Rows lo .. hi: p to `out` (unless its rows are empty), the thresholds to `solution`.

    A row is as long as `sizes` says, if that is not empty, and skipped if that is negative. A row
    that is not searched, or in vain, has the CODE OPEN afterwards, and `left_open` is set.
    """
    T, n, cut = x.dtype.type, x.shape[1], sizes.shape[0] > 0
    writes = out.shape[1] > 0
    keeps = writes or method.enough == 0.0  # where less is enough, light passes are
    of_all = enough_for(method, n)
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    own_table, own_rows = np.empty((FIELDS, LANES)), np.empty((3, LANES), np.int64)
    own_few = np.empty((1, sample_size(n)), x.dtype)
    table, few = borrowed(own_table), borrowed(own_few)
    rows = borrowed(own_rows)  # of the group, columns still searched, and lengths
    # Of rows whose p is not asked for a pass may keep it too: what becomes of them is the same.
    own_p = np.empty((1 if n >= SAMPLED else LANES, 0 if writes else n), x.dtype)
    own_slopes = np.empty(
        (1 if n >= SAMPLED else LANES, 0 if shifts_by_value_alone(curve) else n), x.dtype
    )
    own_room = pass_room(curve, x, n)
    unasked, slopes, room = borrowed(own_p), borrowed(own_slopes), borrowed(own_room)
    for r in range(LANES):  # subnormal numbers in columns that are not used would take their time
        for field in range(FIELDS):
            table[field, r] = 1.0
    group = 1 if n >= SAMPLED else LANES if n * LANES <= GROUP else GROUP // n
    for first in range(lo, hi, group):
        count, seen = 0, 0
        for i in range(first, first + group if first + group < hi else hi):
            size = sizes[i] if cut else n
            if size >= 0:
                seen = admit(window(x[i], 0, size), k[i], tau[i], few[0], table, count)
                if seen > 0:
                    rows[0, count], rows[2, count] = i, size
                    count += 1
                else:
                    solution[i, CODE] = OPEN
                    left_open[0] = True
        columns = (count + WIDE - 1) // WIDE * WIDE
        # A row of a length to be sampled is a group of its own.
        only, whole = rows[0, 0], rows[2, 0]
        sampled = count > 0 and whole >= SAMPLED and seen < whole
        for rough in range(1 if sampled else 0, -1, -1):
            if rough:
                size = sample_size(whole)
                rows[2, 0], table[COUNT, 0], table[LEFT, 0] = size, size, k[only] * size / whole
            elif sampled:
                rows[2, 0], table[COUNT, 0], table[LEFT, 0] = whole, whole, k[only]
            starts = rough == 1 or not sampled
            # The first pass over a row is often the last one where the model can be exact, or where
            # the start is near.
            narrow = np.inf if rough == 1 else one_pass_variance(curve, x)
            if sampled and rough == 0 and 0.0 < narrow < np.inf:
                share = k[only] * sample_size(whole) / whole
                narrow = np.inf if resembles(share, table[W, 0]) else 0.0
            begin(table, columns, curve, T(1), starts, narrow)
            for r in range(count):
                rows[1, r] = r
                enough = of_all if rows[2, r] == n else enough_for(method, rows[2, r])
                table[ENOUGH, r] = ROUGH if rough else enough
            left = count
            while left > 0:
                for j in range(left):
                    r = rows[1, j]
                    i, size = rows[0, r], rows[2, r]
                    part = window(few[0], 0, size) if rough else window(x[i], 0, size)
                    c, d, inv = T(table[C, r]), T(table[D, r]), T(table[INV, r])
                    near = keeps and not rough and table[MOVE, r] <= final_pass_radius(curve, x)
                    p = window(out[i] if writes else unasked[r], 0, size)
                    sums = search_pass(part, c, inv, d, curve, near, p, slopes[r], room)
                    m, a, b, w, v, v3, v4, table[CLEAR, r] = sums
                    table[M, r], table[A, r], table[B, r], table[W, r] = m, a, b, w
                    table[V, r], table[V3, r], table[V4, r] = v, v3, v4
                limit = final_pass_radius(curve, x) if keeps and not rough else np.inf
                start = rows[1, 0] // WIDE * WIDE
                several = (rows[1, left - 1] - start + WIDE) // WIDE * WIDE
                advance(table, start, several, curve, T(1), limit)
                still = 0
                for j in range(left):
                    r = rows[1, j]
                    rows[1, still] = r
                    still += table[STATUS, r] == SEEKING
                left = still
        if writes:
            end(table, columns, curve)
        for r in range(count):
            i, size = rows[0, r], rows[2, r]
            answer = solution[i]
            if table[STATUS, r] != FOUND:
                answer[CODE] = OPEN
                left_open[0] = True
                continue
            c, d, rest = table[C, r], table[D, r], table[REST, r]
            answer[C], answer[D], answer[REST] = c, d, rest
            answer[CODE], answer[TAKEN], answer[WEIGHT] = FINITE, table[PASSES, r], table[W, r]
            answer[SEEN] = table[LAST, r]
            below, above = T(table[BELOW, r]), T(table[ABOVE, r])
            if writes and below != T(0):
                c, d, inv = T(c), T(table[LAST, r]), T(table[INV, r])
                part = window(x[i], 0, size)
                correct(part, c, inv, d, below, above, curve, slopes[r], out[i])
    held((own_table, own_rows, own_few, own_p, own_slopes, own_room))
