"""Warp functions for the nodes of a circle: lane j of each warp stands for node j.

NODES is the number of lanes. An entry of the core is a factor or a term at every node, so its owner
broadcasts it to the lanes of its warp, one entry after the other: no list of the core is kept, and
its size has no limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.launch import choose, streaming
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import FULL, ThreadGroup, entries_held, made_once
from ..formulas import minority_probability
from ..nodes import DEGREE, NODES

TWO = 2 * DEGREE  # coefficients of two polynomials
HELD = 16  # most entries of 4 bytes that leave registers for the sums


def choose_whole(n: int, T: Any, most: int = 512) -> ThreadGroup:
    """The group for rows of n entries of type T: whole warps, `most` threads at most."""
    group, size = choose(n, T), np.dtype(T).itemsize
    held = 4 * HELD // size
    if group.lanes < NODES:
        return ThreadGroup(NODES, 16 // size)
    # With 512 threads, the entries held of float64 rows would leave no registers for their sums.
    if group.lanes > most or group.held > held or group.lanes * size > 2048:
        return streaming(T)
    return group


@device
def lane():
    """The index of this thread in its warp."""
    return cuda.threadIdx.x & 31


@device
def warp_sum(v):
    """The sum over a warp, in every lane."""
    for step in range(5):
        v += cuda.shfl_xor_sync(FULL, v, 16 >> step)
    return v


@made_once
def fold(count: int) -> Any:
    """A device function that sums `count` numbers over a warp; a power of 2 up to 32.

    fold(count)(values) overwrites the array and returns the sum of values[m] in lane 32 m / count
    and those after it: in each step a lane gives away half of what it has left, and gets the other
    half.
    """

    def halving(half: int, offset: int) -> Any:
        @device
        def halve(values):
            upper = cuda.threadIdx.x & offset != 0
            for m in range(half):
                given = values[m] if upper else values[m + half]
                kept = values[m + half] if upper else values[m]
                values[m] = kept + cuda.shfl_xor_sync(FULL, given, offset)

        @device
        def add(values):
            values[0] += cuda.shfl_xor_sync(FULL, values[0], offset)

        return halve if half else add

    first, second, third, fourth, last = (
        halving(count >> step, 32 >> step) for step in range(1, 6)
    )

    @device
    def sums(values):
        first(values)
        second(values)
        third(values)
        fourth(values)
        last(values)
        return values[0]

    return sums


@made_once
def over_core(T: Any, held: int, visit: Any, moving: bool) -> Any:
    """A device function that takes the core's entries of a warp to all of its lanes.

    Each lane does (a, b) = visit(r, move, g, sine, a, b) for each entry: r is negative where
    pi >= 1/2, and `move` is its derivative along the direction if `moving`.
    """
    at, zero = entries_held(held).at, T(0)

    @device
    def go(bits, regs, moves, c, inv, d, g, sine, a, b):
        while True:
            left = cuda.ballot_sync(FULL, bits != 0) & FULL
            if left == 0:
                break
            place = cuda.ffs(bits) - 1
            t = (at(regs, place) - c) * inv - d
            r = minority_probability(t)
            signed = -r if t >= zero else r
            move = at(moves, place) if moving else zero
            bits &= bits - 1
            while left != 0:
                owner = cuda.ffs(left) - 1
                left &= left - 1
                broadcast = cuda.shfl_sync(FULL, signed, owner)
                moved = cuda.shfl_sync(FULL, move, owner) if moving else zero
                a, b = visit(np.float64(broadcast), np.float64(moved), g, sine, a, b)
        return a, b

    return go


sum_two = fold(TWO)


@device
def polynomials(low, high, g):
    """The sums of each node's number, times g^m, over the nodes.

    Returns coefficient m of `low` in lanes 2 m and 2 m + 1, and that of `high` in lanes 16 higher.
    """
    values = cuda.local.array(TWO, np.float64)
    power = 1.0
    for m in range(DEGREE):
        values[m], values[DEGREE + m] = power * low, power * high
        power *= g
    return sum_two(values)
