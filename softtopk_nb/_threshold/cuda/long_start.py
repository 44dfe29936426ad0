"""Where the search for the threshold of a long row starts: by its moments, or by a scan.

The moments take one pass. A scan is a bisection over the sorted entries (`cuda.scan`), or two side
by side: one launch for each halving. Its state lies in the row's record behind that of the search,
and each bisection has sums of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import make_place
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import MIXED
from ..methods import Scan
from ..newton import inverse_temperature_of
from .rows import ABOVE, FINITE_COUNT, KIND, LEFT, RECORD, passes
from .scan import BISECTIONS, halve, make_closed_form, middle_of

# Of each bisection, as `cuda.scan.halve` has them.
LO, HI, COUNT, B_HI, A_LO = range(5)
BISECTION = 5


def bisections_of(curve: Any, method: Any) -> int:
    """How many bisections find the start of a search."""
    return BISECTIONS[type(curve)] if isinstance(method, Scan) else 0


def record_of(curve: Any, method: Any) -> int:
    """The length of a row's record."""
    return RECORD + BISECTION * bisections_of(curve, method)


def arguments_of(T: Any) -> tuple[Any, ...]:
    """The types of what the launches of a search are given.

    These are x and the same sorted, n, wide, parts, length, k and temperature, then the records and
    sums that the launch before left and those that this one leaves.
    """
    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    return real, real, int64, int32, int64, int64, *per_row, *per_row, *(numbers,) * 4


class Start(NamedTuple):
    """What a block does before the first pass of the search proper."""

    #: begin(x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room, sums):
    #: first pass over a part, whose sums it leaves
    begin: Any
    #: open(ordered, n, row, parts, sums, inv, record, room): takes the sums of the last pass, and
    #: brackets the threshold
    open: Any


@made_once
def make_start(T: Any, team: Team, curve: Any, method: Any) -> Start:
    """The start of a search by this method."""
    if isinstance(method, Scan):
        return _by_scan(T, team, curve, method)
    return _by_moments(T, team, curve, method)


def _by_moments(T: Any, team: Team, curve: Any, method: Any) -> Start:
    t, do, place = tools(T, team), passes(T, team, curve, method), make_place(T, team)

    @device
    def begin(x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room, sums):
        s, ss = do.moments(x, start, size, wide, do.middle(record), inv, regs, room)
        place.leave(sums, row, parts, part, s, ss, 0.0, 0.0, 0.0)

    @device
    def open_search(ordered, n, row, parts, sums, inv, record, room):
        s, ss, _, _ = place.gather(sums, row, parts, room)
        if t.rank() == 0:
            c, d = do.guess(record, s, ss)
            do.opening(record, c, d, inv)
        t.meet()

    return Start(begin, open_search)


class _Bisections(NamedTuple):
    """What a block does in a launch of the scan."""

    #: attempt(...), with the arguments of `Start.begin`: a pass at the middle of each bisection
    attempt: Any
    #: narrow(row, parts, sums, record, room): takes the sums of the last one
    narrow: Any


@made_once
def _bisections(T: Any, team: Team, curve: Any, method: Any) -> _Bisections:
    t, do, place = tools(T, team), passes(T, team, curve, method), make_place(T, team)
    count = bisections_of(curve, method)

    @device
    def goes_on(record, at):
        return record[at + HI] - record[at + LO] > 1.0

    @device
    def attempt(x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room, sums):
        first = row * n + int64(record[ABOVE])
        for s in range(count):
            at = RECORD + BISECTION * s
            if goes_on(record, at):
                c = ordered[first + middle_of(int64(record[at + LO]), int64(record[at + HI]))]
                m, a, b, _ = do.tally(x, start, size, wide, c, inv, T(-s), regs, room)
                place.leave(sums, row * count + s, parts, part, m, a, b, 0.0, 0.0)

    @device
    def narrow(row, parts, sums, record, room):
        for s in range(count):
            at = RECORD + BISECTION * s
            if goes_on(record, at):
                m, a, b, _ = place.gather(sums, row * count + s, parts, room)
                if t.rank() == 0:
                    (
                        record[at + LO],
                        record[at + HI],
                        record[at + COUNT],
                        record[at + B_HI],
                        record[at + A_LO],
                    ) = halve(
                        int64(record[at + LO]),
                        int64(record[at + HI]),
                        record[at + COUNT],
                        record[at + B_HI],
                        record[at + A_LO],
                        m - record[ABOVE],
                        a,
                        b,
                        record[LEFT],
                    )
        t.meet()

    return _Bisections(attempt, narrow)


def _by_scan(T: Any, team: Team, curve: Any, method: Any) -> Start:
    t, do = tools(T, team), passes(T, team, curve, method)
    both, closed_form = _bisections(T, team, curve, method), make_closed_form(curve)
    count = bisections_of(curve, method)
    last = RECORD + BISECTION * (count - 1)

    @device
    def begin(x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room, sums):
        if t.rank() == 0:
            for s in range(count):
                at = RECORD + BISECTION * s
                record[at + LO], record[at + HI] = -1.0, record[FINITE_COUNT]
                record[at + COUNT], record[at + B_HI], record[at + A_LO] = 0.0, 0.0, 0.0
        t.meet()
        both.attempt(
            x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room, sums
        )

    @device
    def open_search(ordered, n, row, parts, sums, inv, record, room):
        both.narrow(row, parts, sums, record, room)
        if t.rank() == 0:
            c, d = closed_form(
                ordered,
                row * n + int64(record[ABOVE]),
                record[FINITE_COUNT],
                record[LEFT],
                inv,
                int64(record[RECORD + HI]),
                record[RECORD + COUNT],
                record[RECORD + B_HI],
                record[RECORD + A_LO],
                int64(record[last + HI]),
            )
            do.opening(record, c, d, inv)
        t.meet()

    return Start(begin, open_search)


@made_once
def make_halve(T: Any, team: Team, curve: Any, method: Any) -> Kernel:
    """A step of each bisection, and a pass at its next middle."""
    place, both = make_place(T, team), _bisections(T, team, curve, method)
    held, size_of_record, one = team.held, record_of(curve, method), T(1)

    def halve_again(
        x, ordered, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        record = cuda.shared.array(size_of_record, float64)
        row, part, start, size = place.part(n, parts, length)
        place.fetch(records, row, record)
        if record[KIND] <= MIXED:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            both.narrow(row, parts, sums, record, room)
            both.attempt(
                x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room,
                new_sums,
            )  # fmt: skip
        if part == 0:
            place.hand_on(record, row, new_records)

    return Kernel(halve_again, arguments_of(T), team.threads)
