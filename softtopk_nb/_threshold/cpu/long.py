"""The threshold of one long row, its parts shared out among the threads.

The same passes as in `rows`, each over all parts before the next; parts have a fixed length and
their sums are added in order, so that the bits do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._curves.base import (
    exact_between_kinks,
    has_second_derivative,
    kernel_for,
    shift_factors,
    shifts_by_value_alone,
)
from ..._math.elementary import from_ordinal
from ..._nonfinite import MIXED, classify, survey
from ..._threads.long_rows import LONG, PART, ordinals_of, part_count
from ..._threads.pool import over
from ..newton import advance, begin, inverse_temperature
from ..policy import (
    FAINT,
    ROUGH,
    enough_for,
    final_pass_radius,
    has_light_passes,
    one_pass_variance,
    resembles,
)
from ..records import CODE, MAX, MIN, PASSES, REST, SEEN, SOLUTION, STATE, TAKEN, WEIGHT, C, D
from . import batch
from .passes import correct, fill, pass_room, search_pass, tally
from .start import sample, sample_size

# Bytes of a row that a last cache holds beside its p. What leaves it is written once only: memory
# is slower than an exponential.
NEAR = 1 << 24
SUMS = 8  # of a pass

Array = Any


@kernel
def tally_parts(lo, hi, x, tau, state, curve, out, slopes, near, sums):
    """The sums of each part; with room in `out`, p and its slopes too, for `correct_parts`."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(state[C]), T(state[D])
    room = pass_room(curve, x, PART)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        if out.shape[0] > 0:
            found = tally(x[part], c, inv, d, curve, out[part], slopes[part], room)
        else:
            found = search_pass(x[part], c, inv, d, curve, near, None, None, room)
        for i in range(SUMS):
            sums[j, i] = found[i]


@kernel
def correct_parts(lo, hi, x, tau, state, curve, out, slopes, seen):
    """Move p, which belongs to d = `seen`, to the threshold."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(state[C]), T(seen)
    below, above = shift_factors(curve, state[D] + state[REST] - seen)
    below, above = T(below), T(above)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        correct(x[part], c, inv, d, below, above, curve, slopes[part], out[part])


@kernel
def fill_parts(lo, hi, x, tau, state, curve, out):
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(state[C]), T(state[D])
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        fill(x[part], c, inv, d, state[REST], curve, out[part])


@kernel
def what_row(x, k, lo, hi):
    """`_nonfinite.classify`, with the range of the row as floats."""
    code, _, _, left, lowest, highest = classify(x, k, lo, hi)
    return code, left, np.float64(from_ordinal(lowest)), np.float64(from_ordinal(highest))


@kernel
def look_parts(lo, hi, x, few, ordinals):
    """The range of each part, and what of the row's sample lies in it and is at hand now."""
    for j in range(lo, hi):
        start, end = j * PART, min((j + 1) * PART, x.shape[0])
        ordinals[j, 0], ordinals[j, 1] = survey(x[start:end])
        sample(x, few, start, end)


@kernel
def open_search(state, x, tau, curve, k, c, d):
    begin(state, curve, k, x.shape[0], c, d, inverse_temperature(tau, x), True)


@kernel
def step(state, x, tau, sums, curve, k, enough, near):
    """(found, near): one turn of the search; the sums of the parts are added in order."""
    m, a, b, w, v, v3, v4, clear = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf
    for j in range(sums.shape[0]):
        m += sums[j, 0]
        a += sums[j, 1]
        b += sums[j, 2]
        w += sums[j, 3]
        v += sums[j, 4]
        v3 += sums[j, 5]
        v4 += sums[j, 6]
        clear = min(clear, sums[j, 7])
    inv = inverse_temperature(tau, x)
    light = not near and has_light_passes(curve, x) and enough == 0.0
    before, at = state[C], state[D]
    total = m, a, b, w, v, v3, v4, clear
    found = advance(state, total, k, curve, inv, True, enough, light)
    move = abs((state[C] - before) * inv + (state[D] - at))
    return found and not light, found or w == 0.0 or move <= final_pass_radius(curve, x)


def _solve_finite(
    x: Array,
    k: float,
    tau: float,
    curve: Any,
    method: Any,
    few: Array,
    ends: Any,
    out: Array,
    solution: Array,
) -> None:
    """A finite row, 0 < k < n, and entries from all over it."""
    start = np.empty((1, SOLUTION))
    share = np.array([k * len(few) / len(x)])
    nothing, rough = np.empty((1, 0), x.dtype), method._replace(enough=ROUGH, fades=0.0)
    batch.solve(few[None], share, np.array([tau]), curve, rough, nothing, start)
    state = np.empty(STATE)
    state[MIN], state[MAX] = ends
    kernel_for(curve, open_search)(state, x, tau, curve, k, start[0, C], start[0, D])
    sums = np.empty((part_count(x), SUMS))
    # A pass may keep p and the slopes that `correct` asks for: for some curves p tells
    # them (`shifts_by_value_alone`). For others they are written, which takes `entmax` longer than
    # p anew.
    keeps = (
        len(out) > 0
        and x.nbytes <= NEAR
        and (shifts_by_value_alone(curve) or has_second_derivative(curve))
    )
    slopes = out if shifts_by_value_alone(curve) else np.empty(len(x) if keeps else 0, x.dtype)
    faint = k < FAINT
    # Where a step is of high order, the first pass, from where the sample led, is often the last.
    may_be_final = 0 < one_pass_variance(curve, x) < np.inf and resembles(
        share[0], start[0, WEIGHT]
    )
    found, near = False, exact_between_kinks(curve) or faint or may_be_final
    row, enough = (x, tau, state, curve), enough_for(method, len(x))
    while not found:
        seen, kept = float(state[D]), out if keeps and near else nothing[0]
        written = kept, slopes
        over(len(sums), x.size // 4, kernel_for(curve, tally_parts), *row, *written, near, sums)
        search = state, x, tau, sums, curve, k, enough, near
        found, near = kernel_for(curve, step)(*search)
        near = near or faint
    solution[TAKEN], solution[WEIGHT] = state[PASSES], sums[:, 3].sum()
    solution[SEEN] = seen
    solution[[C, D, REST]] = state[[C, D, REST]]
    if len(kept):
        over(len(sums), x.size // 4, kernel_for(curve, correct_parts), *row, *written, seen)
    elif len(out):
        over(len(sums), x.size // 4, kernel_for(curve, fill_parts), *row, out)


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
    lo, hi = ordinals[:, 0].min(), ordinals[:, 1].max()
    code, left, smallest, largest = what_row(x, k, lo, hi)
    if code > MIXED:
        batch.solve(*one)
    elif code != MIXED:
        _solve_finite(x, k, tau, curve, method, few, (smallest, largest), out, solution)
        solution[CODE] = code
    else:
        finite = np.isfinite(x)
        present = x[finite]  # which may be a short row
        values = np.empty(len(present) if len(out) else 0, x.dtype)
        solve(present, left, tau, curve, method, values, solution)
        solution[CODE] = code
        if len(out):
            out[...] = x > 0  # +inf entries are 1, -inf entries 0
            out[finite] = values
