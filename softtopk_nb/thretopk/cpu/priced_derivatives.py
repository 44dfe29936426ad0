"""Derivatives and the potential of ThreTopK with costs, from solutions of `priced_rows`."""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, read_apart, window, workspace, write_apart
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import unpack
from ..._curves.base import excess, mean_of_distribution, origin, split
from ..._math.elementary import wide_vectors
from ..._math.sums import FEW
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES, expand, fill_behind, taking_part
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import REST, C, D
from ..formulas import centre, potential_of_nothing, priced_t, priced_tangent, weight, weighted_t
from .priced_rows import CODE, classify


@summing
def moments(x, v, cost, unit, lam, inv, d, shift, curve, out):
    """Write w = f'(t) of each entry; returns sums of c^2 w, c w v, c w t and w v t over the row.

    t is that of the curve as documented, (x - lambda c)/tau.
    """
    wide_vectors()
    T = x.dtype.type
    w0, wv, wt, wvt = 0.0, 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], FEW):
        xs, costs = block(x, start, FEW), block(cost, start, FEW)
        vs, ws = block(v, start, FEW), block(out, start, FEW)
        s0, sv, st, svt = T(0), T(0), T(0), T(0)
        for i in range(xs.shape[0]):
            c, vi = read_apart(costs, i) * unit, read_apart(vs, i)
            t = priced_t(read_apart(xs, i), c, lam, inv, d, shift)
            w = weight(curve, t)
            write_apart(ws, i, w)
            wti = weighted_t(w, t + shift)
            s0 += c * c * w
            sv += c * w * vi
            st += c * wti
            svt += wti * vi
        w0 += s0
        wv += sv
        wt += st
        wvt += svt
    return w0, wv, wt, wvt


@scalar
def spread(x, v, cost, unit, lam, inv, d, shift, price, dtau, out):
    """Turn the weight of each entry in `out` into its derivative."""
    wide_vectors()
    T = x.dtype.type
    price, dtau = T(price), T(dtau)
    for i in range(x.shape[0]):
        c = cost[i] * unit
        t = priced_t(x[i], c, lam, inv, d, shift) + shift
        out[i] = priced_tangent(out[i], t, v[i], c, inv, price, dtau)


@scalar
def along_costs(x, cost, unit, lam, inv, d, shift, curve, dcost, threshold, v):
    """Add to v what moving costs do to x - lambda c; returns the sum of p times their direction."""
    T = x.dtype.type
    spent = 0.0
    for i in range(x.shape[0]):
        u, a, b, _ = split(curve, priced_t(x[i], cost[i] * unit, lam, inv, d, shift))
        dc = np.float64(dcost[i]) * unit
        spent += np.float64(b if u == T(0) else u - a) * dc
        v[i] -= T(threshold * dc)
    return spent


@kernel
def jvp(lo, hi, x, tau, cost, unit, curve, solution, v, dcost, out, dk, dtau):
    """Write dp of rows lo .. hi along v in x, `dcost` in the costs, and dk and dtau."""
    T = x.dtype.type
    n, shared, shift = x.shape[1], cost.shape[0] == 1, T(origin(curve))
    packed, more = workspace(x, 3, n), workspace(x, 3, n)
    x, v, dcost, out = borrowed(x), borrowed(v), borrowed(dcost), borrowed(out)
    for i in range(lo, hi):
        answer, code = solution[i], solution[i, CODE]
        if code > WITH_INFINITIES:
            fill_behind(out[i], 0, T(np.nan) if code == UNDEFINED else T(0))
            continue
        each = 0 if shared else i
        scale, inv = T(unit[each]), inverse_temperature(tau[i], x)
        xs, cs, dp = taking_part(x[i], cost[each], out[i], code, packed)
        moved = window(more[2], 0, xs.shape[0])
        _, vs, _ = taking_part(x[i], v[i], out[i], code, more)
        for j in range(xs.shape[0]):
            moved[j] = vs[j]
        _, dcs, _ = taking_part(x[i], dcost[i], out[i], code, more)
        lam, d = T(answer[C]), T(answer[D])
        threshold = answer[C] + tau[i] * (answer[D] + answer[REST])
        spent = along_costs(xs, cs, scale, lam, inv, d, shift, curve, dcs, threshold, moved)
        if code == WITH_INFINITIES:
            for j in range(n):
                spent += np.float64(dcost[i, j]) * scale if x[i, j] == T(np.inf) else 0.0
        at = cs, scale, lam, inv, d, shift
        w0, wv, wt, _ = moments(xs, moved, *at, curve, dp)
        price = centre(w0, wv - dtau[i] * wt + (spent - dk[i] * unit[each]) / inv)
        spread(xs, moved, *at, price, dtau[i], dp)
        if code == WITH_INFINITIES:
            unpack(x[i], dp, T(0), out[i])


@scalar
def in_costs(x, cost, unit, lam, inv, d, shift, curve, gx, gk, threshold, out):
    """Write the gradient in the costs, -(gk p + lambda gx), from gk and lambda by the unit.

    These may overflow where the gradient does not.
    """
    wide_vectors()
    T = x.dtype.type
    gk, threshold = T(gk), T(threshold)
    for i in range(x.shape[0]):
        u, a, b, _ = split(curve, priced_t(x[i], cost[i] * unit, lam, inv, d, shift))
        out[i] = -(gk * T(b if u == T(0) else u - a) + threshold * gx[i]) * unit


@kernel
def vjp(lo, hi, x, tau, cost, unit, curve, solution, g, gx, gk, gtau, gcost):
    """Write the gradients of <g, p> of rows lo .. hi, in each entry's cost to `gcost`."""
    T = x.dtype.type
    n, shared, shift = x.shape[1], cost.shape[0] == 1, T(origin(curve))
    packed, more = workspace(x, 3, n), workspace(x, 3, n)
    x, g, gx, gcost = borrowed(x), borrowed(g), borrowed(gx), borrowed(gcost)
    for i in range(lo, hi):
        answer, code = solution[i], solution[i, CODE]
        if code > WITH_INFINITIES:
            gk[i] = gtau[i] = np.nan if code == UNDEFINED else 0.0
            fill_behind(gx[i], 0, T(gk[i]))
            fill_behind(gcost[i], 0, T(gk[i]))
            continue
        each = 0 if shared else i
        scale, inv = T(unit[each]), inverse_temperature(tau[i], x)
        xs, cs, gradient = taking_part(x[i], cost[each], gx[i], code, packed)
        _, gs, in_cost = taking_part(x[i], g[i], gcost[i], code, more)
        lam, d = T(answer[C]), T(answer[D])
        at = cs, scale, lam, inv, d, shift
        w0, wg, wt, wgt = moments(xs, gs, *at, curve, gradient)
        price = centre(w0, wg)
        gk[i], gtau[i] = price * unit[each], -inv * (wgt - price * wt)
        spread(xs, gs, *at, price, 0.0, gradient)
        threshold = answer[C] + tau[i] * (answer[D] + answer[REST])
        in_costs(xs, *at, curve, gradient, price, threshold, in_cost)
        if code == WITH_INFINITIES:
            unpack(x[i], gradient, T(0), gx[i])
            expand(x[i], in_cost, -gk[i], gcost[i])


@scalar
def smoothed_sum(x, tau, cost, unit, lam, inv, d, shift, curve, threshold, k):
    """tau sum F(t) + lambda k; where t >= 0, tau F(t) is x - lambda c plus a tail."""
    T = x.dtype.type
    total, spent = 0.0, 0.0
    for i in range(x.shape[0]):
        c = cost[i] * unit
        t = priced_t(x[i], c, lam, inv, d, shift)
        total += tau * np.float64(excess(curve, t))
        if t >= T(0):
            total += np.float64(x[i]) - tau * shift
            spent += np.float64(c)
    return total + threshold * (k - spent)


@kernel
def potential(lo, hi, x, k, tau, cost, total, unit, curve, solution, out):
    """Write phi = min over l of [k l + tau sum F((x - l c)/tau)] of rows lo .. hi (thm-prices)."""
    T = x.dtype.type
    n, shared, shift = x.shape[1], cost.shape[0] == 1, T(origin(curve))
    packed = workspace(x, 3, n)
    x = borrowed(x)
    for i in range(lo, hi):
        each, code, answer = 0 if shared else i, solution[i, CODE], solution[i]
        scale, entries = T(unit[each]), x[i]
        _, _, above, left = classify(
            entries, cost[each], scale, total[each] * unit[each], k[i] * unit[each]
        )
        if code == UNDEFINED:
            out[i] = np.nan
        elif k[i] == 0.0:
            present = 0
            for value in entries:
                present += value > -np.inf
            out[i] = potential_of_nothing(curve, present)
        elif above > 0.0:
            out[i] = np.inf
        elif code == ALL:
            # lambda -> -inf: F(t) = t - mean for every entry.
            far = tau[i] * (mean_of_distribution(curve) + origin(curve))
            out[i] = 0.0
            for value in entries:
                if np.isfinite(value):
                    out[i] += value - far
        else:
            xs, cs, _ = taking_part(entries, cost[each], packed[2], code, packed)
            inv, lam, d = inverse_temperature(tau[i], x), T(answer[C]), T(answer[D])
            threshold = answer[C] + tau[i] * (answer[D] + answer[REST])
            at = cs, scale, lam, inv, d, shift
            out[i] = smoothed_sum(xs, tau[i], *at, curve, threshold, left)
