"""The hard top-k on a device for long rows, in parts as `_cuda.long_rows` says.

Bisection for the k-th largest value, as `cuda` does it, two halvings to a launch: each counts at
the middle of the bracket and at the middles of both its halves. There are half as many of them as
the type has bits, which is enough for any row; once its bracket has closed, what is left returns at
once. Ties are then counted part by part, so that each part knows how many of its own are ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._math.elementary import from_ordinal, to_ordinal
from ..formulas import middle_of
from .rows import halve, passes, wanted

RECORD = 3  # of a row: how many ones, -1 if that is not defined, and the ends of the bracket


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
    """The kernels of the search, of the same arguments.

    These are x, n, wide, parts, length, k and temperature, then the records and sums that the
    launch before left and those that this one leaves.
    """

    survey: Kernel  # counts what is there
    open: Kernel  # first counts
    turn: Kernel  # further ones
    settle: Kernel  # counts what is above the value that was found, and what is equal to it


@made_once
def _make_launches(T: Any, team: Team) -> _Launches:
    t, do, place = tools(T, team), passes(T, team), make_place(T, team)
    held, zero = team.held, T(0)

    @device
    def bracket(records, row):
        at = row * RECORD
        return records[at], to_ordinal(T(records[at + 1])), to_ordinal(T(records[at + 2]))

    @device
    def hand_on(part, row, k, lo, hi, records):
        if part == 0 and t.rank() == 0:
            at = row * RECORD
            records[at], records[at + 1], records[at + 2] = k, from_ordinal(lo), from_ordinal(hi)

    @device
    def narrowed(row, parts, k, lo, hi, sums, room):
        """The bracket after what the launch before has counted."""
        if lo < hi:
            at_low, at_middle, at_high, _ = place.gather(sums, row, parts, room)
            lo, hi = halve_twice(lo, hi, at_low, at_middle, at_high, k)
        return lo, hi

    @device
    def count(x, start, size, wide, row, parts, part, lo, hi, regs, room, sums):
        if lo < hi:
            low, middle, high = middles(lo, hi)
            a, b, c = from_ordinal(low), from_ordinal(middle), from_ordinal(high)
            a, b, c = do.at_least_each(x, start, size, wide, a, b, c, regs, room)
            place.leave(sums, row, parts, part, a, b, c, 0.0, 0.0)

    def survey(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        bad, present, lo, hi = do.survey(x, start, size, wide, regs, room)
        place.leave(new_sums, row, parts, part, bad, present, 0.0, lo, hi)

    def open_search(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        k = float64(
            wanted(
                argument(ks, k_all, k_per_row, row), argument(taus, tau_all, tau_per_row, row), n
            )
        )
        bad, present, _, _ = place.gather(sums, row, parts, room)
        least, greatest = place.extremes(sums, row, parts, room)
        # Zeros of both signs are equal, and threads must not differ in which of them they hold.
        lo, hi = to_ordinal(least + zero), to_ordinal(greatest + zero)
        if bad > 0.0 or k < 0.0 or k > present:
            k, hi = -1.0, lo
        count(x, start, size, wide, row, parts, part, lo, hi, regs, room, new_sums)
        hand_on(part, row, k, lo, hi, new_records)

    def turn(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        k, lo, hi = bracket(records, row)
        lo, hi = narrowed(row, parts, k, lo, hi, sums, room)
        count(x, start, size, wide, row, parts, part, lo, hi, regs, room, new_sums)
        hand_on(part, row, k, lo, hi, new_records)

    def settle(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        k, lo, hi = bracket(records, row)
        lo, hi = narrowed(row, parts, k, lo, hi, sums, room)
        above, equal = do.ties(x, start, size, wide, from_ordinal(lo), regs, room)
        place.leave(new_sums, row, parts, part, above, equal, 0.0, 0.0, 0.0)
        hand_on(part, row, k, lo, hi, new_records)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    shape = (int64, int32, int64, int64)
    arguments = (real, *shape, *per_row, *per_row, numbers, numbers, numbers, numbers)
    made = (Kernel(f, arguments, team.threads) for f in (survey, open_search, turn, settle))
    return _Launches(*made)


@made_once
def _make_mark(T: Any, team: Team) -> Kernel:
    """Write p, part by part."""
    do, place = passes(T, team), make_place(T, team)
    held = team.held

    def mark(x, n, wide, parts, length, records, sums, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        k, value = records[row * RECORD], T(records[row * RECORD + 1])
        at = (row * parts + part) * SUMS
        above, equal = sums[at], sums[at + 1]
        all_above, equal_before = place.before(sums, row, parts, part, room)
        left = min(max(k - all_above - equal_before, 0.0), equal)
        last = int64(-1) if left == 0.0 else size
        if 0.0 < left < equal:
            last = do.last_tied(x, start, size, wide, value, above + left, regs, room)
        do.mark(x, start, size, wide, value, last, k >= 0.0, regs, out)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    arguments = (real, int64, int32, int64, int64, numbers, numbers, real)
    return Kernel(mark, arguments, team.threads)


def value(rows: Rows, out: Buffer) -> None:
    """Write p."""
    team, count, length = parts_of(rows)
    made, blocks = _make_launches(rows.dtype, team), rows.rows * count
    row = rows.x.pointer, rows.n, rows.wide(out), count, length
    records, new_records = (rows.empty(rows.rows * RECORD, np.float64) for _ in range(2))
    sums, new_sums = (rows.empty(rows.rows * count * SUMS, np.float64) for _ in range(2))
    turns = [made.turn] * (4 * np.dtype(rows.dtype).itemsize - 1)
    for kernel in (made.survey, made.open, *turns, made.settle):
        memory = (buffer.pointer for buffer in (records, sums, new_records, new_sums))
        kernel(blocks, rows.stream, *row, *rows.k, *rows.temperature, *memory)
        records, sums, new_records, new_sums = new_records, new_sums, records, sums
    _make_mark(rows.dtype, team)(
        blocks, rows.stream, *row, records.pointer, sums.pointer, out.pointer
    )
