"""GradTopK's second derivatives on a device, from the nodes of a row: Theorem thm-grad-second.

Two passes over the row, which lies in memory. In the first each lane of a warp stands for a node,
and adds up the terms of the entries, one after the other; in the second each thread sums its own
entries' terms over all nodes. All of it is in float64, except for t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32

from ..._cuda.launch import MANY
from ..._cuda.row_kernels import ENTRIES, NUMBERS, PER_ROW, RowKernel
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import FULL, ThreadGroup, made_once, of_row, tools
from ..._nonfinite import UNDEFINED, WITH_INFINITIES
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import C, D
from .. import formulas
from ..formulas import (
    cumulant_at_node,
    minority_probability,
    product,
    tilted_fraction,
    variance_share,
)
from ..nodes import NODES, node
from ..records import CODE, SIZE, SOLUTION, USED, WEIGHTS
from .nodes import lane, warp_sum

# The sums over the row at a node: along either direction, along both, and of the product; complex.
SUMS = 8
# Fields of a node: |u|^2, sin theta and the weight c; c times the deviations of the sums along
# either direction, and of the term that belongs to one entry alone.
SQUARE, SINE, RE, IM, MOVE, OTHER, OWN = 0, 1, 2, 3, 4, 6, 8
FIELDS = 10
AFTER_FIELDS = FIELDS * NODES
PARTIAL = AFTER_FIELDS + 1  # after the covariance of the two sums

combined_direction = device(formulas.combined_direction)
within_reach = device(formulas.within_reach)


class Problem(NamedTuple):
    """A row and its two directions, of which the second is a cotangent."""

    x: Any
    v: Any
    g: Any
    start: Any
    n: Any
    level: Any  # c, 1/tau and d of the tilt
    drift: Any  # the first direction in the temperature


class EntryTerms(NamedTuple):
    """The terms of an entry in the sums at the nodes: 0 if it is not finite."""

    s: Any
    z: Any
    move: Any
    other: Any
    both: Any  # the second-order term of the temperature's directions


@made_once
def entry_of(T: Any) -> Any:
    """A device function that returns (t, `EntryTerms`) of the i-th entry of a problem."""
    zero, one, infinity = T(0), T(1), T(np.inf)

    @device
    def look(problem, i):
        at, (c, inv, d) = problem.start + i, problem.level
        entry = problem.x[at] if i < problem.n else infinity
        u = (entry - c) * inv - d
        r = minority_probability(u)
        if not abs(entry) < infinity:
            return u, EntryTerms(0.0, 0.0, 0.0, 0.0, 0.0)
        move = float64(combined_direction(u, r * (one - r), problem.v[at], problem.drift))
        other, wide = float64(problem.g[at]), float64(r)
        z = 1.0 - 2.0 * wide
        z = z if u >= zero else -z
        return u, EntryTerms(wide * (1.0 - wide), z, move, other, other * float64(problem.drift))

    return look


@device
def broadcast_from_lane(seen, owner):
    """The `EntryTerms` of one lane, in all lanes of this warp."""
    return EntryTerms(
        cuda.shfl_sync(FULL, seen.s, owner),
        cuda.shfl_sync(FULL, seen.z, owner),
        cuda.shfl_sync(FULL, seen.move, owner),
        cuda.shfl_sync(FULL, seen.other, owner),
        cuda.shfl_sync(FULL, seen.both, owner),
    )


@made_once
def make_gather(T: Any, group: ThreadGroup) -> Any:
    """A device function that adds up a row at the nodes, each warp of a group a share of it."""
    t, look, warps = tools(T, group), entry_of(T), group.lanes // NODES

    @device
    def gather(problem, square, sine, shared):
        warp = t.rank() // NODES
        vr, vi, ar, ai, br, bi, pr, pi = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for first in range(NODES * warp, problem.n, NODES * warps):
            _, seen = look(problem, first + lane())
            for owner in range(min(NODES, problem.n - first)):
                s, z, v, a, b = broadcast_from_lane(seen, owner)
                yr, yi = tilted_fraction(square, sine, s, z)
                rho, tho = variance_share(s, z, yr, yi)
                vr += s * v * yr
                vi += s * v * yi
                ar += s * a * yr
                ai += s * a * yi
                br += s * b * yr
                bi += s * b * yi
                pr += s * v * a * rho
                pi += s * v * a * tho
        at = PARTIAL + warp * SUMS * NODES + lane()
        shared[at], shared[at + NODES] = vr, vi
        shared[at + 2 * NODES], shared[at + 3 * NODES] = ar, ai
        shared[at + 4 * NODES], shared[at + 5 * NODES] = br, bi
        shared[at + 6 * NODES], shared[at + 7 * NODES] = pr, pi

    return gather


@made_once
def make_settle(warps: int) -> Any:
    """A device function that writes the fields of the nodes, each by its lane of the first warp."""

    @device
    def added(shared, m):
        total = 0.0
        for warp in range(warps):
            total += shared[PARTIAL + (warp * SUMS + m) * NODES + lane()]
        return total

    @device
    def put(shared, field, numbers):
        shared[field * NODES + lane()] = numbers[0]
        shared[(field + 1) * NODES + lane()] = numbers[1]

    @device
    def settle(square, sine, re, im, shared):
        vr, vi, ar, ai = added(shared, 0), added(shared, 1), added(shared, 2), added(shared, 3)
        br, bi, pr, pi = added(shared, 4), added(shared, 5), added(shared, 6), added(shared, 7)
        vr -= warp_sum(re * vr - im * vi)
        ar -= warp_sum(re * ar - im * ai)
        br -= warp_sum(re * br - im * bi)
        both = product(vr, vi, ar, ai)
        pr, pi = pr + both[0], pi + both[1]
        covariance = warp_sum(re * pr - im * pi)
        put(shared, SQUARE, (square, sine))
        put(shared, RE, (re, im))
        put(shared, MOVE, product(re, im, vr, vi))
        put(shared, OTHER, product(re, im, ar, ai))
        put(shared, OWN, product(re, im, pr - covariance - br, pi - bi))
        if lane() == 0:
            shared[AFTER_FIELDS] = covariance

    return settle


@device
def cumulant(seen, used, shared):
    """The sum over the nodes for one entry."""
    total = 0.0
    moved = seen.move, seen.other, seen.both
    for j in range(used):
        yr, yi = tilted_fraction(shared[j], shared[SINE * NODES + j], seen.s, seen.z)
        of_node = (
            shared[RE * NODES + j],
            shared[IM * NODES + j],
            shared[MOVE * NODES + j],
            shared[(MOVE + 1) * NODES + j],
            shared[OTHER * NODES + j],
            shared[(OTHER + 1) * NODES + j],
        )
        total += cumulant_at_node(seen.s, seen.z, yr, yi, moved, of_node)
        total += shared[OWN * NODES + j] * yr - shared[(OWN + 1) * NODES + j] * yi
    return total


def shared_by(lanes: int) -> int:
    """Number of float64 that a group shares."""
    return PARTIAL + lanes // NODES * SUMS * NODES


@made_once
def make_second(T: Any, group: ThreadGroup) -> RowKernel:
    """A kernel for the gradients of <g, dp> of every row, dp along (v, dtau), from its solution."""
    t, look, gather = tools(T, group), entry_of(T), make_gather(T, group)
    settle, lanes, one = make_settle(group.lanes // NODES), group.lanes, T(1)

    @device
    def write(problem, used, shared, out):
        """Write the gradient in x; returns this thread's share of the one in the temperature."""
        scale, in_tau = float64(problem.level[1]) * float64(problem.level[1]), 0.0
        for i in range(t.rank(), problem.n, lanes):
            u, seen = look(problem, i)
            moved = scale * seen.s * cumulant(seen, used, shared) if seen.s > 0.0 else 0.0
            out[problem.start + i] = T(moved)
            in_tau -= moved * float64(within_reach(u))
        return in_tau

    @device
    def solved(here, shared, totals, batch, given):
        solution, v, g, dtaus, gx, gtau = given
        base, row, span = here.row * SOLUTION, here.row, here.span
        inv = inverse_temperature_of(of_row(batch.temperature, row), one)
        level = T(solution[base + C]), inv, T(solution[base + D])
        problem = Problem(span.x, v, g, span.start, span.n, level, T(of_row(dtaus, row)))
        square, sine = node(lane(), solution[base + SIZE])
        used = int32(solution[base + USED])
        taken = lane() < used
        re = solution[base + WEIGHTS + lane()] if taken else 0.0
        im = solution[base + WEIGHTS + NODES + lane()] if taken else 0.0
        gather(problem, square if taken else 0.0, sine if taken else 0.0, shared)
        t.meet()
        if t.rank() < NODES:
            settle(square, sine, re, im, shared)
        t.meet()
        in_tau = t.total(write(problem, used, shared, gx), totals)
        if t.rank() == 0:
            gtau[row] = in_tau - float64(inv) * float64(inv) * shared[AFTER_FIELDS]

    @device
    def second(here, s, batch, given):
        code = given[0][here.row * SOLUTION + CODE]
        if code > WITH_INFINITIES:
            value = np.nan if code == UNDEFINED else 0.0
            for i in range(t.rank(), here.span.n, lanes):
                given[4][here.span.start + i] = T(value)
            if t.rank() == 0:
                given[5][here.row] = value
        else:
            solved(here, s.record, s.shared, batch, given)

    given = NUMBERS, ENTRIES, ENTRIES, PER_ROW, ENTRIES, NUMBERS
    return RowKernel(T, group, second, given, MANY, shared_by(group.lanes))
