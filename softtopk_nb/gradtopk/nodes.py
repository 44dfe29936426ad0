"""The points of the circle at which GradTopK's products are evaluated, as a table.

For each the table has a polynomial in s for 1/(1 - g s), g = |u|^2: the geometric series if entries
with a large g s are a separate core, and without a core the Chebyshev series, whose terms fall like
powers of tan(theta/4)^2 over all s (Proposition prop-grad-chebyshev).
"""

from __future__ import annotations

import math

import numpy as np

from .._compile.array_intrinsics import borrowed, layout_known
from .._compile.decorators import scalar
from .._math.elementary import circular, wide_vectors

NODES = 32  # most nodes on the upper half of the circle (Theorem thm-grad-nodes)
DEGREE, FEW = 8, 5  # terms of the polynomials in s
FEWEST_STEPS = 4  # of the Chebyshev sums over a row

# Rows of a table of nodes: |u|^2, sin theta, the normalised weight c, the coefficients in powers of
# s of 1/(1 - |u|^2 s), tan(theta/4), and intermediate terms: of a series and of the logarithm of a
# product.
SQUARE, SINE, RE, IM, SHARE = 0, 1, 2, 3, 4
ROOT = SHARE + DEGREE
TERM, MODULUS, ANGLE = ROOT + 1, ROOT + 2, ROOT + 3
FIELDS = ROOT + 4
CAPACITY = 2 * NODES  # nodes of a table: P(N = m) of any m needs up to this many


def _chebyshev() -> np.ndarray:
    """T_m(1 - 8 s), m <= DEGREE, as coefficients of the powers of s."""
    rows = np.zeros((DEGREE + 1, DEGREE + 1))
    rows[0, 0], rows[1, 0], rows[1, 1] = 1.0, 1.0, -8.0
    for m in range(2, DEGREE + 1):
        rows[m] = 2.0 * rows[m - 1] - rows[m - 2]
        rows[m, 1:] -= 16.0 * rows[m - 1, :-1]
    return rows


CHEBYSHEV = _chebyshev()

known_nodes = layout_known(FIELDS, CAPACITY)


@scalar
def node(j, size):
    """|u|^2 and sin theta of the j-th of `size` nodes, from theta = 0 on."""
    cosine, sine = circular(math.pi * j / size)
    return 4.0 * sine * sine, 2.0 * sine * cosine


@scalar
def in_lanes(used):
    """The number of nodes, rounded up to full SIMD lanes."""
    return (used + 7) & -8


@scalar
def terms_of(steps):
    """The number of terms of the polynomials in s: fewer if the sums have only four steps."""
    return FEW if steps == FEWEST_STEPS else DEGREE


@scalar
def write_circle(size, used, steps, nodes):
    """Write the first `used` of `size` nodes, and a few more to fill the lanes."""
    wide_vectors()
    table = known_nodes(borrowed(nodes))
    count = in_lanes(used)
    for j in range(count):
        table[SQUARE, j], table[SINE, j] = node(j, size)
    if steps > 0:
        for j in range(count):
            # tan(theta/4); the last node may be one that only fills the lanes.
            g = table[SQUARE, j]
            cosine = math.sqrt(1.0 - 0.25 * (g if g < 3.99 else 3.99))
            table[ROOT, j], table[TERM, j] = math.sqrt(0.25 * g) / (1.0 + cosine), 1.0 / cosine
        chebyshev_shares(table, count, terms_of(steps))
    else:
        for j in range(count):
            table[SHARE, j] = 1.0
        for m in range(1, DEGREE):
            for j in range(count):
                table[SHARE + m, j] = table[SHARE + m - 1, j] * table[SQUARE, j]


@scalar
def chebyshev_shares(table, count, terms):
    """1/(1 - g s) = (1 + 2 sum over m of (-rho)^m T_m(1 - 8 s))/cos(theta/2), in powers of s."""
    table = known_nodes(table)
    for j in range(count):
        factor = -table[ROOT, j] * table[ROOT, j]
        for i in range(DEGREE):
            table[SHARE + i, j] = 0.0
        power = table[TERM, j]
        for m in range(DEGREE):
            power = power if m < terms else 0.0
            for i in range(DEGREE):
                if i <= m:
                    table[SHARE + i, j] += power * CHEBYSHEV[m, i]
            power *= factor if m > 0 else factor + factor
