"""Long rows before their first step, each in parts as `_cuda.long_rows` says.

Rows go through their steps in batches, since their vectors take many times the memory of the rows.
Three launches leave the record of each row: a survey, the sums that follow from its extremes, and
what follows from these. From then on nobody writes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import SUMS, Parts, make_place, parts_of
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from .. import formulas
from .rows import E
from .steps import Row, iterated, steps

# The record of a row.
CODE, LEFT, TOP, HALF, INV, RATE, REF, COUNT = range(8)
RECORD = 8

NUMBERS = pointer_to(np.float64)
PER_ROW = (NUMBERS, float64, int32)


def given_first(T: Any) -> tuple[Any, ...]:
    """What every kernel is given first: x, first, n, parts, length, vectors, records and work.

    Row 0 of a batch is row `first` of x, and has `vectors` vectors of n numbers in `work`.
    """
    return pointer_to(T), int64, int64, int64, int64, int64, NUMBERS, NUMBERS


class Part(NamedTuple):
    """The part of a row that a block has, and what is known of the row."""

    row: Any  # of the batch
    part: Any
    parts: Any
    code: Any
    left: Any  # steps: 0 unless the row is iterated
    top: Any  # the value of +inf entries
    at: Any  # vector v begins at at + v * n in `entries.work`
    n: Any  # of the whole row
    entries: Row  # of the part


@made_once
def make_visit(team: Team) -> Any:
    """visit(x, first, n, parts, length, vectors, records, work) -> the `Part` of this block."""
    place = make_place(np.float64, team)

    @device
    def visit(x, first, n, parts, length, vectors, records, work):
        row, part, start, size = place.part(n, parts, length)
        record = row * RECORD
        half, inv, rate = records[record + HALF], records[record + INV], records[record + RATE]
        ref, count = records[record + REF], records[record + COUNT]
        entries = Row(x, first * n + start, size, half, inv, rate, ref, count, work)
        code, left, top = records[record + CODE], records[record + LEFT], records[record + TOP]
        at = row * vectors * n + part * length
        return Part(row, part, parts, code, left, top, at, n, entries)

    return visit


@made_once
def make_survey(T: Any, team: Team, kind: Any) -> Kernel:
    """Count the entries of each part and find its extremes."""
    do, place = steps(team, kind), make_place(np.float64, team)

    def survey(x, first, n, parts, length, vectors, records, work, sums):
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        bad, above, absent, low, high = do.survey(x, first * n + start, size, room)
        place.leave(sums, row, parts, part, bad, above, absent, low, high)

    return Kernel(survey, (*given_first(T), NUMBERS), team.threads)


@made_once
def make_open(T: Any, team: Team, kind: Any) -> Kernel:
    """Judge each row, and write its record but for COUNT; find ties and runners-up of each part."""
    t, do, place = tools(np.float64, team), steps(team, kind), make_place(np.float64, team)

    def open_rows(
        x, first, n, parts, length, vectors, records, work,
        k, taus, tau_all, tau_per_row, sums, new_sums,
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        tau = argument(taus, tau_all, tau_per_row, first + row)
        bad, above, absent, _ = place.gather(sums, row, parts, room)
        low, high = place.extremes(sums, row, parts, room)
        code, left, top = do.judge(n, k, tau, bad, above, absent)
        half = inv = rate = ref = 0.0
        if iterated(code):
            half, inv, rate, ref = formulas.scale(kind, low, high, tau)
            entries = Row(x, first * n + start, size, half, inv, rate, ref, 0.0, work)
            count, second = do.tied(entries, room), do.own.runner_up(entries, room)
            place.leave(new_sums, row, parts, part, count, 0.0, 0.0, 0.0, second)
        if part == 0 and t.rank() == 0:
            at = row * RECORD
            records[at + CODE], records[at + TOP] = code, top
            records[at + LEFT] = left if iterated(code) else 0.0
            records[at + HALF], records[at + INV], records[at + RATE] = half, inv, rate
            records[at + REF], records[at + COUNT] = ref, 0.0

    arguments = (*given_first(T), float64, *PER_ROW, NUMBERS, NUMBERS)
    return Kernel(open_rows, arguments, team.threads)


@made_once
def make_start(T: Any, team: Team, kind: Any) -> Kernel:
    """Write the construction's own vector, zeros to p, and the whole record to `new_records`."""
    t, do, place = tools(np.float64, team), steps(team, kind), make_place(np.float64, team)
    visit = make_visit(team)

    def start(x, first, n, parts, length, vectors, records, work, p, sums, new_records):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        count = 0.0
        if here.left > 0.0:
            count, _, _, _ = place.gather(sums, here.row, parts, room)
            _, second = place.extremes(sums, here.row, parts, room)
            do.own.relate(here.entries, second, here.at + E * n)
            do.clear(here.entries, here.at + p * n)
        if here.part == 0 and t.rank() == 0:
            at = here.row * RECORD
            for j in range(COUNT):
                new_records[at + j] = records[at + j]
            new_records[at + COUNT] = count

    return Kernel(start, (*given_first(T), int64, NUMBERS, NUMBERS), team.threads)


class Batch(NamedTuple):
    """Rows that go through their steps together, and the memory that their launches share."""

    rows: Rows
    kind: Any
    cut: Parts
    first: int
    size: int
    vectors: int
    work: Buffer
    records: Buffer

    @property
    def steps(self) -> int:
        """How many a row has at most."""
        return int(self.rows.k.value)

    def sums(self) -> Buffer:
        """Memory for what each block leaves."""
        return self.rows.empty(self.size * self.cut.parts * SUMS, np.float64)

    def new_records(self) -> Buffer:
        """Memory for the records."""
        return self.rows.empty(self.size * RECORD, np.float64)

    def launch(self, make: Callable[..., Kernel], *arguments: Any) -> None:
        """Launch the kernel for this kind of rows, with a block for each part."""
        rows, (team, parts, length) = self.rows, self.cut
        make(rows.dtype, team, self.kind)(
            self.size * parts,
            rows.stream,
            rows.x.pointer,
            self.first,
            rows.n,
            parts,
            length,
            self.vectors,
            self.records.pointer,
            self.work.pointer,
            *_as_given(arguments),
        )


def _as_given(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments of a kernel, one by one."""
    for value in arguments:
        if isinstance(value, Argument):
            yield from value
        else:
            yield value.pointer if isinstance(value, Buffer) else value


def opened(rows: Rows, kind: Any, vectors: int, p: int, memory: int) -> Iterator[Batch]:
    """Batches of rows that are ready for their first step, with p = 0 in that vector.

    Their vectors take `memory` bytes at most, unless one row takes more.
    """
    most = max(1, min(rows.rows, memory // (8 * vectors * rows.n)))
    work = rows.empty(most * vectors * rows.n, np.float64)
    for first in range(0, rows.rows, most):
        size = min(most, rows.rows - first)
        batch = Batch(rows, kind, parts_of(rows), first, size, vectors, work, rows.nothing)
        batch = batch._replace(records=batch.new_records())
        sums, new_sums, records = batch.sums(), batch.sums(), batch.new_records()
        batch.launch(make_survey, sums)
        batch.launch(make_open, float(batch.steps), rows.temperature, sums, new_sums)
        batch.launch(make_start, p, new_sums, records)
        yield batch._replace(records=records)
