"""GradTopK's tangent on a device, from the nodes of a solved row (Theorem thm-grad-jacobian)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.launch import MANY, Kernel, pointer_to
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import FULL, ROOM, Team, argument, entries_held, made_once, tools
from ..._nonfinite import MIXED, UNDEFINED
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
    SIZE,
    SOLUTION,
    TANGENT_FIELDS,
    USED,
    WEIGHTS,
)
from .nodes import TWO, fold, lane, over_core, polynomials, warp_sum


class Memory(NamedTuple):
    """What a team shares."""

    room: Any
    partial: Any  # DIRECTION_SUMS of each of its warps, one after the other
    flows: Any
    table: Any
    polynomials: Any


class Tangents(NamedTuple):
    """What a team does with a row."""

    #: weigh(x, v, start, n, wide, c, inv, d, drift, limit, g, regs, moves, partial): writes flows
    weigh: Any
    #: steer(memory): the table and the polynomials of `spread`
    steer: Any
    #: spread(x, v, start, n, wide, c, inv, d, drift, limit, used, regs, moves, memory, out)
    #: -> <t, the tangent>
    spread: Any
    #: constant(start, n, wide, value, regs, out): writes the same number everywhere
    constant: Any


add_node_tangent, tangent_in_core, combined_direction, tangent_away = map(
    device,
    (
        formulas.add_node_tangent,
        formulas.tangent_in_core,
        formulas.combined_direction,
        formulas.tangent_away,
    ),
)


@device
def core_tangent(r, upper, move, table, used):
    """tau (J v)_i of an entry of the core, node by node."""
    s = r * (1.0 - r)
    z = 1.0 - 2.0 * r if upper else 2.0 * r - 1.0
    h, slope, others = 0.0, 0.0, 0.0
    for j in range(used):
        g, sine, re, im = table[0, j], table[1, j], table[2, j], table[3, j]
        q_re, q_im, share = table[4, j], table[5, j], 1.0 / (1.0 - g * s)
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
    table[SQUARE, lane()] = square if taken else 0.0
    table[SINE, lane()] = sine if taken else 0.0
    table[RE, lane()] = solution[base + WEIGHTS + lane()]
    table[IM, lane()] = solution[base + WEIGHTS + NODES + lane()]


@made_once
def tangents(T: Any, team: Team, pulls: bool) -> Tangents:
    """`tangent.weigh`, `steer` and `spread`; entries that are not finite do not move."""
    t = tools(T, team)
    held, warps, streams = team.held, team.lanes // 32, team.streams
    flushes = streams and np.dtype(T).itemsize == 4
    entries, total_of = entries_held(held), fold(AT_NODES)
    attract_core = over_core(T, held, attract, True)
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def load(x, v, start, n, wide, piece, c, inv, d, drift, regs, moves):
        """Entries, and what they move by."""
        t.load(x, start, n, wide, piece, -infinity, regs)
        t.load(v, start, n, wide, piece, zero, moves)
        for j in range(held):
            u = (regs[j] - c) * inv - d
            r = minority_probability(u)
            moved = combined_direction(u, r * (one - r), moves[j], drift)
            moves[j] = moved if abs(regs[j]) < infinity else zero

    @device
    def weigh(x, v, start, n, wide, c, inv, d, drift, limit, g, regs, moves, partial):
        part = cuda.local.array(AT_NODES, T)
        whole = cuda.local.array(AT_NODES, float64)
        for m in range(AT_NODES):
            part[m], whole[m] = zero, 0.0
        a, b = 0.0, 0.0
        for piece in range(t.pieces(n)):
            load(x, v, start, n, wide, piece, c, inv, d, drift, regs, moves)
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
        g, sine = table[SQUARE, lane()], table[SINE, lane()]
        re, im = table[RE, lane()], table[IM, lane()]
        q_re, q_im = weighted_q_by_powers(g, sine, re, im, odd, even, flows)
        mean = warp_sum(q_re)
        q_re, q_im = q_re - mean * re, q_im - mean * im
        table[4, lane()], table[5, lane()] = q_re, q_im
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
    def spread(x, v, start, n, wide, c, inv, d, drift, limit, used, regs, moves, memory, out):
        q, total = memory.polynomials, 0.0
        a = T(q[0]), T(q[1]), T(q[2]), T(q[3]), T(q[4]), T(q[5]), T(q[6]), T(q[7])
        b = T(q[8]), T(q[9]), T(q[10]), T(q[11]), T(q[12]), T(q[13]), T(q[14]), T(q[15])
        w = T(q[16]), T(q[17]), T(q[18]), T(q[19]), T(q[20]), T(q[21]), T(q[22]), T(q[23])
        z = T(q[24]), T(q[25]), T(q[26]), T(q[27]), T(q[28]), T(q[29]), T(q[30]), T(q[31])
        for piece in range(t.pieces(n)):
            if streams:
                load(x, v, start, n, wide, piece, c, inv, d, drift, regs, moves)
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
            if pulls:
                paired = zero
                for j in range(held):
                    u = (regs[j] - c) * inv - d
                    paired += moves[j] * u if moves[j] != zero else zero
                total += paired
            t.store(moves, start, n, wide, piece, out)
        return total

    @device
    def constant(start, n, wide, value, regs, out):
        for j in range(held):
            regs[j] = value
        for piece in range(t.pieces(n)):
            t.store(regs, start, n, wide, piece, out)

    return Tangents(weigh, steer, spread, constant)


@made_once
def make_push(T: Any, team: Team, pulls: bool) -> Kernel:
    """The tangent of every row along (v, dtau), from its solution.

    If it `pulls`, v is a cotangent, and -<t, tangent> is the gradient in the temperature:
    dp = J (v - t dtau) and J is symmetric.
    """
    t, do = tools(T, team), tangents(T, team, pulls)
    rows_of_block, held, sums = team.rows, team.held, team.lanes // 32 * DIRECTION_SUMS
    nan, zero = T(np.nan), T(0)

    def push(
        x, rows, n, wide, taus, tau_all, tau_per_row, solution, v,
        dtaus, dtau_all, dtau_per_row, out, gtau,
    ):  # fmt: skip
        regs = cuda.local.array(held, T)
        moves = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        partial = cuda.shared.array((rows_of_block, sums), float64)
        flows = cuda.shared.array((rows_of_block, AT_NODES), float64)
        tables = cuda.shared.array((rows_of_block, TANGENT_FIELDS, NODES), float64)
        coefficients = cuda.shared.array((rows_of_block, NODES), float64)
        slot = t.slot()
        row = int64(cuda.blockIdx.x) * rows_of_block + slot
        if row >= rows:
            return
        start, base = row * n, row * SOLUTION
        code = solution[base + CODE]
        if code > MIXED:
            nothing = nan if code == UNDEFINED else zero
            if pulls and t.rank() == 0:
                gtau[row] = nothing
            do.constant(start, n, wide, nothing, moves, out)
            return
        memory = Memory(room, partial[slot], flows[slot], tables[slot], coefficients[slot])
        inv = inverse_temperature_of(argument(taus, tau_all, tau_per_row, row), T(1))
        drift = T(argument(dtaus, dtau_all, dtau_per_row, row))
        c, d, limit = T(solution[base + C]), T(solution[base + D]), T(solution[base + CORE_LIMIT])
        if t.rank() < NODES:
            open_table(solution, base, memory.table)
        t.meet()
        g = memory.table[SQUARE, lane()]
        do.weigh(x, v, start, n, wide, c, inv, d, drift, limit, g, regs, moves, memory.partial)
        t.meet()
        if t.rank() < NODES:
            do.steer(memory)
        t.meet()
        used = int32(solution[base + USED])
        paired = do.spread(
            x, v, start, n, wide, c, inv, d, drift, limit, used, regs, moves, memory, out
        )
        if pulls:
            paired = t.total(paired, room)
            if t.rank() == 0:
                gtau[row] = -paired

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, int64, int64, int32, *per_row, numbers, real, *per_row, real, numbers)
    return Kernel(push, arguments, team.threads, MANY)
