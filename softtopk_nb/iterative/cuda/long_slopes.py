"""Derivatives of the iterations of long rows on a device, in parts as in `_cuda.long_rows`.

A launch ends where a sum over the row is needed: three of them update p and its derivative by a
step, two or three propagate a gradient back over one. The latter need p of each step in turn, for
which the steps are launched twice, from checkpoints on, as one group would (Proposition
prop-iter-checkpoint).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import int64

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.long_rows import make_place
from ..._cuda.row_kernels import ENTRIES, NUMBERS, PER_ROW, PartKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._nonfinite import UNDEFINED
from ..formulas import Weighted
from .long import MEMORY, known, opened, shares_of, stepping
from .slopes import adjoint, tangent
from .steps import DP, GZ, JVP, PULL, P, results, steps


class JvpPasses(NamedTuple):
    """The kernels of the derivative along a direction."""

    at_zero: PartKernel  # sums the direction over the entries at z = 0
    z: PartKernel  # writes the direction of z; dp = 0
    look: PartKernel  # updates p and dp by the step before, and computes sums that this one needs
    q: PartKernel  # writes q of each entry, and the sums of it
    fill: PartKernel  # updates dp by the last step, and writes it


@made_once
def jvp_passes(T: Any, group: ThreadGroup, kind: Any) -> JvpPasses:
    """The kernels of the derivative along a direction, for rows of type T."""
    do, slopes, result = steps(group, kind), tangent(group, kind), results(T, group)
    place = make_place(np.float64, group)

    @device
    def at_zero(here, s, batch, given):
        memory, v, bases = given
        row = known(here, batch, memory)
        if row.left > 0.0:
            led = slopes.at_zero(row.entries, v, s.shared)
            place.leave(bases, here, (led, 0.0, 0.0, 0.0, 0.0, 0.0))

    @device
    def z(here, s, batch, given):
        memory, v, dtaus, bases = given
        row = known(here, batch, memory)
        if row.left > 0.0:
            base, dtau = (
                place.gather(bases, here, s.shared)[0],
                of_row(dtaus, memory.first + here.row),
            )
            slopes.z(row.entries, v, base, dtau)
            do.clear(row.entries, DP)

    @device
    def move(step, here, row, totals, moves, shared):
        if 0 < step <= row.left:
            total = place.gather(totals, here, shared)[0]
            slopes.p(row.entries, total, place.gather(moves, here, shared)[0])

    @device
    def look(here, s, batch, given):
        memory, step, totals, moves, looks = given
        row = known(here, batch, memory)
        move(step, here, row, totals, moves, s.shared)
        if step < row.left:
            others, top = do.own.look(step, row.entries, P, s.shared)
            led = moved = 0.0
            if do.own.settled(step, row.entries):
                led, moved = slopes.sums(row.entries, s.shared)
            place.leave(looks, here, (others, led, moved, 0.0, 0.0, top))

    @device
    def q(here, s, batch, given):
        memory, step, looks, totals, moves = given
        row = known(here, batch, memory)
        if step < row.left:
            total, led, moved = place.gather(totals, here, s.shared)[0], 0.0, 0.0
            if do.own.settled(step, row.entries):
                _, led, moved, _ = place.gather(looks, here, s.shared)
            gone = slopes.q(step, row.entries, total, led, moved, s.shared)
            place.leave(moves, here, (gone, 0.0, 0.0, 0.0, 0.0, 0.0))

    @device
    def fill(here, s, batch, given):
        memory, step, totals, moves, out = given
        row = known(here, batch, memory)
        move(step, here, row, totals, moves, s.shared)
        result.slope(row.entries, row.code, DP, out)

    return JvpPasses(
        PartKernel(T, group, at_zero, (MEMORY, ENTRIES, NUMBERS)),
        PartKernel(T, group, z, (MEMORY, ENTRIES, PER_ROW, NUMBERS)),
        PartKernel(T, group, look, (MEMORY, int64, NUMBERS, NUMBERS, NUMBERS)),
        PartKernel(T, group, q, (MEMORY, int64, NUMBERS, NUMBERS, NUMBERS)),
        PartKernel(T, group, fill, (MEMORY, int64, NUMBERS, NUMBERS, ENTRIES)),
    )


class VjpPasses(NamedTuple):
    """The kernels of a VJP function."""

    receive: PartKernel  # starts with the gradient in p
    centre: PartKernel  # recomputes U of a step; writes sums of its shares times that gradient
    at_zero: PartKernel  # writes sums of the gradient in q over settled maxima
    p: PartKernel  # propagates the gradients back over a step
    sums: PartKernel  # writes sums of the gradient in z
    fill: PartKernel  # writes the gradients in the entries and in the temperature


@made_once
def vjp_passes(T: Any, group: ThreadGroup, kind: Any) -> VjpPasses:
    """The kernels of a VJP function, for rows of type T."""
    t, do, slopes = tools(np.float64, group), steps(group, kind), adjoint(group, kind)
    weigh, place, result = shares_of(group, kind), make_place(np.float64, group), results(T, group)

    @device
    def receive(here, s, batch, given):
        memory, g = given
        row = known(here, batch, memory)
        if row.left > 0.0:
            slopes.receive(row.entries, g)

    @device
    def centre(here, s, batch, given):
        memory, step, p, looks, totals, centres = given
        row = known(here, batch, memory)
        if step < row.left:
            weigh(step, here, row.entries, p, looks, s.shared)
            total = place.gather(totals, here, s.shared)[0]
            mean = slopes.centre(row.entries, total, s.shared)
            place.leave(centres, here, (mean, 0.0, 0.0, 0.0, 0.0, 0.0))

    @device
    def at_zero(here, s, batch, given):
        memory, step, centres, leds = given
        row = known(here, batch, memory)
        if step < row.left and do.own.settled(step, row.entries):
            mean = place.gather(centres, here, s.shared)[0]
            gone = slopes.at_zero(row.entries, mean, s.shared)
            place.leave(leds, here, (gone, 0.0, 0.0, 0.0, 0.0, 0.0))

    @device
    def p(here, s, batch, given):
        memory, step, before, totals, centres, leds = given
        row = known(here, batch, memory)
        if step < row.left:
            total = place.gather(totals, here, s.shared)[0]
            mean, led = place.gather(centres, here, s.shared)[0], 0.0
            if do.own.settled(step, row.entries):
                led = place.gather(leds, here, s.shared)[0]
            slopes.p(step, row.entries, before, total, mean, led)

    @device
    def sums(here, s, batch, given):
        memory, found = given
        row = known(here, batch, memory)
        if row.left > 0.0:
            total, turned = slopes.sums(row.entries, s.shared)
            place.leave(found, here, (total, turned, 0.0, 0.0, 0.0, 0.0))

    @device
    def fill(here, s, batch, given):
        memory, found, gx, gtau = given
        row = known(here, batch, memory)
        in_tau = np.nan if row.code == UNDEFINED else 0.0
        if row.left > 0.0:
            total, turned, _, _ = place.gather(found, here, s.shared)
            slopes.x(row.entries, total)
            in_tau = -turned * row.entries.rate
        result.slope(row.entries, row.code, GZ, gx)
        if here.part == 0 and t.rank() == 0:
            gtau[memory.first + here.row] = in_tau

    return VjpPasses(
        PartKernel(T, group, receive, (MEMORY, ENTRIES)),
        PartKernel(T, group, centre, (MEMORY, int64, int64, NUMBERS, NUMBERS, NUMBERS)),
        PartKernel(T, group, at_zero, (MEMORY, int64, NUMBERS, NUMBERS)),
        PartKernel(T, group, p, (MEMORY, int64, int64, NUMBERS, NUMBERS, NUMBERS)),
        PartKernel(T, group, sums, (MEMORY, NUMBERS)),
        PartKernel(T, group, fill, (MEMORY, NUMBERS, ENTRIES, NUMBERS)),
    )


def jvp(rows: Rows, kind: Any, dx: Buffer, dtau: Argument, dp: Buffer, memory: int) -> None:
    """Write the derivative along a direction; `memory` as in `cuda.long.value`."""
    for batch in opened(rows, kind, JVP, P, memory):
        do, weigh = batch.made(jvp_passes), batch.made(stepping).weigh
        bases, looks, totals, moves = (batch.sums() for _ in range(4))
        batch.launch(do.at_zero, dx, bases)
        batch.launch(do.z, dx, dtau, bases)
        for step in range(batch.steps):
            batch.launch(do.look, step, totals, moves, looks)
            batch.launch(weigh, step, P, looks, totals)
            batch.launch(do.q, step, looks, totals, moves)
        batch.launch(do.fill, batch.steps, totals, moves, dp)


def vjp(rows: Rows, kind: Any, g: Buffer, gx: Buffer, gtau: Buffer, memory: int) -> None:
    """Write the gradients; `memory` as in `cuda.long.value`.

    Steps are grouped in segments. p before the first step of each segment has a vector of its own,
    p before the other steps is stored for one segment at a time.
    """
    count = int(rows.k.value)
    stride = max(1, math.ceil(math.sqrt(count)))
    last = (count - 1) // stride * stride  # first step of the last segment

    def kept(step: int) -> int:
        segment, i = divmod(step, stride)
        return PULL + (stride - 1 + i if i else segment)

    def at_first(step: int) -> int:
        return kept(step) if step >= last or step % stride == 0 else P

    for batch in opened(rows, kind, PULL + 2 * stride - 1, PULL, memory):
        do = batch.made(vjp_passes)
        looks, totals = ([batch.sums() for _ in range(stride)] for _ in range(2))
        centres, leds = batch.sums(), batch.sums()
        batch.launch(do.receive, g)
        batch.run(0, count, at_first, looks, totals)
        for first in range(last, -1, -stride):
            if first < last:
                batch.run(first, first + stride, kept, looks, totals)
            for step in reversed(range(first, min(count, first + stride))):
                i, p = step - first, kept(step)
                batch.launch(do.centre, step, p, looks[i], totals[i], centres)
                if isinstance(kind, Weighted):
                    batch.launch(do.at_zero, step, centres, leds)
                batch.launch(do.p, step, p, totals[i], centres, leds)
        batch.launch(do.sums, centres)
        batch.launch(do.fill, centres, gx, gtau)
