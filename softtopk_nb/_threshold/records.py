"""The columns of the tables by which the parts of a search know each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._compile.array_intrinsics import records_in

# The threshold is c + tau (d + rest); every table of a search begins with it.
C, D, REST = range(3)

# A solved row: how many passes over the whole row it took, the sum of f' in the last of them, and
# its d: p is moved from there to the threshold; which kind of row it was (`_nonfinite`).
TAKEN, WEIGHT, SEEN, CODE = range(3, 7)
SOLUTION = 7
OPEN = -1.0  # the code of a row that has not been solved yet
UNSEEN = -3.0  # of one that no search has looked at
MISLED = (
    -4.0
)  # of one that its moments do not describe: `order` writes a distribution to its first places
DISTRIBUTION = 4  # so many: pivot, mean, square and distance, as `Given` has them

# What a kernel says of its rows: some are left OPEN, some MISLED; and what it is told: to take
# those alone, by the distribution that they have.
SOME_OPEN, SOME_MISLED, BY_DISTRIBUTION = range(3)
FLAGS = 3

# The robust search of one row: the highest threshold known to be too low and the lowest known to be
# too high, with their residuals; the range of the entries; and how the search went so far.
LO_C, LO_D, LO_R, HI_C, HI_D, HI_R = range(3, 9)
MIN, MAX = 9, 10
LAST_R, PASSES, STALLED, FALLBACKS = range(11, 15)
STATE = 15

# On a device a row's record is the solver's state; then what of k the finite entries get, how many
# those are and how many entries are +inf, the kind of row (`_nonfinite`), whether the search has
# ended, and the sum of f' in its last pass.
LEFT, FINITE_COUNT, ABOVE, KIND, ENDED, SLOPE = range(STATE, STATE + 6)
RECORD = STATE + 6

# The fast search has a column of a table for each row: four records, one below the other.
LANES = 32  # columns of a table


class Given(NamedTuple):
    """What is given of a row, and its moments about the pivot (`start.measure`)."""

    inv: float  # 1/tau in the type of the row
    width: float  # tau
    size: float  # entries searched
    left: float  # what p sums to over them
    pivot: float
    mean: float
    square: float
    distance: float
    enough: float  # the length of a step that ends the search


class Search(NamedTuple):
    """How far a search has come. Lengths are in temperatures."""

    c: float  # the threshold c + tau (d + rest)
    d: float
    rest: float
    lo: float  # the highest threshold known to be too low, from the pivot
    hi: float  # the lowest known to be too high
    spread: float  # how wide the row is
    status: float
    tries: float  # passes so far
    last: float  # d of the last pass
    move: float  # how far the threshold has moved since


class Sums(NamedTuple):
    """The sums of a pass (`passes.tally`): of f in pieces, of f' and of higher derivatives."""

    m: float
    a: float
    b: float
    w: float
    v: float
    v3: float
    v4: float
    clear: float  # how far the threshold may move before the model fails


class Shift(NamedTuple):
    """How far p is to be moved, as `shift_factors` has it."""

    below: float
    above: float


SEEKING, FOUND, LOST = 0.0, 1.0, 2.0  # what `Search.status` can be

_RECORDS = Given, Search, Sums, Shift
_FIRST = [sum(len(record._fields) for record in _RECORDS[:i]) for i in range(len(_RECORDS) + 1)]
FIELDS = _FIRST[-1]
GIVEN_DISTRIBUTION = Given._fields.index(
    "pivot"
)  # where the distribution of a row stands in its column
given_of, put_given = records_in(LANES, _FIRST[0], Given)
search_of, put_search = records_in(LANES, _FIRST[1], Search)
sums_of, put_sums = records_in(LANES, _FIRST[2], Sums)
shift_of, put_shift = records_in(LANES, _FIRST[3], Shift)


def read(kind: Any, table: Any) -> Any:
    """A record in the first column of a table, from Python."""
    first = _FIRST[_RECORDS.index(kind)]
    return kind(*table[first : first + len(kind._fields), 0].tolist())
