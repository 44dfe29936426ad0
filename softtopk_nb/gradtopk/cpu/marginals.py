"""The marginals of GradTopK on one row, from the nodes that `contour` has chosen.

An entry enters through its tilted probability alone (Theorem thm-grad-marginals): away from the
core by polynomials, in the core by fractions at the nodes.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, layout_known, seek, window
from ..._compile.decorators import overload_scalar, row, scalar, summing
from ..._math.elementary import fma, from_ordinal, limits, to_ordinal, wide_vectors
from ..formulas import DEEP, add_node, core_marginal, deep_tail, horner, node_terms, rarer, tail_of
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
    takes_all,
    terms_of,
)
from .contour import BLOCK

TABLE = 4  # fields of the core's table: g, Re(c w), Re c and Re(c / w)
# Of entries with s up to this FEW terms of the series are enough: (4 s)^FEW is below 1e-16, 1e-8.
FAINT, FAINT_32 = 1.5e-4, 6e-3
TOGETHER = 4  # nodes taken together for each entry of the core, a divisor of NODES

_known_table = layout_known(TABLE, NODES)


@summing
def coefficients(nodes, used, coefficient, table):
    """What `marginals` needs of the nodes.

    `coefficient`, in the type of the row: polynomials in s, sums over the nodes of 1/(1 - g s)
    times Re(c w), Re c and Re(c / w). `table`: g and these three at each node, for the core. In
    float64: the weights change sign, and errors of the sum over the row would add up.
    """
    wide_vectors()
    nodes, table = known_nodes(borrowed(nodes)), _known_table(borrowed(table))
    count = in_lanes(used)
    for j in range(count):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        below, plain, above = node_terms(g, sine, re, im)
        there = j < used  # the others add nothing
        table[0, j], table[1, j] = g if there else 0.0, below if there else 0.0
        table[2, j], table[3, j] = plain if there else 0.0, above if there else 0.0
    for m in range(DEGREE):
        below, plain, above = 0.0, 0.0, 0.0
        for j in range(count):
            share = nodes[SHARE + m, j]
            below += share * table[1, j]
            plain += share * table[2, j]
            above += share * table[3, j]
        coefficient[0, m], coefficient[1, m], coefficient[2, m] = below, plain, above


@scalar
def horner_few(c, s):
    """The polynomial of FEW coefficients c at s."""
    return fma(fma(fma(fma(c[4], s, c[3]), s, c[2]), s, c[1]), s, c[0])


@scalar
def is_dense(near, count):
    """Whether `near` of `count` entries are so many that it does not pay to seek them out."""
    return 5.0 * near > 4.0 * count


@summing
def write_deep(x, c, inv, d, a0, p):
    """Write p of the entries that lie deep."""
    wide_vectors()
    T = x.dtype.type
    floor = T(DEEP * math.log(limits(inv)[1]))
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        p[i] = deep_tail(t, a0) if t < floor else p[i]


@summing
def core_tails(minor, crowd, table, used, over, under):
    """Write over/under = p/r below 1/2, (1 - p)/r above (Theorem thm-grad-marginals).

    `minor`: r of `crowd` entries, negative where pi >= 1/2. The fractions of the nodes are added
    over a common denominator, a division for each entry and not for each node of it.
    """
    wide_vectors()
    for i in range(crowd):
        over[i], under[i] = 0.0, 1.0
    # Four nodes at a time, so that the fractions stay in registers meanwhile.
    for j in range(0, used, TOGETHER):
        g0, g1, g2, g3 = table[0, j], table[0, j + 1], table[0, j + 2], table[0, j + 3]
        below = table[1, j], table[1, j + 1], table[1, j + 2], table[1, j + 3]
        p0, p1, p2, p3 = table[2, j], table[2, j + 1], table[2, j + 2], table[2, j + 3]
        above = table[3, j], table[3, j + 1], table[3, j + 2], table[3, j + 3]
        for i in range(crowd):
            upper, r = minor[i] < 0.0, abs(minor[i])
            a, b = over[i], under[i]
            a, b = add_node(a, b, r, above[0] if upper else below[0], g0, p0)
            a, b = add_node(a, b, r, above[1] if upper else below[1], g1, p1)
            a, b = add_node(a, b, r, above[2] if upper else below[2], g2, p2)
            over[i], under[i] = add_node(a, b, r, above[3] if upper else below[3], g3, p3)


@scalar
def marginals_room(x):
    """Arrays of BLOCK numbers for `marginals` to work in."""
    signed, keys, minor = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype), np.empty(BLOCK)
    return signed, keys, minor, np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.int64)


def polynomial(c, s):
    """The polynomial of DEGREE or FEW coefficients c, a tuple, at s."""
    return horner(c, s) if len(c) == DEGREE else horner_few(c, s)


@overload_scalar(polynomial, inline=True)
def _polynomial(c, s):
    if len(c) == DEGREE:
        return lambda c, s: horner(c, s)
    return lambda c, s: horner_few(c, s)


@row
def few_of(c):
    """The first FEW coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4]


@row
def all_of(c):
    """All DEGREE coefficients, as a tuple."""
    return c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]


@summing
def write_away(signed, keys, a, b, z, p):
    """Write p of a block as if it were away from the core.

    `signed`: r, with a minus above 1/2; `keys`: s; a, b, z: the polynomials.
    """
    wide_vectors()
    T = p.dtype.type
    for i in range(p.shape[0]):
        upper, s = signed[i] < T(0), keys[i]
        tail = tail_of(abs(signed[i]), upper, polynomial(a, s), polynomial(b, s), polynomial(z, s))
        p[i] = T(1) - tail if upper else tail


@summing
def write_all(x, c, inv, d, a, b, z, out, kept):
    """Write p of a row without a core, with the polynomials; returns how many entries lie deep.

    `kept`: None, or `out`, where `toss` has left 2 r with a sign.
    """
    wide_vectors()
    T = x.dtype.type
    floor = T(DEEP * math.log(limits(inv)[1]))
    deep = T(0)
    for i in range(x.shape[0]):
        t = (x[i] - c) * inv - d
        r = rarer(t) if kept is None else T(0.5) * abs(out[i])
        s, upper = r * (T(1) - r), t >= T(0)
        tail = tail_of(r, upper, polynomial(a, s), polynomial(b, s), polynomial(z, s))
        out[i] = T(1) - tail if upper else tail
        deep += T(1) if t < floor else T(0)
    return deep


@row
def marginals_of_all(x, c, inv, d, few, coefficient, out, kept):
    """`marginals` of a row without a core."""
    a, b, z = coefficient[0], coefficient[1], coefficient[2]
    # In blocks: the few entries that lie deep in a long row are not to be sought in all of it.
    for start in range(0, x.shape[0], BLOCK):
        part, p = block(x, start, BLOCK), block(out, start, BLOCK)
        if few:
            deep = write_all(part, c, inv, d, few_of(a), few_of(b), few_of(z), p, kept)
        else:
            deep = write_all(part, c, inv, d, all_of(a), all_of(b), all_of(z), p, kept)
        if deep > 0:
            write_deep(part, c, inv, d, coefficient[0, 0], p)


@summing
def marginals(x, c, inv, d, cut, table, used, coefficient, work, out, kept=None):
    """Write p (Theorem thm-grad-marginals) with the table and polynomials of `coefficients`.

    `work`: of `marginals_room`; `kept`: `out`, if that is where `toss` has written.
    """
    wide_vectors()
    if takes_all(cut):
        marginals_of_all(x, c, inv, d, terms_of(cut) == FEW, coefficient, out, kept)
        return
    T = x.dtype.type
    signed, keys, minor, over, under, at = work
    floor = T(DEEP * math.log(limits(inv)[1]))
    limit, least = T(cut), T(limits(inv)[1])
    faint = FAINT if limits(inv)[0] < 1e-10 else FAINT_32
    a, b, z = coefficient[0], coefficient[1], coefficient[2]
    few, full = (few_of(a), few_of(b), few_of(z)), (all_of(a), all_of(b), all_of(z))
    for start in range(0, x.shape[0], BLOCK):
        part, p = block(x, start, BLOCK), block(out, start, BLOCK)
        near, deep, top = T(0), T(0), to_ordinal(T(0))  # of numbers above 0: they order alike
        for i in range(part.shape[0]):
            t = (part[i] - c) * inv - d
            r = rarer(t) if kept is None else T(0.5) * abs(p[i])
            s = r * (T(1) - r)
            o = to_ordinal(s)
            top = o if o > top else top
            # Its sign must not be lost; what lies deep is written below.
            signed[i] = (T(-1) if t >= T(0) else T(1)) * (r if r > least else least)
            keys[i] = s
            near += T(1) if s > limit else T(0)
            deep += T(1) if t < floor else T(0)
        if from_ordinal(top) <= faint:
            write_away(signed, keys, few[0], few[1], few[2], p)
        else:
            write_away(signed, keys, full[0], full[1], full[2], p)
        if deep > T(0):
            write_deep(part, c, inv, d, a[0], p)
        if near == T(0):
            continue
        # Where the core is most of the block, all of it is treated alike, and nothing sought out.
        dense = is_dense(near, part.shape[0])
        if dense:
            crowd = part.shape[0]
            for i in range(crowd):
                minor[i] = signed[i]
        else:
            crowd = seek(window(keys, 0, part.shape[0]), limit, at)
            for q in range(crowd):
                minor[q] = signed[at[q]]
        core_tails(minor, crowd, table, used, over, under)
        for i in range(crowd):
            over[i] = core_marginal(abs(minor[i]), minor[i] < 0.0, over[i], under[i])
        if dense:
            for i in range(crowd):
                p[i] = T(over[i]) if keys[i] > limit else p[i]
        else:
            for i in range(crowd):
                p[at[i]] = T(over[i])
