"""The threshold of long rows on a device: each row in parts, as in `_cuda.long_rows`.

Every pass over the rows is one launch. In the next one every block of a row adds up the sums that
the pass has written and takes the same step from them; the first block writes the new state.
Records and sums are stored twice, and each launch reads one copy and writes the other.

The number of launches does not depend on the data. Once a threshold is found, the remaining ones
return at once; if it is not, a last one continues with a block for each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.long_rows import LONG, SUMS, make_place, parts_of
from ..._cuda.row_kernels import ENTRIES, NUMBERS, ROWS, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._nonfinite import WITH_INFINITIES
from ..newton import inverse_temperature_of
from ..records import ENDED, KIND, LEFT, SOLUTION, C, D
from .long_start import Memory, bisections_of, make_halve, make_start, record_of
from .rows import in_order, keep, passes, registers_for

ROUNDS = 12  # passes of a search guided by a model before a single block continues with the row
MORE_ROUNDS = 40  # the same for bisection


class _Launches(NamedTuple):
    """The kernels of a search, each of which takes a `Memory`."""

    survey: PartKernel  # counts entries
    begin: PartKernel  # a pass over the moments, for a first guess
    open: PartKernel  # first pass
    step: PartKernel  # another pass
    finish: PartKernel  # the rest of the search, with a block for each row


@made_once
def _make_launches(
    T: Any, group: ThreadGroup, curve: Any, method: Any, less: float, keeps: bool
) -> _Launches:
    """The kernels of the search for k - `less`; the last writes the solution if it `keeps` it."""
    t, do, place = tools(T, group), passes(T, group, curve, method), make_place(T, group)
    by, one = make_start(T, group, curve, method), T(1)

    @device
    def survey(here, s, batch, memory):
        nans, above, excluded, lo, hi = do.count(here.span, s)
        place.leave(memory.new_sums, here, (nans, above, excluded, 0.0, lo, hi))

    @device
    def begin(here, s, batch, memory):
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        nans, above, excluded, _ = place.gather(memory.sums, here, s.shared)
        lo, hi = place.extremes(memory.sums, here, s.shared)
        code = do.classify(batch.n, (nans, above, excluded, lo, hi), k, tau, s.record)
        if t.rank() == 0:
            s.record[LEFT] -= less
        t.meet()
        if code <= WITH_INFINITIES:
            by.begin(here, s, inverse_temperature_of(tau, one), batch.n, memory)
        if here.part == 0:
            place.hand_on(s.record, here.row, memory.new_records)

    @device
    def tally(here, s, inv, memory):
        m, a, b, w = do.tally(here.span, T(s.record[C]), inv, T(s.record[D]), s)
        place.leave(memory.new_sums, here, (m, a, b, w, 0.0, 0.0))

    @device
    def open_search(here, s, batch, memory):
        place.fetch(memory.records, here.row, s.record)
        if s.record[KIND] <= WITH_INFINITIES:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), one)
            by.open(here, s, inv, batch.n, memory)
            tally(here, s, inv, memory)
        if here.part == 0:
            place.hand_on(s.record, here.row, memory.new_records)

    @device
    def steer(here, s, inv, memory):
        m, a, b, w = place.gather(memory.sums, here, s.shared)
        if t.rank() == 0:
            do.steer(s.record, m, a, b, w, inv)
        t.meet()

    @device
    def step(here, s, batch, memory):
        place.fetch(memory.records, here.row, s.record)
        searching = s.record[ENDED] == 0.0
        if searching:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), one)
            steer(here, s, inv, memory)
            if s.record[ENDED] == 0.0:
                tally(here, s, inv, memory)
        if here.part == 0:
            place.hand_on(s.record, here.row, memory.new_records)

    @device
    def finish(here, s, batch, memory):
        place.fetch(memory.records, here.row, s.record)
        searching = s.record[ENDED] == 0.0
        if searching:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), one)
            steer(here, s, inv, memory)
            if s.record[ENDED] == 0.0:
                do.seek(here.span, inv, s)
        place.hand_on(s.record, here.row, memory.new_records)
        if keeps and t.rank() == 0:
            keep(s.record, memory.solution, here.row * SOLUTION)

    given = Memory(ENTRIES, *(NUMBERS,) * 5)
    how = registers_for(curve), record_of(curve, method)
    made = (survey, begin, open_search, step, finish)
    return _Launches(*(PartKernel(T, group, visit, given, *how) for visit in made))


@made_once
def _make_fill(T: Any, group: ThreadGroup, curve: Any, method: Any) -> PartKernel:
    """A kernel that writes p, part by part."""
    do, place, one = passes(T, group, curve, method), make_place(T, group), T(1)

    @device
    def fill(here, s, batch, given):
        records, out = given
        place.fetch(records, here.row, s.record)
        if s.record[KIND] <= WITH_INFINITIES:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), one)
            do.fill(here.span, inv, s, out)
        else:
            do.constant(here.span, s.record[KIND], of_row(batch.k, here.row), s, out)

    how = registers_for(curve), record_of(curve, method)
    return PartKernel(T, group, fill, (NUMBERS, ROWS), *how)


def rounds_of(n: int, method: Any) -> int:
    """Number of passes that are launched; more for longer rows, where a single block is slow."""
    return (ROUNDS if method.modelled else MORE_ROUNDS) + (n // LONG).bit_length()


def search(
    rows: Rows, curve: Any, method: Any, solution: Buffer | None = None, less: float = 0.0
) -> Buffer:
    """The record of each row, solved for k - `less`; thresholds to `solution`, if wanted.

    The kind of a row follows from k itself.
    """
    group, count, _ = parts_of(rows)
    how = rows.dtype, group, curve, method
    made, halvings = _make_launches(*how, less, solution is not None), []
    if bisections_of(curve, method):
        # From n + 1 places apart to neighbours: one halving in each launch, and one in the next.
        halvings = [make_halve(*how)] * (rows.n.bit_length() - 1)
    all_records = rows.rows * record_of(curve, method)
    all_sums = rows.rows * count * SUMS * max(bisections_of(curve, method), 1)
    ordered = in_order(rows, method)
    records, new_records = (rows.empty(all_records, np.float64) for _ in range(2))
    sums, new_sums = (rows.empty(all_sums, np.float64) for _ in range(2))
    steps = [made.step] * rounds_of(rows.n, method)
    for kernel in (made.survey, made.begin, *halvings, made.open, *steps, made.finish):
        memory = ordered, records, sums, new_records, new_sums, solution or rows.nothing
        kernel.run(rows, *memory, whole=kernel is made.finish)
        records, sums, new_records, new_sums = new_records, new_sums, records, sums
    return records


def solve(rows: Rows, curve: Any, method: Any, out: Buffer | None, solution: Buffer | None) -> None:
    """Solve long rows: p to `out` and thresholds to `solution`, unless None."""
    records = search(rows, curve, method, solution)
    if out is not None:
        fill = _make_fill(rows.dtype, parts_of(rows).group, curve, method)
        fill.run(rows, records, out)
