"""Kernels over the rows of a matrix on a device: the weights, and the derivatives by them.

They do what `kernels` does in memory. n is so small that a system of n columns can be solved, and
a row is never cut into parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._cuda.row_kernels import ENTRIES, NUMBERS, ROWS, RowKernel
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, beside, made_once, of_row, tools
from ..._nonfinite import WITH_INFINITIES
from ..._threshold.cuda.rows import entries_for, on_device, registers_for
from ..._threshold.newton import inverse_temperature_of
from ..._threshold.records import CODE, SOLUTION, C, D
from ...thretopk.formulas import weight
from ..kernels import FAINTEST


@made_once
def _levels(T: Any) -> Any:
    """A function (row, temperature, solution) -> (c, 1/tau, d) of a row's threshold."""

    @device
    def level(row, temperature, solution):
        inv = inverse_temperature_of(of_row(temperature, row), T(1))
        return T(solution[row * SOLUTION + C]), inv, T(solution[row * SOLUTION + D])

    return level


@made_once
def make_weigh(T: Any, group: ThreadGroup, curve: Any) -> RowKernel:
    """A kernel that writes u/sqrt(r) of rows, u = f'(t)/tau and r its sum; 0 for saturated rows."""
    t, level = tools(T, group), _levels(T)
    held, entries, curve = group.held, entries_for(curve, group.held), on_device(curve, T)
    zero, infinity = T(0), T(np.inf)

    @device
    def slopes(here, s, of_threshold, piece):
        """Leave f'(t) of a piece."""
        c, inv, d = of_threshold
        t.load(here.span, piece, -infinity, s.regs)
        for j in range(held):
            value, w = entries.at(s.regs, j), zero
            if value > -infinity:
                w = T(weight(curve, (value - c) * inv - d))
            entries.put(s.more, j, w)

    @device
    def weigh(here, s, batch, given):
        solution, v, r = given
        at = level(here.row, batch.temperature, solution)
        total = 0.0
        for piece in range(t.pieces(here.span.n)):
            slopes(here, s, at, piece)
            part = zero
            for j in range(held):
                part += s.more[j]
            total += part
        total = t.total(total, s.shared)
        solved = total > FAINTEST and solution[here.row * SOLUTION + CODE] <= WITH_INFINITIES
        scale = T(math.sqrt(at[1] / total)) if solved else zero
        for piece in range(t.pieces(here.span.n)):
            if group.streams:
                slopes(here, s, at, piece)
            for j in range(held):
                s.more[j] = s.more[j] * scale if solved else zero
            t.store(s.more, beside(here.span, v), piece)
        if t.rank() == 0:
            r[here.row] = total * at[1] if solved else 0.0

    return RowKernel(T, group, weigh, (NUMBERS, ROWS, NUMBERS), registers_for(curve))


@made_once
def make_project(T: Any, group: ThreadGroup) -> RowKernel:
    """A kernel that writes u (g' - mean) of rows and their means, g' = g - t dtau.

    The mean is weighted, and less moved/r: what the row's sum shall move by. `moved` has dtau
    behind the numbers of the rows. g is not looked at where u is 0.
    """
    t, level, held = tools(T, group), _levels(T), group.held
    zero, infinity = T(0), T(np.inf)

    @device
    def moves(here, s, weights, piece):
        """Leave the weights of a piece, and g' where they are not 0."""
        v, g, dtau, (c, inv, d) = weights
        t.load(here.span, piece, -infinity, s.regs)
        t.load(beside(here.span, g), piece, zero, s.more)
        if dtau != zero:
            for j in range(held):
                if s.regs[j] > -infinity:
                    s.more[j] -= dtau * ((s.regs[j] - c) * inv - d)
        t.load(beside(here.span, v), piece, zero, s.regs)
        for j in range(held):
            s.more[j] = s.more[j] if s.regs[j] > zero else zero

    @device
    def project(here, s, batch, given):
        solution, v, r, g, moved, mean, out = given
        at = level(here.row, batch.temperature, solution)
        weights = v, g, T(moved[batch.rows]), at
        along, size = 0.0, r[here.row]
        for piece in range(t.pieces(here.span.n)):
            moves(here, s, weights, piece)
            part = zero
            for j in range(held):
                part += s.regs[j] * s.more[j]
            along += part
        along = t.total(along, s.shared)
        root = math.sqrt(size)
        middle = along / root - moved[here.row] / size if size > 0.0 else 0.0
        if t.rank() == 0:
            mean[here.row] = middle
        scale, centre = T(root), T(middle)
        for piece in range(t.pieces(here.span.n)):
            if group.streams:
                moves(here, s, weights, piece)
            for j in range(held):
                s.more[j] = scale * s.regs[j] * (s.more[j] - centre)
            t.store(s.more, beside(here.span, out), piece)

    given = NUMBERS, ROWS, NUMBERS, ROWS, NUMBERS, NUMBERS, ROWS
    return RowKernel(T, group, project, given)


@made_once
def make_spread(T: Any, group: ThreadGroup) -> RowKernel:
    """A kernel that subtracts u (other - its mean) from rows, and that mean from their means.

    The rows of x are those of the weights; `other` has a number for each column.
    """
    t, held, zero = tools(T, group), group.held, T(0)

    @device
    def others(here, s, other, piece):
        """Leave the weights of a piece, and the numbers of its columns."""
        t.load(here.span, piece, zero, s.regs)
        for j in range(held):
            at = t.position(piece, j)
            s.more[j] = other[at] if at < here.span.n else zero

    @device
    def spread(here, s, batch, given):
        r, other, mean, out = given
        along, root = 0.0, math.sqrt(r[here.row])
        for piece in range(t.pieces(here.span.n)):
            others(here, s, other, piece)
            part = zero
            for j in range(held):
                part += s.regs[j] * s.more[j]
            along += part
        along = t.total(along, s.shared)
        middle = along / root if root > 0.0 else 0.0
        if t.rank() == 0:
            mean[here.row] -= middle
        scale, centre = T(root), T(middle)
        for piece in range(t.pieces(here.span.n)):
            if group.streams:
                others(here, s, other, piece)
            for j in range(held):
                s.more[j] = scale * s.regs[j] * (s.more[j] - centre)
            t.load(beside(here.span, out), piece, zero, s.regs)
            for j in range(held):
                s.regs[j] -= s.more[j]
            t.store(s.regs, beside(here.span, out), piece)

    return RowKernel(T, group, spread, (NUMBERS, ENTRIES, NUMBERS, ROWS))


@made_once
def make_along_t(T: Any, group: ThreadGroup) -> RowKernel:
    """A kernel for the sum of g t over each row; g is 0 where t may be infinite."""
    t, level, held = tools(T, group), _levels(T), group.held
    zero, infinity = T(0), T(np.inf)

    @device
    def along_t(here, s, batch, given):
        solution, g, sums = given
        c, inv, d = level(here.row, batch.temperature, solution)
        total = 0.0
        for piece in range(t.pieces(here.span.n)):
            t.load(here.span, piece, -infinity, s.regs)
            t.load(beside(here.span, g), piece, zero, s.more)
            part = zero
            for j in range(held):
                move = s.more[j]
                part += move * ((s.regs[j] - c) * inv - d) if move != zero else zero
            total += part
        total = t.total(total, s.shared)
        if t.rank() == 0:
            sums[here.row] = total

    return RowKernel(T, group, along_t, (NUMBERS, ROWS, NUMBERS))
