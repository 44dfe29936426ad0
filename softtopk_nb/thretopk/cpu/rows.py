"""ThreTopK on rows: derivative, VJP and potential, each for rows lo .. hi of a batch.

The value is written by `_threshold.cpu.rows.solve`. Its `solution` has what these need, so that
none of them solves again.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import (
    block,
    borrowed,
    empty,
    read_apart,
    window,
    workspace,
    write_apart,
)
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import unpack
from ..._curves.base import mean_of_distribution
from ..._math.elementary import limits, wide_vectors
from ..._math.sums import FEW
from ..._nonfinite import (
    ALL,
    FINITE,
    UNDEFINED,
    WITH_INFINITIES,
    fill_behind,
    length,
    pack_row,
    present_part,
    rows_at_once,
    taking_part,
)
from ..._threads.jobs import call_and_raise
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import CODE, REST, C, D
from ..formulas import (
    centre,
    motion,
    potential_of_nothing,
    second_motion,
    smoothed,
    tangent,
    weight,
    weight_and_curvature,
    weighted_t,
)

BLOCK = 1024  # entries whose derivatives are summed in the row's own type


@summing
def moments(x, v, c, inv, d, curve, out):
    """Write w = f'(t) of each entry; returns the sums over the row of w, w v, w t and w v t."""
    wide_vectors()
    T = x.dtype.type
    w0, wv, wt, wvt = 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        xs, ws = block(x, start, BLOCK), block(out, start, BLOCK)
        vs = block(v, start, BLOCK)
        s0 = sv = st = svt = T(0)
        for i in range(xs.shape[0]):
            t, vi = (read_apart(xs, i) - c) * inv - d, read_apart(vs, i)
            w = weight(curve, t)
            write_apart(ws, i, w)
            wti = weighted_t(w, t)
            s0 += w
            sv += w * vi
            st += wti
            svt += wti * vi
        w0 += s0
        wv += sv
        wt += st
        wvt += svt
    return w0, wv, wt, wvt


@scalar
def spread(x, v, c, inv, d, mean, dtau, out):
    """Turn the weight of each entry in `out` into its derivative."""
    wide_vectors()
    T = x.dtype.type
    mean, dtau = T(mean), T(dtau)
    for i in range(x.shape[0]):
        out[i] = tangent(out[i], (x[i] - c) * inv - d, v[i], inv, mean, dtau)


@kernel
def jvp(lo, hi, x, tau, curve, solution, v, out, dk, dtau, with_infinities):
    """Write dp of rows lo .. hi along (v, dk, dtau).

    A row with infinities elsewhere than at its end is left out, and `with_infinities` is set.
    """
    T = x.dtype.type
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        answer, code = solution[i], solution[i, CODE]
        if code > WITH_INFINITIES:
            fill_behind(out[i], 0, T(np.nan) if code == UNDEFINED else T(0))
        elif code == WITH_INFINITIES:
            with_infinities[0] = True
        else:
            n = length(x[i])
            fill_behind(out[i], n, T(0))
            xs, vs, dp = window(x[i], 0, n), window(v[i], 0, n), window(out[i], 0, n)
            inv = inverse_temperature(tau[i], x)
            c, d = T(answer[C]), T(answer[D])
            w0, wv, wt, _ = moments(xs, vs, c, inv, d, curve, dp)
            mean = centre(w0, wv - dtau[i] * wt - dk[i] / inv)
            spread(xs, vs, c, inv, d, mean, dtau[i], dp)


@kernel
def vjp(lo, hi, x, tau, curve, solution, g, gx, gk, gtau, with_infinities):
    """Write the gradients of <g, p> of rows lo .. hi, in x to `gx`; `with_infinities` as in `jvp`.

    The Jacobian in x is symmetric, so this is `jvp` along g, with two more sums.
    """
    T = x.dtype.type
    x, g, gx, solution = borrowed(x), borrowed(g), borrowed(gx), borrowed(solution)
    for i in range(lo, hi):
        answer, code = solution[i], solution[i, CODE]
        if code > WITH_INFINITIES:
            gk[i] = gtau[i] = np.nan if code == UNDEFINED else 0.0
            fill_behind(gx[i], 0, T(gk[i]))
        elif code == WITH_INFINITIES:
            with_infinities[0] = True
        else:
            n = length(x[i])
            fill_behind(gx[i], n, T(0))
            xs, gs, gradient = window(x[i], 0, n), window(g[i], 0, n), window(gx[i], 0, n)
            inv = inverse_temperature(tau[i], x)
            c, d = T(answer[C]), T(answer[D])
            w0, wg, wt, wgt = moments(xs, gs, c, inv, d, curve, gradient)
            mean = centre(w0, wg)
            gk[i], gtau[i] = mean, -inv * (wgt - mean * wt)
            spread(xs, gs, c, inv, d, mean, 0.0, gradient)


@scalar
def scratch_for_packed(x, solution):
    """Scratch for a group: (entries, directions, derivatives, solutions, numbers, row indices)."""
    n, several = x.shape[1], rows_at_once(x.shape[1])
    of_entries = workspace(x, several, n), workspace(x, several, n), workspace(x, several, n)
    answers = workspace(solution, several, solution.shape[1])
    return (*of_entries, answers, empty((3, several)), empty(several, np.int64))


@scalar
def pack_rows(first, last, x, tau, solution, v, of_k, of_tau, scratch):
    """Pack the finite entries of rows with infinities as rows of a batch; returns their number."""
    xs, vs, _, answers, numbers, which = scratch
    xs, vs, count = borrowed(xs), borrowed(vs), 0
    for i in range(first, last):
        if solution[i, CODE] == WITH_INFINITIES:
            pack_row(x[i], x[i], -np.inf, xs[count])
            pack_row(x[i], v[i], 0.0, vs[count])
            for field in range(solution.shape[1]):
                answers[count, field] = solution[i, field]
            answers[count, CODE] = FINITE
            numbers[0, count], numbers[1, count], numbers[2, count] = tau[i], of_k[i], of_tau[i]
            which[count] = i
            count += 1
    return count


@kernel
def jvp_with_infinities(lo, hi, x, tau, curve, solution, v, out, dk, dtau, with_infinities, move):
    """Apply `jvp` to the finite entries of rows lo .. hi with infinities, a few rows at a time.

    `move`: the address of `jvp`.
    """
    scratch, several = scratch_for_packed(x, solution), rows_at_once(x.shape[1])
    xs, vs, dp, answers, numbers, which = scratch
    x, v, out, moved = borrowed(x), borrowed(v), borrowed(out), borrowed(dp)
    for first in range(lo, hi, several):
        last = min(first + several, hi)
        count = pack_rows(first, last, x, tau, solution, v, dk, dtau, scratch)
        taus, dks, dtaus = numbers[0], numbers[1], numbers[2]
        given = xs, taus, curve, answers, vs, dp, dks, dtaus, with_infinities
        call_and_raise(move, 0, count, given)
        for r in range(count):
            unpack(x[which[r]], moved[r], x.dtype.type(0), out[which[r]])


@kernel
def vjp_with_infinities(lo, hi, x, tau, curve, solution, g, gx, gk, gtau, with_infinities, move):
    """Apply `vjp` to the finite entries of rows lo .. hi with infinities, a few rows at a time.

    `move`: the address of `vjp`.
    """
    scratch, several = scratch_for_packed(x, solution), rows_at_once(x.shape[1])
    xs, gs, gradient, answers, numbers, which = scratch
    x, g, gx, moved = borrowed(x), borrowed(g), borrowed(gx), borrowed(gradient)
    for first in range(lo, hi, several):
        last = min(first + several, hi)
        count = pack_rows(first, last, x, tau, solution, g, gk, gtau, scratch)
        taus, of_k, of_tau = numbers[0], numbers[1], numbers[2]
        given = xs, taus, curve, answers, gs, gradient, of_k, of_tau, with_infinities
        call_and_raise(move, 0, count, given)
        for r in range(count):
            i = which[r]
            unpack(x[i], moved[r], x.dtype.type(0), gx[i])
            gk[i], gtau[i] = numbers[1, r], numbers[2, r]


# Columns of `moves` and of `sums` in `second`.
DK, DTAU, OTHER_DK, OTHER_DTAU = range(4)
GK, GTAU = range(2)


@summing
def moments_of_two(x, v, a, c, inv, d, curve, out):
    """Write the weight of each entry; returns the sums over the row of w, w v, w a and w t."""
    wide_vectors()
    T = x.dtype.type
    w0, wv, wa, wt = 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        xs, ws = block(x, start, BLOCK), block(out, start, BLOCK)
        vs, others = block(v, start, BLOCK), block(a, start, BLOCK)
        s0 = sv = sa = st = T(0)
        for i in range(xs.shape[0]):
            t = (read_apart(xs, i) - c) * inv - d
            w = weight(curve, t)
            write_apart(ws, i, w)
            s0 += w
            sv += w * read_apart(vs, i)
            sa += w * read_apart(others, i)
            st += weighted_t(w, t)
        w0 += s0
        wv += sv
        wa += sa
        wt += st
    return w0, wv, wa, wt


@summing
def second_motions(x, v, a, c, inv, d, curve, mean, dtau, other_mean, other_dtau, out):
    """Write s of each entry; returns the sums over the row of s, s t and w z y."""
    wide_vectors()
    T = x.dtype.type
    mean, dtau, other_mean, other_dtau = T(mean), T(dtau), T(other_mean), T(other_dtau)
    s0, st, wzy = 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        xs, vs, others = block(x, start, BLOCK), block(v, start, BLOCK), block(a, start, BLOCK)
        target = block(out, start, BLOCK)
        some, some_t, some_w = T(0), T(0), T(0)
        for i in range(xs.shape[0]):
            t = (read_apart(xs, i) - c) * inv - d
            w, u = weight_and_curvature(curve, t)
            z = motion(w, t, read_apart(vs, i), inv, mean, dtau)
            y = motion(w, t, read_apart(others, i), inv, other_mean, other_dtau)
            s = second_motion(w, u, z, y, inv * dtau, inv * other_dtau)
            write_apart(target, i, s)
            some += s
            some_t += s * t if s != T(0) else T(0)
            some_w += w * z * y
        s0 += some
        st += some_t
        wzy += some_w
    return s0, st, wzy


@kernel
def second(lo, hi, x, tau, curve, solution, v, a, out, moves, sums):
    """Write the second derivative of rows lo .. hi along v and a (Theorem thm-second-derivative).

    `moves`: the directions in k and in the temperature that belong to v and to a. To `out` goes the
    derivative of p along both. If a is a cotangent, whose `moves` are 0, this is the gradient in x
    of <a, dp along the first>, and to `sums` go those in k and in the temperature.
    """
    T = x.dtype.type
    n = x.shape[1]
    weights, apart, others = workspace(x, 1, n), workspace(x, 3, n), workspace(x, 3, n)
    x, v, a, out, solution = (
        borrowed(x),
        borrowed(v),
        borrowed(a),
        borrowed(out),
        borrowed(solution),
    )
    for i in range(lo, hi):
        answer, code, n = solution[i], solution[i, CODE], length(x[i])
        fill_behind(
            out[i], n if code <= WITH_INFINITIES else 0, T(np.nan) if code == UNDEFINED else T(0)
        )
        sums[i, GK] = sums[i, GTAU] = np.nan if code == UNDEFINED else 0.0
        if code > WITH_INFINITIES:
            continue
        entries, ddp = window(x[i], 0, n), window(out[i], 0, n)
        _, others_of, _ = taking_part(entries, window(a[i], 0, n), ddp, code, others)
        xs, vs, target = taking_part(entries, window(v[i], 0, n), ddp, code, apart)
        inv, ws = inverse_temperature(tau[i], x), window(weights[0], 0, xs.shape[0])
        c, d = T(answer[C]), T(answer[D])
        dtau, other_dtau = moves[i, DTAU], moves[i, OTHER_DTAU]
        w0, wv, wa, wt = moments_of_two(xs, vs, others_of, c, inv, d, curve, ws)
        mean = centre(w0, wv - dtau * wt - moves[i, DK] / inv)
        other_mean = centre(w0, wa - other_dtau * wt - moves[i, OTHER_DK] / inv)
        at = c, inv, d, curve, mean, dtau, other_mean, other_dtau
        s0, st, wzy = second_motions(xs, vs, others_of, *at, target)
        each = centre(w0, s0)
        sums[i, GK], sums[i, GTAU] = each / inv, each * wt - st - wzy
        share = T(each)
        for j in range(xs.shape[0]):
            target[j] -= ws[j] * share
        if code == WITH_INFINITIES:
            unpack(entries, target, T(0), ddp)


@summing
def smoothed_sum(x, tau, curve, c, d):
    """(sum of tau F(t) over finite entries, plus lambda where t >= 0; the number of these)."""
    wide_vectors()
    T = x.dtype.type
    _, least, most = limits(T(1))
    # Where all differences are many temperatures, the type's least number serves as well; and a
    # distance that overflows in temperatures is replaced by its largest number.
    tau, c = T(tau if tau > least else least), T(c)
    d = T(-most if d < -most else most if d > most else d)
    tails, entries, above = 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], FEW):
        part, some = block(x, start, FEW), T(0)
        for i in range(part.shape[0]):
            tail, whole, upper = smoothed(curve, part[i], tau, c, d)
            some += tail
            entries += np.float64(whole)
            above += 1.0 if upper else 0.0
        tails += some
    return tails + entries, above


@kernel
def potential(lo, hi, x, k, tau, curve, solution, out):
    """Write phi = tau * min over l of [k l + sum F(x/tau - l)] of rows lo .. hi (thm-potential)."""
    x = borrowed(x)
    for i in range(lo, hi):
        code, entries = int(solution[i, CODE]), window(x[i], 0, length(x[i]))
        above, present = 0, 0
        if code != FINITE:
            for value in x[i]:
                above += value == np.inf
                present += value > -np.inf
        if code == UNDEFINED:
            out[i] = np.nan
        elif k[i] == 0.0:
            out[i] = potential_of_nothing(curve, present)
        elif above > 0:
            out[i] = np.inf
        elif code == ALL:
            # lambda -> -inf: F(t) = t - mean for every entry.
            far = -tau[i] * mean_of_distribution(curve)
            out[i] = 0.0
            for value in x[i]:
                if np.isfinite(value):
                    out[i] += value + far
        else:
            c, d = solution[i, C], solution[i, D] + solution[i, REST]
            entries, _ = present_part(entries, entries, code)
            smoothed, upper = smoothed_sum(entries, tau[i], curve, c, d)
            out[i] = smoothed + (k[i] - upper) * (c + tau[i] * d)
