"""One long row on a device, in parts: each part has a block of its own.

Every pass over a row is one launch, and nothing waits for another block: each block leaves the sums
over its part, and in the next launch every block of the row adds all of them, in their order. What
a block reads is never what another one writes in the same launch.

How a row is cut follows from its length and type, never from how many rows there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64

from .arrays import Rows
from .launch import choose
from .target import cuda, device
from .thread_groups import Team, made_once, tools

LONG = 1 << 18  # entries: shorter rows have one block
PIECES = 2  # times that a block fills its registers, at least
MOST = 1024  # parts of a row: more of them take longer to add up than they save

SUMS = 5  # numbers that a block leaves for the next launch


def is_long(rows: Rows) -> bool:
    """Whether the rows go in parts."""
    return rows.n >= LONG


class Parts(NamedTuple):
    """How a row is cut."""

    team: Team
    parts: int
    length: int


def parts_of(rows: Rows) -> Parts:
    """How the rows are cut."""
    team = choose(rows.n, rows.dtype)
    piece = team.lanes * team.held
    pieces = -(-rows.n // piece)
    each = max(PIECES, -(-pieces // MOST))
    return Parts(team, -(-pieces // each), each * piece)


class Place(NamedTuple):
    """Which part of which row a block has, and what it takes over from the launch before."""

    #: part(n, parts, length) -> (row, part, where it starts in x, entries)
    part: Any
    #: leave(sums, row, parts, part, a, b, c, d, e): writes the sums over a part
    leave: Any
    #: gather(sums, row, parts, room) -> a, b, c and d, added over all parts
    gather: Any
    #: before(sums, row, parts, part, room) -> a over all parts, b over those before this one
    before: Any
    #: extremes(sums, row, parts, room) -> the smallest d and the largest e
    extremes: Any
    #: fetch(records, row, record), hand_on(record, row, records): between memory and the block
    fetch: Any
    hand_on: Any


@made_once
def make_place(T: Any, team: Team) -> Place:
    """What the blocks of a launch have in common."""
    t = tools(T, team)
    lanes = team.lanes

    @device
    def part(n, parts, length):
        row, j = int64(cuda.blockIdx.x) // parts, int64(cuda.blockIdx.x) % parts
        return row, j, row * n + j * length, min(length, n - j * length)

    @device
    def leave(sums, row, parts, part, a, b, c, d, e):
        if t.rank() == 0:
            at = (row * parts + part) * SUMS
            sums[at], sums[at + 1], sums[at + 2], sums[at + 3], sums[at + 4] = a, b, c, d, e

    @device
    def gather(sums, row, parts, room):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for j in range(t.rank(), parts, lanes):
            at = (row * parts + j) * SUMS
            a += sums[at]
            b += sums[at + 1]
            c += sums[at + 2]
            d += sums[at + 3]
        return t.totals(a, b, c, d, room)

    @device
    def before(sums, row, parts, part, room):
        a, b = 0.0, 0.0
        for j in range(t.rank(), parts, lanes):
            at = (row * parts + j) * SUMS
            a += sums[at]
            b += sums[at + 1] if j < part else 0.0
        a, b, _, _ = t.totals(a, b, 0.0, 0.0, room)
        return a, b

    @device
    def extremes(sums, row, parts, room):
        lo, hi = T(np.inf), T(-np.inf)
        for j in range(t.rank(), parts, lanes):
            at = (row * parts + j) * SUMS
            lo, hi = min(lo, T(sums[at + 3])), max(hi, T(sums[at + 4]))
        return t.extremes(lo, hi, room)

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

    return Place(part, leave, gather, before, extremes, fetch, hand_on)
