"""The threshold of long rows on a device: each row in parts, as `_cuda.long_rows` says.

Every pass over the rows is one launch. In the next one every block of a row adds up what the pass
has left and takes the same step from it; the first writes down where that led. Records and sums lie
in memory twice, and take turns.

How many launches there are does not depend on the data. Once a threshold is found, those that are
left return at once; should it not be found, a last one goes on with a block for each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import LONG, SUMS, make_place, parts_of
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import MIXED
from ..newton import inverse_temperature_of
from ..records import SOLUTION, C, D
from .long_start import arguments_of, bisections_of, make_halve, make_start, record_of
from .rows import FOUND, KIND, LEFT, in_order, keep, passes, registers_for

ROUNDS = 12  # passes that a search guided by a model gets before one block is left with the row
MORE_ROUNDS = 40  # what bisection gets


class _Launches(NamedTuple):
    """The kernels of a search, of the same arguments (`arguments_of`)."""

    survey: Kernel  # counts entries
    begin: Kernel  # a pass that tells where to start
    open: Kernel  # first pass
    turn: Kernel  # another pass


@made_once
def _make_launches(T: Any, team: Team, curve: Any, method: Any, less: float = 0.0) -> _Launches:
    """The search for k - `less`."""
    t, do, place = tools(T, team), passes(T, team, curve, method), make_place(T, team)
    by = make_start(T, team, curve, method)
    held, size_of_record, one = team.held, record_of(curve, method), T(1)

    def survey(
        x, ordered, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row, part, start, size = place.part(n, parts, length)
        bad, above, absent, lo, hi = do.count(x, start, size, wide, regs, room)
        place.leave(new_sums, row, parts, part, bad, above, absent, lo, hi)

    def begin(
        x, ordered, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        record = cuda.shared.array(size_of_record, float64)
        row, part, start, size = place.part(n, parts, length)
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        bad, above, absent, _ = place.gather(sums, row, parts, room)
        lo, hi = place.extremes(sums, row, parts, room)
        code = do.judge(n, bad, above, absent, lo, hi, k, tau, record)
        if t.rank() == 0:
            record[LEFT] -= less
        t.meet()
        if code <= MIXED:
            inv = inverse_temperature_of(tau, one)
            by.begin(
                x, ordered, n, wide, row, parts, part, start, size, inv, regs, record, room,
                new_sums,
            )  # fmt: skip
        if part == 0:
            place.hand_on(record, row, new_records)

    def open_search(
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
            by.open(ordered, n, row, parts, sums, inv, record, room)
            c, d = T(record[C]), T(record[D])
            m, a, b, w = do.tally(x, start, size, wide, c, inv, d, regs, room)
            place.leave(new_sums, row, parts, part, m, a, b, w, 0.0)
        if part == 0:
            place.hand_on(record, row, new_records)

    def turn(
        x, ordered, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        records, sums, new_records, new_sums,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        record = cuda.shared.array(size_of_record, float64)
        row, part, start, size = place.part(n, parts, length)
        place.fetch(records, row, record)
        searching = record[FOUND] == 0.0
        if searching:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            m, a, b, w = place.gather(sums, row, parts, room)
            if t.rank() == 0:
                do.steer(record, m, a, b, w, inv)
            t.meet()
            if record[FOUND] == 0.0:
                c, d = T(record[C]), T(record[D])
                m, a, b, w = do.tally(x, start, size, wide, c, inv, d, regs, room)
                place.leave(new_sums, row, parts, part, m, a, b, w, 0.0)
        if part == 0:
            place.hand_on(record, row, new_records)

    arguments, registers = arguments_of(T), registers_for(curve)
    made = (survey, begin, open_search, turn)
    return _Launches(*(Kernel(f, arguments, team.threads, registers) for f in made))


@made_once
def _make_finish(T: Any, team: Team, curve: Any, method: Any, keeps: bool) -> Kernel:
    """A block for each row: goes on to the end where it has to; the solution, if it `keeps`."""
    t, do, place = tools(T, team), passes(T, team, curve, method), make_place(T, team)
    held, size_of_record, one = team.held, record_of(curve, method), T(1)

    def finish(
        x, n, wide, parts, taus, tau_all, tau_per_row, records, sums, new_records, solution
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        record = cuda.shared.array(size_of_record, float64)
        row = int64(cuda.blockIdx.x)
        place.fetch(records, row, record)
        searching = record[FOUND] == 0.0
        if searching:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            m, a, b, w = place.gather(sums, row, parts, room)
            if t.rank() == 0:
                do.steer(record, m, a, b, w, inv)
            t.meet()
            if record[FOUND] == 0.0:
                do.seek(x, row * n, n, wide, inv, regs, record, room)
        place.hand_on(record, row, new_records)
        if keeps and t.rank() == 0:
            keep(record, solution, row * SOLUTION)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    arguments = (real, int64, int32, int64, numbers, float64, int32, *(numbers,) * 4)
    return Kernel(finish, arguments, team.threads, registers_for(curve))


@made_once
def _make_fill(T: Any, team: Team, curve: Any, method: Any) -> Kernel:
    """Write p, part by part."""
    do, place = passes(T, team, curve, method), make_place(T, team)
    held, size_of_record, one = team.held, record_of(curve, method), T(1)

    def fill(
        x, n, wide, parts, length, ks, k_all, k_per_row, taus, tau_all, tau_per_row, records, out
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        record = cuda.shared.array(size_of_record, float64)
        row, _, start, size = place.part(n, parts, length)
        place.fetch(records, row, record)
        if record[KIND] <= MIXED:
            inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), one)
            do.fill(x, start, size, wide, inv, regs, record, out)
        else:
            k = argument(ks, k_all, k_per_row, row)
            do.constant(x, start, size, wide, record[KIND], k, regs, record, out)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int32, int64, int64, *per_row, *per_row, numbers, real)
    return Kernel(fill, arguments, team.threads, registers_for(curve))


def rounds_of(n: int, method: Any) -> int:
    """How many passes are launched; the longer the row, the less one block should do alone."""
    return (ROUNDS if method.modelled else MORE_ROUNDS) + (n // LONG).bit_length()


def _launches(rows: Rows, team: Team, curve: Any, method: Any, less: float) -> list[Kernel]:
    """The kernels of a search, launch by launch."""
    made, halvings = _make_launches(rows.dtype, team, curve, method, less), []
    if bisections_of(curve, method):
        # From n + 1 places apart to neighbours: a step in each of them, and one in the next launch.
        halvings = [make_halve(rows.dtype, team, curve, method)] * (rows.n.bit_length() - 1)
    turns = [made.turn] * rounds_of(rows.n, method)
    return [made.survey, made.begin, *halvings, made.open, *turns]


def search(
    rows: Rows, curve: Any, method: Any, solution: Buffer | None = None, less: float = 0.0
) -> Buffer:
    """The record of each row, solved for k - `less`; thresholds to `solution`, if wanted.

    Which kind of row it is follows from k itself.
    """
    team, count, length = parts_of(rows)
    ordered = in_order(rows, method)
    x, row = rows.x.pointer, (rows.n, rows.wide(), count)
    numbers = *rows.k, *rows.temperature
    all_records = rows.rows * record_of(curve, method)
    all_sums = rows.rows * count * SUMS * max(bisections_of(curve, method), 1)
    records, new_records = (rows.empty(all_records, np.float64) for _ in range(2))
    sums, new_sums = (rows.empty(all_sums, np.float64) for _ in range(2))
    for kernel in _launches(rows, team, curve, method, less):
        memory = (buffer.pointer for buffer in (records, sums, new_records, new_sums))
        kernel(rows.rows * count, rows.stream, x, ordered.pointer, *row, length, *numbers, *memory)
        records, sums, new_records, new_sums = new_records, new_sums, records, sums
    _make_finish(rows.dtype, team, curve, method, solution is not None)(
        rows.rows,
        rows.stream,
        x,
        *row,
        *rows.temperature,
        records.pointer,
        sums.pointer,
        new_records.pointer,
        (solution or rows.nothing).pointer,
    )
    return new_records


def solve(rows: Rows, curve: Any, method: Any, out: Buffer | None, solution: Buffer | None) -> None:
    """As the kernel of `cuda.make_solve`: p to `out` and thresholds to `solution`, if wanted."""
    records = search(rows, curve, method, solution)
    if out is not None:
        team, count, length = parts_of(rows)
        _make_fill(rows.dtype, team, curve, method)(
            rows.rows * count,
            rows.stream,
            rows.x.pointer,
            rows.n,
            rows.wide(out),
            count,
            length,
            *rows.k,
            *rows.temperature,
            records.pointer,
            out.pointer,
        )
