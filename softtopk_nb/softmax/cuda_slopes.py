"""Derivatives of softmax, its logarithm and logsumexp on a device, from the rows' records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float64, int32, int64

from .._cuda import cuda, device
from .._launch import Kernel, pointer_to
from .._scalars import exp_neg
from .._team import ROOM, Team, argument, made_once, tools
from .cuda_rows import EXCESS, RECORD, TOP, passes

__all__ = ["make_pull", "make_pull_sum", "make_push", "make_push_sum"]


@made_once
def make_push(T: Any, team: Team, f: str) -> Kernel:
    """The derivative of softmax or of its logarithm along a direction, from the rows' records."""
    t, do = tools(T, team), passes(T, team, f)
    rows_of_block, held, logs = team.rows, team.held, f == "log_softmax"
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def turn(regs, moves, m, inv, scale, dtau):
        """Entries to their weights (0 if nothing moves them), directions to d; returns <p, d>."""
        s = zero
        for j in range(held):
            z = do.place(regs[j], m, inv)
            p = exp_neg(z) * scale
            still = (z == -infinity or m == infinity) and p == p
            d = zero if still else moves[j] - z * dtau
            s += p if p == zero else p * d
            regs[j] = zero if still else one if logs else p
            moves[j] = d
        return s

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
        m, scale = T(record[row * RECORD + TOP]), T(1.0 / (1.0 + record[row * RECORD + EXCESS]))
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(dx, start, n, wide, piece, zero, moves)
            s = turn(regs, moves, m, inv, scale, dtau)
            if team.streams:
                ts += s
        mean = T(do.whole(s, ts, room))
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

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, numbers, real, *per_row, real)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_pull(T: Any, team: Team, f: str) -> Kernel:
    """The gradients of softmax or of its logarithm, from the rows' records."""
    t, do = tools(T, team), passes(T, team, f)
    rows_of_block, held, logs = team.rows, team.held, f == "log_softmax"
    zero, infinity = T(0), T(np.inf)

    @device
    def turn(regs, pulls, m, inv, scale):
        """Entries to z; returns <p, g>, or for the logarithm the sum of g over what moves."""
        s = zero
        for j in range(held):
            z = do.place(regs[j], m, inv)
            regs[j] = z
            p = exp_neg(z) * scale
            if logs:
                s += zero if (z == -infinity or m == infinity) and p == p else pulls[j]
            else:
                s += p if p == zero else p * pulls[j]
        return s

    @device
    def finish(regs, pulls, m, inv, scale, c):
        """z and g to the gradient in x; returns its product with z."""
        s = zero
        for j in range(held):
            z, g = regs[j], pulls[j]
            p = exp_neg(z) * scale
            still = (z == -infinity or m == infinity) and p == p
            moved = (g - p * c if logs else p * (g - c)) * inv
            moved = zero if still else moved
            s += moved if moved == zero else moved * z
            regs[j] = moved
        return s

    def kernel(x, rows, n, wide, taus, tau_all, tau_per_row, record, g, gx, gtau):
        regs = cuda.local.array(held, T)
        pulls = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, scale = T(record[row * RECORD + TOP]), T(1.0 / (1.0 + record[row * RECORD + EXCESS]))
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(g, start, n, wide, piece, zero, pulls)
            s = turn(regs, pulls, m, inv, scale)
            if team.streams:
                ts += s
        c = T(do.whole(s, ts, room))
        ts = 0.0
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
                t.load(g, start, n, wide, piece, zero, pulls)
                turn(regs, pulls, m, inv, scale)
            s = finish(regs, pulls, m, inv, scale, c)
            t.store(regs, start, n, wide, piece, gx)
            if team.streams:
                ts += s
        in_tau = do.whole(s, ts, room)
        if t.rank() == 0:
            gtau[row] = -in_tau

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, numbers, real, real, numbers)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_push_sum(T: Any, team: Team) -> Kernel:
    """The derivative of logsumexp along a direction, from the rows' records."""
    t, do = tools(T, team), passes(T, team, "logsumexp")
    rows_of_block, held = team.rows, team.held
    zero, infinity = T(0), T(np.inf)

    def kernel(
        x, rows, n, wide, taus, tau_all, tau_per_row, record, dx, dtaus, dtau_all, dtau_per_row, out
    ):
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, excess = T(record[row * RECORD + TOP]), record[row * RECORD + EXCESS]
        scale = T(1.0 / (1.0 + excess))
        tv, tz, sv, sz = 0.0, 0.0, zero, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(dx, start, n, wide, piece, zero, moves)
            for j in range(held):
                z = do.place(regs[j], m, inv)
                p = exp_neg(z) * scale
                sv += p if p == zero else p * moves[j]
                sz += p if p == zero else p * z
            if team.streams:
                tv += sv
                tz += sz
                sv, sz = zero, zero
        along, mean_z = do.both(sv, sz, tv, tz, room)
        if t.rank() == 0:
            # The gradient in x is softmax, in the temperature its entropy log S - <p, z>.
            dtau = argument(dtaus, dtau_all, dtau_per_row, row)
            out[row] = 0.0 if abs(m) == infinity else along + (math.log1p(excess) - mean_z) * dtau

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, numbers, real, *per_row, numbers)
    return Kernel(kernel, arguments, team.threads)


@made_once
def make_pull_sum(T: Any, team: Team) -> Kernel:
    """The gradients of logsumexp, from the rows' records."""
    t, do = tools(T, team), passes(T, team, "logsumexp")
    rows_of_block, held = team.rows, team.held
    zero, infinity = T(0), T(np.inf)

    def kernel(
        x, rows, n, wide, taus, tau_all, tau_per_row, record, gs, g_all, g_per_row, gx, gtau
    ):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start = row * n
        inv = do.inverse(argument(taus, tau_all, tau_per_row, row))
        m, excess = T(record[row * RECORD + TOP]), record[row * RECORD + EXCESS]
        scale, constant = T(1.0 / (1.0 + excess)), abs(m) == infinity
        cotangent = argument(gs, g_all, g_per_row, row)
        ts, s = 0.0, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                z = do.place(regs[j], m, inv)
                p = exp_neg(z) * scale
                s += p if p == zero else p * z
                regs[j] = T(cotangent) * (zero if constant else p)
            t.store(regs, start, n, wide, piece, gx)
            if team.streams:
                ts += s
                s = zero
        mean_z = do.whole(s, ts, room)
        if t.rank() == 0:
            gtau[row] = cotangent * (0.0 if constant else math.log1p(excess) - mean_z)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, numbers, *per_row, real, numbers)
    return Kernel(kernel, arguments, team.threads)
