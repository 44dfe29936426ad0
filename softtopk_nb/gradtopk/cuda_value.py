"""GradTopK on a device: a row read once, solved and written by a team of whole warps.

The tilt is searched for in the registers that the marginals are then computed from. Entries away
from the core are summed by the threads that hold them, in the row's own type; the nodes and the
core are float64 (`cuda_nodes`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from .._cuda import cuda, device
from .._launch import Kernel, pointer_to
from .._rows import ALL, MIXED, UNDEFINED
from .._scalars import limits
from .._team import ROOM, Team, argument, made_once, tools
from .._threshold.cuda import ABOVE as INFINITE
from .._threshold.cuda import FINITE_COUNT, LEFT, RECORD, SLOPE, passes
from .._threshold.curves import CURVES
from .._threshold.rows import Newton
from .._threshold.solver import C, D, inverse_temperature_of
from . import contour
from .contour import (
    DEEP,
    NODES,
    ORDER,
    ORDER_32,
    POWERS,
    SINE,
    SQUARE,
    SUMS,
    cut_of,
    deep_tail,
    node,
    node_count,
    node_terms,
    node_weight,
    rarer,
)
from .cuda_nodes import TWO, fold, held_entries, lane, over_core, polynomials, warp_sum
from .rows import CODE, CUT, LOG_P, SIZE, SOLUTION, USED, WEIGHTS, softplus

__all__ = ["make_solve"]

# What a thread sums: entries with pi >= 1/2, the variance, r with a sign, entries of the core,
# then powers of r, and the same with the sign: minus where pi >= 1/2.
UPS, VARIANCE, SIGNED, NEAR, FIRST = 0, 1, 2, 3, 4

# What a team knows of its nodes: of how many, how many, the size of the core, UPS less k.
OF, TAKEN, CORE_SIZE, TURNS = 0, 1, 2, 3
NOTES = 4

PRODUCTS = 2 * NODES  # numbers of a warp: the core at each node, and before that its sums
TABLE = 4  # g, and the terms of `contour.core_tails`: up to then sin theta in place of the first

# Times the log of the smallest normal number: below it p is 0 even with n = 1e8, where
# p/r <= 1/P(N = k) < 2^17 (Theorem thm-grad-mass).
BOTTOM = 1.4


class Memory(NamedTuple):
    """What a team shares."""

    record: Any  # of the search for the tilt
    room: Any
    partial: Any  # of each warp of the block: sums, then the core's products
    sums: Any
    table: Any
    polynomials: Any
    notes: Any


class Contour(NamedTuple):
    """What a team does with a row, or what is left of it at infinities."""

    #: tilt(x, start, n, wide, k, tau, regs, memory) -> (code, finite entries, k left to them, at
    #: +inf, c, d, the cut)
    tilt: Any
    #: quadrature(x, start, n, wide, finite, left, above, c, inv, d, cut, regs, memory)
    #: -> (Re c, Im c, log P(N = k)) of this lane's node, in the first warp
    quadrature: Any
    #: marginals(x, start, n, wide, c, inv, d, cut, regs, memory, out): writes p
    marginals: Any
    #: constant(x, start, n, wide, code, k, regs, record, out): writes p where nothing is solved
    constant: Any


add_node, core_marginal, tail_away = map(
    device, (contour.add_node, contour.core_marginal, contour.tail_away)
)


@device
def multiply(r, move, g, sine, a, b):
    """(a + ib)(1 + r u), or times its conjugate above 1/2."""
    real, imaginary = 1.0 - 0.5 * abs(r) * g, r * sine
    return a * real - b * imaginary, a * imaginary + b * real


@made_once
def contours(T: Any, team: Team, enough: float) -> Contour:
    """The passes of GradTopK over a row; `enough` as in Newton's method for the tilt."""
    t, do = tools(T, team), passes(T, team, CURVES["sigmoid"], Newton(enough))
    held, warps, streams = team.held, team.lanes // 32, team.streams
    single = np.dtype(T).itemsize == 4
    order, count = (ORDER_32, 16) if single else (ORDER, 32)
    second = FIRST + order
    # Not more than a few entries in a row of float32 additions.
    flushes = streams and single
    entries, total_of = held_entries(held), fold(count)
    multiply_core = over_core(T, held, multiply, False)
    zero, one = T(0), T(1)
    floor = T(DEEP * math.log(limits(T(1))[1]))
    bottom = T(BOTTOM * math.log(limits(T(1))[1]))

    @device
    def tilt(x, start, n, wide, k, tau, regs, memory):
        record = memory.record
        code = do.survey(x, start, n, wide, k, tau, regs, record, memory.room)
        finite, above, left = int64(record[FINITE_COUNT]), record[INFINITE], record[LEFT]
        c, d, cut = zero, zero, 0.0
        if code <= MIXED:
            t.meet()
            if t.rank() == 0:
                record[LEFT] = left - 0.5
            t.meet()
            inv = inverse_temperature_of(tau, one)
            do.search(x, x, start, n, wide, inv, regs, record, memory.room)
            c, d, cut = T(record[C]), T(record[D]), cut_of(record[SLOPE], inv)
        return code, finite, left, above, c, d, cut

    @device
    def gather(x, start, n, wide, c, inv, d, limit, regs):
        """A lane's share of the sums over its warp, and which of its entries are of the core."""
        part = cuda.local.array(count, T)
        whole = cuda.local.array(count, float64)
        for m in range(count):
            part[m], whole[m] = zero, 0.0
        bits = 0
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, T(-np.inf), regs)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = rarer(u)
                s = r * (one - r)
                near, side = s > limit, -one if u >= zero else one
                bits |= 1 << j if near else 0
                part[UPS] += one if u >= zero else zero
                part[VARIANCE] += s
                part[SIGNED] += side * r
                part[NEAR] += one if near else zero
                far = zero if near else r
                power = far
                for m in range(order):
                    part[FIRST + m] += power
                    part[second + m] += side * power
                    power *= far
            if flushes:
                for m in range(count):
                    whole[m] += part[m]
                    part[m] = zero
        return float64(total_of(whole) if flushes else total_of(part)), bits

    @device
    def core_bits(c, inv, d, limit, regs):
        bits = 0
        for j in range(held):
            r = rarer((regs[j] - c) * inv - d)
            bits |= 1 << j if r * (one - r) > limit else 0
        return bits

    @device
    def column(partial, m):
        """The sum over the team's warps, in their order."""
        first, total = t.slot() * warps, 0.0
        for w in range(warps):
            total += partial[first + w, m]
        return total

    @device
    def choose_nodes(finite, left, above, inv, memory):
        partial, sums, notes = memory.partial, memory.sums, memory.notes
        if lane() < order:
            plain, signed = column(partial, FIRST + lane()), column(partial, second + lane())
            sums[POWERS + lane()] = 0.5 * (plain + signed)
            sums[POWERS + ORDER + lane()] = 0.5 * (plain - signed)
        turns = column(partial, UPS) - above - left
        excess = turns + column(partial, SIGNED)
        size, used = node_count(finite, column(partial, VARIANCE), excess, inv, NODES)
        square, sine = node(lane(), size)
        memory.table[SQUARE, lane()] = square if lane() < used else 0.0
        memory.table[SINE, lane()] = sine if lane() < used else 0.0
        if lane() == 0:
            notes[OF], notes[TAKEN], notes[TURNS] = size, used, turns
            notes[CORE_SIZE] = column(partial, NEAR)

    @device
    def weigh_nodes(memory):
        """The weight of this lane's node, normalised, and log P(N = k)."""
        partial, notes, first = memory.partial, memory.notes, t.slot() * warps
        square, sine = memory.table[SQUARE, lane()], memory.table[SINE, lane()]
        re, im = node_weight(lane(), notes[OF], square, sine, order, notes[TURNS], memory.sums)
        for w in range(warps):
            pr, pi = partial[first + w, lane()], partial[first + w, NODES + lane()]
            re, im = re * pr - im * pi, re * pi + im * pr
        taken = lane() < notes[TAKEN]
        re, im = re if taken else 0.0, im if taken else 0.0
        total = warp_sum(re)
        return re / total, im / total, math.log(total / notes[OF])

    @device
    def prepare(re, im, memory):
        """The table and the polynomials of the marginals."""
        table, square = memory.table, memory.table[SQUARE, lane()]
        below, plain, above = node_terms(square, table[SINE, lane()], re, im)
        table[1, lane()], table[2, lane()], table[3, lane()] = below, plain, above
        memory.polynomials[lane() // 2] = polynomials(below, plain, square)
        memory.polynomials[TWO + lane() // 2] = polynomials(above, 0.0, square)

    @device
    def quadrature(x, start, n, wide, finite, left, above, c, inv, d, cut, regs, memory):
        limit, warp, leads = T(cut), cuda.threadIdx.x // 32, t.rank() < 32
        share, bits = gather(x, start, n, wide, c, inv, d, limit, regs)
        memory.partial[warp, lane() * count // 32] = share
        t.meet()
        if leads:
            choose_nodes(finite, left, above, inv, memory)
        t.meet()
        a, b = 1.0, 0.0
        if memory.notes[CORE_SIZE] > 0.0:
            g, sine = memory.table[SQUARE, lane()], memory.table[SINE, lane()]
            for piece in range(t.pieces(n)):
                if streams:
                    t.load(x, start, n, wide, piece, T(-np.inf), regs)
                    bits = core_bits(c, inv, d, limit, regs)
                a, b = multiply_core(bits, regs, regs, c, inv, d, g, sine, a, b)
        memory.partial[warp, lane()] = a
        memory.partial[warp, NODES + lane()] = b
        t.meet()
        re, im, log_p = 0.0, 0.0, 0.0
        if leads:
            re, im, log_p = weigh_nodes(memory)
            prepare(re, im, memory)
        t.meet()
        return re, im, log_p

    @device
    def special(v, c, inv, d, top, memory):
        """p of an entry of the core, or of one whose r is about to underflow."""
        u = (v - c) * inv - d
        if u < floor:
            return deep_tail(u, top)
        table, r, upper = memory.table, float64(rarer(u)), u >= zero
        over, under = 0.0, 1.0
        for j in range(int32(memory.notes[TAKEN])):
            edge = table[3, j] if upper else table[1, j]
            over, under = add_node(over, under, r, edge, table[0, j], table[2, j])
        return T(core_marginal(r, upper, over, under))

    @device
    def marginals(x, start, n, wide, c, inv, d, cut, regs, memory, out):
        limit, q = T(cut), memory.polynomials
        a = T(q[0]), T(q[1]), T(q[2]), T(q[3]), T(q[4]), T(q[5]), T(q[6]), T(q[7])
        b = T(q[8]), T(q[9]), T(q[10]), T(q[11]), T(q[12]), T(q[13]), T(q[14]), T(q[15])
        z = T(q[16]), T(q[17]), T(q[18]), T(q[19]), T(q[20]), T(q[21]), T(q[22]), T(q[23])
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, T(-np.inf), regs)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = rarer(u)
                s = r * (one - r)
                tail = tail_away(r, s, u >= zero, a, b, z)
                later = s > limit or (u < floor and u > bottom)
                bits |= 1 << j if later else 0
                p = one - tail if u >= zero else tail
                regs[j] = regs[j] if later else p
            while bits != 0:
                entries.put(bits, regs, special(entries.pick(bits, regs), c, inv, d, a[0], memory))
                bits &= bits - 1
            t.store(regs, start, n, wide, piece, out)

    return Contour(tilt, quadrature, marginals, do.constant)


@made_once
def height(T: Any, team: Team) -> Any:
    """The function that gives the potential, tau log Z_k(x/tau) (Theorem thm-grad-tilt)."""
    t = tools(T, team)

    @device
    def potential(x, start, n, code, k, above, tau, c, d, log_p, room):
        total, upper = 0.0, 0.0
        for i in range(t.rank(), n, team.lanes):  # log1p once: too long to be repeated held times
            v = float64(x[start + i])
            if abs(v) < np.inf and code <= ALL:
                u, tail = softplus(v, tau, c, d)
                total += v if u >= 0.0 or code == ALL else 0.0
                total += tail if code <= MIXED else 0.0
                upper += 1.0 if u >= 0.0 else 0.0
        total, upper, _, _ = t.totals(total, upper, 0.0, 0.0, room)
        if code == UNDEFINED:
            return np.nan
        if k == 0.0:
            return 0.0
        if above > 0.0:
            return np.inf
        return total if code == ALL else total + (k - upper) * (c + tau * d) + tau * log_p

    return potential


@made_once
def make_solve(T: Any, team: Team, enough: float, writes: bool, keeps: bool) -> Kernel:
    """Solve every row: p to `out` if it `writes`, the potential to `phi` if not.

    What derivatives need goes to `solution` if it `keeps`.
    """
    t, do, potential = tools(T, team), contours(T, team, enough), height(T, team)
    rows_of_block, held, warps = team.rows, team.held, team.threads // 32

    def solve(
        x, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, out, solution, phi
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        records = cuda.shared.array((rows_of_block, RECORD), float64)
        room = cuda.shared.array(ROOM, float64)
        partial = cuda.shared.array((warps, PRODUCTS), float64)
        sums = cuda.shared.array((rows_of_block, SUMS), float64)
        tables = cuda.shared.array((rows_of_block, TABLE, NODES), float64)
        coefficients = cuda.shared.array((rows_of_block, NODES), float64)
        notes = cuda.shared.array((rows_of_block, NOTES), float64)
        slot = t.slot()
        row = int64(cuda.blockIdx.x) * rows_of_block + slot
        if row >= rows:
            return
        memory = Memory(
            records[slot], room, partial, sums[slot], tables[slot], coefficients[slot], notes[slot]
        )
        start, base = row * n, row * SOLUTION
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        code, finite, left, above, c, d, cut = do.tilt(x, start, n, wide, k, tau, regs, memory)
        log_p = 0.0
        if keeps and t.rank() == 0:
            solution[base + CODE] = code
        if code > MIXED:
            if writes:
                do.constant(x, start, n, wide, code, k, regs, memory.record, out)
        else:
            inv = inverse_temperature_of(tau, T(1))
            re, im, log_p = do.quadrature(
                x, start, n, wide, finite, left, above, c, inv, d, cut, regs, memory
            )
            if keeps and t.rank() < NODES:
                solution[base + WEIGHTS + lane()] = re
                solution[base + WEIGHTS + NODES + lane()] = im
            if keeps and t.rank() == 0:
                solution[base + C], solution[base + D], solution[base + CUT] = c, d, cut
                solution[base + LOG_P], solution[base + SIZE] = log_p, notes[slot, OF]
                solution[base + USED] = notes[slot, TAKEN]
            if writes:
                do.marginals(x, start, n, wide, c, inv, d, cut, regs, memory, out)
        if not writes:
            value = potential(x, start, n, code, k, above, tau, float64(c), float64(d), log_p, room)
            if t.rank() == 0:
                phi[row] = value

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, *per_row, real, numbers, numbers)
    return Kernel(solve, arguments, team.threads)
