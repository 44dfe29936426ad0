"""Derivatives of an iteration on a device: the passes of a step, over a row or a part of one.

As in `cuda.steps`, a pass ends where something about the whole row has to be known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64

from ..._cuda.target import device
from ..._cuda.thread_groups import Team, made_once, tools
from .. import formulas
from .steps import steps


class Tangent(NamedTuple):
    """dz of a row, and dp over one step (Theorem thm-iter-derivatives)."""

    #: base(row, v, room) -> sum of v over the entries at z = 0
    base: Any
    #: turn(row, v, base, dtau, dz): writes dz along (v, dtau)
    turn: Any
    #: lean(row, dp, room) -> (sum of dp over the entries at z = 0, over the others)
    lean: Any
    #: swing(step, row, p, e, u, dz, dp, q, total, led, others, room) -> sum of q, which it writes
    swing: Any
    #: carry(row, p, u, dp, q, total, gone): moves p and dp over the step
    carry: Any


class Adjoint(NamedTuple):
    """The gradient in p back over one step, and that in x of one in z."""

    #: receive(row, g, gz, adj): begins with the gradient in p
    receive: Any
    #: centre(row, u, adj, total, room) -> <s, adj>
    centre: Any
    #: led(row, adj, centre, room) -> sum over the entries at z = 0 of the gradient in q
    led: Any
    #: back(step, row, p, e, u, gz, adj, total, centre, led): moves gz and adj back
    back: Any
    #: gather(row, gz, room) -> (sum of gz, that of gz * z)
    gather: Any
    #: unturn(row, gz, total): gz to the gradient in x
    unturn: Any


@made_once
def tangent(team: Team, kind: Any) -> Tangent:
    """The passes along a direction."""
    t, do, lanes = tools(np.float64, team), steps(team, kind), team.lanes
    slide, swing, carry = device(formulas.slide), device(formulas.swing), device(formulas.carry)

    @device
    def base(row, v, room):
        total = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i) and do.entry(row, i) == row.ref:
                total += float64(v[row.start + i])
        return t.total(total, room)

    @device
    def turn(row, v, base, dtau, dz):
        base = base / row.count
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, moved = do.entry(row, i), float64(v[row.start + i])
                row.work[dz + i] = slide(a, moved, base, dtau, row.ref, row.inv, row.rate)

    @device
    def lean(row, dp, room):
        led = others = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                at_zero = do.entry(row, i) == row.ref
                led += row.work[dp + i] if at_zero else 0.0
                others += 0.0 if at_zero else row.work[dp + i]
        led, others, _, _ = t.totals(led, others, 0.0, 0.0, room)
        return led, others

    @device
    def swing_all(step, row, p, e, u, dz, dp, q, total, led, others, room):
        work, gone, mean, kappa = row.work, 0.0, 0.0, 0.0
        if do.own.settled(step, row):
            mean, kappa = led / row.count, 1.0 / (total * row.count)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.own.slope(row, a, work[p + i], work[e + i], s, total)
                at_zero = a == row.ref
                own = swing(alpha, beta, work[dz + i], work[dp + i], at_zero, mean, kappa, others)
                work[q + i] = own
                gone += own
        return t.total(gone, room)

    @device
    def carry_all(row, p, u, dp, q, total, gone):
        work = row.work
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                s = work[u + i] / total
                work[dp + i] = carry(work[dp + i], work[q + i], s, gone)
                work[p + i] += s

    return Tangent(base, turn, lean, swing_all, carry_all)


@made_once
def adjoint(team: Team, kind: Any) -> Adjoint:
    """The passes backwards."""
    t, do, lanes = tools(np.float64, team), steps(team, kind), team.lanes
    collect, move_back = device(formulas.collect), device(formulas.back)
    turn, unslide = device(formulas.turn), device(formulas.unslide)

    @device
    def receive(row, g, gz, adj):
        for i in range(t.rank(), row.n, lanes):
            row.work[gz + i] = 0.0
            row.work[adj + i] = float64(g[row.start + i])

    @device
    def centre(row, u, adj, total, room):
        mean = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                mean += row.work[u + i] / total * row.work[adj + i]
        return t.total(mean, room)

    @device
    def led(row, adj, centre, room):
        gone = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i) and do.entry(row, i) == row.ref:
                gone += row.work[adj + i] - centre
        return t.total(gone, room)

    @device
    def back(step, row, p, e, u, gz, adj, total, centre, led):
        work, mean, kappa = row.work, 0.0, 0.0
        if do.own.settled(step, row):
            mean, kappa = led / row.count, 1.0 / (total * row.count)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.own.slope(row, a, work[p + i], work[e + i], s, total)
                b = work[adj + i] - centre
                work[gz + i] = collect(work[gz + i], alpha, b)
                work[adj + i] = move_back(work[adj + i], beta, b, a == row.ref, mean, kappa, led)

    @device
    def gather(row, gz, room):
        total = turned = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                total += row.work[gz + i]
                turned += turn(do.entry(row, i), row.work[gz + i], row.ref, row.inv)
        total, turned, _, _ = t.totals(total, turned, 0.0, 0.0, room)
        return total, turned

    @device
    def unturn(row, gz, total):
        base = total / row.count
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                at_zero = do.entry(row, i) == row.ref
                row.work[gz + i] = unslide(row.work[gz + i], at_zero, base, row.rate)

    return Adjoint(receive, centre, led, back, gather, unturn)
