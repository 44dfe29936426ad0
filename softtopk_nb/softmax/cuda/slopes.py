"""Derivatives of softmax, its logarithm and logsumexp on a device, from the rows' records."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._math.elementary import exp_neg
from ..formulas import z_of
from ..records import EXCESS, RECORD, TOP
from .rows import passes


class Slopes(NamedTuple):
    """The two passes of a derivative, over a row or a part of one."""

    #: add(x, v, start, n, wide, m, inv, scale, ..., regs, more, room): the sum over the team of
    #: what the row's mean is made of
    add: Any
    #: write(x, v, start, n, wide, m, inv, scale, ..., mean, regs, more, ..., out): the derivative
    write: Any


@made_once
def frame(T: Any) -> Any:
    """What the derivatives need of a record: the largest entry, sum exp z - 1, 1/sum exp z."""

    @device
    def read(record, row):
        excess = record[row * RECORD + EXCESS]
        return T(record[row * RECORD + TOP]), excess, T(1.0 / (1.0 + excess))

    return read


@made_once
def push_passes(T: Any, team: Team, f: str) -> Slopes:
    """The passes of the derivative along a direction, for softmax or its logarithm."""
    t, do = tools(T, team), passes(T, team, f)
    held, logs = team.held, f == "log_softmax"
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def turn(regs, moves, m, inv, scale, dtau):
        """Entries to their weights (0 if nothing moves them), directions to d; returns <p, d>."""
        s = zero
        for j in range(held):
            z = z_of(regs[j], m, inv)
            p = exp_neg(z) * scale
            still = (z == -infinity or m == infinity) and p == p
            d = zero if still else moves[j] - z * dtau
            s += p if p == zero else p * d
            regs[j] = zero if still else one if logs else p
            moves[j] = d
        return s

    @device
    def add(x, dx, start, n, wide, m, inv, scale, dtau, regs, moves, room):
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(dx, start, n, wide, piece, zero, moves)
            s = turn(regs, moves, m, inv, scale, dtau)
            if team.streams:
                ts += s
        return do.whole(s, ts, room)

    @device
    def write(x, dx, start, n, wide, m, inv, scale, dtau, mean, regs, moves, dp):
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
                t.load(dx, start, n, wide, piece, zero, moves)
                turn(regs, moves, m, inv, scale, dtau)
            for j in range(held):
                # thm-lse-gradient: the Jacobian is (Diag(p) - p p^T)/tau, applied to dx - z dtau.
                w = regs[j]
                regs[j] = w if w == zero else w * (moves[j] - mean) * inv
            t.store(regs, start, n, wide, piece, dp)

    return Slopes(add, write)


@made_once
def pull_passes(T: Any, team: Team, f: str) -> Slopes:
    """The passes of the gradients, for softmax or its logarithm; `write` returns <gx, z>."""
    t, do = tools(T, team), passes(T, team, f)
    held, logs = team.held, f == "log_softmax"
    zero, infinity = T(0), T(np.inf)

    @device
    def turn(regs, pulls, m, inv, scale):
        """Entries to z; returns <p, g>, or for the logarithm the sum of g over what moves."""
        s = zero
        for j in range(held):
            z = z_of(regs[j], m, inv)
            regs[j] = z
            p = exp_neg(z) * scale
            if logs:
                s += zero if (z == -infinity or m == infinity) and p == p else pulls[j]
            else:
                s += p if p == zero else p * pulls[j]
        return s

    @device
    def finish(regs, pulls, m, inv, scale, mean):
        """z and g to the gradient in x; returns its product with z."""
        s = zero
        for j in range(held):
            z, g = regs[j], pulls[j]
            p = exp_neg(z) * scale
            still = (z == -infinity or m == infinity) and p == p
            moved = (g - p * mean if logs else p * (g - mean)) * inv
            moved = zero if still else moved
            s += moved if moved == zero else moved * z
            regs[j] = moved
        return s

    @device
    def add(x, g, start, n, wide, m, inv, scale, regs, pulls, room):
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(g, start, n, wide, piece, zero, pulls)
            s = turn(regs, pulls, m, inv, scale)
            if team.streams:
                ts += s
        return do.whole(s, ts, room)

    @device
    def write(x, g, start, n, wide, m, inv, scale, mean, regs, pulls, room, gx):
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
                t.load(g, start, n, wide, piece, zero, pulls)
                turn(regs, pulls, m, inv, scale)
            s = finish(regs, pulls, m, inv, scale, mean)
            t.store(regs, start, n, wide, piece, gx)
            if team.streams:
                ts += s
        return do.whole(s, ts, room)

    return Slopes(add, write)


class SumSlopes(NamedTuple):
    """What the derivatives of logsumexp are made of, over a row or a part of one.

    The gradient in x is softmax, in the temperature its entropy log S - <p, z>; both are 0 in rows
    without a finite maximum.
    """

    #: add(x, dx, start, n, wide, m, inv, scale, regs, moves, room): <p, dx> and <p, z>
    add: Any
    #: write(x, start, n, wide, m, inv, scale, cotangent, regs, room, gx): writes the gradient in x,
    #: returns <p, z>
    write: Any
    #: entropy(m, excess, mean_z): the gradient in the temperature
    entropy: Any
    #: along(m, excess, moved, mean_z, dtau): the derivative along (dx, dtau)
    along: Any


@made_once
def sum_passes(T: Any, team: Team) -> SumSlopes:
    """The passes of logsumexp's derivatives."""
    t, do = tools(T, team), passes(T, team, "logsumexp")
    held = team.held
    zero, infinity = T(0), T(np.inf)

    @device
    def add(x, dx, start, n, wide, m, inv, scale, regs, moves, room):
        tv, tz, sv, sz = 0.0, 0.0, zero, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(dx, start, n, wide, piece, zero, moves)
            for j in range(held):
                z = z_of(regs[j], m, inv)
                p = exp_neg(z) * scale
                sv += p if p == zero else p * moves[j]
                sz += p if p == zero else p * z
            if team.streams:
                tv += sv
                tz += sz
                sv, sz = zero, zero
        return do.both(sv, sz, tv, tz, room)

    @device
    def write(x, start, n, wide, m, inv, scale, cotangent, regs, room, gx):
        constant, ts, s = abs(m) == infinity, 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                z = z_of(regs[j], m, inv)
                p = exp_neg(z) * scale
                s += p if p == zero else p * z
                regs[j] = cotangent * (zero if constant else p)
            t.store(regs, start, n, wide, piece, gx)
            if team.streams:
                ts += s
                s = zero
        return do.whole(s, ts, room)

    @device
    def entropy(m, excess, mean_z):
        return 0.0 if abs(m) == infinity else math.log1p(excess) - mean_z

    @device
    def along(m, excess, moved, mean_z, dtau):
        still = abs(m) == infinity
        return 0.0 if still else moved + entropy(m, excess, mean_z) * dtau

    return SumSlopes(add, write, entropy, along)


_numbers = pointer_to(np.float64)
_per_row = (_numbers, float64, int32)


@made_once
def make_push(T: Any, team: Team, f: str) -> Kernel:
    """The derivative of softmax or of its logarithm along a direction, from the rows' records."""
    t, do, slopes = tools(T, team), passes(T, team, f), push_passes(T, team, f)
    rows_of_block, held, read = team.rows, team.held, frame(T)

    def kernel(
        x, rows, n, wide, taus, tau_all, tau_per_row, record, dx, dtaus, dtau_all, dtau_per_row, dp
    ):
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        dtau = T(argument(dtaus, dtau_all, dtau_per_row, row))
        m, _, scale = read(record, row)
        mean = T(slopes.add(x, dx, start, n, wide, m, inv, scale, dtau, regs, moves, room))
        slopes.write(x, dx, start, n, wide, m, inv, scale, dtau, mean, regs, moves, dp)

    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *_per_row, _numbers, real, *_per_row, real)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_pull(T: Any, team: Team, f: str) -> Kernel:
    """The gradients of softmax or of its logarithm, from the rows' records."""
    t, do, slopes = tools(T, team), passes(T, team, f), pull_passes(T, team, f)
    rows_of_block, held, read = team.rows, team.held, frame(T)

    def kernel(x, rows, n, wide, taus, tau_all, tau_per_row, record, g, gx, gtau):
        regs = cuda.local.array(held, T)
        pulls = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, _, scale = read(record, row)
        mean = T(slopes.add(x, g, start, n, wide, m, inv, scale, regs, pulls, room))
        in_tau = slopes.write(x, g, start, n, wide, m, inv, scale, mean, regs, pulls, room, gx)
        if t.rank() == 0:
            gtau[row] = -in_tau

    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *_per_row, _numbers, real, real, _numbers)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_push_sum(T: Any, team: Team) -> Kernel:
    """The derivative of logsumexp along a direction, from the rows' records."""
    t, do, slopes = tools(T, team), passes(T, team, "logsumexp"), sum_passes(T, team)
    rows_of_block, held, read = team.rows, team.held, frame(T)

    def kernel(
        x, rows, n, wide, taus, tau_all, tau_per_row, record, dx, dtaus, dtau_all, dtau_per_row, out
    ):
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, excess, scale = read(record, row)
        moved, mean_z = slopes.add(x, dx, row * n, n, wide, m, inv, scale, regs, moves, room)
        if t.rank() == 0:
            dtau = argument(dtaus, dtau_all, dtau_per_row, row)
            out[row] = slopes.along(m, excess, moved, mean_z, dtau)

    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *_per_row, _numbers, real, *_per_row, _numbers)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_pull_sum(T: Any, team: Team) -> Kernel:
    """The gradients of logsumexp, from the rows' records."""
    t, do, slopes = tools(T, team), passes(T, team, "logsumexp"), sum_passes(T, team)
    rows_of_block, held, read = team.rows, team.held, frame(T)

    def kernel(
        x, rows, n, wide, taus, tau_all, tau_per_row, record, gs, g_all, g_per_row, gx, gtau
    ):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, excess, scale = read(record, row)
        cotangent = argument(gs, g_all, g_per_row, row)
        mean_z = slopes.write(x, row * n, n, wide, m, inv, scale, T(cotangent), regs, room, gx)
        if t.rank() == 0:
            gtau[row] = cotangent * slopes.entropy(m, excess, mean_z)

    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *_per_row, _numbers, *_per_row, real, _numbers)
    return Kernel(kernel, arguments, team.threads)
