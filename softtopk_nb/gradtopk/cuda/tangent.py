"""GradTopK's derivative on a device, from the nodes of a solved row (Theorem thm-grad-jacobian)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32

from ..._cuda.launch import MANY
from ..._cuda.row_kernels import NUMBERS, PER_ROW, ROWS, RowKernel
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import (
    FULL,
    ThreadGroup,
    beside,
    entries_held,
    made_once,
    of_row,
    tools,
)
from ..._nonfinite import UNDEFINED, WITH_INFINITIES
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import C, D
from .. import formulas
from ..formulas import derivative_coefficients, minority_probability, weighted_q_by_powers
from ..nodes import DEGREE, IM, NODES, RE, SINE, SQUARE, node
from ..records import (
    AT_NODES,
    CODE,
    CORE_LIMIT,
    DIRECTION_SUMS,
    EVEN_SUM,
    ODD_SUM,
    Q_IM,
    Q_RE,
    SIZE,
    SOLUTION,
    TANGENT_FIELDS,
    USED,
    WEIGHTS,
)
from .contour import Level
from .nodes import TWO, fold, lane, over_core, polynomials, warp_sum


class Memory(NamedTuple):
    """The shared memory of a group, all of it float64 and one-dimensional."""

    table: Any  # rows of NODES numbers
    flows: Any
    polynomials: Any
    partial: Any  # DIRECTION_SUMS of each of its warps, one after the other


AFTER_TABLE = TANGENT_FIELDS * NODES
AFTER_FLOWS = AFTER_TABLE + AT_NODES
AFTER_POLYNOMIALS = AFTER_FLOWS + NODES


def shared_by(lanes: int) -> int:
    """Number of float64 that a group shares."""
    return AFTER_POLYNOMIALS + lanes // 32 * DIRECTION_SUMS


@device
def arrange(shared):
    """The fields of a group's shared memory, from an array of `shared_by` numbers."""
    return Memory(
        shared[:AFTER_TABLE],
        shared[AFTER_TABLE:AFTER_FLOWS],
        shared[AFTER_FLOWS:AFTER_POLYNOMIALS],
        shared[AFTER_POLYNOMIALS:],
    )


class Tangents(NamedTuple):
    """Passes of a group over a row or a part of it, along v and the temperature's direction."""

    #: weigh(here, scratch, batch, solution, v, dtau): reads the nodes of a solved row, and writes
    #: the sums along v
    weigh: Any
    #: write(here, scratch, batch, solution, v, dtau, out) -> the sum over the group of <t, dp> if
    #: it is wanted; writes dp from the sums in memory
    write: Any
    #: constant(here, scratch, code, out) -> the number that is written everywhere
    constant: Any


add_node_tangent, tangent_in_core, combined_direction, tangent_away, within_reach = map(
    device,
    (
        formulas.add_node_tangent,
        formulas.tangent_in_core,
        formulas.combined_direction,
        formulas.tangent_away,
        formulas.within_reach,
    ),
)


@device
def core_tangent(r, upper, move, table, used):
    """tau (J v)_i of an entry of the core, node by node."""
    s = r * (1.0 - r)
    z = 1.0 - 2.0 * r if upper else 2.0 * r - 1.0
    h, slope, others = 0.0, 0.0, 0.0
    for j in range(used):
        g, sine = table[j], table[NODES + j]
        re, im = table[2 * NODES + j], table[3 * NODES + j]
        q_re, q_im = table[Q_RE * NODES + j], table[Q_IM * NODES + j]
        share = 1.0 / (1.0 - g * s)
        terms = add_node_tangent(h, slope, others, share, z, g, sine, re, im, q_re, q_im)
        h, slope, others = terms
    return tangent_in_core(s, z, move, h, slope, others)


@device
def attract(r, move, g, sine, a, b):
    """Add the entry's terms of Q at a node: s v z and s v, each over 1 - g s."""
    minor = abs(r)
    s = minor * (1.0 - minor)
    share = s * move / (1.0 - g * s)
    z = 1.0 - 2.0 * minor if r < 0.0 else 2.0 * minor - 1.0
    return a + z * share, b + share


@device
def open_table(solution, base, table):
    """Write the nodes of a solved row, each by a lane of the first warp."""
    square, sine = node(lane(), solution[base + SIZE])
    taken = lane() < solution[base + USED]
    table[SQUARE * NODES + lane()] = square if taken else 0.0
    table[SINE * NODES + lane()] = sine if taken else 0.0
    table[RE * NODES + lane()] = solution[base + WEIGHTS + lane()]
    table[IM * NODES + lane()] = solution[base + WEIGHTS + NODES + lane()]


@made_once
def tangents(T: Any, group: ThreadGroup, is_vjp: bool) -> Tangents:
    """`Tangents` for rows of type T; for infinite entries the derivative is 0."""
    t = tools(T, group)
    held, warps, streams = group.held, group.lanes // 32, group.streams
    flushes = streams and np.dtype(T).itemsize == 4
    entries, total_of = entries_held(held), fold(AT_NODES)
    attract_core = over_core(T, held, attract, True)
    zero, one, infinity, nan = T(0), T(1), T(np.inf), T(np.nan)

    @device
    def level_of(here, batch, solution):
        base, tau = here.row * SOLUTION, of_row(batch.temperature, here.row)
        c, d, limit = solution[base + C], solution[base + D], solution[base + CORE_LIMIT]
        return Level(T(c), inverse_temperature_of(tau, one), T(d), T(limit))

    @device
    def load(span, v, piece, level, drift, scratch):
        """Load entries, and their v - t dtau."""
        regs, moves, (c, inv, d, _) = scratch.regs, scratch.more, level
        t.load(span, piece, -infinity, regs)
        t.load(beside(span, v), piece, zero, moves)
        for j in range(held):
            u = (regs[j] - c) * inv - d
            r = minority_probability(u)
            moved = combined_direction(u, r * (one - r), moves[j], drift)
            moves[j] = moved if abs(regs[j]) < infinity else zero

    @device
    def weigh(here, scratch, batch, solution, v, dtau):
        memory, span, level = arrange(scratch.record), here.span, level_of(here, batch, solution)
        regs, moves, (c, inv, d, limit), drift = scratch.regs, scratch.more, level, T(dtau)
        if t.rank() < NODES:
            open_table(solution, here.row * SOLUTION, memory.table)
        t.meet()
        g, partial = memory.table[SQUARE * NODES + lane()], memory.partial
        part = cuda.local.array(AT_NODES, T)
        whole = cuda.local.array(AT_NODES, float64)
        for m in range(AT_NODES):
            part[m], whole[m] = zero, 0.0
        a, b = 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            load(span, v, piece, level, drift, scratch)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = minority_probability(u)
                s = r * (one - r)
                bits |= 1 << j if s > limit else 0
                even = zero if s > limit else s * moves[j]
                z = one - T(2) * r
                odd = even * (z if u >= zero else -z)
                for m in range(DEGREE):
                    part[ODD_SUM + m] += odd
                    part[EVEN_SUM + m] += even
                    odd *= s
                    even *= s
            a, b = attract_core(bits, regs, moves, c, inv, d, g, 0.0, a, b)
            if flushes:
                for m in range(AT_NODES):
                    whole[m] += part[m]
                    part[m] = zero
        at = t.rank() // 32 * DIRECTION_SUMS
        partial[at + lane() // 2] = float64(total_of(whole) if flushes else total_of(part))
        partial[at + AT_NODES + lane()] = a
        partial[at + AT_NODES + NODES + lane()] = b

    @device
    def steer(memory):
        flows, table = memory.flows, memory.table
        odd, even, sums = 0.0, 0.0, 0.0
        for w in range(warps):
            at = w * DIRECTION_SUMS
            sums += memory.partial[at + lane() // 2]
            odd += memory.partial[at + AT_NODES + lane()]
            even += memory.partial[at + AT_NODES + NODES + lane()]
        flows[lane() // 2] = sums
        cuda.syncwarp(FULL)
        g, sine = table[SQUARE * NODES + lane()], table[SINE * NODES + lane()]
        re, im = table[RE * NODES + lane()], table[IM * NODES + lane()]
        q_re, q_im = weighted_q_by_powers(g, sine, re, im, odd, even, flows)
        mean = warp_sum(q_re)
        q_re, q_im = q_re - mean * re, q_im - mean * im
        table[Q_RE * NODES + lane()], table[Q_IM * NODES + lane()] = q_re, q_im
        up, down = 0.5 * g, -sine
        memory.polynomials[TWO + lane() // 2] = polynomials(down * q_im, up * q_re, g)
        # h = even + z odd.
        h = polynomials(down * im, up * re, g)
        m = lane() % DEGREE
        even, odd = cuda.shfl_sync(FULL, h, 2 * m), cuda.shfl_sync(FULL, h, TWO + 2 * m)
        last = cuda.shfl_sync(FULL, h, TWO + 2 * max(m - 1, 0))
        if lane() < DEGREE:
            a, b = derivative_coefficients(m, even, odd, last)
            memory.polynomials[m], memory.polynomials[DEGREE + m] = a, b

    @device
    def spread(span, v, level, drift, used, scratch, out):
        regs, moves, (c, inv, d, limit) = scratch.regs, scratch.more, level
        memory, total = arrange(scratch.record), 0.0
        q = memory.polynomials
        a = T(q[0]), T(q[1]), T(q[2]), T(q[3]), T(q[4]), T(q[5]), T(q[6]), T(q[7])
        b = T(q[8]), T(q[9]), T(q[10]), T(q[11]), T(q[12]), T(q[13]), T(q[14]), T(q[15])
        w = T(q[16]), T(q[17]), T(q[18]), T(q[19]), T(q[20]), T(q[21]), T(q[22]), T(q[23])
        z = T(q[24]), T(q[25]), T(q[26]), T(q[27]), T(q[28]), T(q[29]), T(q[30]), T(q[31])
        for piece in range(t.pieces(span.n)):
            if streams:
                load(span, v, piece, level, drift, scratch)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = minority_probability(u)
                s = r * (one - r)
                side = (one - T(2) * r) * (one if u >= zero else -one)
                moved = tangent_away(moves[j], s, side, inv, a, b, w, z)
                bits |= 1 << j if s > limit else 0
                moves[j] = moves[j] if s > limit else moved
            while bits != 0:
                place = cuda.ffs(bits) - 1
                u = (entries.at(regs, place) - c) * inv - d
                move = float64(entries.at(moves, place))
                moved = core_tangent(
                    float64(minority_probability(u)), u >= zero, move, memory.table, used
                )
                entries.put(moves, place, T(inv * moved))
                bits &= bits - 1
            if is_vjp:
                paired = zero
                for j in range(held):
                    u = (regs[j] - c) * inv - d
                    paired += moves[j] * within_reach(u)
                total += paired
            t.store(moves, beside(span, out), piece)
        return total

    @device
    def write(here, scratch, batch, solution, v, dtau, out):
        t.meet()
        if t.rank() < NODES:
            steer(arrange(scratch.record))
        t.meet()
        level, used = level_of(here, batch, solution), int32(solution[here.row * SOLUTION + USED])
        paired = spread(here.span, v, level, T(dtau), used, scratch, out)
        return t.total(paired, scratch.shared) if is_vjp else 0.0

    @device
    def constant(here, scratch, code, out):
        value = nan if code == UNDEFINED else zero
        for j in range(held):
            scratch.more[j] = value
        for piece in range(t.pieces(here.span.n)):
            t.store(scratch.more, beside(here.span, out), piece)
        return float64(value)

    return Tangents(weigh, write, constant)


@made_once
def make_jvp(T: Any, group: ThreadGroup, is_vjp: bool) -> RowKernel:
    """A kernel for dp of every row along (v, dtau), from its solution.

    If `is_vjp`, v is a cotangent, and -<t, J v> is the gradient in the temperature:
    dp = J (v - t dtau) and J is symmetric.
    """
    t, do = tools(T, group), tangents(T, group, is_vjp)

    @device
    def jvp(here, scratch, batch, given):
        solution, v, dtaus, out, gtau = given
        code, dtau = solution[here.row * SOLUTION + CODE], of_row(dtaus, here.row)
        if code > WITH_INFINITIES:
            paired = -do.constant(here, scratch, code, out)
        else:
            do.weigh(here, scratch, batch, solution, v, dtau)
            paired = do.write(here, scratch, batch, solution, v, dtau, out)
        if is_vjp and t.rank() == 0:
            gtau[here.row] = -paired

    given = NUMBERS, ROWS, PER_ROW, ROWS, NUMBERS
    return RowKernel(T, group, jvp, given, MANY, shared_by(group.lanes))
