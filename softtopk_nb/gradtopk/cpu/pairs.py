"""P(i in S and j in S) of rows, in O(n^2) each, from the nodes of the solved rows.

At a node the indicators are independent, with mean q = pi + s y, y = u/(1 + pi u). The nodes'
weights c sum to 1, and the covariances of these means over the nodes add up to that of two entries:
Re sum_m c_m s_i (y_im - h_i) s_j (y_jm - h_j), h the mean of y.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import block, borrowed
from ..._compile.decorators import kernel, scalar
from ..._math.elementary import fma, wide_vectors
from ..._nonfinite import WITH_INFINITIES
from ..._threshold.newton import inverse_temperature
from ..formulas import minority_probability, product, tilted_fraction
from ..nodes import CAPACITY, FIELDS, IM, NODES, RE, SINE, SQUARE
from ..records import CODE, C, D
from .rows import load_nodes

LINES = 256  # lines of a matrix that form one unit of work
COLUMNS = 256  # columns of the deviations that stay in a core's innermost caches
TOGETHER = 2  # nodes evaluated together for each pair, a divisor of NODES

# Rows of the entries' table: z = 2 pi - 1, s = pi (1 - pi), and h.
Z, S, MEAN = 0, 1, 2
ENTRY_FIELDS = 3


@scalar
def write_deviations(x, level, nodes, used, entries, table):
    """Write s (y - h) of each entry to `table`: real parts at each node, then imaginary ones."""
    wide_vectors()
    (c, inv, d), n = level, x.shape[0]
    for i in range(n):
        t = (x[i] - c) * inv - d
        r = minority_probability(t)
        z = 1.0 - 2.0 * r
        entries[Z, i], entries[S, i] = z if t >= 0.0 else -z, r * (1.0 - r)
        entries[MEAN, i] = 0.0
    for j in range(used):
        g, sine, re, im = nodes[SQUARE, j], nodes[SINE, j], nodes[RE, j], nodes[IM, j]
        for i in range(n):
            yr, yi = tilted_fraction(g, sine, entries[S, i], entries[Z, i])
            table[j, i], table[NODES + j, i] = yr, entries[S, i] * yi
            entries[MEAN, i] += re * yr - im * yi
    for j in range(used):
        for i in range(n):
            table[j, i] = entries[S, i] * (table[j, i] - entries[MEAN, i])
    for j in range(used, used + used % TOGETHER):
        nodes[RE, j] = nodes[IM, j] = 0.0  # a node that adds 0
        for i in range(n):
            table[j, i] = table[NODES + j, i] = 0.0


@scalar
def write_covariances(a, start, nodes, used, table, line):
    """Write the covariances of entry a with the entries from `start` on, to the end of the line."""
    wide_vectors()
    for i in range(line.shape[0]):
        line[i] = 0.0
    for j in range(0, used, TOGETHER):
        re, im = product(nodes[RE, j], nodes[IM, j], table[j, a], table[NODES + j, a])
        real, imaginary = block(table[j], start, COLUMNS), block(table[NODES + j], start, COLUMNS)
        j += 1
        next_re, next_im = product(nodes[RE, j], nodes[IM, j], table[j, a], table[NODES + j, a])
        next_real = block(table[j], start, COLUMNS)
        next_imaginary = block(table[NODES + j], start, COLUMNS)
        for i in range(line.shape[0]):
            both = fma(next_re, next_real[i], fma(-next_im, next_imaginary[i], line[i]))
            line[i] = fma(re, real[i], fma(-im, imaginary[i], both))


@scalar
def write_pairs(chance, chances, line):
    """Turn covariances with an entry into joint probabilities."""
    wide_vectors()
    for i in range(line.shape[0]):
        pair = line[i] + chance * chances[i]
        line[i] = pair if pair > 0.0 else 0.0  # it would be 0 but for rounding


@kernel
def pair_marginals(lo, hi, x, tau, solution, p, out):
    """Write lines of the matrices; lo .. hi count blocks of LINES lines, row after row."""
    n = x.shape[1]
    nodes = np.empty((FIELDS, CAPACITY))
    scratch, deviations = np.empty((ENTRY_FIELDS, n)), np.empty((2 * NODES, n))
    x, solution, p, out = borrowed(x), borrowed(solution), borrowed(p), borrowed(out)
    entries, table = borrowed(scratch), borrowed(deviations)
    each, written, used = (n + LINES - 1) // LINES, -1, 0
    for q in range(lo, hi):
        row, first = q // each, q % each * LINES
        last = min(first + LINES, n)
        if row != written:
            answer, written, used = solution[row], row, 0
            if answer[CODE] <= WITH_INFINITIES:  # other rows have covariances of 0
                used = load_nodes(answer, nodes)
                level = answer[C], inverse_temperature(tau[row], x), answer[D]
                write_deviations(x[row], level, nodes, used, entries, table)
        for start in range(0, n, COLUMNS):
            chances = block(p[row], start, COLUMNS)
            for a in range(first, last):
                line = block(out[row, a], start, COLUMNS)
                write_covariances(a, start, nodes, used, table, line)
                write_pairs(p[row, a], chances, line)
        for a in range(first, last):
            out[row, a, a] = p[row, a]
