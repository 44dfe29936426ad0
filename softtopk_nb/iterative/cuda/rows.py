"""The iterations on a device: value, derivative and VJP, one row at a time for each group.

There are no more groups than memory allows, and each goes from row to row. `work` holds the vectors
of all groups, one group after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import ENOUGH, MANY
from ..._cuda.row_kernels import ENTRIES, NUMBERS, PER_ROW, Cut, RowKernel
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import SHARED_SUMS, Span, ThreadGroup, made_once, of_row, tools
from ..._nonfinite import UNDEFINED
from .slopes import adjoint, tangent
from .steps import DP, GZ, PULL, P, iterated, results, steps, vector, whole


class Memory(NamedTuple):
    """The memory for the vectors of all groups."""

    work: Any
    groups: Any
    vectors: Any  # number of vectors of each group, of n numbers


class GroupKernel(RowKernel):
    """A kernel whose groups go from row to row.

    visit(span, row, at, shared, batch, given): `at` is where the group's vectors begin in the
    `work` of `given[0]`, a `Memory`.
    """

    def __init__(
        self, T: Any, group: ThreadGroup, visit: Any, *given: Any, registers: int = ENOUGH
    ):
        memory = Memory(NUMBERS, int64, int64)
        super().__init__(T, group, visit, (memory, *given), registers)

    @staticmethod
    def _kernel(T: Any, group: ThreadGroup, visit: Any, record: int) -> Callable[..., None]:
        t, rows_of_block = tools(np.float64, group), group.rows

        def kernel(batch, cut, given):
            shared = cuda.shared.array(SHARED_SUMS, float64)
            memory, n = given[0], batch.n
            first = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
            for row in range(first, batch.rows, memory.groups):
                span = Span(batch.x, row * n, n, 0)
                visit(span, row, first * memory.vectors * n, shared, batch, given)

        return kernel

    def work(self, rows: Rows, blocks: int, vectors: int, work: Buffer, *given: Any) -> None:
        """Launch the kernel on `blocks` blocks, whose groups have `vectors` vectors each."""
        memory = Memory(work, blocks * self.group.rows, vectors)
        self._launch(blocks, rows, Cut(1, 1, rows.n), (memory, *given), rows.rows)


@made_once
def row_value(T: Any, group: ThreadGroup, kind: Any) -> Any:
    """A device function that writes p of one row: f(span, k, tau, work, at, shared, out).

    `work` has VALUE vectors from `at` on.
    """
    row_of, result = whole(group, kind), results(T, group)

    @device
    def fill(span, k, tau, work, at, shared, out):
        code, left, top, row = row_of.open(span, k, tau, work, at, shared)
        if iterated(code):
            row_of.iterate(0, left, row, P, shared)
        result.value(row, code, top, out)

    return fill


@made_once
def make_solve(T: Any, group: ThreadGroup, kind: Any) -> GroupKernel:
    """A kernel that writes p to `out`."""
    fill = row_value(T, group, kind)

    @device
    def solve(span, row, at, shared, batch, given):
        memory, out = given
        k, tau = of_row(batch.k, row), of_row(batch.temperature, row)
        fill(span, k, tau, memory.work, at, shared, out)

    return GroupKernel(T, group, solve, ENTRIES)


@made_once
def make_jvp(T: Any, group: ThreadGroup, kind: Any) -> GroupKernel:
    """A kernel that writes dp along (v, dtau) to `out`."""
    do, row_of = steps(group, kind), whole(group, kind)
    slopes, result = tangent(group, kind), results(T, group)

    @device
    def move(step, row, shared):
        total = row_of.weigh(step, row, P, shared)
        led = others = 0.0
        if do.own.settled(step, row):
            led, others = slopes.sums(row, shared)
        slopes.p(row, total, slopes.q(step, row, total, led, others, shared))

    @device
    def jvp(span, line, at, shared, batch, given):
        memory, v, dtau, out = given
        k, tau = of_row(batch.k, line), of_row(batch.temperature, line)
        code, left, _, row = row_of.open(span, k, tau, memory.work, at, shared)
        if iterated(code):
            slopes.z(row, v, slopes.at_zero(row, v, shared), of_row(dtau, line))
            do.clear(row, DP)
            for step in range(left):
                move(step, row, shared)
        result.slope(row, code, DP, out)

    return GroupKernel(T, group, jvp, ENTRIES, PER_ROW, ENTRIES, registers=MANY)


@made_once
def make_vjp(T: Any, group: ThreadGroup, kind: Any) -> GroupKernel:
    """A kernel that writes the gradients of <g, p>, those in x to `gx`.

    It follows Proposition prop-iter-checkpoint, as on the CPU; the shares of a step are recomputed
    instead of stored, so that a row needs two vectors for each step of a segment: one for p before
    it, one for p before the segment of that number.
    """
    t, do, row_of = tools(np.float64, group), steps(group, kind), whole(group, kind)
    slopes, result, lanes = adjoint(group, kind), results(T, group), group.lanes

    @device
    def back(step, row, p, shared):
        total = row_of.weigh(step, row, p, shared)
        centre, led = slopes.centre(row, total, shared), 0.0
        if do.own.settled(step, row):
            led = slopes.at_zero(row, centre, shared)
        slopes.p(step, row, p, total, centre, led)

    @device
    def copy(row, source, target):
        source, target = vector(row, source), vector(row, target)
        for i in range(t.rank(), row.n, lanes):
            row.work[target + i] = row.work[source + i]

    @device
    def reverse(row, steps_in_all, kept, shared):
        m = int64(math.ceil(math.sqrt(float64(steps_in_all))))
        segments = (steps_in_all + m - 1) // m
        for j in range(segments):
            copy(row, P, PULL + j)
            if j < segments - 1:
                row_of.iterate(j * m, (j + 1) * m, row, P, shared)
        for back_to in range(segments):
            j = segments - 1 - back_to
            first, last = j * m, min(steps_in_all, (j + 1) * m)
            copy(row, PULL + j, kept)
            for step in range(first, last - 1):
                now = kept + step - first
                copy(row, now, now + 1)
                row_of.iterate(step, step + 1, row, now + 1, shared)
            for ago in range(last - first):
                step = last - 1 - ago
                back(step, row, kept + step - first, shared)

    @device
    def vjp(span, line, at, shared, batch, given):
        memory, g, gx, gtau = given
        k, tau = of_row(batch.k, line), of_row(batch.temperature, line)
        code, left, _, row = row_of.open(span, k, tau, memory.work, at, shared)
        in_tau = np.nan if code == UNDEFINED else 0.0
        if iterated(code):
            slopes.receive(row, g)
            reverse(row, left, PULL + (memory.vectors - PULL) // 2, shared)
            total, turned = slopes.sums(row, shared)
            slopes.x(row, total)
            in_tau = -turned * row.rate
        result.slope(row, code, GZ, gx)
        if t.rank() == 0:
            gtau[line] = in_tau

    return GroupKernel(T, group, vjp, ENTRIES, ENTRIES, NUMBERS, registers=MANY)
