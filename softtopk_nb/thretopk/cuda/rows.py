"""ThreTopK's derivatives and potential on a device, one team of threads for each row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Team, argument, made_once, tools
from ..._curves.base import mean_of_law, origin
from ..._curves.user import UserCurve
from ..._nonfinite import ALL, MIXED, UNDEFINED
from ..._threshold.cuda.rows import entries_for, on_device, registers_for
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import CODE, REST, SOLUTION, C, D
from ..formulas import centre, lever, potential_of_nothing, smoothed, tangent, weight


class Derivatives(NamedTuple):
    """What a team does with a row, or with a part of one."""

    #: moments(x, v, start, n, wide, c, inv, d, regs, more, room): sums of w, w v, w t and w v t
    moments: Any
    #: spread(x, v, start, n, wide, c, inv, d, mean, dtau, regs, more, out): writes the tangent
    spread: Any
    #: constant(start, n, wide, value, regs, out): writes the same number everywhere
    constant: Any


@made_once
def derivatives(T: Any, team: Team, curve: Any) -> Derivatives:
    """`rows.moments` and `rows.spread`; entries that are not finite do not move."""
    t = tools(T, team)
    held, entries, curve = team.held, entries_for(curve, team.held), on_device(curve, T)
    zero, infinity = T(0), T(np.inf)

    @device
    def moments(x, v, start, n, wide, c, inv, d, regs, more, room):
        w0, wv, wt, wvt = zero, zero, zero, zero
        t0, tv, tt, tvt = 0.0, 0.0, 0.0, 0.0
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            t.load(v, start, n, wide, piece, zero, more)
            for j in range(held):
                entry, move = entries.at(regs, j), entries.at(more, j)
                if abs(entry) < infinity:
                    u = (entry - c) * inv - d
                    w = weight(curve, u)
                    wti = lever(w, u)
                    w0 += T(w)
                    wv += T(w) * move
                    wt += T(wti)
                    wvt += T(wti) * move
            if team.streams:
                # Not more than a few entries in a row of float32 additions.
                t0 += w0
                tv += wv
                tt += wt
                tvt += wvt
                w0, wv, wt, wvt = zero, zero, zero, zero
        if team.streams:
            return t.totals(t0, tv, tt, tvt, room)
        return t.totals(w0, wv, wt, wvt, room)

    @device
    def spread(x, v, start, n, wide, c, inv, d, mean, dtau, regs, more, out):
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
                t.load(v, start, n, wide, piece, zero, more)
            for j in range(held):
                entry, move = entries.at(regs, j), zero
                if abs(entry) < infinity:
                    u = (entry - c) * inv - d
                    move = T(tangent(weight(curve, u), u, entries.at(more, j), inv, mean, dtau))
                entries.put(more, j, move)
            t.store(more, start, n, wide, piece, out)

    @device
    def constant(start, n, wide, value, regs, out):
        for j in range(held):
            regs[j] = value
        for piece in range(t.pieces(n)):
            t.store(regs, start, n, wide, piece, out)

    return Derivatives(moments, spread, constant)


@made_once
def make_push(T: Any, team: Team, curve: Any) -> Kernel:
    """The tangent of every row along (v, dk, dtau), from its solution."""
    t, do = tools(T, team), derivatives(T, team, curve)
    rows_of_block, held = team.rows, team.held
    nan, zero = T(np.nan), T(0)

    def push(
        x, rows, n, wide, taus, tau_all, tau_per_row, solution, v,
        dks, dk_all, dk_per_row, dtaus, dtau_all, dtau_per_row, out,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        more = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start, base = row * n, row * SOLUTION
        code = solution[base + CODE]
        if code > MIXED:
            do.constant(start, n, wide, nan if code == UNDEFINED else zero, more, out)
            return
        tau = argument(taus, tau_all, tau_per_row, row)
        dk = argument(dks, dk_all, dk_per_row, row)
        dtau = argument(dtaus, dtau_all, dtau_per_row, row)
        inv = inverse_temperature_of(tau, T(1))
        c, d = T(solution[base + C]), T(solution[base + D])
        w0, wv, wt, _ = do.moments(x, v, start, n, wide, c, inv, d, regs, more, room)
        mean = centre(w0, wv - dtau * wt - dk / inv)
        do.spread(x, v, start, n, wide, c, inv, d, T(mean), T(dtau), regs, more, out)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    shape = (int64, int64, int32)
    arguments = (real, *shape, *per_row, numbers, real, *per_row, *per_row, real)
    return Kernel(push, arguments, team.threads, registers_for(curve))


@made_once
def make_pull(T: Any, team: Team, curve: Any) -> Kernel:
    """The gradients of <g, p> of every row, from its solution.

    The Jacobian in x is symmetric, so this is the tangent along g, with two sums more.
    """
    t, do = tools(T, team), derivatives(T, team, curve)
    rows_of_block, held = team.rows, team.held
    nan, zero = T(np.nan), T(0)

    def pull(x, rows, n, wide, taus, tau_all, tau_per_row, solution, g, gx, gk, gtau):
        regs = cuda.local.array(held, T)
        more = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        start, base = row * n, row * SOLUTION
        code = solution[base + CODE]
        if code > MIXED:
            nothing = nan if code == UNDEFINED else zero
            if t.rank() == 0:
                gk[row], gtau[row] = nothing, nothing
            do.constant(start, n, wide, nothing, more, gx)
            return
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), T(1))
        c, d = T(solution[base + C]), T(solution[base + D])
        w0, wg, wt, wgt = do.moments(x, g, start, n, wide, c, inv, d, regs, more, room)
        mean = centre(w0, wg)
        if t.rank() == 0:
            gk[row], gtau[row] = mean, -inv * (wgt - mean * wt)
        do.spread(x, g, start, n, wide, c, inv, d, T(mean), zero, regs, more, gx)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    shape = (int64, int64, int32)
    arguments = (real, *shape, numbers, float64, int32, numbers, real, real, numbers, numbers)
    return Kernel(pull, arguments, team.threads, registers_for(curve))


class Heights(NamedTuple):
    """The potential of a row, or of a part of one."""

    #: sums(x, start, n, wide, tau, solution, base, regs, room) -> (smoothed sum, entries above the
    #: threshold, or finite entries of a row without one, entries at +inf), in float64
    sums: Any
    #: potential(sums, k, tau, solution, base) -> phi
    potential: Any


@made_once
def heights(T: Any, team: Team, curve: Any) -> Heights:
    """`rows.potential` in parts: Theorem thm-potential."""
    t = tools(T, team)
    held, entries, infinity = team.held, entries_for(curve, team.held), T(np.inf)
    if isinstance(curve, UserCurve):
        integral = device(getattr(curve.integral, "py_func", curve.integral))
        curve = on_device(curve, np.float64)._replace(integral=integral)

    @device
    def sums(x, start, n, wide, tau, solution, base, regs, room):
        code = solution[base + CODE]
        c, d = solution[base + C], solution[base + D] + solution[base + REST]
        # lambda -> -inf: F(t) = t - mean for every entry.
        far = -tau * mean_of_law(curve) if code == ALL else 0.0
        total, upper, above = 0.0, 0.0, 0.0
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = float64(entries.at(regs, j))
                above += 1.0 if v == np.inf else 0.0
                if abs(v) < np.inf:
                    if code <= MIXED:
                        tail, whole, is_upper = smoothed(curve, v, tau, c, d)
                        total += tail
                        total += whole
                        upper += 1.0 if is_upper else 0.0
                    else:
                        total += v + far
                        upper += 1.0
        total, upper, above, _ = t.totals(total, upper, above, 0.0, room)
        return total, upper, above

    @device
    def potential(total, upper, above, k, tau, solution, base):
        code = solution[base + CODE]
        if code == UNDEFINED:
            return np.nan
        if k == 0.0:
            return potential_of_nothing(curve, upper + above)
        if above > 0.0:
            return np.inf
        if code == ALL:
            return total - k * tau * origin(curve)
        threshold = solution[base + C] + tau * (solution[base + D] + solution[base + REST])
        return total + (k - upper) * threshold - k * tau * origin(curve)

    return Heights(sums, potential)


@made_once
def make_potential(T: Any, team: Team, curve: Any) -> Kernel:
    """The potential of every row, from its solution."""
    t, do = tools(T, team), heights(T, team, curve)
    rows_of_block, held = team.rows, team.held

    def potential(
        x, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, solution, out
    ):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        base = row * SOLUTION
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        total, upper, above = do.sums(x, row * n, n, wide, tau, solution, base, regs, room)
        if t.rank() == 0:
            out[row] = do.potential(total, upper, above, k, tau, solution, base)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, *per_row, numbers, numbers)
    return Kernel(potential, arguments, team.threads, registers_for(curve))


THREADS = 128  # of a block, where each has a row of its own


@made_once
def make_threshold() -> Kernel:
    """The threshold of every row, from its solution."""

    def threshold(rows, taus, tau_all, tau_per_row, origin, solution, out):
        row = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            base, tau = row * SOLUTION, argument(taus, tau_all, tau_per_row, row)
            d = solution[base + D] + solution[base + REST] - origin
            out[row] = solution[base + C] + tau * d

    numbers = pointer_to(np.float64)
    arguments = (int64, numbers, float64, int32, float64, numbers, numbers)
    return Kernel(threshold, arguments, THREADS)
