"""ThreTopK's derivatives and potential on a device: passes over a row, or over parts of one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.launch import Kernel, pointer_to
from ..._cuda.row_kernels import NUMBERS, PER_ROW, ROWS, Stage, Staged, argument_type
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ThreadGroup, beside, made_once, of_row, tools
from ..._curves.base import mean_of_distribution, origin
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES
from ..._threshold.cuda.rows import entries_for, on_device, registers_for
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import CODE, REST, SOLUTION, C, D
from ..formulas import (
    centre,
    motion,
    potential_of_nothing,
    second_motion,
    smoothed,
    tangent,
    weight,
    weight_and_curvature,
    weighted_t,
)


class Derivatives(NamedTuple):
    """Passes of a group over a row, or a part of one; v are the entries of a direction."""

    #: level(here, batch, solution) -> (c, 1/tau, d) of the threshold that was found
    level: Any
    #: moments(here, s, batch, solution, v) -> a `Stage`'s results: sums of w, w v, w t and w v t
    moments: Any
    #: write(here, s, batch, solution, v, mean, dtau, out): writes the derivative
    write: Any
    #: constant(here, s, code, out): writes it where all entries are saturated, or undefined
    constant: Any


@made_once
def derivatives(T: Any, group: ThreadGroup, curve: Any) -> Derivatives:
    """`rows.moments` and `rows.spread` on a device; for infinite entries the derivative is 0."""
    t = tools(T, group)
    held, entries, curve = group.held, entries_for(curve, group.held), on_device(curve, T)
    zero, infinity, nan = T(0), T(np.inf), T(np.nan)

    @device
    def level(here, batch, solution):
        inv = inverse_temperature_of(of_row(batch.temperature, here.row), T(1))
        base = here.row * SOLUTION
        return T(solution[base + C]), inv, T(solution[base + D])

    @device
    def moments(here, s, batch, solution, v):
        span = here.span
        if solution[here.row * SOLUTION + CODE] > WITH_INFINITIES:
            return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        c, inv, d = level(here, batch, solution)
        w0, wv, wt, wvt = zero, zero, zero, zero
        t0, tv, tt, tvt = 0.0, 0.0, 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            t.load(beside(span, v), piece, zero, s.more)
            for j in range(held):
                entry, move = entries.at(s.regs, j), entries.at(s.more, j)
                if abs(entry) < infinity:
                    u = (entry - c) * inv - d
                    w = weight(curve, u)
                    wti = weighted_t(w, u)
                    w0 += T(w)
                    wv += T(w) * move
                    wt += T(wti)
                    wvt += T(wti) * move
            if group.streams:
                # At most a few entries are added in float32 before float64.
                t0 += w0
                tv += wv
                tt += wt
                tvt += wvt
                w0, wv, wt, wvt = zero, zero, zero, zero
        if group.streams:
            w0, wv, wt, wvt = t.totals(t0, tv, tt, tvt, s.shared)
            return w0, wv, wt, wvt, 0.0, 0.0
        w0, wv, wt, wvt = t.totals(w0, wv, wt, wvt, s.shared)
        return w0, wv, wt, wvt, 0.0, 0.0

    @device
    def spread(here, s, level, v, mean, dtau, out):
        span, (c, inv, d) = here.span, level
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
                t.load(beside(span, v), piece, zero, s.more)
            for j in range(held):
                entry, move = entries.at(s.regs, j), zero
                if abs(entry) < infinity:
                    u = (entry - c) * inv - d
                    move = T(tangent(weight(curve, u), u, entries.at(s.more, j), inv, mean, dtau))
                entries.put(s.more, j, move)
            t.store(s.more, beside(span, out), piece)

    @device
    def constant(here, s, code, out):
        value = nan if code == UNDEFINED else zero
        for j in range(held):
            s.more[j] = value
        for piece in range(t.pieces(here.span.n)):
            t.store(s.more, beside(here.span, out), piece)

    @device
    def write(here, s, batch, solution, v, mean, dtau, out):
        code = solution[here.row * SOLUTION + CODE]
        if code > WITH_INFINITIES:
            constant(here, s, code, out)
        else:
            spread(here, s, level(here, batch, solution), v, T(mean), T(dtau), out)

    return Derivatives(level, moments, write, constant)


@made_once
def make_jvp(T: Any, group: ThreadGroup, curve: Any) -> Staged:
    """A kernel for dp of every row along (v, dk, dtau), from its solution."""
    do = derivatives(T, group, curve)

    @device
    def moments(here, s, batch, given, found):
        return do.moments(here, s, batch, given[0], given[1])

    @device
    def jvp(here, s, batch, given, found):
        solution, v, dks, dtaus, out = given
        w0, wv, wt = found[0], found[1], found[2]
        dk, dtau = of_row(dks, here.row), of_row(dtaus, here.row)
        inv = inverse_temperature_of(of_row(batch.temperature, here.row), T(1))
        mean = centre(w0, wv - dtau * wt - dk / inv)
        do.write(here, s, batch, solution, v, mean, dtau, out)

    given = NUMBERS, ROWS, PER_ROW, PER_ROW, ROWS
    return Staged(T, group, given, (Stage(moments), Stage(jvp)), registers_for(curve))


@made_once
def make_vjp(T: Any, group: ThreadGroup, curve: Any) -> Staged:
    """A kernel for the gradients of <g, p> of every row, from its solution.

    The Jacobian in x is symmetric, so this is the derivative along g, with two more sums.
    """
    t, do = tools(T, group), derivatives(T, group, curve)

    @device
    def moments(here, s, batch, given, found):
        return do.moments(here, s, batch, given[0], given[1])

    @device
    def vjp(here, s, batch, given, found):
        solution, g, gx, gk, gtau = given
        w0, wg, wt, wgt = found[0], found[1], found[2], found[3]
        mean, code = centre(w0, wg), solution[here.row * SOLUTION + CODE]
        if here.part == 0 and t.rank() == 0:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), T(1))
            undefined = code == UNDEFINED
            gk[here.row] = np.nan if undefined else mean
            gtau[here.row] = np.nan if undefined else -inv * (wgt - mean * wt)
        do.write(here, s, batch, solution, g, mean, T(0), gx)

    given = NUMBERS, ROWS, ROWS, NUMBERS, NUMBERS
    return Staged(T, group, given, (Stage(moments), Stage(vjp)), registers_for(curve))


class SecondMotions(NamedTuple):
    """Passes of a group over a row, or a part of one, along two directions."""

    #: motions(here, s, batch, solution, vs, means, dtau, out) -> the sums of s, and of s t + w z y;
    #: writes s of Theorem thm-second-derivative
    motions: Any
    #: centred(here, s, batch, solution, each, out): subtracts w times `each` from the entries of
    #: out
    centred: Any


@made_once
def second_motions(T: Any, group: ThreadGroup, curve: Any) -> SecondMotions:
    """`rows.second_motions` and the step after it on a device, for v and a cotangent."""
    t, do = tools(T, group), derivatives(T, group, curve)
    held, entries, curve = group.held, entries_for(curve, group.held), on_device(curve, T)
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def halves(here, s, piece, at, v, mean, dtau):
        """Leave s/y and (s t + w z y)/y of the entries, which do not depend on the cotangent."""
        c, inv, d = at
        t.load(here.span, piece, -infinity, s.regs)
        t.load(beside(here.span, v), piece, zero, s.more)
        for j in range(held):
            entry, move, paired = entries.at(s.regs, j), zero, zero
            if abs(entry) < infinity:
                u = (entry - c) * inv - d
                w, bend = weight_and_curvature(curve, u)
                z = motion(w, u, entries.at(s.more, j), inv, mean, dtau)
                move = T(second_motion(w, bend, z, one, inv * dtau, zero))
                paired = T((move * u if move != zero else zero) + w * z)
            entries.put(s.regs, j, paired)
            entries.put(s.more, j, move)

    @device
    def motions(here, s, batch, solution, vs, means, dtau, out):
        (v, g), (mean, other), span = vs, means, here.span
        at = do.level(here, batch, solution)
        total, pairs = 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            halves(here, s, piece, at, v, mean, dtau)
            # Registers hold two rows of entries: the third goes where the result will be.
            t.store(s.more, beside(span, out), piece)
            t.load(beside(span, g), piece, zero, s.more)
            part = zero
            for j in range(held):
                # The derivative of a saturated entry is 0, however large its cotangent.
                y = at[1] * (s.more[j] - other)
                part += y * s.regs[j] if s.regs[j] != zero else zero
                s.regs[j] = y
            pairs += part
            t.load(beside(span, out), piece, zero, s.more)
            part = zero
            for j in range(held):
                s.more[j] = s.more[j] * s.regs[j] if s.more[j] != zero else zero
                part += s.more[j]
            total += part
            t.store(s.more, beside(span, out), piece)
        total, pairs, _, _ = t.totals(total, pairs, 0.0, 0.0, s.shared)
        return total, pairs

    @device
    def centred(here, s, batch, solution, each, out):
        c, inv, d = do.level(here, batch, solution)
        for piece in range(t.pieces(here.span.n)):
            t.load(here.span, piece, -infinity, s.regs)
            t.load(beside(here.span, out), piece, zero, s.more)
            for j in range(held):
                entry = entries.at(s.regs, j)
                if abs(entry) < infinity:
                    w = T(weight(curve, (entry - c) * inv - d))
                    entries.put(s.more, j, entries.at(s.more, j) - w * each)
            t.store(s.more, beside(here.span, out), piece)

    return SecondMotions(motions, centred)


@made_once
def make_second(T: Any, group: ThreadGroup, curve: Any) -> Staged:
    """A kernel for the gradients of <g, dp> of every row, dp along (v, dk, dtau)."""
    t, do, two = tools(T, group), derivatives(T, group, curve), second_motions(T, group, curve)

    @device
    def moments(here, s, batch, given, found):
        solution, v, g = given[0], given[1], given[2]
        w0, wv, wt, _, _, _ = do.moments(here, s, batch, solution, v)
        _, wg, _, _, _, _ = do.moments(here, s, batch, solution, g)
        return w0, wv, wt, wg, 0.0, 0.0

    @device
    def motions(here, s, batch, given, found):
        solution, v, g, dks, dtaus, gx, _, _ = given
        w0, wv, wt, wg = found[0], found[1], found[2], found[3]
        if solution[here.row * SOLUTION + CODE] > WITH_INFINITIES:
            return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        dk, dtau = of_row(dks, here.row), of_row(dtaus, here.row)
        inv = inverse_temperature_of(of_row(batch.temperature, here.row), T(1))
        means = T(centre(w0, wv - dtau * wt - dk / inv)), T(centre(w0, wg))
        total, pairs = two.motions(here, s, batch, solution, (v, g), means, T(dtau), gx)
        # Results are added up over a row's parts, so only one part returns sums of the whole row.
        first = here.part == 0
        return total, pairs, w0 if first else 0.0, wt if first else 0.0, 0.0, 0.0

    @device
    def gradients(here, s, batch, given, found):
        solution, _, _, _, _, gx, gk, gtau = given
        total, pairs, w0, wt = found[0], found[1], found[2], found[3]
        each, code = centre(w0, total), solution[here.row * SOLUTION + CODE]
        if here.part == 0 and t.rank() == 0:
            inv = inverse_temperature_of(of_row(batch.temperature, here.row), T(1))
            undefined = code == UNDEFINED
            gk[here.row] = np.nan if undefined else each / inv
            gtau[here.row] = np.nan if undefined else each * wt - pairs
        if code > WITH_INFINITIES:
            do.constant(here, s, code, gx)
        else:
            two.centred(here, s, batch, solution, T(each), gx)

    given = NUMBERS, ROWS, ROWS, PER_ROW, PER_ROW, ROWS, NUMBERS, NUMBERS
    stages = Stage(moments), Stage(motions), Stage(gradients)
    return Staged(T, group, given, stages, registers_for(curve))


@made_once
def make_potential(T: Any, group: ThreadGroup, curve: Any) -> Staged:
    """A kernel for the potential of every row, from its solution: Theorem thm-potential."""
    t = tools(T, group)
    held, entries, infinity = group.held, entries_for(curve, group.held), T(np.inf)
    curve = on_device(curve, np.float64)

    @device
    def integrals(here, s, batch, given, found):
        """(smoothed sum, entries above the threshold, or finite entries, entries at +inf)."""
        solution, base, span = given[0], here.row * SOLUTION, here.span
        code, tau = solution[base + CODE], of_row(batch.temperature, here.row)
        c, d = solution[base + C], solution[base + D] + solution[base + REST]
        # lambda -> -inf: F(t) = t - mean for every entry.
        far = -tau * mean_of_distribution(curve) if code == ALL else 0.0
        total, upper, above = 0.0, 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                v = float64(entries.at(s.regs, j))
                above += 1.0 if v == np.inf else 0.0
                if abs(v) < np.inf:
                    if code <= WITH_INFINITIES:
                        tail, whole, is_upper = smoothed(curve, v, tau, c, d)
                        total += tail
                        total += whole
                        upper += 1.0 if is_upper else 0.0
                    else:
                        total += v + far
                        upper += 1.0
        total, upper, above, _ = t.totals(total, upper, above, 0.0, s.shared)
        return total, upper, above, 0.0, 0.0, 0.0

    @device
    def value(total, upper, k, tau, solution, base):
        code = solution[base + CODE]
        if code == ALL:
            return total - k * tau * origin(curve)
        threshold = solution[base + C] + tau * (solution[base + D] + solution[base + REST])
        return total + (k - upper) * threshold - k * tau * origin(curve)

    @device
    def potential(here, s, batch, given, found):
        solution, out = given
        if t.rank() == 0:
            base, k = here.row * SOLUTION, of_row(batch.k, here.row)
            if solution[base + CODE] == UNDEFINED:
                phi = np.nan
            elif k == 0.0:
                phi = potential_of_nothing(curve, found[1] + found[2])
            elif found[2] > 0.0:
                phi = np.inf
            else:
                tau = of_row(batch.temperature, here.row)
                phi = value(found[0], found[1], k, tau, solution, base)
            out[here.row] = phi

    stages = Stage(integrals), Stage(potential, once=True)
    return Staged(T, group, (NUMBERS, NUMBERS), stages, registers_for(curve))


THREADS = 128  # of a block with one row for each thread


@made_once
def make_threshold() -> Kernel:
    """A kernel for the threshold of every row, from its solution."""

    def threshold(rows, temperature, origin, solution, out):
        row = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            base, tau = row * SOLUTION, of_row(temperature, row)
            d = solution[base + D] + solution[base + REST] - origin
            out[row] = solution[base + C] + tau * d

    numbers = pointer_to(np.float64)
    return Kernel(threshold, (int64, argument_type, float64, numbers, numbers), THREADS)
