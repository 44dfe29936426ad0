"""The columns of the tables of one row, said once for the CPU and a device."""

from __future__ import annotations

from typing import NamedTuple

# The tilt c + tau d of a solved row and its kind (`_nonfinite`) lie where they do in a threshold's.
from .._threshold.records import CODE as CODE
from .._threshold.records import FLAGS as SEARCH_FLAGS
from .._threshold.records import C as C
from .._threshold.records import D as D
from .nodes import DEGREE, NODES

# Beside the flags of a search for a threshold: some rows are short.
SOME_SHORT = SEARCH_FLAGS
FLAGS = SEARCH_FLAGS + 1


class Limits(NamedTuple):
    """Which rows are short: where the count's distribution takes less time than its quadrature.

    That has no core to look after where the count's variance is not small (`moments.LEAST`). The
    variance is at most k (n - k)/n.
    """

    always: int  # rows of up to so many entries
    most: int  # and longer ones up to here
    variance: float  # whose count's variance cannot be more


SHORT, SHORT_32, NONE_SHORT = Limits(128, 512, 27.0), Limits(96, 256, 13.0), Limits(-1, -1, 0.0)

ORDER, ORDER_32 = 12, 10  # power sums, an even number of them
# Sums over a row: entries with pi >= 1/2, the variance of the count, then powers of r of the
# entries below 1/2 and of those above.
ABOVE, VARIANCE, POWERS = 0, 1, 2
SUMS = POWERS + 2 * ORDER
# Where a row has no core the same table holds Chebyshev sums: of even degree from 4 on, and of odd
# degree from 1 on (Proposition prop-grad-chebyshev).
EVEN = POWERS
ODD = POWERS + ORDER  # ORDER steps at most

# A solved row: log P(N = k), the s above which an entry is of the core, the steps of the Chebyshev
# series (0 if power series serve and a core), of how many nodes how many are used, their weights;
# the kind lies between them.
LOG_P, CORE_LIMIT, STEPS, SIZE, USED = 2, 3, 4, 5, 7
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
# The same numbers at each node, and g, for the core.
NODE_SQUARE, NODE_BELOW, NODE_PLAIN, NODE_OVER = 0, 1, 2, 3
MARGINAL_FIELDS = 4

# Polynomials of the tangent: p' is A + z B, what the other entries do is C + z D.
OWN_EVEN, OWN_ODD, OTHERS_EVEN, OTHERS_ODD = 0, 1, 2, 3
TANGENT_POLYNOMIALS = 4
# The tangent's table for the core: the first four columns of the nodes, and c_j (Q_j - H).
Q_RE, Q_IM = 4, 5
TANGENT_FIELDS = 6
