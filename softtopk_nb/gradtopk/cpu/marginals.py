"""The marginals of GradTopK on one row, from the nodes that `contour` has chosen.

An entry enters through its tilted probability alone (Theorem thm-grad-marginals): outside the core
by polynomials, in the core by fractions at the nodes.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, empty, layout_known, seek
from ..._compile.decorators import overload_scalar, scalar, summing
from ..._math.elementary import fma, from_ordinal, limits, to_ordinal, wide_vectors
from ..formulas import (
    DEEP,
    add_node,
    core_marginal,
    deep_tail,
    horner,
    minority_probability,
    node_terms,
    tail_probability,
)
from ..nodes import (
    DEGREE,
    FEW,
    IM,
    NODES,
    RE,
    SHARE,
    SINE,
    SQUARE,
    in_lanes,
    known_nodes,
    terms_of,
)
from ..records import (
    BELOW,
    MARGINAL_FIELDS,
    NODE_BELOW,
    NODE_OVER,
    NODE_PLAIN,
    NODE_SQUARE,
    OVER,
    PLAIN,
)
from .contour import BLOCK

# For entries with s up to this, FEW terms of the series are enough: (4 s)^FEW is below 1e-16, 1e-8.
FAINT, FAINT_32 = 1.5e-4, 6e-3
TOGETHER = 4  # nodes evaluated together for each entry of the core, a divisor of NODES

_known_table = layout_known(MARGINAL_FIELDS, NODES)


@summing
def marginal_coefficients(nodes, used, polynomials, table):
    """Write the coefficients and the table that `marginals` needs, from the nodes.

    `polynomials`, in the type of the row: MARGINAL_POLYNOMIALS in s. `table`: MARGINAL_FIELDS at
    each node, for the core, in float64: the weights change sign, and errors of the sum over the row
    would add up.
    """
    wide_vectors()
    nodes, table = known_nodes(borrowed(nodes)), _known_table(borrowed(table))
    count = in_lanes(used)
    for j in range(count):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        below, plain, over = node_terms(g, sine, re, im)
        there = j < used  # the others add 0
        table[NODE_SQUARE, j], table[NODE_BELOW, j] = g if there else 0.0, below if there else 0.0
        table[NODE_PLAIN, j], table[NODE_OVER, j] = plain if there else 0.0, over if there else 0.0
    for m in range(DEGREE):
        below, plain, over = 0.0, 0.0, 0.0
        for j in range(count):
            share = nodes[SHARE + m, j]
            below += share * table[NODE_BELOW, j]
            plain += share * table[NODE_PLAIN, j]
            over += share * table[NODE_OVER, j]
        polynomials[BELOW, m], polynomials[PLAIN, m], polynomials[OVER, m] = below, plain, over


@scalar
def horner_few(c, s):
    """The polynomial of FEW coefficients c at s."""
    return fma(fma(fma(fma(c[4], s, c[3]), s, c[2]), s, c[1]), s, c[0])


@summing
def write_deep(x, c, inv, d, a0, p):
    """Write p of the entries whose r nearly underflows."""
    wide_vectors()
    T = x.dtype.type
    floor = T(DEEP * math.log(limits(inv)[1]))
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        p[i] = deep_tail(t, a0) if t < floor else p[i]


@summing
def core_tails(minor, count, table, used, over, under):
    """Write over/under, which is p/r below 1/2 and (1 - p)/r above (Theorem thm-grad-marginals).

    `minor`: r of `count` entries, negative where pi >= 1/2. The fractions of the nodes are added
    over a common denominator, for one division per entry instead of one per node.
    """
    wide_vectors()
    for i in range(count):
        over[i], under[i] = 0.0, 1.0
    # Four nodes at a time, so that the fractions stay in registers meanwhile.
    g, below, plain, above = (
        table[NODE_SQUARE],
        table[NODE_BELOW],
        table[NODE_PLAIN],
        table[NODE_OVER],
    )
    for j in range(0, used, TOGETHER):
        g0, g1, g2, g3 = g[j], g[j + 1], g[j + 2], g[j + 3]
        b0, b1, b2, b3 = below[j], below[j + 1], below[j + 2], below[j + 3]
        p0, p1, p2, p3 = plain[j], plain[j + 1], plain[j + 2], plain[j + 3]
        a0, a1, a2, a3 = above[j], above[j + 1], above[j + 2], above[j + 3]
        for i in range(count):
            upper, r = minor[i] < 0.0, abs(minor[i])
            a, b = over[i], under[i]
            a, b = add_node(a, b, r, a0 if upper else b0, g0, p0)
            a, b = add_node(a, b, r, a1 if upper else b1, g1, p1)
            a, b = add_node(a, b, r, a2 if upper else b2, g2, p2)
            over[i], under[i] = add_node(a, b, r, a3 if upper else b3, g3, p3)


@scalar
def marginals_scratch(x):
    """Scratch for `marginals`: arrays of BLOCK numbers."""
    signed, keys, minor = empty(BLOCK, x.dtype), empty(BLOCK, x.dtype), empty(BLOCK)
    return signed, keys, minor, empty(BLOCK), empty(BLOCK), empty(BLOCK, np.int64)


def polynomial(c, s):
    """The polynomial of DEGREE or FEW coefficients c, a tuple, at s."""
    return horner(c, s) if len(c) == DEGREE else horner_few(c, s)


@overload_scalar(polynomial)
def _polynomial(c, s):
    if len(c) == DEGREE:
        return lambda c, s: horner(c, s)
    return lambda c, s: horner_few(c, s)


@scalar
def few_of(c):
    """The first FEW coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4]


@scalar
def all_of(c):
    """All DEGREE coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]


@summing
def write_away_from_core(signed, keys, a, b, z, p):
    """Write p of a block by the formula for entries outside the core.

    `signed`: r, negated where pi >= 1/2; `keys`: s; a, b, z: the polynomials.
    """
    wide_vectors()
    T = p.dtype.type
    for i in range(p.shape[0]):
        upper, s = signed[i] < T(0), keys[i]
        tail = tail_probability(
            abs(signed[i]), upper, polynomial(a, s), polynomial(b, s), polynomial(z, s)
        )
        p[i] = T(1) - tail if upper else tail


@summing
def write_chebyshev(x, c, inv, d, a, b, z, out, kept):
    """Write p of a row without a core, by the polynomials; returns how many r nearly underflow.

    `kept`: None, or `out` if `tilted_probabilities` has written there.
    """
    wide_vectors()
    T = x.dtype.type
    floor = T(DEEP * math.log(limits(inv)[1]))
    deep = T(0)
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        r = minority_probability(t) if kept is None else T(0.5) * abs(out[i])
        s, upper = r * (T(1) - r), t >= T(0)
        tail = tail_probability(r, upper, polynomial(a, s), polynomial(b, s), polynomial(z, s))
        out[i] = T(1) - tail if upper else tail
        deep += T(1) if t < floor else T(0)
    return deep


@scalar
def chebyshev_marginals(x, c, inv, d, steps, polynomials, out, kept=None):
    """Write p of a row without a core, as `marginals`."""
    a, b, z = polynomials[BELOW], polynomials[PLAIN], polynomials[OVER]
    # In blocks, so that the few r that nearly underflow are not searched for in all of a long row.
    for start in range(0, x.shape[0], BLOCK):
        part, p = block(x, start, BLOCK), block(out, start, BLOCK)
        if terms_of(steps) == FEW:
            deep = write_chebyshev(part, c, inv, d, few_of(a), few_of(b), few_of(z), p, kept)
        else:
            deep = write_chebyshev(part, c, inv, d, all_of(a), all_of(b), all_of(z), p, kept)
        if deep > 0:
            write_deep(part, c, inv, d, a[0], p)


@summing
def marginals(x, c, inv, d, limit, table, used, polynomials, work, out, kept=None):
    """Write p (Theorem thm-grad-marginals) by the table and polynomials of `marginal_coefficients`.

    This is for rows with a core. `work`: of `marginals_scratch`; `kept`: `out`, if
    `tilted_probabilities` has written there.
    """
    wide_vectors()
    T = x.dtype.type
    signed, keys, minor, over, under, at = work
    floor = T(DEEP * math.log(limits(inv)[1]))
    limit, least = T(limit), T(limits(inv)[1])
    faint = FAINT if limits(inv)[0] < 1e-10 else FAINT_32
    a, b, z = polynomials[BELOW], polynomials[PLAIN], polynomials[OVER]
    few, full = (few_of(a), few_of(b), few_of(z)), (all_of(a), all_of(b), all_of(z))
    for start in range(0, x.shape[0], BLOCK):
        part, p = block(x, start, BLOCK), block(out, start, BLOCK)
        near, deep, top = T(0), T(0), to_ordinal(T(0))  # ordinals order as positive numbers do
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = minority_probability(t) if kept is None else T(0.5) * abs(p[i])
            s = r * (T(1) - r)
            o = to_ordinal(s)
            top = o if o > top else top
            # Its sign must not be lost; entries whose r nearly underflows are written below.
            signed[i] = (T(-1) if t >= T(0) else T(1)) * (r if r > least else least)
            keys[i] = s
            near += T(1) if s > limit else T(0)
            deep += T(1) if t < floor else T(0)
        if from_ordinal(top) <= faint:
            write_away_from_core(signed, keys, few[0], few[1], few[2], p)
        else:
            write_away_from_core(signed, keys, full[0], full[1], full[2], p)
        if deep > T(0):
            write_deep(part, c, inv, d, a[0], p)
        if near > T(0):
            found = seek(keys[: part.shape[0]], limit, at)
            for q in range(found):
                minor[q] = signed[at[q]]
            core_tails(minor, found, table, used, over, under)
            for q in range(found):
                over[q] = core_marginal(abs(minor[q]), minor[q] < 0.0, over[q], under[q])
            for q in range(found):
                p[at[q]] = T(over[q])
