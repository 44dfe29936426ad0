"""The iterations on a device: value, tangent and pullback, a row at a time for each team.

There are no more teams than memory has room for, and each goes from row to row. `work` holds the
vectors of all teams, each team's one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float64, int32, int64

from .._cuda import cuda, device
from .._launch import MANY, Kernel, pointer_to
from .._rows import UNDEFINED
from .._team import ROOM, Team, argument, made_once, tools
from . import entry
from .cuda_steps import iterated, steps

__all__ = ["PULL", "PUSH", "VALUE", "make_pull", "make_push", "make_solve", "row_value"]

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
    t, do, lanes = tools(np.float64, team), steps(team, kind), team.lanes

    @device
    def fill(x, start, n, k, tau, work, base, room, out):
        p, u, e = base + P * n, base + U * n, base + E * n
        code, left, top, low, high = do.survey(x, start, n, k, tau, room)
        if iterated(code):
            row = do.open(x, start, n, low, high, tau, work, e, room)
            for i in range(t.rank(), n, lanes):
                work[p + i] = 0.0
            do.iterate(0, left, row, p, e, u, room)
        undefined = code == UNDEFINED
        for i in range(t.rank(), n, lanes):
            v = x[start + i]
            if iterated(code) and abs(v) < np.inf:
                out[start + i] = T(work[p + i])
            else:
                out[start + i] = T(np.nan if undefined else top if v == np.inf else 0.0)

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
def _tangent(team: Team, kind: Any) -> tuple[Any, Any]:
    """(directions, move): dz of a row, and dp over one step (Theorem thm-iter-derivatives)."""
    t, do, lanes = tools(np.float64, team), steps(team, kind), team.lanes
    slide, swing, carry = device(entry.slide), device(entry.swing), device(entry.carry)

    @device
    def directions(row, v, dtau, dz, room):
        base = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i) and do.entry(row, i) == row.ref:
                base += float64(v[row.start + i])
        base = t.total(base, room) / row.count
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, moved = do.entry(row, i), float64(v[row.start + i])
                row.work[dz + i] = slide(a, moved, base, dtau, row.ref, row.inv, row.rate)

    @device
    def move(step, row, p, e, u, dz, dp, q, room):
        work = row.work
        total, settled = do.weigh(step, row, p, e, u, room)
        mean = others = kappa = 0.0
        if settled:
            kappa = 1.0 / (total * row.count)
            for i in range(t.rank(), row.n, lanes):
                if do.present(row, i):
                    at_zero = do.entry(row, i) == row.ref
                    mean += work[dp + i] if at_zero else 0.0
                    others += 0.0 if at_zero else work[dp + i]
            mean, others, _, _ = t.totals(mean, others, 0.0, 0.0, room)
            mean /= row.count
        gone = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.slope(row, a, work[p + i], work[e + i], s, total)
                at_zero = a == row.ref
                own = swing(alpha, beta, work[dz + i], work[dp + i], at_zero, mean, kappa, others)
                work[q + i] = own
                gone += own
        gone = t.total(gone, room)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                s = work[u + i] / total
                work[dp + i] = carry(work[dp + i], work[q + i], s, gone)
                work[p + i] += s

    return directions, move


@made_once
def make_push(T: Any, team: Team, kind: Any) -> Kernel:
    """The tangent: dp along (v, dtau) to `out`."""
    t, do = tools(np.float64, team), steps(team, kind)
    directions, move = _tangent(team, kind)
    rows_of_block, lanes = team.rows, team.lanes

    @device
    def fill(x, start, n, k, tau, v, dtau, work, base, room, out):
        p, u, e = base + P * n, base + U * n, base + E * n
        dz, dp, q = base + DZ * n, base + DP * n, base + Q * n
        code, left, _, low, high = do.survey(x, start, n, k, tau, room)
        if iterated(code):
            row = do.open(x, start, n, low, high, tau, work, e, room)
            directions(row, v, dtau, dz, room)
            for i in range(t.rank(), n, lanes):
                work[p + i] = 0.0
                work[dp + i] = 0.0
            for step in range(left):
                move(step, row, p, e, u, dz, dp, q, room)
        constant = np.nan if code == UNDEFINED else 0.0
        for i in range(t.rank(), n, lanes):
            solved = iterated(code) and abs(x[start + i]) < np.inf
            out[start + i] = T(work[dp + i] if solved else constant)

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
def _adjoint(team: Team, kind: Any) -> tuple[Any, Any]:
    """(back, gather): the gradient in p back over one step, and that in x of one in z."""
    t, do, lanes = tools(np.float64, team), steps(team, kind), team.lanes
    collect, move_back = device(entry.collect), device(entry.back)
    turn, unslide = device(entry.turn), device(entry.unslide)

    @device
    def back(step, row, p, e, u, gz, adj, room):
        work = row.work
        total, settled = do.weigh(step, row, p, e, u, room)
        centre = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                centre += work[u + i] / total * work[adj + i]
        centre = t.total(centre, room)
        led = mean = kappa = 0.0
        if settled:
            kappa = 1.0 / (total * row.count)
            for i in range(t.rank(), row.n, lanes):
                if do.present(row, i) and do.entry(row, i) == row.ref:
                    led += work[adj + i] - centre
            led = t.total(led, room)
            mean = led / row.count
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.slope(row, a, work[p + i], work[e + i], s, total)
                b = work[adj + i] - centre
                work[gz + i] = collect(work[gz + i], alpha, b)
                work[adj + i] = move_back(work[adj + i], beta, b, a == row.ref, mean, kappa, led)

    @device
    def gather(row, gz, room):
        """(what equal zeros of z share, the gradient in the temperature)."""
        total = turned = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                total += row.work[gz + i]
                turned += turn(do.entry(row, i), row.work[gz + i], row.ref, row.inv)
        total, turned, _, _ = t.totals(total, turned, 0.0, 0.0, room)
        base = total / row.count
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                at_zero = do.entry(row, i) == row.ref
                row.work[gz + i] = unslide(row.work[gz + i], at_zero, base, row.rate)
        return -turned * row.rate

    return back, gather


@made_once
def make_pull(T: Any, team: Team, kind: Any) -> Kernel:
    """The gradients of <g, p>: those in x to `gx`.

    Proposition prop-iter-checkpoint, as on the CPU; the shares of a step are worked out once more
    instead of being kept, so that a row needs two vectors for each step of a segment.
    """
    t, do = tools(np.float64, team), steps(team, kind)
    back, gather = _adjoint(team, kind)
    rows_of_block, lanes = team.rows, team.lanes

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
                do.iterate(j * m, (j + 1) * m, row, p, e, u, room)
        for back_to in range(segments):
            j = segments - 1 - back_to
            first, last = j * m, min(steps_in_all, (j + 1) * m)
            copy(work, marks + j * n, kept, n)
            for step in range(first, last - 1):
                now = kept + (step - first) * n
                copy(work, now, now + n, n)
                do.iterate(step, step + 1, row, now + n, e, u, room)
            for ago in range(last - first):
                step = last - 1 - ago
                back(step, row, kept + (step - first) * n, e, u, gz, adj, room)

    @device
    def fill(x, start, n, k, tau, g, work, base, stride, room, gx):
        p, u, e = base + P * n, base + U * n, base + E * n
        gz, adj, marks = base + GZ * n, base + ADJ * n, base + PULL * n
        code, left, _, low, high = do.survey(x, start, n, k, tau, room)
        constant = np.nan if code == UNDEFINED else 0.0
        gtau = constant
        if iterated(code):
            row = do.open(x, start, n, low, high, tau, work, e, room)
            for i in range(t.rank(), n, lanes):
                work[p + i] = 0.0
                work[gz + i] = 0.0
                work[adj + i] = float64(g[start + i])
            reverse(row, left, p, e, u, gz, adj, marks, marks + stride * n, room)
            gtau = gather(row, gz, room)
        for i in range(t.rank(), n, lanes):
            solved = iterated(code) and abs(x[start + i]) < np.inf
            gx[start + i] = T(work[gz + i] if solved else constant)
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
