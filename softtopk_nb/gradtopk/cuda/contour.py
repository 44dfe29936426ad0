"""The passes of GradTopK on a device, over a row or a part of one, by a group of whole warps.

Entries away from the core are summed by the threads that hold them, in the row's own type; the
nodes and the core are float64 (`cuda.nodes`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.row_kernels import Scratch
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import SHARED_SUMS, ThreadGroup, beside, entries_held, made_once, tools
from ..._curves.registry import CURVES
from ..._math.elementary import limits
from ..._nonfinite import WITH_INFINITIES
from ..._threshold.cuda.rows import passes
from ..._threshold.methods import Newton
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import FINITE_COUNT, LEFT, RECORD, SLOPE, C, D
from .. import formulas
from ..formulas import (
    DEEP,
    core_limit,
    deep_tail,
    minority_probability,
    node_count,
    node_terms,
    node_weight,
)
from ..nodes import NODES, node
from ..records import (
    CORE_LIMIT,
    LOG_P,
    ORDER,
    ORDER_32,
    POWERS,
    SIZE,
    STEPS,
    SUMS,
    USED,
    WEIGHTS,
)
from .nodes import TWO, fold, lane, over_core, polynomials, warp_sum

LESS = 0.5  # k less the sum of the tilted probabilities

# Sums of a thread: number of entries with pi >= 1/2, the variance, signed r, number of entries in
# the core, then powers of r, and the same signed: negated where pi >= 1/2.
UPS, VARIANCE, SIGNED, NEAR, FIRST = 0, 1, 2, 3, 4

# A group's numbers about its nodes: how many on the circle, how many used, the size of the core,
# UPS less k.
OF, TAKEN, CORE_SIZE, TURNS = 0, 1, 2, 3
NOTES = 4

PRODUCTS = 2 * NODES  # numbers of a warp: first its sums, then the core's product at each node

# Rows of numbers for each node: g, and the terms of `formulas.add_node`; sin theta until then in
# place of the first.
TABLE = 4 * NODES
BELOW, PLAIN, OVER = NODES, 2 * NODES, 3 * NODES

# Times the log of the smallest normal number: for smaller t p is 0 even with n = 1e8, where
# p/r <= 1/P(N = k) < 2^17 (Theorem thm-grad-mass).
BOTTOM = 1.4


class Level(NamedTuple):
    """The tilt of a row, u = (x - c) * inv - d, and the s above which entries are the core."""

    c: Any
    inv: Any
    d: Any
    cut: Any


class Memory(NamedTuple):
    """The shared memory of a group, all of it float64 and one-dimensional."""

    record: Any  # of the search for the tilt
    sums_shared: Any  # in the same place as the table: a search ends before nodes are chosen
    table: Any
    sums: Any
    polynomials: Any
    notes: Any
    partial: Any  # PRODUCTS numbers of each of its warps: sums, then the core's products


# Where the fields of the shared memory end.
AFTER_RECORD = RECORD
AFTER_TABLE = AFTER_RECORD + max(SHARED_SUMS, TABLE)
AFTER_SUMS = AFTER_TABLE + SUMS
AFTER_POLYNOMIALS = AFTER_SUMS + NODES
AFTER_NOTES = AFTER_POLYNOMIALS + NOTES


def shared_by(lanes: int) -> int:
    """Number of float64 that a group shares."""
    return AFTER_NOTES + lanes // 32 * PRODUCTS


@device
def arrange(shared):
    """The fields of a group's shared memory, from an array of `shared_by` numbers."""
    return Memory(
        shared[:AFTER_RECORD],
        shared[AFTER_RECORD:AFTER_TABLE],
        shared[AFTER_RECORD:AFTER_TABLE],
        shared[AFTER_TABLE:AFTER_SUMS],
        shared[AFTER_SUMS:AFTER_POLYNOMIALS],
        shared[AFTER_POLYNOMIALS:AFTER_NOTES],
        shared[AFTER_NOTES:],
    )


class Contour(NamedTuple):
    """The passes of a group over a row; some leave out its infinities.

    The memory of the group is arranged in `scratch.record`.
    """

    #: tilt(span, k, tau, scratch) -> the kind of the row; finds its tilt
    tilt: Any
    #: opened(record, tau) -> the `Level`, from the record of a tilt
    opened: Any
    #: gather(span, level, scratch, partial) -> which of the entries held are of the core, one
    #: bit for each; writes the sums
    gather: Any
    #: choose_nodes(k, inv, memory): from the sums in `partial`
    choose_nodes: Any
    #: multiply(span, level, bits, scratch, memory): writes the core's products
    multiply: Any
    #: product(partial, re, im) -> this times the products of the warps, at this lane's node
    product: Any
    #: weigh_nodes(memory) -> (Re c, Im c, log P(N = k)) of this lane's node, in the first warp;
    #: writes the table and polynomials that `marginals` needs
    weigh_nodes: Any
    #: quadrature(span, k, level, scratch): all steps from `gather` on, for a row
    quadrature: Any
    #: marginals(span, tau, scratch, out): writes p
    marginals: Any
    #: constant(span, code, k, scratch, out): writes p where nothing is solved
    constant: Any


add_node, core_marginal, horner, tail_probability = map(
    device, (formulas.add_node, formulas.core_marginal, formulas.horner, formulas.tail_probability)
)


@device
def times(a, b, real, imaginary):
    """(a + ib)(real + i imaginary)."""
    return a * real - b * imaginary, a * imaginary + b * real


@device
def multiply_by(r, move, g, sine, a, b):
    """(a + ib)(1 + r u), or with the conjugate of u where pi >= 1/2."""
    return times(a, b, 1.0 - 0.5 * abs(r) * g, r * sine)


@device
def keep(weights, level, notes, solution, base):
    """Write the solution of a row for its derivatives, but for its code; for the first warp."""
    re, im, log_p = weights
    solution[base + WEIGHTS + lane()] = re
    solution[base + WEIGHTS + NODES + lane()] = im
    if lane() == 0:
        solution[base + C], solution[base + D] = level.c, level.d
        solution[base + CORE_LIMIT] = level.cut
        solution[base + LOG_P], solution[base + STEPS] = log_p, 0.0
        solution[base + SIZE], solution[base + USED] = notes[OF], notes[TAKEN]


def sums_of(T: Any) -> tuple[int, int]:
    """(number of powers of r that are summed, number of sums of a warp, a power of 2)."""
    order = ORDER_32 if T is np.float32 else ORDER
    return order, 1 << (FIRST + 2 * order - 1).bit_length()


@made_once
def contours(T: Any, group: ThreadGroup, enough: float) -> Contour:
    """The passes of GradTopK over a row; `enough` as in Newton's method for the tilt."""
    t, do = tools(T, group), passes(T, group, CURVES["sigmoid"], Newton(enough))
    held, warps, streams = group.held, group.lanes // 32, group.streams
    order, count = sums_of(T)
    second = FIRST + order
    # At most a few entries are added in float32 before float64.
    flushes = streams and T is np.float32
    entries, total_of = entries_held(held), fold(count)
    multiply_core = over_core(T, held, multiply_by, False)
    zero, one = T(0), T(1)
    floor = T(DEEP * math.log(limits(T(1))[1]))
    bottom = T(BOTTOM * math.log(limits(T(1))[1]))

    @device
    def tilt(span, k, tau, scratch):
        memory = arrange(scratch.record)
        scratch = Scratch(scratch.regs, scratch.more, memory.sums_shared, memory.record)
        code = do.survey(span, k, tau, scratch)
        if code <= WITH_INFINITIES:
            t.meet()
            if t.rank() == 0:
                scratch.record[LEFT] -= LESS
            t.meet()
            do.search(span, span.x, inverse_temperature_of(tau, one), scratch)
        return code

    @device
    def opened(record, tau):
        inv = inverse_temperature_of(tau, one)
        return Level(T(record[C]), inv, T(record[D]), core_limit(record[SLOPE], inv))

    @device
    def gather(span, level, scratch, partial):
        regs, (c, inv, d, cut) = scratch.regs, level
        limit = T(cut)
        part = cuda.local.array(count, T)
        whole = cuda.local.array(count, float64)
        for m in range(count):
            part[m], whole[m] = zero, 0.0
        bits = 0
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, T(-np.inf), regs)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = minority_probability(u)
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
        share = float64(total_of(whole) if flushes else total_of(part))
        partial[t.rank() // 32 * PRODUCTS + lane() * count // 32] = share
        return bits

    @device
    def core_bits(level, regs):
        c, inv, d, limit = level.c, level.inv, level.d, T(level.cut)
        bits = 0
        for j in range(held):
            r = minority_probability((regs[j] - c) * inv - d)
            bits |= 1 << j if r * (one - r) > limit else 0
        return bits

    @device
    def column(partial, m):
        """The sum over the group's warps, in their order."""
        total = 0.0
        for w in range(warps):
            total += partial[w * PRODUCTS + m]
        return total

    @device
    def product(partial, re, im):
        for w in range(warps):
            at = w * PRODUCTS + lane()
            re, im = times(re, im, partial[at], partial[at + NODES])
        return re, im

    @device
    def choose(k, inv, memory):
        partial, sums, notes = memory.partial, memory.sums, memory.notes
        if lane() < order:
            plain, signed = column(partial, FIRST + lane()), column(partial, second + lane())
            sums[POWERS + lane()] = 0.5 * (plain + signed)
            sums[POWERS + ORDER + lane()] = 0.5 * (plain - signed)
        turns = column(partial, UPS) - k
        excess, finite = turns + column(partial, SIGNED), int64(memory.record[FINITE_COUNT])
        size, used = node_count(finite, column(partial, VARIANCE), excess, inv, NODES)
        square, sine = node(lane(), size)
        memory.table[lane()] = square if lane() < used else 0.0
        memory.table[BELOW + lane()] = sine if lane() < used else 0.0
        if lane() == 0:
            notes[OF], notes[TAKEN], notes[TURNS] = size, used, turns
            notes[CORE_SIZE] = column(partial, NEAR)

    @device
    def choose_nodes(k, inv, memory):
        t.meet()
        if t.rank() < 32:
            choose(k, inv, memory)
        t.meet()

    @device
    def multiply(span, level, bits, scratch, memory):
        regs, (c, inv, d, _) = scratch.regs, level
        g, sine, at = memory.table[lane()], memory.table[BELOW + lane()], t.rank() // 32 * PRODUCTS
        a, b = 1.0, 0.0
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, T(-np.inf), regs)
                bits = core_bits(level, regs)
            a, b = multiply_core(bits, regs, regs, c, inv, d, g, sine, a, b)
        memory.partial[at + lane()], memory.partial[at + NODES + lane()] = a, b

    @device
    def weigh(memory):
        notes, square, sine = memory.notes, memory.table[lane()], memory.table[BELOW + lane()]
        re, im = node_weight(lane(), notes[OF], square, sine, order, notes[TURNS], memory.sums)
        if notes[CORE_SIZE] > 0.0:
            re, im = product(memory.partial, re, im)
        taken = lane() < notes[TAKEN]
        re, im = re if taken else 0.0, im if taken else 0.0
        total = warp_sum(re)
        return re / total, im / total, math.log(total / notes[OF])

    @device
    def prepare(re, im, memory):
        table, square = memory.table, memory.table[lane()]
        below, plain, over = node_terms(square, table[BELOW + lane()], re, im)
        table[BELOW + lane()], table[PLAIN + lane()], table[OVER + lane()] = below, plain, over
        memory.polynomials[lane() // 2] = polynomials(below, plain, square)
        memory.polynomials[TWO + lane() // 2] = polynomials(over, 0.0, square)

    @device
    def weigh_nodes(memory):
        t.meet()
        re, im, log_p = 0.0, 0.0, 0.0
        if t.rank() < 32:
            re, im, log_p = weigh(memory)
            prepare(re, im, memory)
        t.meet()
        return re, im, log_p

    @device
    def quadrature(span, k, level, scratch):
        memory = arrange(scratch.record)
        bits = gather(span, level, scratch, memory.partial)
        choose_nodes(k, level.inv, memory)
        if memory.notes[CORE_SIZE] > 0.0:
            multiply(span, level, bits, scratch, memory)
        return weigh_nodes(memory)

    @device
    def special(v, level, top, memory):
        """p of an entry of the core, or of one whose r nearly underflows."""
        u = (v - level.c) * level.inv - level.d
        if u < floor:
            return deep_tail(u, top)
        table, r, upper = memory.table, float64(minority_probability(u)), u >= zero
        over, under = 0.0, 1.0
        for j in range(int32(memory.notes[TAKEN])):
            edge = table[OVER + j] if upper else table[BELOW + j]
            over, under = add_node(over, under, r, edge, table[j], table[PLAIN + j])
        return T(core_marginal(r, upper, over, under))

    @device
    def marginals(span, tau, scratch, out):
        # Entries are read once more: otherwise results of each entry would wait in registers.
        regs, memory = scratch.regs, arrange(scratch.record)
        level = opened(memory.record, tau)
        c, inv, d, cut = level
        limit, q = T(cut), memory.polynomials
        a = T(q[0]), T(q[1]), T(q[2]), T(q[3]), T(q[4]), T(q[5]), T(q[6]), T(q[7])
        b = T(q[8]), T(q[9]), T(q[10]), T(q[11]), T(q[12]), T(q[13]), T(q[14]), T(q[15])
        z = T(q[16]), T(q[17]), T(q[18]), T(q[19]), T(q[20]), T(q[21]), T(q[22]), T(q[23])
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, T(-np.inf), regs)
            bits = 0
            for j in range(held):
                u = (regs[j] - c) * inv - d
                r = minority_probability(u)
                s = r * (one - r)
                tail = tail_probability(r, u >= zero, horner(a, s), horner(b, s), horner(z, s))
                later = s > limit or (u < floor and u > bottom)
                bits |= 1 << j if later else 0
                p = one - tail if u >= zero else tail
                regs[j] = regs[j] if later else p
            while bits != 0:
                place = cuda.ffs(bits) - 1
                p = special(entries.at(regs, place), level, a[0], memory)
                entries.put(regs, place, p)
                bits &= bits - 1
            t.store(regs, beside(span, out), piece)

    @device
    def constant(span, code, k, scratch, out):
        memory = arrange(scratch.record)
        do.constant(
            span, code, k, Scratch(scratch.regs, scratch.more, memory.table, memory.record), out
        )

    nodes = choose_nodes, multiply, product, weigh_nodes, quadrature
    return Contour(tilt, opened, gather, *nodes, marginals, constant)
