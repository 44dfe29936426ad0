"""The second derivative of GradTopK on one row in O(n), from the nodes that gave its value.

It is the third joint cumulant of an entry's indicator and two sums over the subset, divided by the
square of the temperature. At a node the indicators are independent, with mean q = pi + s y,
y = u/(1 + pi u), and variance s rho; the law of total cumulance adds up the nodes (Theorem
thm-grad-second).
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, layout_known
from ..._compile.decorators import scalar, summing
from ..._math.elementary import wide_vectors
from ..formulas import (
    combined_direction,
    cumulant_at_node,
    minority_probability,
    product,
    tilted_fraction,
    variance_share,
    within_reach,
)
from ..nodes import NODES, node
from ..records import SIZE, USED, WEIGHTS

BLOCK = 512  # entries of a block, whose numbers stay in the L1 cache

# Rows of a block's table: z = 2 pi - 1, s = pi (1 - pi), the entries' derivatives along two
# directions, the second-order term of the temperature's directions, and the sum over the nodes.
Z, S, MOVE, OTHER, BOTH, TOTAL = range(6)
BLOCK_FIELDS = 6
# Rows of the nodes' table: |u|^2, sin theta and the weight c; c times the deviations of the sums
# along either direction, and of the term that belongs to one entry alone.
SQUARE, SINE, RE, IM, MOVE_RE, MOVE_IM, OTHER_RE, OTHER_IM, OWN_RE, OWN_IM = range(10)
NODE_FIELDS = 10
# Sums over the row at a node, complex: along each direction, along both, and of the product.
SUMS = 8

_known = layout_known(BLOCK_FIELDS, BLOCK)


@scalar
def cumulant_scratch():
    """Scratch for `third_cumulant`: for a block, for the nodes, and for sums at the nodes."""
    return np.empty((BLOCK_FIELDS, BLOCK)), np.empty((NODE_FIELDS, NODES)), np.empty((SUMS, NODES))


@scalar
def open_block(xs, vs, others, level, dtau, other_dtau, entries):
    """Write Z, S, MOVE, OTHER and BOTH of the entries of a block."""
    wide_vectors()
    T, (c, inv, d) = xs.dtype.type, level
    table, drift, other_drift = _known(borrowed(entries)), T(dtau), T(other_dtau)
    for i in range(xs.shape[0]):
        t = (xs[i] - c) * inv - d
        r = np.float64(minority_probability(t))
        s = r * (1.0 - r)
        z = 1.0 - 2.0 * r
        move = np.float64(combined_direction(t, T(s), vs[i], drift))
        other = np.float64(combined_direction(t, T(s), others[i], other_drift))
        table[Z, i], table[S, i] = z if t >= T(0) else -z, s
        table[MOVE, i], table[OTHER, i] = move, other
        table[BOTH, i] = move * other_dtau + other * dtau


@summing
def add_block(count, entries, used, nodes, sums):
    """Add the entries of a block to the sums at each node."""
    wide_vectors()
    table = _known(borrowed(entries))
    for j in range(used):
        g, sine = nodes[SQUARE, j], nodes[SINE, j]
        vr, vi, ar, ai, br, bi, pr, pi = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(count):
            s, v, a, b = table[S, i], table[MOVE, i], table[OTHER, i], table[BOTH, i]
            yr, yi = tilted_fraction(g, sine, s, table[Z, i])
            rho, tho = variance_share(s, table[Z, i], yr, yi)
            vr += s * v * yr
            vi += s * v * yi
            ar += s * a * yr
            ai += s * a * yi
            br += s * b * yr
            bi += s * b * yi
            pr += s * v * a * rho
            pi += s * v * a * tho
        each = vr, vi, ar, ai, br, bi, pr, pi
        for m in range(SUMS):
            sums[m, j] += each[m]


@scalar
def deviations(used, sums, nodes):
    """Write the deviations of the directions' sums from their means, times each node's weight.

    Returns the covariance of the two sums over the subset.
    """
    for m in range(0, SUMS - 2, 2):
        mean = 0.0
        for j in range(used):
            mean += nodes[RE, j] * sums[m, j] - nodes[IM, j] * sums[m + 1, j]
        for j in range(used):
            sums[m, j] -= mean
    covariance = 0.0
    for j in range(used):
        both = product(sums[0, j], sums[1, j], sums[2, j], sums[3, j])
        sums[6, j] += both[0]
        sums[7, j] += both[1]
        covariance += nodes[RE, j] * sums[6, j] - nodes[IM, j] * sums[7, j]
    for j in range(used):
        re, im = nodes[RE, j], nodes[IM, j]
        own_re, own_im = sums[6, j] - covariance - sums[4, j], sums[7, j] - sums[5, j]
        nodes[MOVE_RE, j], nodes[MOVE_IM, j] = product(re, im, sums[0, j], sums[1, j])
        nodes[OTHER_RE, j], nodes[OTHER_IM, j] = product(re, im, sums[2, j], sums[3, j])
        nodes[OWN_RE, j], nodes[OWN_IM, j] = product(re, im, own_re, own_im)
    return covariance


@scalar
def close_block(count, entries, used, nodes):
    """Write TOTAL of the entries of a block."""
    wide_vectors()
    table = _known(borrowed(entries))
    for i in range(count):
        table[TOTAL, i] = 0.0
    for j in range(used):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        along = nodes[MOVE_RE, j], nodes[MOVE_IM, j], nodes[OTHER_RE, j], nodes[OTHER_IM, j]
        own_re, own_im = nodes[OWN_RE, j], nodes[OWN_IM, j]
        for i in range(count):
            s, z = table[S, i], table[Z, i]
            yr, yi = tilted_fraction(g, sine, s, z)
            moved = table[MOVE, i], table[OTHER, i], table[BOTH, i]
            of_node = re, im, *along
            table[TOTAL, i] += (
                cumulant_at_node(s, z, yr, yi, moved, of_node) + own_re * yr - own_im * yi
            )


@scalar
def open_nodes(answer, scratch):
    """Write what is known of the nodes of a solved row; nothing is added to the sums yet."""
    _, nodes, sums = scratch
    for j in range(int(answer[USED])):
        nodes[SQUARE, j], nodes[SINE, j] = node(j, answer[SIZE])
        nodes[RE, j], nodes[IM, j] = answer[WEIGHTS + j], answer[WEIGHTS + NODES + j]
        for m in range(SUMS):
            sums[m, j] = 0.0


@scalar
def add_entries(first, last, x, v, a, level, dtau, other_dtau, used, scratch):
    """Add the entries first .. last to the sums over the row; `first` begins a block."""
    entries, nodes, sums = scratch
    for start in range(first, last, BLOCK):
        xs, vs, others = block(x, start, BLOCK), block(v, start, BLOCK), block(a, start, BLOCK)
        open_block(xs, vs, others, level, dtau, other_dtau, entries)
        add_block(xs.shape[0], entries, used, nodes, sums)


@scalar
def close_nodes(level, used, scratch):
    """Leave the deviations of the sums at the nodes; returns what they give to the gradient."""
    _, nodes, sums = scratch
    return -_scale(level) * deviations(used, sums, nodes)


@scalar
def write_entries(first, last, x, v, a, level, dtau, other_dtau, used, scratch, in_tau, out):
    """Write the derivative of the entries first .. last; returns in_tau with what they add."""
    T, (c, inv, d) = x.dtype.type, level
    entries, nodes, _ = scratch
    for start in range(first, last, BLOCK):
        xs, vs, others = block(x, start, BLOCK), block(v, start, BLOCK), block(a, start, BLOCK)
        target = block(out, start, BLOCK)
        open_block(xs, vs, others, level, dtau, other_dtau, entries)
        close_block(xs.shape[0], entries, used, nodes)
        for i in range(xs.shape[0]):
            moved = _scale(level) * entries[S, i] * entries[TOTAL, i]
            target[i] = T(moved)
            t = np.float64((xs[i] - c) * inv - d)
            in_tau -= moved * within_reach(t)
    return in_tau


@scalar
def _scale(level):
    return np.float64(level[1]) * np.float64(level[1])


@scalar
def third_cumulant(x, v, a, level, dtau, other_dtau, answer, scratch, out):
    """Write the derivative along (v, dtau) and (a, other_dtau); returns the gradient in tau.

    That is the gradient of <a, derivative along the first> if other_dtau is 0. `level`: c, 1/tau
    and d of the tilt; `answer`: the solved row.
    """
    n, used = x.shape[0], int(answer[USED])
    open_nodes(answer, scratch)
    add_entries(0, n, x, v, a, level, dtau, other_dtau, used, scratch)
    in_tau = close_nodes(level, used, scratch)
    return write_entries(0, n, x, v, a, level, dtau, other_dtau, used, scratch, in_tau, out)
