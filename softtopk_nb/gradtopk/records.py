"""The columns of the tables by which the parts of the computation know each other."""

from __future__ import annotations

from .nodes import DEGREE, NODES

ORDER, ORDER_32 = 12, 10  # power sums, an even number of them
# Sums over a row: entries with pi >= 1/2, the variance, then powers of r below and above 1/2.
ABOVE, VARIANCE, POWERS = 0, 1, 2
SUMS = POWERS + 2 * ORDER
# A row of some variance has no core: Chebyshev series take all entries (Proposition
# prop-grad-chebyshev). Its cut, larger than any s, says how many steps make their sums: those of
# even degree from 4 on, and of odd degree from 1 on.
EVEN = POWERS
ODD = POWERS + ORDER  # ORDER steps at most
# A solved row: the tilt c + tau d (C and D as in `_threshold`), log P(N = k), the kind of row
# (`_nonfinite`), up to which s polynomials serve, and the nodes: of how many, how many, weights.
LOG_P, CODE, CUT, SIZE, USED = 2, 3, 4, 5, 6
WEIGHTS = 7
SOLUTION = WEIGHTS + 2 * NODES
# The sums of all entries or of those away from the core, then those of the core at each node.
AT_NODES = 2 * DEGREE
FLOWS = AT_NODES + 2 * NODES
# A table for the core: the nodes, and c_j (Q_j - H).
LANES = 6
# Sums of s^m, or of T_m(xi), times s v z and s v.
SLOPE_ODD, SLOPE_EVEN = 0, DEGREE
