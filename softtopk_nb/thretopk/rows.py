"""ThreTopK on rows: value, tangent, pullback and potential, each for rows lo .. hi of a batch.

`solve` leaves in `solution` what the others need, so that none of them solves again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._compile import kernel, overload_scalar, row, scalar, summing
from .._rows import (
    ALL,
    MIXED,
    UNDEFINED,
    classify,
    compress,
    expand,
    fill_constant,
    survey,
)
from .._scalars import from_ordinal
from .curves import excess, split
from .scan import scan
from .solver import (
    BLOCK,
    MAX,
    MIN,
    PASSES,
    REST,
    STATE,
    C,
    D,
    advance,
    begin,
    fill,
    guess,
    inverse_temperature,
    sample,
    tally,
)

__all__ = [
    "CODE",
    "METHODS",
    "SOLUTION",
    "TAKEN",
    "moments",
    "potential",
    "pull",
    "push",
    "solve",
    "spread",
]

# A solved row: the threshold c + tau (d + rest), which kind of row it was (`_rows`), and how many
# passes over the whole row it took. C, D and REST are shared with the solver's state.
CODE = 3
TAKEN = 4
SOLUTION = 5

SAMPLED = 2048  # rows from this length on start from a solution on about every 16th entry
LARGEST_SAMPLE = 65536


class Newton(NamedTuple):
    """Sort-free passes, steered by a model of the row."""

    modelled: bool = True
    sampled: bool = True


class Scan(NamedTuple):
    """Sort, then try every number of entries above the threshold."""

    modelled: bool = True
    sampled: bool = False


class Bisect(NamedTuple):
    """Halve the bracket until the mass is right."""

    modelled: bool = False
    sampled: bool = False


METHODS: dict[str, Any] = {"newton": Newton(), "scan": Scan(), "bisect": Bisect()}


@row
def _scan(method, state, x, curve, k, inv):
    return scan(x, curve, k, inv)


_FIRST: dict[type, Any] = {Newton: guess, Scan: _scan, Bisect: guess}


def first(method, state, x, curve, k, inv):
    """(c, d): the threshold to start from."""
    return _FIRST[type(method)](method, state, x, curve, k, inv)


@overload_scalar(first, inline=True)
def _first(method, state, x, curve, k, inv):
    return _FIRST[method.instance_class]


@scalar
def present_part(x, v, code):
    """The finite entries of a row and what belongs to them."""
    if code != MIXED:
        return x, v
    xs, vs = np.empty(x.shape[0], x.dtype), np.empty(x.shape[0], x.dtype)
    compress(x, x, xs)
    finite = compress(x, v, vs)
    return xs[:finite], vs[:finite]


@kernel
def solve(lo, hi, x, k, tau, curve, method, out, solution):
    """Rows lo .. hi: p to `out` (unless its rows are empty), the thresholds to `solution`.

    Solves sum f((x - lambda)/tau) = k for the finite entries of each row; a long row first,
    roughly, on a sample of them.
    """
    T = x.dtype.type
    state = np.empty(STATE)
    for i in range(lo, hi):
        entries, p, answer = x[i], out[i], solution[i]
        code, n, above, left, lowest, highest = classify(entries, k[i], *survey(entries))
        answer[CODE], answer[TAKEN] = code, 0.0
        if code > MIXED:
            answer[C] = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
            answer[D] = answer[REST] = 0.0
            if p.shape[0] > 0:
                fill_constant(entries, k[i], code, above, p)
            continue

        present, _ = present_part(entries, entries, code)
        inv = inverse_temperature(tau[i], x)
        state[MIN], state[MAX] = from_ordinal(lowest), from_ordinal(highest)

        part, share = present, left
        if method.sampled and n >= SAMPLED:
            few = n // 16
            part = np.empty(few if few < LARGEST_SAMPLE else LARGEST_SAMPLE, x.dtype)
            sample(present, part)
            share = left * part.shape[0] / n
        c, d = first(method, state, part, curve, share, inv)
        begin(state, curve, share, part.shape[0], c, d, inv, method.modelled)
        while True:
            whole = part.shape[0] == n
            sums = tally(part, T(state[C]), inv, T(state[D]), curve)
            found = advance(state, sums, share, curve, inv, method.modelled, not whole)
            if found and whole:
                break
            if found:
                part, share = present, left
                c, d = state[C], state[D] + state[REST]
                begin(state, curve, share, n, c, d, inv, method.modelled)

        answer[C], answer[D], answer[REST] = state[C], state[D], state[REST]
        answer[TAKEN] = state[PASSES]
        if p.shape[0] > 0:
            values = present if code == MIXED else p
            fill(present, T(state[C]), inv, T(state[D]), T(state[REST]), curve, values)
            if code == MIXED:
                expand(entries, values, 1.0, p)


@summing
def moments(x, v, c, inv, d, curve):
    """Sums over the row of w, w v, w t and w v t, with w = f'(t)."""
    T = x.dtype.type
    w0, wv, wt, wvt = 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        xs = x[start : start + BLOCK]
        vs = v[start : start + BLOCK]
        s0 = sv = st = svt = T(0)
        for i in range(xs.shape[0]):
            t = (xs[i] - c) * inv - d
            _, _, _, w = split(curve, t)
            # A saturated entry may lie infinitely many temperatures away: 0 * inf is not 0.
            wti = w * t if w > T(0) else T(0)
            s0 += w
            sv += w * vs[i]
            st += wti
            svt += wti * vs[i]
        w0 += s0
        wv += sv
        wt += st
        wvt += svt
    return w0, wv, wt, wvt


@summing
def spread(x, v, c, inv, d, curve, mean, dtau, out):
    """Write (w/tau) (v - t dtau - mean): Theorem thm-jacobian, Theorem thm-derivatives-k-tau."""
    T = x.dtype.type
    mean, dtau = T(mean), T(dtau)
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        _, _, _, w = split(curve, t)
        move = v[i] - mean
        if dtau != T(0) and w > T(0):
            move -= t * dtau
        out[i] = w * inv * move


@kernel
def push(lo, hi, x, tau, curve, solution, v, dk, dtau, out):
    """Rows lo .. hi: dp along (v, dk, dtau)."""
    T = x.dtype.type
    for i in range(lo, hi):
        entries, answer, dp = x[i], solution[i], out[i]
        code = int(answer[CODE])
        if code > MIXED:
            for j in range(dp.shape[0]):
                dp[j] = T(np.nan) if code == UNDEFINED else T(0)
            continue
        inv = inverse_temperature(tau[i], x)
        c, d = T(answer[C]), T(answer[D])
        xs, vs = present_part(entries, v[i], code)
        w0, wv, wt, _ = moments(xs, vs, c, inv, d, curve)
        # All weights zero: every entry is saturated, and nothing moves.
        mean = (wv - dtau[i] * wt - dk[i] / inv) / w0 if w0 > 0.0 else 0.0
        target = vs if code == MIXED else dp
        spread(xs, vs, c, inv, d, curve, mean, dtau[i], target)
        if code == MIXED:
            expand(entries, target, 0.0, dp)


@kernel
def pull(lo, hi, x, tau, curve, solution, g, gx, gk, gtau):
    """Rows lo .. hi: the gradients of <g, p>, those in x to `gx`.

    The Jacobian in x is symmetric, so this is `push` along g, with two sums more.
    """
    T = x.dtype.type
    for i in range(lo, hi):
        entries, answer, gradient = x[i], solution[i], gx[i]
        code = int(answer[CODE])
        if code > MIXED:
            gk[i] = gtau[i] = np.nan if code == UNDEFINED else 0.0
            for j in range(gradient.shape[0]):
                gradient[j] = T(gk[i])
            continue
        inv = inverse_temperature(tau[i], x)
        c, d = T(answer[C]), T(answer[D])
        xs, gs = present_part(entries, g[i], code)
        w0, wg, wt, wgt = moments(xs, gs, c, inv, d, curve)
        mean = wg / w0 if w0 > 0.0 else 0.0
        gk[i], gtau[i] = mean, -inv * (wgt - mean * wt)
        target = gs if code == MIXED else gradient
        spread(xs, gs, c, inv, d, curve, mean, 0.0, target)
        if code == MIXED:
            expand(entries, target, 0.0, gradient)


@summing
def smoothed_sum(x, tau, curve, c, d):
    """Sum of F(t) over the finite entries, in float64."""
    total = 0.0
    for i in range(x.shape[0]):
        if np.isfinite(x[i]):
            t = (np.float64(x[i]) - c) / tau - d
            total += max(t, 0.0) + excess(curve, t)
    return total


@kernel
def potential(lo, hi, x, k, tau, curve, solution, out):
    """Rows lo .. hi: phi = tau * min over l of [k l + sum F(x/tau - l)] (Theorem thm-potential)."""
    for i in range(lo, hi):
        code = int(solution[i, CODE])
        above = 0
        for value in x[i]:
            above += value == np.inf
        if code == UNDEFINED:
            out[i] = np.nan
        elif k[i] == 0.0:
            out[i] = 0.0
        elif above > 0:
            out[i] = np.inf
        elif code == ALL:
            # lambda -> -inf: F(t) = t + const for every entry.
            out[i] = 0.0
            for value in x[i]:
                if np.isfinite(value):
                    out[i] += value + tau[i] * excess(curve, 1e6)
        else:
            c, d = solution[i, C], solution[i, D] + solution[i, REST]
            out[i] = k[i] * c + tau[i] * (k[i] * d + smoothed_sum(x[i], tau[i], curve, c, d))
