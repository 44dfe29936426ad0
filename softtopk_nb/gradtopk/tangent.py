"""The derivative of GradTopK on one row in O(n), from the nodes that gave its value.

The Jacobian in x is the covariance of the k-subset, divided by the temperature. With
h(pi) = Re sum_j c_j u_j/(1 + pi u_j), p = pi + s h(pi), and for a direction v
Q_j = sum_i s_i v_i u_j/(1 + pi_i u_j), Theorem thm-grad-jacobian says

    tau (J v)_i = s_i [ v_i p'(pi_i) + Re sum_j c_j Q_j u_j/(1 + pi_i u_j) - h(pi_i) H ],

H = Re sum_j c_j Q_j. Each bracketed term is a function of pi alone. With z = 2 pi - 1,

    u/(1 + pi u) = (g z/2 + i sin theta)/(1 - g s),

so that away from the core each is a polynomial in s plus z times another.
"""

from __future__ import annotations

import numpy as np

from .._compile import scalar, summing
from .contour import BLOCK, DEGREE, IM, NODES, POWER, RE, SINE, SQUARE, horner, rarer

__all__ = [
    "AT_NODES",
    "FLOWS",
    "LANES",
    "PIECES",
    "core_tangent",
    "flow",
    "motion",
    "node_flow",
    "slopes",
    "spread",
    "steer",
    "tangent_away",
    "weigh",
]

# Sums of s^m times s v z and s v, m = 1 .. DEGREE, then those of the core at each node.
ODD, EVEN = 0, DEGREE
AT_NODES = 2 * DEGREE
FLOWS = AT_NODES + 2 * NODES

# Polynomials: p' is A + z B, what the other entries do is C + z D.
PIECES = 4

# A table for the core: the nodes, and c_j (Q_j - H).
LANES = 6


@summing
def motion(t, s, v, drift):
    """v - t dtau; where s underflows, t can be infinite."""
    return v - drift * (t if s > type(t)(0) else type(t)(0))


@summing
def weigh(x, v, dtau, c, inv, d, cut, nodes, used, work, flows):
    """Write the sums over the row of the direction v - t dtau.

    `work`: three arrays of BLOCK numbers to work in.
    """
    T = x.dtype.type
    limit, drift = T(cut), T(dtau)
    odd, even, power = work
    for m in range(FLOWS):
        flows[m] = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, vs = x[start : start + BLOCK], v[start : start + BLOCK]
        count = part.shape[0]
        near = T(0)
        for i in range(count):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            far = s if s <= limit else T(0)
            sv = far * motion(t, s, vs[i], drift)
            z = T(1) - T(2) * r
            even[i] = sv
            odd[i] = sv * (z if t >= T(0) else -z)
            power[i] = s
            near += T(1) if s > limit else T(0)
        if near > T(0):
            for i in range(count):
                if power[i] <= limit:
                    continue
                t = (part[i] - c) * inv - d
                r = np.float64(rarer(t))
                s = r * (1.0 - r)
                sv = s * (vs[i] - drift * t)
                svz = sv * (1.0 - 2.0 * r) * (1.0 if t >= T(0) else -1.0)
                for j in range(used):
                    share = 1.0 / (1.0 - nodes[SQUARE, j] * s)
                    flows[AT_NODES + j] += svz * share
                    flows[AT_NODES + NODES + j] += sv * share
        for m in range(DEGREE):
            sum_odd, sum_even = T(0), T(0)
            for i in range(count):
                sum_odd += odd[i]
                sum_even += even[i]
                odd[i] *= power[i]
                even[i] *= power[i]
            flows[ODD + m] += sum_odd
            flows[EVEN + m] += sum_even


@scalar
def node_flow(g, sine, re, im, odd, even, flows):
    """c_j Q_j; odd, even: the sums of the core at node j."""
    power = 1.0
    for m in range(DEGREE):
        odd += power * flows[ODD + m]
        even += power * flows[EVEN + m]
        power *= g
    qr, qi = 0.5 * g * odd, sine * even
    return re * qr - im * qi, re * qi + im * qr


@scalar
def flow(nodes, used, flows, flow_re, flow_im):
    """Write c_j Q_j; returns H."""
    mean = 0.0
    for j in range(used):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        odd, even = flows[AT_NODES + j], flows[AT_NODES + NODES + j]
        flow_re[j], flow_im[j] = node_flow(g, sine, re, im, odd, even, flows)
        mean += flow_re[j]
    return mean


@scalar
def slopes(m, even, odd, last):
    """Coefficients m of p' = A + z B, from those of h = even + z odd; last: odd's before."""
    # p' = 1 - z h + s h', with z' = 2, s' = -z, z^2 = 1 - 4 s.
    return (1.0 if m == 0 else (4 * m + 2) * last) - (m + 1) * odd, -(m + 1) * even


@scalar
def steer(nodes, used, flow_re, flow_im, mean, pieces, table):
    """What `spread` needs of the nodes.

    `pieces`, in the type of the row: the polynomials of p' and of C + z D = Re sum
    c Q u/(1 + pi u) - H h. `table`, in float64: the nodes and their flows, for the core.
    """
    for j in range(used):
        for a in range(4):
            table[a, j] = nodes[a, j]
        table[4, j] = flow_re[j] - mean * nodes[RE, j]
        table[5, j] = flow_im[j] - mean * nodes[IM, j]
        nodes[POWER, j] = 1.0
    last = 0.0
    for m in range(DEGREE):
        even, odd, others_even, others_odd = 0.0, 0.0, 0.0, 0.0
        for j in range(used):
            g, re, im = nodes[SQUARE, j], nodes[RE, j], nodes[IM, j]
            up, down = 0.5 * g * nodes[POWER, j], -nodes[SINE, j] * nodes[POWER, j]
            even += down * im
            odd += up * re
            others_even += down * (flow_im[j] - mean * im)
            others_odd += up * (flow_re[j] - mean * re)
            nodes[POWER, j] *= g
        pieces[0, m], pieces[1, m] = slopes(m, even, odd, last)
        pieces[2, m], pieces[3, m] = others_even, others_odd
        last = odd


@summing
def core_tangent(r, upper, v, table, used):
    """tau (J v)_i of an entry of the core, node by node."""
    square, sine, re, im = table[0], table[1], table[2], table[3]
    flow_re, flow_im = table[4], table[5]
    s = r * (1.0 - r)
    z = 1.0 - 2.0 * r if upper else 2.0 * r - 1.0
    h, slope, others = 0.0, 0.0, 0.0
    for j in range(used):
        share = 1.0 / (1.0 - square[j] * s)
        yr, yi = 0.5 * square[j] * z * share, sine[j] * share
        h += re[j] * yr - im[j] * yi
        slope -= re[j] * (yr * yr - yi * yi) - 2.0 * im[j] * yr * yi
        others += flow_re[j] * yr - flow_im[j] * yi
    return s * (v * (1.0 - z * h + s * slope) + others)


@summing
def tangent_away(move, s, side, inv, a, b, w, z):
    """(J v)_i of an entry away from the core; a, b, w, z: the polynomials of `steer`."""
    own = horner(a, s)
    own += side * horner(b, s)
    others = horner(w, s)
    others += side * horner(z, s)
    return s * inv * (move * own + others)


@summing
def spread(x, v, dtau, c, inv, d, cut, table, used, pieces, out):
    """Write J (v - t dtau) with the table and polynomials of `steer`."""
    T = x.dtype.type
    limit, drift = T(cut), T(dtau)
    a, b, w, z = pieces[0], pieces[1], pieces[2], pieces[3]
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    z0, z1, z2, z3, z4, z5, z6, z7 = z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7]
    for start in range(0, x.shape[0], BLOCK):
        part, vs = x[start : start + BLOCK], v[start : start + BLOCK]
        dp = out[start : start + BLOCK]
        near = T(0)
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            side = (T(1) - T(2) * r) * (T(1) if t >= T(0) else T(-1))
            move = motion(t, s, vs[i], drift)
            own = (a0, a1, a2, a3, a4, a5, a6, a7), (b0, b1, b2, b3, b4, b5, b6, b7)
            others = (w0, w1, w2, w3, w4, w5, w6, w7), (z0, z1, z2, z3, z4, z5, z6, z7)
            moved = tangent_away(move, s, side, inv, *own, *others)
            dp[i] = moved if s <= limit else move
            near += T(1) if s > limit else T(0)
        if near == T(0):
            continue
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            if r * (T(1) - r) > limit:
                moved = core_tangent(np.float64(r), t >= T(0), np.float64(dp[i]), table, used)
                dp[i] = T(inv * moved)
