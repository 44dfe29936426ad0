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

from ..._compile.array_intrinsics import block, borrowed, empty, layout_known, seek
from ..._compile.decorators import scalar, summing
from ..._math.elementary import limits, wide_vectors
from ..formulas import (
    add_node_tangent,
    combined_direction,
    derivative_coefficients,
    minority_probability,
    tangent_away,
    tangent_in_core,
    weighted_q,
)
from ..nodes import CHEBYSHEV, DEGREE, IM, NODES, RE, ROOT, SHARE, SINE, SQUARE, terms_of
from ..records import (
    DIRECTION_SUMS,
    EVEN_AT_NODES,
    EVEN_SUM,
    ODD_AT_NODES,
    ODD_SUM,
    OTHERS_EVEN,
    OTHERS_ODD,
    OWN_EVEN,
    OWN_ODD,
    Q_IM,
    Q_RE,
    TANGENT_FIELDS,
)
from .chebyshev_tangent import chebyshev_sums_at
from .contour import BLOCK
from .marginals import all_of

TOGETHER = 2  # nodes evaluated together for each entry of the core, a divisor of NODES

# Rows of a block's core: z, s and v - t dtau of its entries, and sums over the nodes for each.
Z, S, MOVE, H, SLOPE, OTHERS = 0, 1, 2, 3, 4, 5
CORE_FIELDS = 6

# Smaller s and s^m are not multiplied further: s^2 v and s^(m+2) v would be subnormal, where
# arithmetic takes a hundred times as long, and do not matter beside s v.
LEAST_64, LEAST_32 = (
    np.array(
        [(1e8 * float(np.finfo(T).tiny)) ** (m / (m + 2) if m else 0.5) for m in range(DEGREE)]
    )
    for T in (np.float64, np.float32)
)

_known = layout_known(CORE_FIELDS, BLOCK)


@summing
def select_core(part, vs, c, inv, d, drift, limit, keys, core, at):
    """Write Z, S and MOVE of the core's entries, and their positions to `at`; returns their number.

    `keys`: s of each entry of the block.
    """
    T = part.dtype.type
    core = _known(borrowed(core))
    found = seek(keys[: part.shape[0]], limit, at)
    for q in range(found):
        core[Z, q], core[MOVE, q] = part[at[q]], vs[at[q]]
    for q in range(found):
        t = (T(core[Z, q]) - c) * inv - d
        r = minority_probability(t)
        z = 1.0 - 2.0 * np.float64(r)
        core[Z, q] = z if t >= T(0) else -z
        core[S, q] = np.float64(r) * (1.0 - np.float64(r))
        core[MOVE, q] = np.float64(T(core[MOVE, q]) - drift * t)
    return found


@summing
def core_direction_sums(core, found, nodes, used, sums):
    """Add the sums of s v z and s v over the core, each over 1 - g s, to those at the nodes."""
    core = _known(borrowed(core))
    for j in range(0, used, TOGETHER):
        g, next_g = nodes[SQUARE, j], nodes[SQUARE, j + 1]
        odd, even, next_odd, next_even = 0.0, 0.0, 0.0, 0.0
        for i in range(found):
            s, z = core[S, i], core[Z, i]
            below, next_below = 1.0 - g * s, 1.0 - next_g * s
            share = s * core[MOVE, i] / (below * next_below)
            first, second = share * next_below, share * below
            odd += z * first
            even += first
            next_odd += z * second
            next_even += second
        sums[ODD_AT_NODES + j] += odd
        sums[EVEN_AT_NODES + j] += even
        sums[ODD_AT_NODES + j + 1] += next_odd
        sums[EVEN_AT_NODES + j + 1] += next_even


@scalar
def tangent_scratch(x):
    """Scratch for `direction_sums` and `write_tangent`: arrays of BLOCK numbers."""
    odd, even = empty(BLOCK, x.dtype), empty(BLOCK, x.dtype)
    small, power = empty(BLOCK, x.dtype), empty(BLOCK, x.dtype)
    core, at = empty((CORE_FIELDS, BLOCK)), empty(BLOCK, np.int64)
    return odd, even, small, power, core, at


@summing
def direction_sums(x, v, dtau, c, inv, d, limit, nodes, used, work, sums):
    """Write the sums over a row with a core of the direction v - t dtau.

    `work`: of `tangent_scratch`.
    """
    wide_vectors()
    T = x.dtype.type
    limit, drift = T(limit), T(dtau)
    odd, even, small, power, core, at = work
    least = LEAST_64 if limits(inv)[0] < 1e-10 else LEAST_32
    for m in range(DIRECTION_SUMS):
        sums[m] = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, vs = block(x, start, BLOCK), block(v, start, BLOCK)
        count = part.shape[0]
        near, floor = T(0), T(least[0])
        for i in range(count):
            t = (part[i] - c) * inv - d
            r = minority_probability(t)
            s = r * (T(1) - r)
            far = s if s <= limit else T(0)
            sv = far * combined_direction(t, s, vs[i], drift)
            z = T(1) - T(2) * r
            even[i] = sv
            odd[i] = sv * (z if t >= T(0) else -z)
            small[i] = s
            power[i] = s if s > floor else T(0)
            near += T(1) if s > limit else T(0)
        if near > T(0):
            found = select_core(part, vs, c, inv, d, drift, limit, small, core, at)
            core_direction_sums(core, found, nodes, used, sums)
        sum_odd, sum_even = T(0), T(0)
        for i in range(count):
            sum_odd += odd[i]
            sum_even += even[i]
        sums[ODD_SUM] += sum_odd
        sums[EVEN_SUM] += sum_even
        for m in range(1, DEGREE):
            sum_odd, sum_even, floor = T(0), T(0), T(least[m])
            for i in range(count):
                sum_odd += odd[i] * power[i]
                sum_even += even[i] * power[i]
                power[i] *= small[i] if power[i] > floor else T(0)
            sums[ODD_SUM + m] += sum_odd
            sums[EVEN_SUM + m] += sum_even


@scalar
def write_weighted_q(nodes, used, steps, sums, q_re, q_im):
    """Write c_j Q_j of each node; returns H."""
    mean = 0.0
    for j in range(used):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        if steps > 0:
            odd, even = chebyshev_sums_at(g, nodes[ROOT, j], terms_of(steps), sums)
        else:
            odd, even = sums[ODD_AT_NODES + j], sums[EVEN_AT_NODES + j]
            for m in range(DEGREE):
                odd += nodes[SHARE + m, j] * sums[ODD_SUM + m]
                even += nodes[SHARE + m, j] * sums[EVEN_SUM + m]
        q_re[j], q_im[j] = weighted_q(g, sine, re, im, odd, even)
        mean += q_re[j]
    return mean


@scalar
def tangent_coefficients(nodes, used, steps, sums, q_re, q_im, polynomials, table):
    """Write the coefficients and table for `write_tangent`, from the sums along the direction.

    `polynomials`, in the type of the row: TANGENT_POLYNOMIALS in s, of p' and of C + z D = Re sum
    c Q u/(1 + pi u) - H h. `table`, in float64: TANGENT_FIELDS at each node, for the core.
    """
    mean = write_weighted_q(nodes, used, steps, sums, q_re, q_im)
    for j in range(used):
        table[SQUARE, j], table[SINE, j] = nodes[SQUARE, j], nodes[SINE, j]
        table[RE, j], table[IM, j] = nodes[RE, j], nodes[IM, j]
        table[Q_RE, j] = q_re[j] - mean * nodes[RE, j]
        table[Q_IM, j] = q_im[j] - mean * nodes[IM, j]
    for j in range(used, min(used + TOGETHER - 1, NODES)):
        for field in range(TANGENT_FIELDS):
            table[field, j] = 0.0  # a node that adds 0
    last, terms = 0.0, terms_of(steps)
    for m in range(terms):
        even, odd, others_even, others_odd = 0.0, 0.0, 0.0, 0.0
        for j in range(used):
            g, re, im = nodes[SQUARE, j], nodes[RE, j], nodes[IM, j]
            up, down = 0.5 * g * nodes[SHARE + m, j], -nodes[SINE, j] * nodes[SHARE + m, j]
            even += down * im
            odd += up * re
            others_even += down * (q_im[j] - mean * im)
            others_odd += up * (q_re[j] - mean * re)
        own_even, own_odd = derivative_coefficients(m, even, odd, last)
        polynomials[OWN_EVEN, m], polynomials[OWN_ODD, m] = own_even, own_odd
        polynomials[OTHERS_EVEN, m], polynomials[OTHERS_ODD, m] = others_even, others_odd
        last = odd
    if steps > 0:
        # p' has one more term. The Chebyshev polynomial is the smallest of all polynomials with
        # this leading term: that polynomial is subtracted, and the term drops out.
        beyond, _ = derivative_coefficients(terms, 0.0, 0.0, last)
        for m in range(terms):
            polynomials[OWN_EVEN, m] -= beyond * CHEBYSHEV[terms, m] / CHEBYSHEV[terms, terms]


@summing
def core_tangents(core, found, table, used):
    """Write tau (J v)_i of the core's entries to MOVE."""
    core = _known(borrowed(core))
    g, sine, re, im = table[SQUARE], table[SINE], table[RE], table[IM]
    q_re, q_im = table[Q_RE], table[Q_IM]
    for i in range(found):
        core[H, i], core[SLOPE, i], core[OTHERS, i] = 0.0, 0.0, 0.0
    for j in range(0, used, TOGETHER):
        g0, g1, y0, y1 = g[j], g[j + 1], sine[j], sine[j + 1]
        re0, re1, im0, im1 = re[j], re[j + 1], im[j], im[j + 1]
        qr0, qr1, qi0, qi1 = q_re[j], q_re[j + 1], q_im[j], q_im[j + 1]
        for i in range(found):
            s, z = core[S, i], core[Z, i]
            below, next_below = 1.0 - g0 * s, 1.0 - g1 * s
            both = 1.0 / (below * next_below)
            first, second = both * next_below, both * below
            sums = core[H, i], core[SLOPE, i], core[OTHERS, i]
            sums = add_node_tangent(*sums, first, z, g0, y0, re0, im0, qr0, qi0)
            sums = add_node_tangent(*sums, second, z, g1, y1, re1, im1, qr1, qi1)
            core[H, i], core[SLOPE, i], core[OTHERS, i] = sums
    for i in range(found):
        h, slope, others = core[H, i], core[SLOPE, i], core[OTHERS, i]
        core[MOVE, i] = tangent_in_core(core[S, i], core[Z, i], core[MOVE, i], h, slope, others)


@summing
def write_tangent(x, v, dtau, c, inv, d, limit, table, used, polynomials, work, out):
    """Write J (v - t dtau) of a row with a core.

    `table`, `polynomials`: of `tangent_coefficients`; `work`: of `tangent_scratch`.
    """
    wide_vectors()
    T = x.dtype.type
    _, _, keys, _, core, at = work
    limit, drift = T(limit), T(dtau)
    a, b = all_of(polynomials[OWN_EVEN]), all_of(polynomials[OWN_ODD])
    w, z = all_of(polynomials[OTHERS_EVEN]), all_of(polynomials[OTHERS_ODD])
    for start in range(0, x.shape[0], BLOCK):
        part, vs = block(x, start, BLOCK), block(v, start, BLOCK)
        dp = block(out, start, BLOCK)
        near = T(0)
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = minority_probability(t)
            s = r * (T(1) - r)
            side = (T(1) - T(2) * r) * (T(1) if t >= T(0) else T(-1))
            move = combined_direction(t, s, vs[i], drift)
            dp[i] = tangent_away(move, s, side, inv, a, b, w, z)
            keys[i] = s
            near += T(1) if s > limit else T(0)
        if near > T(0):
            found = select_core(part, vs, c, inv, d, drift, limit, keys, core, at)
            core_tangents(core, found, table, used)
            moved = _known(borrowed(core))
            for q in range(found):
                dp[at[q]] = T(inv * moved[MOVE, q])
