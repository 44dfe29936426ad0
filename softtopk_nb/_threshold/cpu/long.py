"""The threshold of one long row, whose parts are shared among the threads.

This is the fast search with a table of one column, each pass over all parts before the next; parts
have a fixed length and their sums are added in order, so that the bits do not depend on the number
of threads. A row that it leaves unsolved is searched robustly, in the same parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel, scalar
from ..._curves.base import has_second_derivative, kernel_for, shifts_by_value_alone
from ..._math.elementary import from_ordinal
from ..._nonfinite import FINITE, WITH_INFINITIES, classify
from ..._threads.long_rows import (
    LONG,
    PART,
    Pass,
    Passes,
    RowScan,
    here,
    look,
    nothing,
    part_count,
    scratch,
    solve_finite_part,
)
from ..newton import begin as bracket
from ..newton import inverse_temperature
from ..policy import (
    FAINT,
    ROUGH,
    enough_for,
    final_pass_radius,
    resembles,
    searched,
    when_final,
)
from ..records import (
    CODE,
    FIELDS,
    FOUND,
    LANES,
    MAX,
    MIN,
    PASSES,
    REST,
    SEEKING,
    SOLUTION,
    STATE,
    TAKEN,
    UNSOLVED,
    WEIGHT,
    C,
    D,
    RowStats,
    Search,
    Sums,
    given_of,
    put_given,
    put_search,
    put_sums,
    read,
    search_of,
    shift_of,
)
from . import batch
from .lanes import WIDE, begin, end, load_row, update
from .passes import correct, fill, pass_scratch, search_pass, tally
from .rows import take

# Bytes of a row that the last-level cache holds beside its p. For a larger row p is written only
# once: memory is slower than an exponential.
CACHED = 1 << 24

Array = Any


@kernel
def tally_parts(lo, hi, x, table, curve, out, slopes, final, sums):
    """Write the sums of each part; unless `out` is empty, p and slopes too, for `correct_parts`."""
    T = x.dtype.type
    at, inv = search_of(table, 0), T(given_of(table, 0).inv)
    c, d = T(at.c), T(at.d)
    scratch = pass_scratch(curve, x, PART)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        if out.shape[0] > 0:
            found = tally(x[part], c, inv, d, curve, out[part], slopes[part], scratch)
        else:
            found = search_pass(x[part], c, inv, d, curve, final, None, None, scratch)
        for i in range(sums.shape[1]):
            sums[j, i] = found[i]


@kernel
def correct_parts(lo, hi, x, table, curve, out, slopes):
    """Move p from the threshold of the last pass to the final one."""
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
    """(code, k left to the finite entries) of a row, by `_nonfinite.classify`."""
    code, _, _, left, _, _ = classify(x, k, lo, hi)
    return code, left


@scalar
def _move_to(table, c, d, rest):
    put_search(table, 0, Search(c, d, rest, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))


@kernel
def open_search(few, n, k, tau, curve, method, start, table):
    """Begin a search over n entries where that over a sample ended; returns whether it can."""
    T = few.dtype.type
    if not (k >= FAINT and load_row(few, n, k, tau, enough_for(method, n), table, 0)):
        return False
    _move_to(table, start[C], start[D], 0.0)
    _, narrow = when_final(curve, few)
    if 0.0 < narrow < np.inf:
        share = k * few.shape[0] / n
        narrow = np.inf if resembles(share, start[WEIGHT]) else 0.0
    begin(table, WIDE, curve, T(1), False, narrow, False)
    return True


@kernel
def step(x, sums, table, curve):
    """Update the search from the sums of a pass: move the threshold, or set it found or lost."""
    put_sums(table, 0, sums)
    radius, _ = when_final(curve, x)
    update(table, 0, WIDE, curve, x.dtype.type(1), radius)
    end(table, WIDE, curve)


@kernel
def open_robust(few, n, k, tau, curve, method, start, state, table):
    """Begin a robust search over n entries where the search over a sample has ended."""
    inv = inverse_temperature(tau, few)
    bracket(state, curve, k, n, start[C], start[D], inv, method.modelled)
    put_given(table, 0, RowStats(np.float64(inv), tau, np.float64(n), k, 0.0, 0.0, 0.0, 0.0, 0.0))
    _move_to(table, state[C], state[D], 0.0)
    _, variance = when_final(curve, few)
    return variance == np.inf or not (method.sampled and k >= FAINT)


@kernel
def step_robust(few, n, k, curve, method, sums, final, state, table):
    """Update a robust search from a pass: (whether that was the last, whether the next may be).

    The table keeps the threshold of the last pass, and as `rest` the shift of p from there.
    """
    T, here = few.dtype.type, search_of(table, 0)
    inv, (radius, _) = T(given_of(table, 0).inv), when_final(curve, few)
    found, near = take(state, sums, k, curve, inv, method, enough_for(method, n), final, radius)
    if found and final:
        _move_to(table, state[C], here.d, state[D] + state[REST] - here.d)
        return True, True
    _move_to(table, state[C], state[D], 0.0)
    return False, near or not (method.sampled and k >= FAINT)


def _sums(
    x: Array, table: Array, curve: Any, out: Array, slopes: Array, final: bool
) -> Passes[Sums]:
    """Make a pass over the row; returns the sums of its parts, added in order."""
    sums = np.empty((part_count(x), len(Sums._fields)))
    given = x, table, curve, out, slopes, final, sums
    yield Pass(kernel_for(curve, tally_parts), x.size // 4, given, (sums,), (), (out, slopes))
    total = sums.sum(axis=0)
    total[-1] = sums[:, -1].min()
    return Sums(*total.tolist())


def solve_finite(
    x: Array,
    k: float,
    tau: float,
    curve: Any,
    method: Any,
    seen: RowScan,
    out: Array,
    solution: Array,
) -> Passes[None]:
    """Solve a finite row, 0 < k < n, scanned before: p to `out` unless it is empty."""
    k = searched(curve, k, len(x), x.dtype.type(1))
    few, start = seen.few, np.empty((1, SOLUTION))
    share, rough = np.array([k * len(few) / len(x)]), method._replace(enough=ROUGH, fades=0.0)
    batch.solve(few[None], share, np.array([tau]), curve, rough, nothing(x)[None], start)
    solution[CODE] = UNSOLVED
    problem = x, k, tau, curve, method, few, start[0]
    yield from _solve_fast(*problem, out, solution)
    if solution[CODE] == UNSOLVED:
        yield from _solve_robustly(*problem, seen, out, solution)


def _solve_fast(
    x: Array,
    k: float,
    tau: float,
    curve: Any,
    method: Any,
    few: Array,
    start: Array,
    out: Array,
    solution: Array,
) -> Passes[None]:
    """Run the fast search over the parts of the row; a row that it leaves stays UNSOLVED."""
    table = np.ones((FIELDS, LANES))
    if not method.sampled or not kernel_for(curve, open_search)(
        few, len(x), k, tau, curve, method, start, table
    ):
        return
    at = read(Search, table)
    # A pass may keep p and the slopes that `correct` needs. For some curves the slopes follow from
    # p (`shifts_by_value_alone`). For others they are written, which for `entmax` takes longer than
    # computing p anew.
    keeps = (
        len(out) > 0
        and x.nbytes <= CACHED
        and (shifts_by_value_alone(curve) or has_second_derivative(curve))
    )
    slopes = out if shifts_by_value_alone(curve) else scratch(x) if keeps else nothing(x)
    radius, kept = final_pass_radius(curve, x), nothing(x)
    while at.status == SEEKING:
        final = at.move <= radius
        kept = out if keeps and final else nothing(x)
        found = yield from _sums(x, table, curve, kept, slopes, final)
        kernel_for(curve, step)(nothing(x), found, table, curve)
        at = read(Search, table)
    if at.status != FOUND:
        return
    solution[C], solution[D], solution[REST], solution[CODE] = at.c, at.d, at.rest, FINITE
    solution[TAKEN], solution[WEIGHT] = at.tries, found.w
    if len(kept):
        moved = kernel_for(curve, correct_parts)
        yield Pass(moved, x.size // 4, (x, table, curve, out, slopes), changed=(out,))
    else:
        yield from _fill(x, table, curve, out)


def _solve_robustly(
    x: Array,
    k: float,
    tau: float,
    curve: Any,
    method: Any,
    few: Array,
    start: Array,
    seen: RowScan,
    out: Array,
    solution: Array,
) -> Passes[None]:
    """Run the robust search over the parts of the row, as `rows.solve`."""
    state, table = np.empty(STATE), np.ones((FIELDS, LANES))
    state[MIN], state[MAX] = from_ordinal(seen.lowest), from_ordinal(seen.highest)
    final = kernel_for(curve, open_robust)(few, len(x), k, tau, curve, method, start, state, table)
    exact, ended = len(out) > 0 or method.enough == 0.0, False
    while not ended:
        found = yield from _sums(x, table, curve, nothing(x), nothing(x), exact and final)
        ended, final = kernel_for(curve, step_robust)(
            few, len(x), k, curve, method, tuple(found), final or not exact, state, table
        )
    solution[C], solution[D], solution[REST], solution[CODE] = *state[[C, D, REST]], FINITE
    solution[TAKEN], solution[WEIGHT] = state[PASSES], found.w
    yield from _fill(x, table, curve, out)


def _fill(x: Array, table: Array, curve: Any, out: Array) -> Passes[None]:
    if len(out):
        fills = kernel_for(curve, fill_parts)
        yield Pass(fills, x.size // 4, (x, table, curve, out), written=(out,))


def solve(
    x: Array, k: float, tau: float, curve: Any, method: Any, out: Array, solution: Array
) -> None:
    """Solve one row, as `rows.solve`: p to `out` unless it is empty, the rest to `solution`."""
    one = x[None], np.array([k]), np.array([tau]), curve, method, out[None], solution[None]
    if len(x) < LONG:  # the finite entries of a long row
        batch.solve(*one)
        return
    seen = look(x)
    code, left = what_row(x, k, seen.lowest, seen.highest)
    if code > WITH_INFINITIES:
        batch.solve(*one)
    elif code != WITH_INFINITIES:
        here(solve_finite(x, k, tau, curve, method, seen, out, solution))
    else:

        def solve_present(x: Array, out: Array) -> None:
            solve(x, left, tau, curve, method, out, solution)

        solve_finite_part(x, np.isfinite(x), out, solve_present)
        solution[CODE] = code
