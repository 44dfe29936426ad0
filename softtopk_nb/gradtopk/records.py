"""The columns of the tables of a row, shared by the CPU and a device."""

from __future__ import annotations

from typing import NamedTuple

# The tilt c + tau d of a solved row and its kind (`_nonfinite`) are in the same columns as a
# threshold's.
from .._threshold.records import CODE as CODE
from .._threshold.records import FLAGS as SEARCH_FLAGS
from .._threshold.records import TAKEN, WEIGHT
from .._threshold.records import C as C
from .._threshold.records import D as D
from .nodes import DEGREE, NODES

# Flags that a solver of rows sets in addition to those of a threshold search: some rows are short,
# and some have a core.
SOME_SHORT, SOME_WITH_CORE = SEARCH_FLAGS, SEARCH_FLAGS + 1
FLAGS = SEARCH_FLAGS + 2

# Codes of tilts, in addition to those of a threshold search: the row has so few finite entries that
# `poisson_binomial` solves it; it is finite and has a core; it has infinities and a core. With the
# last two codes, two columns hold the number of entries with pi >= 1/2 and the count's variance.
SHORT_LEFT, WITH_CORE, CORE_AND_INFINITIES = -2.0, -5.0, -6.0
TILT_ABOVE, TILT_VARIANCE = TAKEN, WEIGHT


class Limits(NamedTuple):
    """Limits for short rows, where the count's distribution takes less time than its quadrature.

    The quadrature has no core where the count's variance is not small (`moments.LEAST`). The
    variance is at most k (n - k)/n.
    """

    always: int  # the length up to which all rows are short
    most: int  # the length up to which rows of small variance are
    variance: float  # the bound on the count's variance for these


SHORT, SHORT_32, NONE_SHORT = Limits(128, 512, 27.0), Limits(96, 256, 13.0), Limits(-1, -1, 0.0)

ORDER, ORDER_32 = 12, 10  # power sums, an even number of them
# Sums over a row: number of entries with pi >= 1/2, the variance of the count, then powers of r of
# the entries below 1/2 and of those above.
ABOVE, VARIANCE, POWERS = 0, 1, 2
SUMS = POWERS + 2 * ORDER
# Without a core the same table holds Chebyshev sums: of even degree from 4 on, and of odd degree
# from 1 on (Proposition prop-grad-chebyshev).
EVEN = POWERS
ODD = POWERS + ORDER  # ORDER steps at most

# A solved row: log P(N = k), the s above which an entry is of the core, the steps of the Chebyshev
# series (0 for power series and a core), the number of nodes on the circle and of those used, their
# weights; the kind lies between them.
LOG_P, CORE_LIMIT, STEPS, SIZE, USED = 2, 3, 4, 6, 7
WEIGHTS = 8
SOLUTION = WEIGHTS + 2 * NODES

# Sums over a row along a direction v: of s^m, or of T_m(xi), times s z v and s v; then, of the
# entries of the core, s z v/(1 - g s) and s v/(1 - g s) at each node.
ODD_SUM, EVEN_SUM = 0, DEGREE
AT_NODES = 2 * DEGREE
ODD_AT_NODES, EVEN_AT_NODES = AT_NODES, AT_NODES + NODES
DIRECTION_SUMS = AT_NODES + 2 * NODES

# Polynomials in s of the marginals: the nodes' sums of 1/(1 - g s) times Re(c w), Re c, Re(c/w).
BELOW, PLAIN, OVER = 0, 1, 2
MARGINAL_POLYNOMIALS = 3
# Columns of the core's table: g, and the same numbers at each node.
NODE_SQUARE, NODE_BELOW, NODE_PLAIN, NODE_OVER = 0, 1, 2, 3
MARGINAL_FIELDS = 4

# Polynomials of the derivative: p' is A + z B, the term of the other entries is C + z D.
OWN_EVEN, OWN_ODD, OTHERS_EVEN, OTHERS_ODD = 0, 1, 2, 3
TANGENT_POLYNOMIALS = 4
# The derivative's table for the core: the first four rows of the nodes' table, and c_j (Q_j - H).
Q_RE, Q_IM = 4, 5
TANGENT_FIELDS = 6
