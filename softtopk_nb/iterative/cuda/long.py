"""The iterations of long rows on a device, each in parts as in `_cuda.long_rows`.

Rows are iterated in batches, since their vectors take many times the memory of the rows. Three
launches write the record of each row: a scan, the sums that depend on its extremes, and the numbers
that depend on these. From then on the record is only read.

A step is two launches: one adds the shares of the step before to p and computes the sums that the
shares of this step need, the other computes these shares. The number of steps launched follows from
a k that the host knows. A row in which +inf entries use up some of k has fewer, and later launches
leave it unchanged.

In every vector a block reads and writes only its part of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import int32, int64

from ..._cuda import long_rows
from ..._cuda.arrays import Buffer, Rows
from ..._cuda.long_rows import SUMS, make_place, parts_of
from ..._cuda.row_kernels import ENTRIES, NUMBERS, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from .. import formulas
from .steps import VALUE, P, Row, iterated, results, steps

# Fields of a row's record.
CODE, LEFT, TOP, HALF, INV, RATE, REF, COUNT = range(8)
RECORD = 8


def is_long(rows: Rows) -> bool:
    """Whether rows are cut into parts: not if k is on the device, as the host counts the steps."""
    return long_rows.is_long(rows) and not rows.k.per_row


class Memory(NamedTuple):
    """The first argument of every kernel. Row 0 of its batch is row `first` of x."""

    first: Any
    vectors: Any  # number of vectors of each row, of n numbers
    records: Any
    work: Any


MEMORY = Memory(int64, int64, NUMBERS, NUMBERS)  # the types of these


class Known(NamedTuple):
    """The record of a part's row, and the part."""

    code: Any
    left: Any  # number of steps: 0 unless the row is iterated
    top: Any  # the value of +inf entries
    entries: Row  # of the part


@device
def part_of(here, batch, memory, half, inv, rate, ref, count):
    """A part of a row, and of its vectors."""
    at = here.row * memory.vectors * batch.n + here.span.start - here.row * batch.n
    start = memory.first * batch.n + here.span.start
    vectors = memory.work, at, batch.n
    return Row(batch.x, start, here.span.n, half, inv, rate, ref, count, *vectors)


@device
def known(here, batch, memory):
    """A row's record, and a part of the row."""
    records, at = memory.records, here.row * RECORD
    half, inv, rate = records[at + HALF], records[at + INV], records[at + RATE]
    ref, count = records[at + REF], records[at + COUNT]
    entries = part_of(here, batch, memory, half, inv, rate, ref, count)
    return Known(records[at + CODE], records[at + LEFT], records[at + TOP], entries)


class Opening(NamedTuple):
    """The kernels of the launches before the first step."""

    survey: PartKernel  # counts the entries of each part and finds its extremes
    open: PartKernel  # classifies each row, and writes its record but for COUNT; counts ties
    start: PartKernel  # writes E, p = 0, and the complete record to new memory


@made_once
def opening(T: Any, group: ThreadGroup, kind: Any) -> Opening:
    """The kernels that prepare rows."""
    t, do, place = tools(np.float64, group), steps(group, kind), make_place(np.float64, group)

    @device
    def survey(here, s, batch, given):
        memory, sums = given
        start = memory.first * batch.n + here.span.start
        nans, above, excluded, low, high = do.survey(batch.x, start, here.span.n, s.shared)
        place.leave(sums, here, (nans, above, excluded, 0.0, low, high))

    @device
    def open_rows(here, s, batch, given):
        memory, sums, new_sums = given
        k = of_row(batch.k, memory.first + here.row)
        tau = of_row(batch.temperature, memory.first + here.row)
        nans, above, excluded, _ = place.gather(sums, here, s.shared)
        low, high = place.extremes(sums, here, s.shared)
        code, left, top = do.classify(batch.n, k, tau, nans, above, excluded)
        half = inv = rate = ref = 0.0
        if iterated(code):
            half, inv, rate, ref = formulas.scale(kind, low, high, tau)
            entries = part_of(here, batch, memory, half, inv, rate, ref, 0.0)
            count, second = do.tied(entries, s.shared), do.own.runner_up(entries, s.shared)
            place.leave(new_sums, here, (count, 0.0, 0.0, 0.0, 0.0, second))
        if here.part == 0 and t.rank() == 0:
            records, at = memory.records, here.row * RECORD
            records[at + CODE], records[at + TOP] = code, top
            records[at + LEFT] = left if iterated(code) else 0.0
            records[at + HALF], records[at + INV], records[at + RATE] = half, inv, rate
            records[at + REF], records[at + COUNT] = ref, 0.0

    @device
    def start(here, s, batch, given):
        memory, p, sums, new_records = given
        row, count = known(here, batch, memory), 0.0
        if row.left > 0.0:
            count = place.gather(sums, here, s.shared)[0]
            _, second = place.extremes(sums, here, s.shared)
            do.own.relate(row.entries, second)
            do.clear(row.entries, p)
        if here.part == 0 and t.rank() == 0:
            at = here.row * RECORD
            for j in range(COUNT):
                new_records[at + j] = memory.records[at + j]
            new_records[at + COUNT] = count

    return Opening(
        PartKernel(T, group, survey, (MEMORY, NUMBERS)),
        PartKernel(T, group, open_rows, (MEMORY, NUMBERS, NUMBERS)),
        PartKernel(T, group, start, (MEMORY, int64, NUMBERS, NUMBERS)),
    )


@made_once
def shares_of(group: ThreadGroup, kind: Any) -> Any:
    """weigh(step, here, entries, p, looks, shared) -> sum of U over the part; writes U."""
    do, place = steps(group, kind), make_place(np.float64, group)
    scored = isinstance(kind, formulas.Plain)

    @device
    def weigh(step, here, entries, p, looks, shared):
        others = top = 0.0
        if scored:
            _, top = place.extremes(looks, here, shared)
        if do.own.settled(step, entries):
            others = place.gather(looks, here, shared)[0]
        return do.own.weigh(step, entries, p, others, top, shared)

    return weigh


class Stepping(NamedTuple):
    """The kernels of one step, and the one that writes the result."""

    look: PartKernel  # adds the last step's shares to p, and sums what this step needs
    weigh: PartKernel  # writes U of a step, and its sums
    fill: PartKernel  # adds the shares of the last step to p, and writes p


@made_once
def stepping(T: Any, group: ThreadGroup, kind: Any) -> Stepping:
    """The kernels of a step, for rows of type T."""
    do, place, result = steps(group, kind), make_place(np.float64, group), results(T, group)
    weigh = shares_of(group, kind)

    @device
    def look(here, s, batch, given):
        memory, step, moves, source, target, totals, looks = given
        row = known(here, batch, memory)
        if moves and step <= row.left:
            do.add(row.entries, source, place.gather(totals, here, s.shared)[0], target)
        if step < row.left:
            others, top = do.own.look(step, row.entries, target, s.shared)
            place.leave(looks, here, (others, 0.0, 0.0, 0.0, 0.0, top))

    @device
    def weigh_part(here, s, batch, given):
        memory, step, p, looks, totals = given
        row = known(here, batch, memory)
        if step < row.left:
            total = weigh(step, here, row.entries, p, looks, s.shared)
            place.leave(totals, here, (total, 0.0, 0.0, 0.0, 0.0, 0.0))

    @device
    def fill(here, s, batch, given):
        memory, step, totals, out = given
        row = known(here, batch, memory)
        if step <= row.left and row.left > 0.0:
            do.add(row.entries, P, place.gather(totals, here, s.shared)[0], P)
        result.value(row.entries, row.code, row.top, out)

    return Stepping(
        PartKernel(T, group, look, (MEMORY, int64, int32, int64, int64, NUMBERS, NUMBERS)),
        PartKernel(T, group, weigh_part, (MEMORY, int64, int64, NUMBERS, NUMBERS)),
        PartKernel(T, group, fill, (MEMORY, int64, NUMBERS, ENTRIES)),
    )


class AtWork(NamedTuple):
    """Rows that are iterated together, and the memory that their launches share."""

    rows: Rows
    kind: Any
    size: int
    memory: Memory

    @property
    def steps(self) -> int:
        """The largest number of steps of a row."""
        return int(self.rows.k.value)

    def made(self, make: Callable[..., Any]) -> Any:
        """The kernels for these rows."""
        return make(self.rows.dtype, parts_of(self.rows).group, self.kind)

    def sums(self) -> Buffer:
        """Memory for the sums that each block writes."""
        return self.rows.empty(self.size * parts_of(self.rows).parts * SUMS, np.float64)

    def launch(self, kernel: PartKernel, *given: Any) -> None:
        """Launch a kernel, with a block for each part."""
        kernel.run(self.rows, self.memory, *given, units=self.size)

    def run(
        self,
        first: int,
        last: int,
        place: Callable[[int], int],
        looks: list[Buffer],
        totals: list[Buffer],
    ) -> None:
        """Launch steps first .. last; the shares of the last one are not added to p yet.

        `place` is the vector of p before a step; steps write sums to the `looks` and `totals` in
        turn.
        """
        do = self.made(stepping)
        for step in range(first, last):
            before, now = (step - 1) % len(looks), step % len(looks)
            p, moves = place(step), int(step > first)
            self.launch(do.look, step, moves, place(step - 1), p, totals[before], looks[now])
            self.launch(do.weigh, step, p, looks[now], totals[now])


def opened(rows: Rows, kind: Any, vectors: int, p: int, memory: int) -> Iterator[AtWork]:
    """Yield batches of rows that are ready for their first step, with p = 0 in vector `p`.

    Their vectors take `memory` bytes at most, unless one row takes more.
    """
    most = max(1, min(rows.rows, memory // (8 * vectors * rows.n)))
    work = rows.empty(most * vectors * rows.n, np.float64)
    for first in range(0, rows.rows, most):
        size = min(most, rows.rows - first)
        before, records = (rows.empty(size * RECORD, np.float64) for _ in range(2))
        batch = AtWork(rows, kind, size, Memory(first, vectors, before, work))
        do, sums, new_sums = batch.made(opening), batch.sums(), batch.sums()
        batch.launch(do.survey, sums)
        batch.launch(do.open, sums, new_sums)
        batch.launch(do.start, p, new_sums, records)
        yield batch._replace(memory=batch.memory._replace(records=records))


def value(rows: Rows, kind: Any, out: Buffer, memory: int) -> None:
    """Write p; the vectors of a batch of rows take `memory` bytes, or those of one row."""
    for batch in opened(rows, kind, VALUE, P, memory):
        looks, totals = batch.sums(), batch.sums()
        batch.run(0, batch.steps, lambda step: P, [looks], [totals])
        batch.launch(batch.made(stepping).fill, batch.steps, totals, out)
