"""The iterations on a device for long rows, each in parts as `_cuda.long_rows` says.

A step is two launches: one adds the shares of the step before to p and looks at what those of this
step need, the other weighs them. How many steps are launched follows from a k that the host knows.
A row in which +inf entries use up some of k has fewer, and launches beyond them leave it as it is.

In every vector a block keeps to its part of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda import long_rows
from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import make_place
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, made_once
from .. import formulas
from .long_start import NUMBERS, Batch, given_first, make_visit, opened
from .rows import VALUE, E, P, U
from .steps import results, steps


def is_long(rows: Rows) -> bool:
    """Whether rows go in parts: not if k is on the device, where the host cannot count steps."""
    return long_rows.is_long(rows) and not rows.k.per_row


@made_once
def make_look(T: Any, team: Team, kind: Any) -> Kernel:
    """Look at what the shares of a step need.

    If p is to move before that, by u and its sums `totals`, then from `source` to `target`.
    """
    do, place, visit = steps(team, kind), make_place(np.float64, team), make_visit(team)

    def look(
        x, first, n, parts, length, vectors, records, work,
        step, moves, source, target, totals, looks,
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        p = here.at + target * n
        if moves and step <= here.left:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            do.add(here.entries, here.at + source * n, here.at + U * n, total, p)
        if step < here.left:
            others, top = do.own.look(step, here.entries, p, room)
            place.leave(looks, here.row, parts, here.part, others, 0.0, 0.0, 0.0, top)

    arguments = (*given_first(T), int64, int32, int64, int64, NUMBERS, NUMBERS)
    return Kernel(look, arguments, team.threads)


@made_once
def shares_of(team: Team, kind: Any) -> Any:
    """weigh(step, here, p, looks, room) -> sum over the part of u, which it writes."""
    do, place = steps(team, kind), make_place(np.float64, team)
    scored = isinstance(kind, formulas.Plain)

    @device
    def weigh(step, here, p, looks, room):
        others = top = 0.0
        if scored:
            _, top = place.extremes(looks, here.row, here.parts, room)
        if do.own.settled(step, here.entries):
            others, _, _, _ = place.gather(looks, here.row, here.parts, room)
        before, e, u = here.at + p * here.n, here.at + E * here.n, here.at + U * here.n
        return do.own.weigh(step, here.entries, before, e, u, others, top, room)

    return weigh


@made_once
def make_weigh(T: Any, team: Team, kind: Any) -> Kernel:
    """Write u of a step, and leave its sums."""
    weigh, place, visit = shares_of(team, kind), make_place(np.float64, team), make_visit(team)

    def weigh_part(x, first, n, parts, length, vectors, records, work, step, p, looks, totals):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if step < here.left:
            total = weigh(step, here, p, looks, room)
            place.leave(totals, here.row, parts, here.part, total, 0.0, 0.0, 0.0, 0.0)

    arguments = (*given_first(T), int64, int64, NUMBERS, NUMBERS)
    return Kernel(weigh_part, arguments, team.threads)


@made_once
def make_fill(T: Any, team: Team, kind: Any) -> Kernel:
    """Move p over the last step, and write it to `out`."""
    do, place, visit = steps(team, kind), make_place(np.float64, team), make_visit(team)
    result = results(T, team)

    def fill(x, first, n, parts, length, vectors, records, work, step, totals, out):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        p, entries = here.at + P * n, here.entries
        if step <= here.left and here.left > 0.0:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            do.add(entries, p, here.at + U * n, total, p)
        result.value(x, entries.start, entries.n, here.code, here.top, work, p, out)

    arguments = (*given_first(T), int64, NUMBERS, pointer_to(T))
    return Kernel(fill, arguments, team.threads)


def run(
    batch: Batch,
    first: int,
    last: int,
    place: Callable[[int], int],
    looks: list[Buffer],
    totals: list[Buffer],
) -> None:
    """Launch steps first .. last; p has not moved over the last of them when they end.

    `place` is the vector of p before a step; sums of steps take turns in `looks` and `totals`.
    """
    for step in range(first, last):
        before, now = (step - 1) % len(looks), step % len(looks)
        p, moves = place(step), int(step > first)
        batch.launch(make_look, step, moves, place(step - 1), p, totals[before], looks[now])
        batch.launch(make_weigh, step, p, looks[now], totals[now])


def value(rows: Rows, kind: Any, out: Buffer, memory: int) -> None:
    """Write p; the vectors of the rows at work take `memory` bytes, or what one row takes."""
    for batch in opened(rows, kind, VALUE, P, memory):
        looks, totals = batch.sums(), batch.sums()
        run(batch, 0, batch.steps, lambda step: P, [looks], [totals])
        batch.launch(make_fill, batch.steps, totals, out)
