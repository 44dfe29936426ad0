"""The iterations on a device: value, tangent and pullback, a row at a time for each team.

There are no more teams than memory has room for, and each goes from row to row. `work` holds the
vectors of all teams, each team's one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import MANY, Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._nonfinite import UNDEFINED
from .slopes import adjoint, tangent
from .steps import iterated, results, steps, whole

P, U, E = 0, 1, 2  # vectors: p, the shares before they are divided, the construction's own
DZ, DP, Q = 3, 4, 5
GZ, ADJ = 3, 4
VALUE, PUSH, PULL = 3, 6, 5  # how many; to a pullback add twice its stride

_NUMBERS = pointer_to(np.float64)
_PER_ROW = (_NUMBERS, float64, int32)


@made_once
def row_value(T: Any, team: Team, kind: Any) -> Any:
    """What writes p of one row: f(x, start, n, k, tau, work, base, room, out).

    `work` has room for VALUE vectors from `base` on.
    """
    do, row_of, result = steps(team, kind), whole(team, kind), results(T, team)

    @device
    def fill(x, start, n, k, tau, work, base, room, out):
        p, u, e = base + P * n, base + U * n, base + E * n
        code, left, top, low, high = row_of.survey(x, start, n, k, tau, room)
        if iterated(code):
            row = row_of.open(x, start, n, low, high, tau, work, e, room)
            do.clear(row, p)
            row_of.iterate(0, left, row, p, e, u, room)
        result.value(x, start, n, code, top, work, p, out)

    return fill


@made_once
def make_solve(T: Any, team: Team, kind: Any) -> Kernel:
    """The value: p to `out`."""
    t, fill, rows_of_block = tools(np.float64, team), row_value(T, team, kind), team.rows

    def solve(x, rows, n, teams, ks, k_all, k_per_row, taus, tau_all, tau_per_row, work, out):
        room = cuda.shared.array(ROOM, float64)
        first = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        for line in range(first, rows, teams):
            k = argument(ks, k_all, k_per_row, line)
            tau = argument(taus, tau_all, tau_per_row, line)
            fill(x, line * n, n, k, tau, work, first * VALUE * n, room, out)

    real = pointer_to(T)
    arguments = (real, int64, int64, int64, *_PER_ROW, *_PER_ROW, _NUMBERS, real)
    return Kernel(solve, arguments, team.threads)


@made_once
def make_push(T: Any, team: Team, kind: Any) -> Kernel:
    """The tangent: dp along (v, dtau) to `out`."""
    t, do, row_of = tools(np.float64, team), steps(team, kind), whole(team, kind)
    slopes, result, rows_of_block = tangent(team, kind), results(T, team), team.rows

    @device
    def move(step, row, p, e, u, dz, dp, q, room):
        total = row_of.weigh(step, row, p, e, u, room)
        led = others = 0.0
        if do.own.settled(step, row):
            led, others = slopes.lean(row, dp, room)
        gone = slopes.swing(step, row, p, e, u, dz, dp, q, total, led, others, room)
        slopes.carry(row, p, u, dp, q, total, gone)

    @device
    def fill(x, start, n, k, tau, v, dtau, work, base, room, out):
        p, u, e = base + P * n, base + U * n, base + E * n
        dz, dp, q = base + DZ * n, base + DP * n, base + Q * n
        code, left, _, low, high = row_of.survey(x, start, n, k, tau, room)
        if iterated(code):
            row = row_of.open(x, start, n, low, high, tau, work, e, room)
            slopes.turn(row, v, slopes.base(row, v, room), dtau, dz)
            do.clear(row, p)
            do.clear(row, dp)
            for step in range(left):
                move(step, row, p, e, u, dz, dp, q, room)
        result.slope(x, start, n, code, work, dp, out)

    def push(
        x, rows, n, teams, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        v, dtaus, dtau_all, dtau_per_row, work, out,
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        first = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        for line in range(first, rows, teams):
            k = argument(ks, k_all, k_per_row, line)
            tau = argument(taus, tau_all, tau_per_row, line)
            dtau = argument(dtaus, dtau_all, dtau_per_row, line)
            fill(x, line * n, n, k, tau, v, dtau, work, first * PUSH * n, room, out)

    real = pointer_to(T)
    problem = (real, int64, int64, int64, *_PER_ROW, *_PER_ROW)
    return Kernel(push, (*problem, real, *_PER_ROW, _NUMBERS, real), team.threads, MANY)


@made_once
def make_pull(T: Any, team: Team, kind: Any) -> Kernel:
    """The gradients of <g, p>: those in x to `gx`.

    Proposition prop-iter-checkpoint, as on the CPU; the shares of a step are worked out once more
    instead of being kept, so that a row needs two vectors for each step of a segment.
    """
    t, do, row_of = tools(np.float64, team), steps(team, kind), whole(team, kind)
    slopes, result = adjoint(team, kind), results(T, team)
    rows_of_block, lanes = team.rows, team.lanes

    @device
    def back(step, row, p, e, u, gz, adj, room):
        total = row_of.weigh(step, row, p, e, u, room)
        centre, led = slopes.centre(row, u, adj, total, room), 0.0
        if do.own.settled(step, row):
            led = slopes.led(row, adj, centre, room)
        slopes.back(step, row, p, e, u, gz, adj, total, centre, led)

    @device
    def copy(work, source, target, n):
        for i in range(t.rank(), n, lanes):
            work[target + i] = work[source + i]

    @device
    def reverse(row, steps_in_all, p, e, u, gz, adj, marks, kept, room):
        n, work = row.n, row.work
        m = int64(math.ceil(math.sqrt(float64(steps_in_all))))
        segments = (steps_in_all + m - 1) // m
        for j in range(segments):
            copy(work, p, marks + j * n, n)
            if j < segments - 1:
                row_of.iterate(j * m, (j + 1) * m, row, p, e, u, room)
        for back_to in range(segments):
            j = segments - 1 - back_to
            first, last = j * m, min(steps_in_all, (j + 1) * m)
            copy(work, marks + j * n, kept, n)
            for step in range(first, last - 1):
                now = kept + (step - first) * n
                copy(work, now, now + n, n)
                row_of.iterate(step, step + 1, row, now + n, e, u, room)
            for ago in range(last - first):
                step = last - 1 - ago
                back(step, row, kept + (step - first) * n, e, u, gz, adj, room)

    @device
    def fill(x, start, n, k, tau, g, work, base, stride, room, gx):
        p, u, e = base + P * n, base + U * n, base + E * n
        gz, adj, marks = base + GZ * n, base + ADJ * n, base + PULL * n
        code, left, _, low, high = row_of.survey(x, start, n, k, tau, room)
        gtau = np.nan if code == UNDEFINED else 0.0
        if iterated(code):
            row = row_of.open(x, start, n, low, high, tau, work, e, room)
            do.clear(row, p)
            slopes.receive(row, g, gz, adj)
            reverse(row, left, p, e, u, gz, adj, marks, marks + stride * n, room)
            total, turned = slopes.gather(row, gz, room)
            slopes.unturn(row, gz, total)
            gtau = -turned * row.rate
        result.slope(x, start, n, code, work, gz, gx)
        return gtau

    def pull(
        x, rows, n, teams, ks, k_all, k_per_row, taus, tau_all, tau_per_row,
        g, stride, work, gx, gtau,
    ):  # fmt: skip
        room = cuda.shared.array(ROOM, float64)
        first = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        base = first * (PULL + 2 * stride) * n
        for line in range(first, rows, teams):
            k = argument(ks, k_all, k_per_row, line)
            tau = argument(taus, tau_all, tau_per_row, line)
            turned = fill(x, line * n, n, k, tau, g, work, base, stride, room, gx)
            if t.rank() == 0:
                gtau[line] = turned

    real = pointer_to(T)
    problem = (real, int64, int64, int64, *_PER_ROW, *_PER_ROW)
    return Kernel(pull, (*problem, real, int64, _NUMBERS, real, _NUMBERS), team.threads, MANY)
