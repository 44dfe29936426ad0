"""Derivatives of softmax, its logarithm and logsumexp on a device, from the rows' records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._cuda.row_kernels import NUMBERS, PER_ROW, ROWS, Stage, Staged
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, beside, made_once, of_row, tools
from ..formulas import OF_LOGS, OF_LOGS_BACK, OF_SHARES, direction, share, slope, z_of
from ..records import EXCESS, RECORD, TOP
from .rows import passes


@made_once
def frame(T: Any) -> Any:
    """A device function that reads a record: (largest entry, sum exp z - 1, 1/sum exp z)."""

    @device
    def read(record, row):
        excess = record[row * RECORD + EXCESS]
        return T(record[row * RECORD + TOP]), excess, T(1.0 / (1.0 + excess))

    return read


@made_once
def slope_passes(T: Any, group: ThreadGroup, rule: int) -> tuple[Any, Any]:
    """The two passes of a derivative of softmax or of its logarithm, by the `rule` for an entry.

    add(here, s, batch, record, v, dtau): the mean that the rule asks for.
    write(here, s, batch, record, v, dtau, mean, out): the derivative; returns its product with z.
    """
    t, do, read = tools(T, group), passes(T, group, "softmax"), frame(T)
    held = group.held
    zero, infinity, nan = T(0), T(np.inf), T(np.nan)

    @device
    def load(span, piece, v, m, inv, s):
        """Load entries as z, and the v that belong to them."""
        t.load(span, piece, -infinity, s.regs)
        t.load(beside(span, v), piece, zero, s.more)
        for j in range(held):
            s.regs[j] = z_of(s.regs[j], m, inv)

    @device
    def add(here, s, batch, record, v, dtau):
        span, inv = here.span, do.inverse(of_row(batch.temperature, here.row))
        m, _, scale = read(record, here.row)
        total, found = 0.0, zero
        for piece in range(t.pieces(span.n)):
            load(span, piece, v, m, inv, s)
            found = zero
            for j in range(held):
                z = s.regs[j]
                if rule == OF_LOGS_BACK:
                    found += s.more[j] if z > -infinity else zero
                else:
                    p = share(z, scale)
                    found += p * direction(z, s.more[j], dtau) if p > zero else zero
            if group.streams:
                total += found
        return do.whole(found, total, s)

    @device
    def write(here, s, batch, record, v, dtau, mean, out):
        span, inv = here.span, do.inverse(of_row(batch.temperature, here.row))
        m, _, scale = read(record, here.row)
        moves = abs(m) < infinity
        constant = zero if m > zero else nan
        total, found = 0.0, zero
        for piece in range(t.pieces(span.n)):
            if group.streams:
                load(span, piece, v, m, inv, s)
            found = zero
            for j in range(held):
                z = s.regs[j]
                w = slope(z, share(z, scale), s.more[j], inv, dtau, mean, rule)
                w = w if moves else constant
                found += w * z if z > -infinity else zero
                s.regs[j] = w
            t.store(s.regs, beside(span, out), piece)
            if group.streams:
                total += found
        found = do.whole(found, total, s)
        return found if moves else np.float64(constant)

    return add, write


@made_once
def make_jvp(T: Any, group: ThreadGroup, f: str) -> Staged:
    """A kernel for the derivative of softmax or its logarithm along a direction, from records."""
    add, write = slope_passes(T, group, OF_LOGS if f == "log_softmax" else OF_SHARES)

    @device
    def mean(here, s, batch, given, found):
        record, dx, dtaus, _ = given
        found = add(here, s, batch, record, dx, T(of_row(dtaus, here.row)))
        return found, 0.0, 0.0, 0.0, 0.0, 0.0

    @device
    def jvp(here, s, batch, given, found):
        record, dx, dtaus, dp = given
        write(here, s, batch, record, dx, T(of_row(dtaus, here.row)), T(found[0]), dp)

    return Staged(T, group, (NUMBERS, ROWS, PER_ROW, ROWS), (Stage(mean), Stage(jvp)))


@made_once
def make_vjp(T: Any, group: ThreadGroup, f: str) -> Staged:
    """A kernel for the gradients of softmax or of its logarithm, from the rows' records."""
    t, zero = tools(T, group), T(0)
    add, write = slope_passes(T, group, OF_LOGS_BACK if f == "log_softmax" else OF_SHARES)

    @device
    def mean(here, s, batch, given, found):
        record, g, _, _ = given
        return add(here, s, batch, record, g, zero), 0.0, 0.0, 0.0, 0.0, 0.0

    @device
    def vjp(here, s, batch, given, found):
        record, g, gx, _ = given
        product = write(here, s, batch, record, g, zero, T(found[0]), gx)
        return product, 0.0, 0.0, 0.0, 0.0, 0.0

    @device
    def in_temperature(here, s, batch, given, found):
        if t.rank() == 0:
            given[3][here.row] = -found[0]

    stages = Stage(mean), Stage(vjp), Stage(in_temperature, once=True)
    return Staged(T, group, (NUMBERS, ROWS, ROWS, NUMBERS), stages)


# The gradient of logsumexp in x is softmax, in the temperature its entropy log S - <p, z>; both are
# 0 in rows without a finite maximum.


@device
def entropy(m, excess, mean_z):
    """The gradient of logsumexp in the temperature."""
    return 0.0 if abs(m) == np.inf else math.log1p(excess) - mean_z


@made_once
def make_jvp_logsumexp(T: Any, group: ThreadGroup) -> Staged:
    """A kernel for the derivative of logsumexp along a direction, from the rows' records."""
    t, do, held, read = tools(T, group), passes(T, group, "logsumexp"), group.held, frame(T)
    zero, infinity = T(0), T(np.inf)

    @device
    def means(here, s, batch, given, found):
        """The sums <p, dx> and <p, z>."""
        record, dx, _, _ = given
        span, inv = here.span, do.inverse(of_row(batch.temperature, here.row))
        m, _, scale = read(record, here.row)
        tv, tz, sv, sz = 0.0, 0.0, zero, zero
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            t.load(beside(span, dx), piece, zero, s.more)
            for j in range(held):
                z = z_of(s.regs[j], m, inv)
                p = share(z, scale)
                sv += p if p == zero else p * s.more[j]
                sz += p if p == zero else p * z
            if group.streams:
                tv += sv
                tz += sz
                sv, sz = zero, zero
        moved, mean_z = do.both(sv, sz, tv, tz, s)
        return moved, mean_z, 0.0, 0.0, 0.0, 0.0

    @device
    def jvp(here, s, batch, given, found):
        record, _, dtaus, out = given
        m, excess, _ = read(record, here.row)
        if t.rank() == 0:
            moved = found[0] + entropy(m, excess, found[1]) * of_row(dtaus, here.row)
            out[here.row] = 0.0 if abs(m) == infinity else moved

    stages = Stage(means), Stage(jvp, once=True)
    return Staged(T, group, (NUMBERS, ROWS, PER_ROW, NUMBERS), stages)


@made_once
def make_vjp_logsumexp(T: Any, group: ThreadGroup) -> Staged:
    """A kernel for the gradients of logsumexp, from the rows' records."""
    t, do, held, read = tools(T, group), passes(T, group, "logsumexp"), group.held, frame(T)
    zero, infinity = T(0), T(np.inf)

    @device
    def vjp(here, s, batch, given, found):
        """Write the gradient in x; returns <p, z>."""
        record, gs, gx, _ = given
        span, inv = here.span, do.inverse(of_row(batch.temperature, here.row))
        m, _, scale = read(record, here.row)
        g, constant, total, mean_z = T(of_row(gs, here.row)), abs(m) == infinity, 0.0, zero
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                z = z_of(s.regs[j], m, inv)
                p = share(z, scale)
                mean_z += p if p == zero else p * z
                s.regs[j] = g * (zero if constant else p)
            t.store(s.regs, beside(span, gx), piece)
            if group.streams:
                total += mean_z
                mean_z = zero
        return do.whole(mean_z, total, s), 0.0, 0.0, 0.0, 0.0, 0.0

    @device
    def in_temperature(here, s, batch, given, found):
        record, gs, _, gtau = given
        m, excess, _ = read(record, here.row)
        if t.rank() == 0:
            gtau[here.row] = of_row(gs, here.row) * entropy(m, excess, found[0])

    stages = Stage(vjp), Stage(in_temperature, once=True)
    return Staged(T, group, (NUMBERS, PER_ROW, ROWS, NUMBERS), stages)
