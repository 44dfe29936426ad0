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

from ..._compile.array_intrinsics import block, borrowed, layout_known, seek, window
from ..._compile.decorators import scalar, summing
from ..._math.elementary import limits, wide_vectors
from ..formulas import add_flow, carried, core_move, motion, rarer, slopes, tangent_away
from ..nodes import DEGREE, IM, NODES, RE, ROOT, SHARE, SHIFTED, SINE, SQUARE, takes_all, terms_of
from ..records import AT_NODES, FLOWS, LANES, SLOPE_EVEN, SLOPE_ODD
from .chebyshev_tangent import room_for, spread_all, sums_at, weigh_all
from .contour import BLOCK
from .marginals import is_dense

# Polynomials: p' is A + z B, what the other entries do is C + z D.
PIECES = 4

TOGETHER = 2  # nodes taken together for each entry of the core, a divisor of NODES

# Room for the core of a block: z, s and v - t dtau of its entries, and what the nodes add up to.
Z, S, MOVE, H, SLOPE, OTHERS = 0, 1, 2, 3, 4, 5
CORE_ROOM = 6

# Below these, s and s^m are not multiplied on: s^2 v and s^(m+2) v would lie below the normal
# numbers, where arithmetic takes a hundred times as long, and do not matter beside s v.
LEAST_64, LEAST_32 = (
    np.array(
        [(1e8 * float(np.finfo(T).tiny)) ** (m / (m + 2) if m else 0.5) for m in range(DEGREE)]
    )
    for T in (np.float64, np.float32)
)

_known = layout_known(CORE_ROOM, BLOCK)


@summing
def gather_core(part, vs, c, inv, d, drift, limit, keys, near, room, at):
    """Write Z, S and MOVE of the `near` entries of the core, and where they lie to `at`.

    Returns how many there are. Where they are most of the block it is all of it, with zeros for
    the others: nothing is sought out then. `keys`: s of each entry of the block.
    """
    T = part.dtype.type
    room = _known(borrowed(room))
    crowd = part.shape[0]
    if is_dense(near, crowd):
        for i in range(crowd):
            room[Z, i], room[MOVE, i] = part[i], vs[i]
    else:
        crowd = seek(window(keys, 0, crowd), limit, at)
        for q in range(crowd):
            room[Z, q], room[MOVE, q] = part[at[q]], vs[at[q]]
    for q in range(crowd):
        t = (T(room[Z, q]) - c) * inv - d
        r = rarer(t)
        there = r * (T(1) - r) > limit
        z = 1.0 - 2.0 * np.float64(r)
        room[Z, q] = z if t >= T(0) else -z
        room[S, q] = np.float64(r) * (1.0 - np.float64(r)) if there else 0.0
        room[MOVE, q] = np.float64(T(room[MOVE, q]) - drift * t) if there else 0.0
    return crowd


@summing
def weigh_core(room, crowd, nodes, used, flows):
    """Add the sums of s v z and s v over the core, each over 1 - g s, to those at the nodes."""
    room = _known(borrowed(room))
    for j in range(0, used, TOGETHER):
        g, next_g = nodes[SQUARE, j], nodes[SQUARE, j + 1]
        odd, even, next_odd, next_even = 0.0, 0.0, 0.0, 0.0
        for i in range(crowd):
            s, z = room[S, i], room[Z, i]
            below, next_below = 1.0 - g * s, 1.0 - next_g * s
            share = s * room[MOVE, i] / (below * next_below)
            first, second = share * next_below, share * below
            odd += z * first
            even += first
            next_odd += z * second
            next_even += second
        flows[AT_NODES + j] += odd
        flows[AT_NODES + NODES + j] += even
        flows[AT_NODES + j + 1] += next_odd
        flows[AT_NODES + NODES + j + 1] += next_even


@scalar
def tangent_room(x):
    """Arrays for `weigh` and `spread` to work in, each with BLOCK numbers to a row."""
    odd, even = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    small, power = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype)
    core, at = np.empty((CORE_ROOM, BLOCK)), np.empty(BLOCK, np.int64)
    return odd, even, small, power, core, at, room_for(x)


@summing
def weigh(x, v, dtau, c, inv, d, cut, nodes, used, work, flows, kept):
    """Write the sums over the row of the direction v - t dtau; `work`: of `tangent_room`.

    Where there is no core, 2 r of each entry goes to `kept`, with a sign, for `spread`.
    """
    wide_vectors()
    if takes_all(cut):
        weigh_all(x, v, dtau, c, inv, d, terms_of(cut), work[6], flows, kept)
        return
    T = x.dtype.type
    limit, drift = T(cut), T(dtau)
    odd, even, small, power, room, at, _ = work
    least = LEAST_64 if limits(inv)[0] < 1e-10 else LEAST_32
    for m in range(FLOWS):
        flows[m] = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, vs = block(x, start, BLOCK), block(v, start, BLOCK)
        count = part.shape[0]
        near, floor = T(0), T(least[0])
        for i in range(count):
            t = (part[i] - c) * inv - d
            r = rarer(t)
            s = r * (T(1) - r)
            far = s if s <= limit else T(0)
            sv = far * motion(t, s, vs[i], drift)
            z = T(1) - T(2) * r
            even[i] = sv
            odd[i] = sv * (z if t >= T(0) else -z)
            small[i] = s
            power[i] = s if s > floor else T(0)
            near += T(1) if s > limit else T(0)
        if near > T(0):
            crowd = gather_core(part, vs, c, inv, d, drift, limit, small, near, room, at)
            weigh_core(room, crowd, nodes, used, flows)
        sum_odd, sum_even = T(0), T(0)
        for i in range(count):
            sum_odd += odd[i]
            sum_even += even[i]
        flows[SLOPE_ODD] += sum_odd
        flows[SLOPE_EVEN] += sum_even
        for m in range(1, DEGREE):
            sum_odd, sum_even, floor = T(0), T(0), T(least[m])
            for i in range(count):
                sum_odd += odd[i] * power[i]
                sum_even += even[i] * power[i]
                power[i] *= small[i] if power[i] > floor else T(0)
            flows[SLOPE_ODD + m] += sum_odd
            flows[SLOPE_EVEN + m] += sum_even


@scalar
def flow(nodes, used, cut, flows, flow_re, flow_im):
    """Write c_j Q_j; returns H."""
    mean = 0.0
    for j in range(used):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        if takes_all(cut):
            odd, even = sums_at(g, nodes[ROOT, j], terms_of(cut), flows)
        else:
            odd, even = flows[AT_NODES + j], flows[AT_NODES + NODES + j]
            for m in range(DEGREE):
                odd += nodes[SHARE + m, j] * flows[SLOPE_ODD + m]
                even += nodes[SHARE + m, j] * flows[SLOPE_EVEN + m]
        flow_re[j], flow_im[j] = carried(g, sine, re, im, odd, even)
        mean += flow_re[j]
    return mean


@scalar
def steer(nodes, used, cut, flow_re, flow_im, mean, pieces, table):
    """What `spread` needs of the nodes.

    `pieces`, in the type of the row: the polynomials of p' and of C + z D = Re sum
    c Q u/(1 + pi u) - H h. `table`, in float64: the nodes and their flows, for the core.
    """
    for j in range(used):
        for a in range(4):
            table[a, j] = nodes[a, j]
        table[4, j] = flow_re[j] - mean * nodes[RE, j]
        table[5, j] = flow_im[j] - mean * nodes[IM, j]
    for j in range(used, min(used + TOGETHER - 1, NODES)):
        for a in range(LANES):
            table[a, j] = 0.0  # a node that adds nothing
    last, terms = 0.0, terms_of(cut)
    for m in range(terms):
        even, odd, others_even, others_odd = 0.0, 0.0, 0.0, 0.0
        for j in range(used):
            g, re, im = nodes[SQUARE, j], nodes[RE, j], nodes[IM, j]
            up, down = 0.5 * g * nodes[SHARE + m, j], -nodes[SINE, j] * nodes[SHARE + m, j]
            even += down * im
            odd += up * re
            others_even += down * (flow_im[j] - mean * im)
            others_odd += up * (flow_re[j] - mean * re)
        pieces[0, m], pieces[1, m] = slopes(m, even, odd, last)
        pieces[2, m], pieces[3, m] = others_even, others_odd
        last = odd
    if not takes_all(cut):
        return
    # p' has one more term. Of all polynomials with this one it is the Chebyshev polynomial that is
    # smallest: less that, it is left out.
    beyond, _ = slopes(terms, 0.0, 0.0, last)
    for m in range(terms):
        pieces[0, m] -= beyond * SHIFTED[terms, m] / SHIFTED[terms, terms]


@summing
def core_tangents(room, crowd, table, used):
    """Write tau (J v)_i of the core's entries to MOVE."""
    room = _known(borrowed(room))
    for i in range(crowd):
        room[H, i], room[SLOPE, i], room[OTHERS, i] = 0.0, 0.0, 0.0
    for j in range(0, used, TOGETHER):
        g0, g1, y0, y1 = table[0, j], table[0, j + 1], table[1, j], table[1, j + 1]
        re0, re1, im0, im1 = table[2, j], table[2, j + 1], table[3, j], table[3, j + 1]
        fr0, fr1, fi0, fi1 = table[4, j], table[4, j + 1], table[5, j], table[5, j + 1]
        for i in range(crowd):
            s, z = room[S, i], room[Z, i]
            below, next_below = 1.0 - g0 * s, 1.0 - g1 * s
            both = 1.0 / (below * next_below)
            first, second = both * next_below, both * below
            h, slope, others = room[H, i], room[SLOPE, i], room[OTHERS, i]
            h, slope, others = add_flow(h, slope, others, first, z, g0, y0, re0, im0, fr0, fi0)
            h, slope, others = add_flow(h, slope, others, second, z, g1, y1, re1, im1, fr1, fi1)
            room[H, i], room[SLOPE, i], room[OTHERS, i] = h, slope, others
    for i in range(crowd):
        h, slope, others = room[H, i], room[SLOPE, i], room[OTHERS, i]
        room[MOVE, i] = core_move(room[S, i], room[Z, i], room[MOVE, i], h, slope, others)


@summing
def spread(x, v, dtau, c, inv, d, cut, table, used, pieces, work, out):
    """Write J (v - t dtau) with the table and polynomials of `steer`.

    `work`: of `tangent_room`; `out`: the array that `weigh` was given for what it keeps.
    """
    wide_vectors()
    if takes_all(cut):
        spread_all(x, v, dtau, c, inv, d, terms_of(cut), pieces, work[6], out)
        return
    T = x.dtype.type
    _, _, keys, _, room, at, _ = work
    limit, drift = T(cut), T(dtau)
    a, b, w, z = pieces[0], pieces[1], pieces[2], pieces[3]
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    z0, z1, z2, z3, z4, z5, z6, z7 = z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7]
    for start in range(0, x.shape[0], BLOCK):
        part, vs = block(x, start, BLOCK), block(v, start, BLOCK)
        dp = block(out, start, BLOCK)
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
            dp[i] = moved
            keys[i] = s
            near += T(1) if s > limit else T(0)
        if near == T(0):
            continue
        crowd = gather_core(part, vs, c, inv, d, drift, limit, keys, near, room, at)
        core_tangents(room, crowd, table, used)
        known = _known(borrowed(room))
        if is_dense(near, part.shape[0]):
            for i in range(crowd):
                dp[i] = T(inv * known[MOVE, i]) if known[S, i] > 0.0 else dp[i]
        else:
            for q in range(crowd):
                dp[at[q]] = T(inv * known[MOVE, q])
