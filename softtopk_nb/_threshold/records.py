"""The columns of the tables that the functions of a search pass to each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._compile.array_intrinsics import records_in

# The threshold is c + tau (d + rest); every table of a search begins with these fields.
C, D, REST = range(3)

# A solved row: the number of passes over the whole row, the sum of f' in the last of them; the kind
# of row (`_nonfinite`).
TAKEN, WEIGHT, CODE = range(3, 6)
SOLUTION = 6
UNSOLVED = -1.0  # the code of a row that has not been solved yet
UNTRIED = -3.0  # the code of a row that no search has looked at
# The code of a row that its moments do not describe: `order_statistics` writes its distribution.
BAD_MOMENTS = -4.0
DISTRIBUTION = 4  # the number of its fields: pivot, mean, square and distance, as in `RowStats`

# Results of a kernel: some rows are UNSOLVED, some have BAD_MOMENTS; and an option: to solve the
# latter alone, from their distributions.
SOME_UNSOLVED, SOME_BAD_MOMENTS, BY_DISTRIBUTION = range(3)
FLAGS = 3

# The robust search of one row: the highest threshold known to be too low and the lowest known to be
# too high, with their residuals; the range of the entries; and the progress of the search.
LO_C, LO_D, LO_R, HI_C, HI_D, HI_R = range(3, 9)
MIN, MAX = 9, 10
LAST_R, PASSES, STALLED, FALLBACKS = range(11, 15)
STATE = 15

# On a device a row's record is the solver's state; then the k left to the finite entries, their
# number, the number of +inf, the kind of row (`_nonfinite`), whether the search has ended, and the
# sum of f' in its last pass.
LEFT, FINITE_COUNT, ABOVE, KIND, ENDED, SLOPE = range(STATE, STATE + 6)
RECORD = STATE + 6

# The fast search has a column of a table for each row: four records, one below the other.
LANES = 32  # columns of a table


class RowStats(NamedTuple):
    """The problem of a row, and its moments about the pivot (`start.measure`)."""

    inv: float  # 1/tau in the type of the row
    width: float  # tau
    size: float  # entries searched
    left: float  # the sum of p over them
    pivot: float
    mean: float
    square: float
    distance: float
    enough: float  # the length of a step that ends the search


class Search(NamedTuple):
    """The state of a search. Lengths are in temperatures."""

    c: float  # the threshold c + tau (d + rest)
    d: float
    rest: float
    lo: float  # the highest threshold known to be too low, from the pivot
    hi: float  # the lowest known to be too high
    spread: float  # the standard deviation of the row plus noise
    status: float
    tries: float  # passes so far
    last: float  # d of the last pass
    move: float  # the shift of the threshold since then


class Sums(NamedTuple):
    """The sums of a pass (`passes.tally`): of f in pieces, of f' and of higher derivatives."""

    m: float
    a: float
    b: float
    w: float
    v: float
    v3: float
    v4: float
    clear: float  # the shift of the threshold up to which the model holds


class Shift(NamedTuple):
    """The last shift of p, as `shift_factors` returns it."""

    below: float
    above: float


SEEKING, FOUND, LOST = 0.0, 1.0, 2.0  # values of `Search.status`

_RECORDS = RowStats, Search, Sums, Shift
_FIRST = [sum(len(record._fields) for record in _RECORDS[:i]) for i in range(len(_RECORDS) + 1)]
FIELDS = _FIRST[-1]
GIVEN_DISTRIBUTION = RowStats._fields.index(
    "pivot"
)  # position of a row's distribution in its column
given_of, put_given = records_in(LANES, _FIRST[0], RowStats)
search_of, put_search = records_in(LANES, _FIRST[1], Search)
sums_of, put_sums = records_in(LANES, _FIRST[2], Sums)
shift_of, put_shift = records_in(LANES, _FIRST[3], Shift)


def read(kind: Any, table: Any) -> Any:
    """The record of this kind in the first column of a table."""
    first = _FIRST[_RECORDS.index(kind)]
    return kind(*table[first : first + len(kind._fields), 0].tolist())
