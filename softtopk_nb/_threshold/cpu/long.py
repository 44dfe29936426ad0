"""The threshold of one long row, its parts shared out among the threads.

The fast search with a table of one column, each pass over all parts before the next; parts have a
fixed length and their sums are added in order, so that the bits do not depend on the number of
threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._curves.base import has_second_derivative, kernel_for, shifts_by_value_alone
from ..._nonfinite import FINITE, MIXED, classify, survey
from ..._threads.long_rows import LONG, PART, ordinals_of, part_count
from ..._threads.pool import over
from ..policy import FAINT, ROUGH, enough_for, final_pass_radius, resembles, when_final
from ..records import (
    CODE,
    FIELDS,
    FOUND,
    LANES,
    OPEN,
    REST,
    SEEKING,
    SEEN,
    SOLUTION,
    TAKEN,
    WEIGHT,
    C,
    D,
    Search,
    Sums,
    given_of,
    put_search,
    put_sums,
    read,
    search_of,
    shift_of,
)
from . import batch
from .lanes import WIDE, admit, advance, begin, end
from .passes import correct, fill, pass_room, search_pass, tally
from .start import sample, sample_size

# Bytes of a row that a last cache holds beside its p. What leaves it is written once only: memory
# is slower than an exponential.
CACHED = 1 << 24

Array = Any


@kernel
def tally_parts(lo, hi, x, table, curve, out, slopes, final, sums):
    """The sums of each part; with room in `out`, p and its slopes too, for `correct_parts`."""
    T = x.dtype.type
    at, inv = search_of(table, 0), T(given_of(table, 0).inv)
    c, d = T(at.c), T(at.d)
    room = pass_room(curve, x, PART)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        if out.shape[0] > 0:
            found = tally(x[part], c, inv, d, curve, out[part], slopes[part], room)
        else:
            found = search_pass(x[part], c, inv, d, curve, final, None, None, room)
        for i in range(sums.shape[1]):
            sums[j, i] = found[i]


@kernel
def correct_parts(lo, hi, x, table, curve, out, slopes):
    """Move p, which belongs to the last pass, to the threshold."""
    T = x.dtype.type
    at, inv, shift = search_of(table, 0), T(given_of(table, 0).inv), shift_of(table, 0)
    c, d, below, above = T(at.c), T(at.last), T(shift.below), T(shift.above)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        correct(x[part], c, inv, d, below, above, curve, slopes[part], out[part])


@kernel
def fill_parts(lo, hi, x, table, curve, out):
    """Write p of each part."""
    T = x.dtype.type
    at, inv = search_of(table, 0), T(given_of(table, 0).inv)
    c, d = T(at.c), T(at.d)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        fill(x[part], c, inv, d, at.rest, curve, out[part])


@kernel
def what_row(x, k, lo, hi):
    """`_nonfinite.classify`, but for the number of entries."""
    code, _, _, left, _, _ = classify(x, k, lo, hi)
    return code, left


@kernel
def look_parts(lo, hi, x, few, ordinals):
    """The range of each part, and what of the row's sample lies in it and is at hand now."""
    for j in range(lo, hi):
        start, end = j * PART, min((j + 1) * PART, x.shape[0])
        ordinals[j, 0], ordinals[j, 1] = survey(x[start:end])
        sample(x, few, start, end)


@kernel
def open_search(few, n, k, tau, curve, method, start, table):
    """Begin a search over n entries where it led over a sample of them; say whether it can be."""
    T = few.dtype.type
    if not (k >= FAINT and admit(few, n, k, tau, enough_for(method, n), table, 0)):
        return False
    put_search(table, 0, Search(start[C], start[D], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    _, narrow = when_final(curve, few)
    if 0.0 < narrow < np.inf:
        share = k * few.shape[0] / n
        narrow = np.inf if resembles(share, start[WEIGHT]) else 0.0
    begin(table, WIDE, curve, T(1), False, narrow, False)
    return True


@kernel
def step(x, sums, table, curve):
    """Take the sums of a pass over the row: move the threshold, or say that it is found or lost."""
    put_sums(table, 0, sums)
    radius, _ = when_final(curve, x)
    advance(table, 0, WIDE, curve, x.dtype.type(1), radius)
    end(table, WIDE, curve)


def _solve_finite(
    x: Array, k: float, tau: float, curve: Any, method: Any, few: Array, out: Array, solution: Array
) -> None:
    """A finite row, 0 < k < n, and entries from all over it: the fast search over its parts."""
    start = np.empty((1, SOLUTION))
    share = np.array([k * len(few) / len(x)])
    nothing, rough = np.empty((1, 0), x.dtype), method._replace(enough=ROUGH, fades=0.0)
    batch.solve(few[None], share, np.array([tau]), curve, rough, nothing, start)
    table, sums = np.ones((FIELDS, LANES)), np.empty((part_count(x), len(Sums._fields)))
    solution[CODE] = OPEN
    if not kernel_for(curve, open_search)(few, len(x), k, tau, curve, method, start[0], table):
        return
    at = read(Search, table)
    # A pass may keep p and the slopes that `correct` asks for: for some curves p tells
    # them (`shifts_by_value_alone`). For others they are written, which takes `entmax` longer than
    # p anew.
    keeps = (
        len(out) > 0
        and x.nbytes <= CACHED
        and (shifts_by_value_alone(curve) or has_second_derivative(curve))
    )
    slopes = out if shifts_by_value_alone(curve) else np.empty(len(x) if keeps else 0, x.dtype)
    radius = final_pass_radius(curve, x)
    while at.status == SEEKING:
        final = at.move <= radius
        kept = out if keeps and final else nothing[0]
        passes = kernel_for(curve, tally_parts)
        over(len(sums), x.size // 4, passes, x, table, curve, kept, slopes, final, sums)
        total = sums.sum(axis=0)  # in the order of the parts
        total[-1] = sums[:, -1].min()
        found = Sums(*total.tolist())
        kernel_for(curve, step)(x, found, table, curve)
        at = read(Search, table)
    if at.status != FOUND:
        return
    solution[C], solution[D], solution[REST], solution[CODE] = at.c, at.d, at.rest, FINITE
    solution[TAKEN], solution[WEIGHT], solution[SEEN] = at.tries, found.w, at.last
    if len(kept):
        moved = kernel_for(curve, correct_parts)
        over(len(sums), x.size // 4, moved, x, table, curve, out, slopes)
    elif len(out):
        over(len(sums), x.size // 4, kernel_for(curve, fill_parts), x, table, curve, out)


def solve(
    x: Array, k: float, tau: float, curve: Any, method: Any, out: Array, solution: Array
) -> None:
    """One row, as `rows.solve`: p to `out` unless it is empty, the rest to `solution`."""
    one = x[None], np.array([k]), np.array([tau]), curve, method, out[None], solution[None]
    if len(x) < LONG:  # what infinities left of a long row
        batch.solve(*one)
        return
    few, ordinals = np.empty(sample_size(len(x)), x.dtype), ordinals_of(x)
    # Every stage by as many threads: a core that reads what another one has written waits for it.
    over(len(ordinals), x.size // 4, look_parts, x, few, ordinals)
    code, left = what_row(x, k, ordinals[:, 0].min(), ordinals[:, 1].max())
    if code > MIXED:
        batch.solve(*one)
    elif code != MIXED:
        _solve_finite(x, k, tau, curve, method, few, out, solution)
        if solution[CODE] == OPEN:  # the fast search has left it
            batch.solve_open(*one)
    else:
        finite = np.isfinite(x)
        present = x[finite]  # which may be a short row
        values = np.empty(len(present) if len(out) else 0, x.dtype)
        solve(present, left, tau, curve, method, values, solution)
        solution[CODE] = code
        if len(out):
            out[...] = x > 0  # +inf entries are 1, -inf entries 0
            out[finite] = values
