"""Derivatives of an iteration on a device: the passes of a step, over a row or a part of one.

As in `cuda.steps`, a pass ends where a sum over the whole row is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64

from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, tools
from .. import formulas
from .steps import ADJ, DP, DZ, GZ, E, P, Q, U, steps, vector


class Tangent(NamedTuple):
    """dz of a row, and dp over one step (Theorem thm-iter-derivatives)."""

    #: at_zero(row, v, shared) -> sum of v over the entries at z = 0
    at_zero: Any
    #: z(row, v, base, dtau): writes DZ along (v, dtau); `base` is that sum
    z: Any
    #: sums(row, shared) -> (sum of DP over the entries at z = 0, over the others)
    sums: Any
    #: q(step, row, total, at_zero, others, shared) -> sum of Q; writes Q
    q: Any
    #: p(row, total, gone): updates P and DP by the step; `gone` is that sum
    p: Any


class Adjoint(NamedTuple):
    """The gradient in p back over one step, and the gradient in x from that in z."""

    #: receive(row, g): starts with the gradient in p
    receive: Any
    #: centre(row, total, shared) -> <s, ADJ>
    centre: Any
    #: at_zero(row, centre, shared) -> sum over the entries at z = 0 of the gradient in q
    at_zero: Any
    #: p(step, row, p, total, centre, at_zero): propagates GZ and ADJ back, from p before the step
    p: Any
    #: sums(row, shared) -> (sum of GZ, that of GZ * z)
    sums: Any
    #: x(row, total): turns GZ into the gradient in x
    x: Any


@device
def _of_settled(row, total, at_zero):
    """(mean, kappa) of the settled maxima."""
    return at_zero / row.count, 1.0 / (total * row.count)


@made_once
def tangent(group: ThreadGroup, kind: Any) -> Tangent:
    """The passes of the derivative along a direction."""
    t, do, lanes = tools(np.float64, group), steps(group, kind), group.lanes
    tangent_z, tangent_q = device(formulas.tangent_z), device(formulas.tangent_q)
    tangent_p = device(formulas.tangent_p)

    @device
    def at_zero(row, v, shared):
        total = 0.0
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i) and do.entry(row, i) == row.ref:
                total += float64(v[row.start + i])
        return t.total(total, shared)

    @device
    def z(row, v, base, dtau):
        base, dz = base / row.count, vector(row, DZ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, moved = do.entry(row, i), float64(v[row.start + i])
                row.work[dz + i] = tangent_z(a, moved, base, dtau, row.ref, row.inv, row.rate)

    @device
    def sums(row, shared):
        led, others, dp = 0.0, 0.0, vector(row, DP)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                leads = do.entry(row, i) == row.ref
                led += row.work[dp + i] if leads else 0.0
                others += 0.0 if leads else row.work[dp + i]
        led, others, _, _ = t.totals(led, others, 0.0, 0.0, shared)
        return led, others

    @device
    def q(step, row, total, led, others, shared):
        work, gone, mean, kappa = row.work, 0.0, 0.0, 0.0
        if do.own.settled(step, row):
            mean, kappa = _of_settled(row, total, led)
        p, u, e, to = vector(row, P), vector(row, U), vector(row, E), vector(row, Q)
        dz, dp = vector(row, DZ), vector(row, DP)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.own.slope(row, a, work[p + i], work[e + i], s, total)
                moves, leads = (work[dz + i], work[dp + i]), a == row.ref
                own = tangent_q(alpha, beta, *moves, leads, mean, kappa, others)
                work[to + i] = own
                gone += own
        return t.total(gone, shared)

    @device
    def p(row, total, gone):
        work, to, u = row.work, vector(row, P), vector(row, U)
        dp, moved = vector(row, DP), vector(row, Q)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                s = work[u + i] / total
                work[dp + i] = tangent_p(work[dp + i], work[moved + i], s, gone)
                work[to + i] += s

    return Tangent(at_zero, z, sums, q, p)


@made_once
def adjoint(group: ThreadGroup, kind: Any) -> Adjoint:
    """The passes of a VJP function."""
    t, do, lanes = tools(np.float64, group), steps(group, kind), group.lanes
    adjoint_z, adjoint_p = device(formulas.adjoint_z), device(formulas.adjoint_p)
    adjoint_temperature = device(formulas.adjoint_temperature)
    adjoint_x = device(formulas.adjoint_x)

    @device
    def receive(row, g):
        gz, adj = vector(row, GZ), vector(row, ADJ)
        for i in range(t.rank(), row.n, lanes):
            row.work[gz + i] = 0.0
            row.work[adj + i] = float64(g[row.start + i])

    @device
    def centre(row, total, shared):
        mean, u, adj = 0.0, vector(row, U), vector(row, ADJ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                mean += row.work[u + i] / total * row.work[adj + i]
        return t.total(mean, shared)

    @device
    def at_zero(row, centre, shared):
        gone, adj = 0.0, vector(row, ADJ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i) and do.entry(row, i) == row.ref:
                gone += row.work[adj + i] - centre
        return t.total(gone, shared)

    @device
    def p(step, row, before, total, centre, led):
        work, mean, kappa = row.work, 0.0, 0.0
        if do.own.settled(step, row):
            mean, kappa = _of_settled(row, total, led)
        before, u, e = vector(row, before), vector(row, U), vector(row, E)
        gz, adj = vector(row, GZ), vector(row, ADJ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                a, s = do.entry(row, i), work[u + i] / total
                alpha, beta = do.own.slope(row, a, work[before + i], work[e + i], s, total)
                b, leads = work[adj + i] - centre, a == row.ref
                work[gz + i] = adjoint_z(work[gz + i], alpha, b)
                work[adj + i] = adjoint_p(work[adj + i], beta, b, leads, mean, kappa, led)

    @device
    def sums(row, shared):
        total, turned, gz = 0.0, 0.0, vector(row, GZ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                g = row.work[gz + i]
                total += g
                turned += adjoint_temperature(do.entry(row, i), g, row.ref, row.inv)
        total, turned, _, _ = t.totals(total, turned, 0.0, 0.0, shared)
        return total, turned

    @device
    def x(row, total):
        base, gz = total / row.count, vector(row, GZ)
        for i in range(t.rank(), row.n, lanes):
            if do.present(row, i):
                leads = do.entry(row, i) == row.ref
                row.work[gz + i] = adjoint_x(row.work[gz + i], leads, base, row.rate)

    return Adjoint(receive, centre, at_zero, p, sums, x)
