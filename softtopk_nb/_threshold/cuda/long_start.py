"""The start of the search for the threshold of a long row: by its moments, or by a scan.

The moments take one pass. A scan is a bisection over the sorted entries (`cuda.scan`), or two in
parallel: one launch for each halving. Its state is in the row's record after that of the search,
and each bisection has sums of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import int64

from ..._cuda.long_rows import make_place
from ..._cuda.row_kernels import ENTRIES, NUMBERS, Part, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._nonfinite import WITH_INFINITIES
from ..methods import Scan
from ..newton import inverse_temperature_of
from ..records import ABOVE, FINITE_COUNT, KIND, LEFT, RECORD
from .rows import passes
from .scan import BISECTIONS, halve, make_closed_form, middle_of

# Fields of each bisection, as in `cuda.scan.halve`.
LO, HI, COUNT, B_HI, A_LO = range(5)
BISECTION = 5


def bisections_of(curve: Any, method: Any) -> int:
    """Number of bisections that find the start of a search; 0 unless the method scans."""
    return BISECTIONS[type(curve)] if isinstance(method, Scan) else 0


def record_of(curve: Any, method: Any) -> int:
    """The length of a row's record, in float64."""
    return RECORD + BISECTION * bisections_of(curve, method)


class Memory(NamedTuple):
    """The arguments of the launches of a search."""

    ordered: Any  # a sorted copy of the rows
    records: Any  # written by the launch before
    sums: Any
    new_records: Any  # written by this one
    new_sums: Any
    solution: Any


class Start(NamedTuple):
    """The steps of a block before the first pass of the search; a row has n entries."""

    #: begin(here, s, inv, n, memory): first pass over a part, and writes its sums
    begin: Any
    #: open(here, s, inv, n, memory): from the sums of the last pass, brackets the threshold
    open: Any


@made_once
def make_start(T: Any, group: ThreadGroup, curve: Any, method: Any) -> Start:
    """The start of a search by this method."""
    if isinstance(method, Scan):
        return _by_scan(T, group, curve, method)
    return _by_moments(T, group, curve, method)


def _by_moments(T: Any, group: ThreadGroup, curve: Any, method: Any) -> Start:
    t, do, place = tools(T, group), passes(T, group, curve, method), make_place(T, group)

    @device
    def begin(here, s, inv, n, memory):
        first, second = do.moments(here.span, do.middle(s.record), inv, s)
        place.leave(memory.new_sums, here, (first, second, 0.0, 0.0, 0.0, 0.0))

    @device
    def open_search(here, s, inv, n, memory):
        first, second, _, _ = place.gather(memory.sums, here, s.shared)
        if t.rank() == 0:
            c, d = do.guess(s.record, first, second)
            do.opening(s.record, c, d, inv)
        t.meet()

    return Start(begin, open_search)


class _Bisections(NamedTuple):
    """The steps of a block in a launch of the scan."""

    #: attempt(here, s, inv, n, memory): a pass at the middle of each bisection
    attempt: Any
    #: narrow(here, s, memory): narrows each bisection by the sums of the last pass
    narrow: Any


@made_once
def _bisections(T: Any, group: ThreadGroup, curve: Any, method: Any) -> _Bisections:
    t, do, place = tools(T, group), passes(T, group, curve, method), make_place(T, group)
    count = bisections_of(curve, method)

    @device
    def goes_on(record, at):
        return record[at + HI] - record[at + LO] > 1.0

    @device
    def in_memory(here, i):
        """The part whose sums are those of the i-th bisection."""
        return Part(here.row * count + i, here.part, here.parts, here.span)

    @device
    def attempt(here, s, inv, n, memory):
        first = here.row * n + int64(s.record[ABOVE])
        for i in range(count):
            at = RECORD + BISECTION * i
            if goes_on(s.record, at):
                j = middle_of(int64(s.record[at + LO]), int64(s.record[at + HI]))
                m, a, b, _ = do.tally(here.span, memory.ordered[first + j], inv, T(-i), s)
                place.leave(memory.new_sums, in_memory(here, i), (m, a, b, 0.0, 0.0, 0.0))

    @device
    def narrow_one(record, at, m, a, b):
        lo, hi = int64(record[at + LO]), int64(record[at + HI])
        known = record[at + COUNT], record[at + B_HI], record[at + A_LO]
        left = record[LEFT]
        lo, hi, count, b_hi, a_lo = halve(lo, hi, *known, m - record[ABOVE], a, b, left)
        record[at + LO], record[at + HI] = lo, hi
        record[at + COUNT], record[at + B_HI], record[at + A_LO] = count, b_hi, a_lo

    @device
    def narrow(here, s, memory):
        for i in range(count):
            at = RECORD + BISECTION * i
            if goes_on(s.record, at):
                m, a, b, _ = place.gather(memory.sums, in_memory(here, i), s.shared)
                if t.rank() == 0:
                    narrow_one(s.record, at, m, a, b)
        t.meet()

    return _Bisections(attempt, narrow)


def _by_scan(T: Any, group: ThreadGroup, curve: Any, method: Any) -> Start:
    t, do = tools(T, group), passes(T, group, curve, method)
    both, closed_form = _bisections(T, group, curve, method), make_closed_form(curve)
    count = bisections_of(curve, method)
    last = RECORD + BISECTION * (count - 1)

    @device
    def begin(here, s, inv, n, memory):
        if t.rank() == 0:
            for i in range(count):
                at = RECORD + BISECTION * i
                s.record[at + LO], s.record[at + HI] = -1.0, s.record[FINITE_COUNT]
                s.record[at + COUNT], s.record[at + B_HI], s.record[at + A_LO] = 0.0, 0.0, 0.0
        t.meet()
        both.attempt(here, s, inv, n, memory)

    @device
    def open_search(here, s, inv, n, memory):
        both.narrow(here, s, memory)
        record, first = s.record, here.row * n + int64(s.record[ABOVE])
        if t.rank() == 0:
            hi, b, a = int64(record[RECORD + HI]), record[RECORD + B_HI], record[RECORD + A_LO]
            row = memory.ordered, first, record[FINITE_COUNT], record[LEFT], inv
            c, d = closed_form(*row, hi, record[RECORD + COUNT], b, a, int64(record[last + HI]))
            do.opening(record, c, d, inv)
        t.meet()

    return Start(begin, open_search)


@made_once
def make_halve(T: Any, group: ThreadGroup, curve: Any, method: Any) -> PartKernel:
    """A kernel that narrows each bisection, and makes a pass at its next middle."""
    place, both, one = make_place(T, group), _bisections(T, group, curve, method), T(1)

    @device
    def halve_again(here, s, batch, memory):
        place.fetch(memory.records, here.row, s.record)
        if s.record[KIND] <= WITH_INFINITIES:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), one)
            both.narrow(here, s, memory)
            both.attempt(here, s, inv, batch.n, memory)
        if here.part == 0:
            place.hand_on(s.record, here.row, memory.new_records)

    given = Memory(ENTRIES, *(NUMBERS,) * 5)
    return PartKernel(T, group, halve_again, given, record=record_of(curve, method))
