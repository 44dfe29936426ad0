"""Derivatives of the iterations on a device for long rows, each in parts as `_cuda.long_rows` says.

A launch ends where a sum over the row is needed: three of them move p and its tangent over a step,
two or three move a gradient back over one. The latter need p of each step in turn, for which the
steps are launched twice, from marks on, as one team would (Proposition prop-iter-checkpoint).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float64, int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.long_rows import make_place
from ..._cuda.target import cuda
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import UNDEFINED
from ..formulas import Weighted
from .long import make_weigh, run, shares_of
from .long_start import NUMBERS, PER_ROW, given_first, make_visit, opened
from .rows import ADJ, DP, DZ, GZ, PULL, PUSH, E, P, Q, U
from .slopes import adjoint, tangent
from .steps import results, steps


@made_once
def make_push_base(T: Any, team: Team, kind: Any) -> Kernel:
    """Add up the direction over the entries at z = 0."""
    slopes, place, visit = tangent(team, kind), make_place(np.float64, team), make_visit(team)

    def base(x, first, n, parts, length, vectors, records, work, v, bases):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if here.left > 0.0:
            led = slopes.base(here.entries, v, room)
            place.leave(bases, here.row, parts, here.part, led, 0.0, 0.0, 0.0, 0.0)

    return Kernel(base, (*given_first(T), pointer_to(T), NUMBERS), team.threads)


@made_once
def make_push_turn(T: Any, team: Team, kind: Any) -> Kernel:
    """Write the direction of z; dp = 0."""
    do, slopes = steps(team, kind), tangent(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def turn(
        x, first, n, parts, length, vectors, records, work,
        v, dtaus, dtau_all, dtau_per_row, bases,
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if here.left > 0.0:
            dtau = argument(dtaus, dtau_all, dtau_per_row, first + here.row)
            base, _, _, _ = place.gather(bases, here.row, parts, room)
            slopes.turn(here.entries, v, base, dtau, here.at + DZ * n)
            do.clear(here.entries, here.at + DP * n)

    return Kernel(turn, (*given_first(T), pointer_to(T), *PER_ROW, NUMBERS), team.threads)


@made_once
def make_push_look(T: Any, team: Team, kind: Any) -> Kernel:
    """Move p and dp over the step before, then look at what this one needs."""
    do, slopes = steps(team, kind), tangent(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def look(x, first, n, parts, length, vectors, records, work, step, totals, moves, looks):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        entries, at, p, dp = here.entries, here.at, here.at + P * n, here.at + DP * n
        if 0 < step <= here.left:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            gone, _, _, _ = place.gather(moves, here.row, parts, room)
            slopes.carry(entries, p, at + U * n, dp, at + Q * n, total, gone)
        if step < here.left:
            others, top = do.own.look(step, entries, p, room)
            led = moved = 0.0
            if do.own.settled(step, entries):
                led, moved = slopes.lean(entries, dp, room)
            place.leave(looks, here.row, parts, here.part, others, led, moved, 0.0, top)

    arguments = (*given_first(T), int64, NUMBERS, NUMBERS, NUMBERS)
    return Kernel(look, arguments, team.threads)


@made_once
def make_push_swing(T: Any, team: Team, kind: Any) -> Kernel:
    """Write how far each entry would go by itself in a step, and leave the sums of that."""
    do, slopes = steps(team, kind), tangent(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def swing(x, first, n, parts, length, vectors, records, work, step, looks, totals, moves):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        entries, at = here.entries, here.at
        if step < here.left:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            led = moved = 0.0
            if do.own.settled(step, entries):
                _, led, moved, _ = place.gather(looks, here.row, parts, room)
            p, u, e, dz = at + P * n, at + U * n, at + E * n, at + DZ * n
            dp, q = at + DP * n, at + Q * n
            gone = slopes.swing(step, entries, p, e, u, dz, dp, q, total, led, moved, room)
            place.leave(moves, here.row, parts, here.part, gone, 0.0, 0.0, 0.0, 0.0)

    arguments = (*given_first(T), int64, NUMBERS, NUMBERS, NUMBERS)
    return Kernel(swing, arguments, team.threads)


@made_once
def make_push_fill(T: Any, team: Team, kind: Any) -> Kernel:
    """Move dp over the last step, and write it to `out`."""
    slopes, place, visit = tangent(team, kind), make_place(np.float64, team), make_visit(team)
    result = results(T, team)

    def fill(x, first, n, parts, length, vectors, records, work, step, totals, moves, out):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        entries, at, dp = here.entries, here.at, here.at + DP * n
        if 0 < step <= here.left:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            gone, _, _, _ = place.gather(moves, here.row, parts, room)
            slopes.carry(entries, at + P * n, at + U * n, dp, at + Q * n, total, gone)
        result.slope(x, entries.start, entries.n, here.code, work, dp, out)

    arguments = (*given_first(T), int64, NUMBERS, NUMBERS, pointer_to(T))
    return Kernel(fill, arguments, team.threads)


@made_once
def make_pull_receive(T: Any, team: Team, kind: Any) -> Kernel:
    """Begin with the gradient in p."""
    slopes, visit = adjoint(team, kind), make_visit(team)

    def receive(x, first, n, parts, length, vectors, records, work, g):
        here = visit(x, first, n, parts, length, vectors, records, work)
        if here.left > 0.0:
            slopes.receive(here.entries, g, here.at + GZ * n, here.at + ADJ * n)

    return Kernel(receive, (*given_first(T), pointer_to(T)), team.threads)


@made_once
def make_pull_centre(T: Any, team: Team, kind: Any) -> Kernel:
    """Write u of a step again, and leave sums of its shares times the gradient in p."""
    weigh, slopes = shares_of(team, kind), adjoint(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def centre(x, first, n, parts, length, vectors, records, work, step, p, looks, totals, centres):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if step < here.left:
            weigh(step, here, p, looks, room)
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            mean = slopes.centre(here.entries, here.at + U * n, here.at + ADJ * n, total, room)
            place.leave(centres, here.row, parts, here.part, mean, 0.0, 0.0, 0.0, 0.0)

    arguments = (*given_first(T), int64, int64, NUMBERS, NUMBERS, NUMBERS)
    return Kernel(centre, arguments, team.threads)


@made_once
def make_pull_led(T: Any, team: Team, kind: Any) -> Kernel:
    """Leave sums of the gradient in q over settled leaders."""
    do, slopes = steps(team, kind), adjoint(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def led(x, first, n, parts, length, vectors, records, work, step, centres, leds):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if step < here.left and do.own.settled(step, here.entries):
            centre, _, _, _ = place.gather(centres, here.row, parts, room)
            gone = slopes.led(here.entries, here.at + ADJ * n, centre, room)
            place.leave(leds, here.row, parts, here.part, gone, 0.0, 0.0, 0.0, 0.0)

    return Kernel(led, (*given_first(T), int64, NUMBERS, NUMBERS), team.threads)


@made_once
def make_pull_back(T: Any, team: Team, kind: Any) -> Kernel:
    """Move the gradients back over a step."""
    do, slopes = steps(team, kind), adjoint(team, kind)
    place, visit = make_place(np.float64, team), make_visit(team)

    def back(
        x, first, n, parts, length, vectors, records, work, step, p, totals, centres, leds
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        entries, at = here.entries, here.at
        if step < here.left:
            total, _, _, _ = place.gather(totals, here.row, parts, room)
            centre, _, _, _ = place.gather(centres, here.row, parts, room)
            led = 0.0
            if do.own.settled(step, entries):
                led, _, _, _ = place.gather(leds, here.row, parts, room)
            before, u, e, gz, adj = at + p * n, at + U * n, at + E * n, at + GZ * n, at + ADJ * n
            slopes.back(step, entries, before, e, u, gz, adj, total, centre, led)

    arguments = (*given_first(T), int64, int64, NUMBERS, NUMBERS, NUMBERS)
    return Kernel(back, arguments, team.threads)


@made_once
def make_pull_gather(T: Any, team: Team, kind: Any) -> Kernel:
    """Leave sums of the gradient in z."""
    slopes, place, visit = adjoint(team, kind), make_place(np.float64, team), make_visit(team)

    def gather(x, first, n, parts, length, vectors, records, work, sums):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        if here.left > 0.0:
            total, turned = slopes.gather(here.entries, here.at + GZ * n, room)
            place.leave(sums, here.row, parts, here.part, total, turned, 0.0, 0.0, 0.0)

    return Kernel(gather, (*given_first(T), NUMBERS), team.threads)


@made_once
def make_pull_fill(T: Any, team: Team, kind: Any) -> Kernel:
    """Write the gradients in the entries and in the temperature."""
    t, slopes, result = tools(np.float64, team), adjoint(team, kind), results(T, team)
    place, visit = make_place(np.float64, team), make_visit(team)

    def fill(x, first, n, parts, length, vectors, records, work, sums, gx, gtau):
        room = cuda.shared.array(ROOM, float64)
        here = visit(x, first, n, parts, length, vectors, records, work)
        entries, gz = here.entries, here.at + GZ * n
        in_tau = np.nan if here.code == UNDEFINED else 0.0
        if here.left > 0.0:
            total, turned, _, _ = place.gather(sums, here.row, parts, room)
            slopes.unturn(entries, gz, total)
            in_tau = -turned * entries.rate
        result.slope(x, entries.start, entries.n, here.code, work, gz, gx)
        if here.part == 0 and t.rank() == 0:
            gtau[first + here.row] = in_tau

    return Kernel(fill, (*given_first(T), NUMBERS, pointer_to(T), NUMBERS), team.threads)


def push(rows: Rows, kind: Any, dx: Buffer, dtau: Argument, dp: Buffer, memory: int) -> None:
    """Write the derivative along a direction; `memory` as for `cuda.long.value`."""
    for batch in opened(rows, kind, PUSH, P, memory):
        bases, looks, totals, moves = (batch.sums() for _ in range(4))
        batch.launch(make_push_base, dx, bases)
        batch.launch(make_push_turn, dx, dtau, bases)
        for step in range(batch.steps):
            batch.launch(make_push_look, step, totals, moves, looks)
            batch.launch(make_weigh, step, P, looks, totals)
            batch.launch(make_push_swing, step, looks, totals, moves)
        batch.launch(make_push_fill, batch.steps, totals, moves, dp)


def pull(rows: Rows, kind: Any, g: Buffer, gx: Buffer, gtau: Buffer, memory: int) -> None:
    """Write the gradients; `memory` as for `cuda.long.value`.

    Steps go in segments. p before the first step of each stays in a vector of its own, p before the
    others is kept for one segment at a time.
    """
    count = int(rows.k.value)
    stride = max(1, math.ceil(math.sqrt(count)))
    last = (count - 1) // stride * stride  # where the last segment begins

    def kept(step: int) -> int:
        segment, i = divmod(step, stride)
        return PULL + (stride - 1 + i if i else segment)

    def at_first(step: int) -> int:
        return kept(step) if step >= last or step % stride == 0 else P

    for batch in opened(rows, kind, PULL + 2 * stride - 1, PULL, memory):
        looks, totals = ([batch.sums() for _ in range(stride)] for _ in range(2))
        centres, leds = batch.sums(), batch.sums()
        batch.launch(make_pull_receive, g)
        run(batch, 0, count, at_first, looks, totals)
        for first in range(last, -1, -stride):
            if first < last:
                run(batch, first, first + stride, kept, looks, totals)
            for step in reversed(range(first, min(count, first + stride))):
                i, p = step - first, kept(step)
                batch.launch(make_pull_centre, step, p, looks[i], totals[i], centres)
                if isinstance(kind, Weighted):
                    batch.launch(make_pull_led, step, centres, leds)
                batch.launch(make_pull_back, step, p, totals[i], centres, leds)
        batch.launch(make_pull_gather, centres)
        batch.launch(make_pull_fill, centres, gx, gtau)
