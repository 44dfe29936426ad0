"""One long row on a device, in parts, each of which has a block of its own.

Every pass over a row is one launch, and no block waits for another: each block writes the sums over
its part, and in the next launch every block of the row adds all of them, in their order. No block
reads what another one writes in the same launch.

How a row is cut depends on its length and type only, not on the number of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Rows
from .launch import choose
from .target import device
from .thread_groups import ThreadGroup, made_once, tools

LONG = 1 << 18  # entries: shorter rows have one block
PIECES = 2  # times that a block fills its registers for a part, at least
MOST = 1024  # parts of a row: more of them take longer to add up than they save

SUMS = 6  # numbers that a block writes for the next launch: four sums, two extremes


def is_long(rows: Rows) -> bool:
    """Whether the rows are long enough to be cut into parts."""
    return rows.n >= LONG


class Parts(NamedTuple):
    """A cut of a row: the group of a part, the number of parts, and their length."""

    group: ThreadGroup
    parts: int
    length: int


def parts_of(rows: Rows) -> Parts:
    """The cut for rows of this length and type."""
    group = choose(rows.n, rows.dtype)
    piece = group.lanes * group.held
    pieces = -(-rows.n // piece)
    each = max(PIECES, -(-pieces // MOST))
    return Parts(group, -(-pieces // each), each * piece)


class Place(NamedTuple):
    """How the blocks of a launch write results for the next launch, and read those of the last one.

    `here` is a `row_kernels.Part`; each part has SUMS numbers in `sums`.
    """

    #: leave(sums, here, found): write four sums and two extremes over a part
    leave: Any
    #: gather(sums, here, shared) -> the four sums, added over all parts
    gather: Any
    #: before(sums, here, shared) -> (first sum over all parts, second over those before this one)
    before: Any
    #: extremes(sums, here, shared) -> the smallest and the largest over all parts
    extremes: Any
    #: fetch(records, row, record), hand_on(record, row, records): copy from memory, and back to it
    fetch: Any
    hand_on: Any


@made_once
def make_place(T: Any, group: ThreadGroup) -> Place:
    """The functions of `Place` for rows of type T."""
    t = tools(T, group)
    lanes = group.lanes

    @device
    def leave(sums, here, found):
        if t.rank() == 0:
            at = (here.row * here.parts + here.part) * SUMS
            sums[at], sums[at + 1], sums[at + 2] = found[0], found[1], found[2]
            sums[at + 3], sums[at + 4], sums[at + 5] = found[3], found[4], found[5]

    @device
    def gather(sums, here, shared):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for j in range(t.rank(), here.parts, lanes):
            at = (here.row * here.parts + j) * SUMS
            a += sums[at]
            b += sums[at + 1]
            c += sums[at + 2]
            d += sums[at + 3]
        return t.totals(a, b, c, d, shared)

    @device
    def before(sums, here, shared):
        a, b = 0.0, 0.0
        for j in range(t.rank(), here.parts, lanes):
            at = (here.row * here.parts + j) * SUMS
            a += sums[at]
            b += sums[at + 1] if j < here.part else 0.0
        a, b, _, _ = t.totals(a, b, 0.0, 0.0, shared)
        return a, b

    @device
    def extremes(sums, here, shared):
        lo, hi = T(np.inf), T(-np.inf)
        for j in range(t.rank(), here.parts, lanes):
            at = (here.row * here.parts + j) * SUMS
            lo, hi = min(lo, T(sums[at + 4])), max(hi, T(sums[at + 5]))
        return t.extremes(lo, hi, shared)

    @device
    def fetch(records, row, record):
        size = len(record)
        if t.rank() < size:
            record[t.rank()] = records[row * size + t.rank()]
        t.meet()

    @device
    def hand_on(record, row, records):
        size = len(record)
        t.meet()
        if t.rank() < size:
            records[row * size + t.rank()] = record[t.rank()]

    return Place(leave, gather, before, extremes, fetch, hand_on)
