"""The hard top-k of long rows on a device, in parts as in `_cuda.long_rows`.

Bisection for the k-th largest value, as in `cuda.solve`, two halvings to a launch: each counts at
the middle of the bracket and at the middles of both its halves. There are half as many launches as
the type has bits, which is enough for any row; once a bracket has closed, the rest return at once.
Ties are then counted part by part, so that each part knows how many of its own are ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.row_kernels import NUMBERS, ROWS, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._math.elementary import from_ordinal, to_ordinal
from ..formulas import middle_of
from .rows import halve, passes, wanted

RECORD = 3  # of a row: the number of ones, -1 if undefined, and the ends of the bracket


@device
def middles(lo, hi):
    """The middles of the lower half, of the whole bracket, and of the upper half."""
    middle = middle_of(lo, hi)
    return middle_of(lo, type(lo)(middle - 1)), middle, middle_of(middle, hi)


@device
def halve_twice(lo, hi, at_low, at_middle, at_high, k):
    """The bracket after entries were counted at or above each of its `middles`."""
    low, middle, high = middles(lo, hi)
    lo, hi = halve(lo, hi, middle, at_middle, k)
    if lo < hi:
        upper = lo == middle
        lo, hi = halve(lo, hi, high if upper else low, at_high if upper else at_low, k)
    return lo, hi


class _Launches(NamedTuple):
    """The kernels of the search.

    They read the records and sums that the launch before has written, and write new ones.
    """

    survey: PartKernel  # counts NaN and present entries
    open: PartKernel  # first counts of the bisection
    step: PartKernel  # further counts
    settle: PartKernel  # counts the entries above the value that was found, and those equal to it


@made_once
def _make_launches(T: Any, group: ThreadGroup) -> _Launches:
    t, do, place, zero = tools(T, group), passes(T, group), make_place(T, group), T(0)

    @device
    def bracket(here, s, records, sums):
        """(k, lo, hi): k, and the bracket after the counts of the launch before."""
        at = here.row * RECORD
        k, lo, hi = records[at], to_ordinal(T(records[at + 1])), to_ordinal(T(records[at + 2]))
        if lo < hi:
            at_low, at_middle, at_high, _ = place.gather(sums, here, s.shared)
            lo, hi = halve_twice(lo, hi, at_low, at_middle, at_high, k)
        return k, lo, hi

    @device
    def hand_on(here, k, lo, hi, records):
        if here.part == 0 and t.rank() == 0:
            at = here.row * RECORD
            records[at], records[at + 1], records[at + 2] = k, from_ordinal(lo), from_ordinal(hi)

    @device
    def count(here, s, lo, hi, sums):
        if lo < hi:
            low, middle, high = middles(lo, hi)
            a, b, c = from_ordinal(low), from_ordinal(middle), from_ordinal(high)
            a, b, c = do.at_least_each(here.span, a, b, c, s)
            place.leave(sums, here, (a, b, c, 0.0, 0.0, 0.0))

    @device
    def survey(here, s, batch, given):
        bad, present, lo, hi = do.survey(here.span, s)
        place.leave(given[3], here, (bad, present, 0.0, 0.0, lo, hi))

    @device
    def open_search(here, s, batch, given):
        _, sums, new_records, new_sums = given
        tau = of_row(batch.temperature, here.row)
        k = float64(wanted(of_row(batch.k, here.row), tau, batch.n))
        bad, present, _, _ = place.gather(sums, here, s.shared)
        least, greatest = place.extremes(sums, here, s.shared)
        # Zeros of both signs are equal, and threads must not differ in which of them they hold.
        lo, hi = to_ordinal(least + zero), to_ordinal(greatest + zero)
        if bad > 0.0 or k < 0.0 or k > present:
            k, hi = -1.0, lo
        count(here, s, lo, hi, new_sums)
        hand_on(here, k, lo, hi, new_records)

    @device
    def step(here, s, batch, given):
        records, sums, new_records, new_sums = given
        k, lo, hi = bracket(here, s, records, sums)
        count(here, s, lo, hi, new_sums)
        hand_on(here, k, lo, hi, new_records)

    @device
    def settle(here, s, batch, given):
        records, sums, new_records, new_sums = given
        k, lo, hi = bracket(here, s, records, sums)
        above, equal = do.ties(here.span, from_ordinal(lo), s)
        place.leave(new_sums, here, (above, equal, 0.0, 0.0, 0.0, 0.0))
        hand_on(here, k, lo, hi, new_records)

    made = (survey, open_search, step, settle)
    return _Launches(*(PartKernel(T, group, visit, (NUMBERS,) * 4) for visit in made))


@made_once
def _make_mark(T: Any, group: ThreadGroup) -> PartKernel:
    """A kernel that writes p, part by part."""
    do, place = passes(T, group), make_place(T, group)

    @device
    def mark(here, s, batch, given):
        records, sums, out = given
        k, value = records[here.row * RECORD], T(records[here.row * RECORD + 1])
        at = (here.row * here.parts + here.part) * SUMS
        above, equal = sums[at], sums[at + 1]
        all_above, equal_before = place.before(sums, here, s.shared)
        left = min(max(k - all_above - equal_before, 0.0), equal)
        last = int64(-1) if left == 0.0 else here.span.n
        if 0.0 < left < equal:
            last = do.last_tied(here.span, value, above + left, s)
        do.mark(here.span, value, last, k >= 0.0, s, out)

    return PartKernel(T, group, mark, (NUMBERS, NUMBERS, ROWS))


def value(rows: Rows, out: Buffer) -> None:
    """Write p."""
    group, count, _ = parts_of(rows)
    made = _make_launches(rows.dtype, group)
    records, new_records = (rows.empty(rows.rows * RECORD, np.float64) for _ in range(2))
    sums, new_sums = (rows.empty(rows.rows * count * SUMS, np.float64) for _ in range(2))
    steps = [made.step] * (4 * np.dtype(rows.dtype).itemsize - 1)
    for kernel in (made.survey, made.open, *steps, made.settle):
        kernel.run(rows, records, sums, new_records, new_sums)
        records, sums, new_records, new_sums = new_records, new_sums, records, sums
    _make_mark(rows.dtype, group).run(rows, records, sums, out)
