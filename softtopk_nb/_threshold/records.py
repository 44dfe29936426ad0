"""The columns of the tables by which the parts of a search know each other."""

from __future__ import annotations

# The solver's state: a record of float64, so that a driver in Python can hold it too.
C, D, REST = 0, 1, 2  # the threshold in hand
LO_C, LO_D, LO_R = 3, 4, 5  # highest threshold known to be too low, and its residual
HI_C, HI_D, HI_R = 6, 7, 8  # lowest threshold known to be too high, and its residual
MIN, MAX = 9, 10  # range of the entries
LAST_R, PASSES, STALLED, FALLBACKS = 11, 12, 13, 14
STATE = 15
# A solved row: the threshold c + tau (d + rest), which kind of row it was (`_nonfinite`), how many
# passes over the whole row it took, the sum of f' in the last of them, and its d: p is moved from
# there to the threshold. C, D and REST are shared with the solver's state.
CODE = 3
TAKEN = 4
WEIGHT = 5
SEEN = 6
SOLUTION = 7
OPEN = -1.0  # the code of a row that has not been solved yet
