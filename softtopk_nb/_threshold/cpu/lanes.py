"""The fast search: the thresholds of many rows side by side, one row in each SIMD lane.

A search is a few passes over a row, and some arithmetic on a few numbers between them. In a short
row that arithmetic would take longer than the passes; here it is done for a group of rows at once,
without branches. Rows that need no search, or whose search does not end soon, are left unsolved,
for the robust search (`rows.solve`). The result of a row depends on that row alone.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import (
    borrowed,
    columns_from,
    empty,
    held,
    layout_known,
    window,
    workspace,
)
from ..._compile.decorators import kernel, scalar, specialized
from ..._curves.base import shift_factors, shifts_by_value_alone
from ..._math.elementary import wide_vectors
from ..._nonfinite import FINITE, fill_behind, length
from ..._threads.sampling import sample_size
from ..distribution import (
    by_distribution,
    distribution_of,
    quantile_of_distribution,
    spread_of_distribution,
)
from ..newton import inverse_temperature_of, nearest, newton_step
from ..policy import (
    BLUR,
    BLURRED,
    FAINT,
    FIRST_FEW,
    MOST_FAST_PASSES,
    ROUGH,
    SEVERAL,
    SMALL,
    SPARSE,
    enough_for,
    resembles,
    when_final,
)
from ..records import (
    BAD_MOMENTS,
    BY_DISTRIBUTION,
    CODE,
    DISTRIBUTION,
    FIELDS,
    FOUND,
    GIVEN_DISTRIBUTION,
    LANES,
    LOST,
    REST,
    SEEKING,
    SOME_BAD_MOMENTS,
    SOME_UNSOLVED,
    TAKEN,
    UNSOLVED,
    WEIGHT,
    C,
    D,
    RowStats,
    Search,
    Shift,
    Sums,
    given_of,
    put_given,
    put_search,
    put_shift,
    put_sums,
    search_of,
    shift_of,
    sums_of,
)
from .passes import correct, pass_scratch, search_pass
from .start import (
    finite,
    has_few,
    measure,
    part_of,
    pivot_of,
)

WIDE = 8  # columns of a table are processed this many at a time, in use or not
GROUP = 1 << 12  # entries of a group, roughly: they stay in the innermost cache between passes

_known = layout_known(FIELDS, LANES)


@scalar
def begin(table, columns, curve, one, starts, narrow, doubts):
    """Set each bracket to the whole line, and each threshold to its first guess if it `starts`.

    For rows with light tails and a variance below `narrow` the first pass may be the last one. Rows
    whose moments mislead get BAD_MOMENTS, if the search `doubts` the distribution it is given.
    """
    wide_vectors()
    table, T = _known(table), type(one)
    for r in range(columns):
        row, at = given_of(table, r), search_of(table, r)
        variance, tail, misled = distribution_of(T(row.mean), T(row.square), T(row.distance))
        guess = np.float64(
            quantile_of_distribution(curve, T(row.mean), variance, tail, row.size, row.left)
        )
        c, d = nearest(row.pivot + guess * row.width, row.pivot, guess, T(row.inv))
        c, d = c if starts else at.c, d if starts else at.d
        may_be_final = (narrow == np.inf) | ((variance < narrow) & (tail == 0.0))
        spread, move = (
            np.float64(spread_of_distribution(curve, variance)),
            0.0 if may_be_final else np.inf,
        )
        status = BAD_MOMENTS if doubts & misled else SEEKING
        put_search(table, r, Search(c, d, 0.0, -np.inf, np.inf, spread, status, 0.0, 0.0, move))


@scalar
def update(table, first, columns, curve, one, limit):
    """Update each row's search from the sums of a pass: move the threshold, or set FOUND or LOST.

    This covers `columns` columns from `first` on. `limit`: after steps longer than this the pass
    was a cheap one, and is not the last.
    """
    wide_vectors()
    table = _known(columns_from(table, first))
    for r in range(columns):
        row, at, sums = given_of(table, r), search_of(table, r), sums_of(table, r)
        c, d, rest, k, status = at.c, at.d, at.rest, row.left, at.status
        residual, step, moved, stays, arrives = newton_step(
            curve, k, sums[:-1], sums.clear, d, one, True, row.enough
        )
        inv, passes = type(one)(row.inv), at.tries + 1.0
        here = (c - row.pivot) * inv + d
        low, fine = residual > 0.0, at.move <= limit
        blur = 0.0 if fine else BLUR
        lo, hi = here - blur if low else at.lo, at.hi if low else here + blur
        # A step that does not end within the bracket is replaced by the bracket's middle or, if the
        # bracket is open, by a step from the row's distribution, ever longer. So is one that leads
        # to the next entry only, where entries lie far apart and several of them lie between.
        within = 0.5 * (lo + hi) - here
        outward = by_distribution(residual, k, row.size, at.spread) * (0.5 + 0.5 * passes)
        closed = abs(within) < np.inf
        other = within if closed else outward
        crawls = (abs(residual) > SEVERAL) & (sums.w < SPARSE) & (passes > FIRST_FEW)
        crawls &= closed | (abs(outward) > abs(step))
        move = step if (here + step > lo) & (here + step < hi) & (not crawls) else other
        move = 0.0 if stays & (residual == residual) else step if arrives else move
        near, near_d = nearest(c + (d + move) * row.width, c, d + move, inv)
        ends = (stays | arrives) & (residual == residual) & fine
        arrives = arrives & ends & (not stays)
        goes_on = (not ends) & (passes <= MOST_FAST_PASSES) & (abs(move) < np.inf)
        seen = d
        if status == SEEKING:
            status = FOUND if ends else SEEKING if goes_on else LOST
            rest = d + step - moved if arrives else 0.0
            d = moved if arrives else near_d if goes_on else d
            c = near if goes_on else c
        else:
            passes -= 1.0
            seen, move = at.last, at.move
        # Tails that underflow in float32 may not in float64.
        move = abs(move) if sums.w > 0.0 else 0.0
        put_search(table, r, Search(c, d, rest, lo, hi, at.spread, status, passes, seen, move))


@scalar
def end(table, columns, curve):
    """Write the last shift of p, for entries to the right and to the left of the threshold."""
    wide_vectors()
    table = _known(table)
    for r in range(columns):
        at = search_of(table, r)
        below, above = shift_factors(curve, at.d + at.rest - at.last)
        put_shift(table, r, Shift(below, above))


@scalar
def load_row(x, n, k, tau, enough, table, r):
    """Write the problem of a row of n entries to column r, and the moments of x, all or part.

    Returns whether the row can be searched: the squares of infinities, NaN and huge numbers are not
    finite.
    """
    pivot, inv = pivot_of(x), inverse_temperature_of(tau, x.dtype.type(1))
    mean, square, distance = measure(x, pivot, inv)
    width, pivot = 1.0 / inv, np.float64(pivot)
    given = RowStats(
        np.float64(inv), width, np.float64(n), k, pivot, mean, square, distance, enough
    )
    put_given(table, r, given)
    return square < np.inf


@scalar
def pass_of(table, r, part, curve, may_be_final, p, slopes, scratch):
    """Make a pass of the search in column r; it keeps p if it may be the final one."""
    T, at = part.dtype.type, search_of(table, r)
    inv = T(given_of(table, r).inv)
    m, a, b, w, v, v3, v4, clear = search_pass(
        part, T(at.c), inv, T(at.d), curve, may_be_final, p, slopes, scratch
    )
    put_sums(table, r, Sums(m, a, b, w, v, v3, v4, clear))


@scalar
def store_row(table, r, x, curve, slopes, p, answer, flags):
    """Write the solution in column r, and shift p to it; p is empty if it is not wanted."""
    at = search_of(table, r)
    if at.status != FOUND:
        answer[CODE] = UNSOLVED if flags[BY_DISTRIBUTION] else BAD_MOMENTS
        flags[SOME_UNSOLVED if flags[BY_DISTRIBUTION] else SOME_BAD_MOMENTS] = True
        return
    T, shift = x.dtype.type, shift_of(table, r)
    answer[C], answer[D], answer[REST], answer[CODE] = at.c, at.d, at.rest, FINITE
    answer[TAKEN], answer[WEIGHT] = at.tries, sums_of(table, r).w
    below, above = T(shift.below), T(shift.above)
    if p.shape[0] > 0 and below != T(0):
        inv = T(given_of(table, r).inv)
        correct(x, T(at.c), inv, T(at.last), below, above, curve, slopes, p)


@specialized
def slopes_scratch(curve, x, rows):
    """Uninitialised memory for the slopes of `rows` rows, empty if `correct` does not need them."""
    if shifts_by_value_alone(curve):
        return lambda curve, x, rows: workspace(x, rows, 0)
    return lambda curve, x, rows: workspace(x, rows, x.shape[1])


@scalar
def by_all_moments(x, table, r):
    """Whether the moments of all entries beat a sample; if so, writes them to column r."""
    row = given_of(table, r)
    n, k = row.size, row.left
    if not n < SMALL * (k if k < n - k else n - k):
        return False
    variance, tail, _ = distribution_of(row.mean, row.square, row.distance)
    if not (variance < BLURRED and tail == 0.0):
        return False
    T = x.dtype.type
    mean, square, distance = measure(x, T(row.pivot), T(row.inv))
    variance, tail, _ = distribution_of(mean, square, distance)
    if not (variance < BLURRED and tail == 0.0):  # outliers that are not in the sample
        return False
    put_given(
        table, r, RowStats(row.inv, row.width, n, k, row.pivot, mean, square, distance, row.enough)
    )
    return True


@scalar
def search_among(table, r, count, left, enough):
    """Change column r to a search over `count` entries that sum to `left`."""
    row = given_of(table, r)
    moments = row.mean, row.square, row.distance
    put_given(table, r, RowStats(row.inv, row.width, count, left, row.pivot, *moments, enough))


# Longer than a screen: a call would hide which tables a group of rows passes on to the next.
@kernel
def solve(lo, hi, x, k, tau, curve, method, out, solution, flags):
    """Solve rows lo .. hi: p to `out` (unless its rows are empty), the thresholds to `solution`.

    A row that is not searched has the CODE UNSOLVED afterwards. One whose moments mislead, or whose
    search fails, has BAD_MOMENTS, and the flags are set; if the flag BY_DISTRIBUTION is set, only
    these rows are searched. A row that is finite but for -inf at its end is FINITE here, and
    `length` gives its length.
    """
    T, n = x.dtype.type, x.shape[1]
    writes = out.shape[1] > 0
    keeps = writes or method.enough == 0.0  # a rough threshold needs only cheap passes
    radius, narrow = when_final(curve, x)
    limit, enough, enough_of = radius if keeps else np.inf, 0.0, -1
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    own_table, own_rows = workspace(k, FIELDS, LANES), empty((3, LANES), np.int64)
    # A pass may keep p of rows whose p is not wanted, so that their thresholds are the same.
    own_p = workspace(x, LANES, 0 if writes else n)
    own_slopes = slopes_scratch(curve, x, LANES)
    own_scratch = pass_scratch(curve, x, n)
    table, rows, unasked = borrowed(own_table), borrowed(own_rows), borrowed(own_p)
    slopes, scratch = borrowed(own_slopes), borrowed(own_scratch)
    which, searched, sizes = rows[0], rows[1], rows[2]
    for r in range(LANES):  # subnormal numbers in unused columns would be slow
        for field in range(FIELDS):
            table[field, r] = 1.0
    group = LANES if n * LANES <= GROUP else GROUP // n
    for first in range(lo, hi, group):
        count = 0
        for i in range(first, first + group if first + group < hi else hi):
            if flags[BY_DISTRIBUTION] and solution[i, CODE] != BAD_MOMENTS:
                continue
            size = length(x[i])
            if writes:
                fill_behind(out[i], size, T(0))
            if size != enough_of:  # once for rows of a length: it takes 16 ns
                enough, enough_of = enough_for(method, size), size
            entries = window(x[i], 0, size)
            if FAINT <= k[i] < size and (
                load_row(entries, size, k[i], tau[i], enough, table, count)
                or flags[BY_DISTRIBUTION]
            ):
                if flags[BY_DISTRIBUTION]:
                    for j in range(DISTRIBUTION):
                        table[GIVEN_DISTRIBUTION + j, count] = solution[i, j]
                which[count], searched[count], sizes[count] = i, count, size
                count += 1
            else:
                # Squares that overflow mislead too; 0 times an infinity is NaN.
                misled = FAINT <= k[i] < size and measure(entries, T(0), T(0))[0] == T(0)
                solution[i, CODE] = BAD_MOMENTS if misled else UNSOLVED
                flags[SOME_BAD_MOMENTS if misled else SOME_UNSOLVED] = True
        columns = (count + WIDE - 1) // WIDE * WIDE
        begin(table, columns, curve, T(1), True, narrow, not flags[BY_DISTRIBUTION])
        left = count
        while True:
            still = 0
            for j in range(left):
                r = searched[j]
                searched[still] = r
                still += search_of(table, r).status == SEEKING
            left = still
            if left == 0:
                break
            for j in range(left):
                r = searched[j]
                part = window(x[which[r]], 0, sizes[r])
                p = window(out[which[r]] if writes else unasked[r], 0, sizes[r])
                final = keeps and search_of(table, r).move <= radius
                pass_of(table, r, part, curve, final, p, slopes[r], scratch)
            start = searched[0] // WIDE * WIDE
            several = (searched[left - 1] - start + WIDE) // WIDE * WIDE
            update(table, start, several, curve, T(1), limit)
        if writes:
            end(table, columns, curve)
        for r in range(count):
            i = which[r]
            entries, p = window(x[i], 0, sizes[r]), window(out[i], 0, sizes[r] if writes else 0)
            store_row(table, r, entries, curve, slopes[r], p, solution[i], flags)
    held((own_table, own_rows, own_p, own_slopes, own_scratch))


# Longer than a screen: as `solve`.
@kernel
def solve_sampled(lo, hi, x, k, tau, curve, method, out, solution, flags):
    """Solve long rows as `solve`, one after the other: each search begins on a sample of the row.

    It begins at the moments of the whole row if these and the sample's are narrow and k is not a
    small share, as they are more accurate then; or at a distribution by order statistics, if few of
    the sample are chosen.
    """
    T, n = x.dtype.type, x.shape[1]
    writes = out.shape[1] > 0
    keeps = writes or method.enough == 0.0
    radius, variance_of_one_pass = when_final(curve, x)
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    own_table, own_p = workspace(k, FIELDS, LANES), workspace(x, 1, 0 if writes else n)
    own_few, own_slopes = workspace(x, 1, sample_size(n)), slopes_scratch(curve, x, 1)
    own_scratch = pass_scratch(curve, x, n)
    table, unasked, few = borrowed(own_table), borrowed(own_p), borrowed(own_few)
    slopes, scratch = borrowed(own_slopes), borrowed(own_scratch)
    for r in range(LANES):
        for field in range(FIELDS):
            table[field, r] = 1.0
    for i in range(lo, hi):
        if flags[BY_DISTRIBUTION] and solution[i, CODE] != BAD_MOMENTS:
            continue
        size = length(x[i])
        if writes:
            fill_behind(out[i], size, T(0))
        entries = window(x[i], 0, size)
        if not (FAINT <= k[i] < size and finite(entries)):
            solution[i, CODE], flags[SOME_UNSOLVED] = UNSOLVED, True
            continue
        part = part_of(entries, few[0])
        part = entries if flags[BY_DISTRIBUTION] and has_few(part, size, k[i]) else part
        given = size, k[i], tau[i], enough_for(method, size)
        if not (load_row(part, *given, table, 0) or flags[BY_DISTRIBUTION]):
            solution[i, CODE], flags[SOME_BAD_MOMENTS] = BAD_MOMENTS, True
            continue
        if flags[BY_DISTRIBUTION]:
            for j in range(DISTRIBUTION):
                table[GIVEN_DISTRIBUTION + j, 0] = solution[i, j]
        sampled = part.shape[0] < size and not by_all_moments(entries, table, 0)
        p = window(out[i] if writes else unasked[0], 0, size)
        for rough in range(1 if sampled else 0, -1, -1):
            narrow, few_of_k = np.inf, k[i] * part.shape[0] / size
            if rough:
                search_among(table, 0, np.float64(part.shape[0]), few_of_k, ROUGH)
            else:
                narrow = variance_of_one_pass
                if sampled and 0.0 < narrow < np.inf:
                    narrow = np.inf if resembles(few_of_k, sums_of(table, 0).w) else 0.0
                search_among(table, 0, np.float64(size), k[i], enough_for(method, size))
            first = rough == 1 or not sampled
            begin(table, WIDE, curve, T(1), first, narrow, first and not flags[BY_DISTRIBUTION])
            if search_of(table, 0).status == BAD_MOMENTS:
                break
            exact = keeps and not rough
            while search_of(table, 0).status == SEEKING:
                final = exact and search_of(table, 0).move <= radius
                where = part if rough else entries
                kept = window(p, 0, where.shape[0])
                pass_of(table, 0, where, curve, final, kept, slopes[0], scratch)
                update(table, 0, WIDE, curve, T(1), radius if exact else np.inf)
        if writes:
            end(table, WIDE, curve)
        asked = window(out[i], 0, size if writes else 0)
        store_row(table, 0, entries, curve, slopes[0], asked, solution[i], flags)
    held((own_table, own_p, own_few, own_slopes, own_scratch))
