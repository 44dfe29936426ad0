"""Rows with infinities: their finite entries as rows of their own, a few at a time.

The kernels of `lanes` search for them, as they are compiled for rows without: so the bits are the
same. Nothing here is compiled before a row with infinities comes, and then for the search that it
is handed to alone.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, workspace
from ..._compile.decorators import kernel, scalar
from ..._nonfinite import MIXED, fill_behind, rows_at_once, with_infinities, without_infinities
from ..records import BY_LAW, CODE, FLAGS, OPEN, SOME_MISLED, SOME_OPEN, UNSEEN
from . import lanes, order


@scalar
def pack_open_rows(first, last, x, k, tau, solution, packed):
    """Lay out the finite entries of open rows with infinities as rows of a batch; how many rows.

    Rows that are UNSEEN are laid out without a look at whether they have any.
    """
    entries, left, taus, which = packed
    entries, count = borrowed(entries), 0
    for i in range(first, last):
        if solution[i, CODE] <= OPEN:
            xs, share = without_infinities(x[i], k[i], entries[count])
            if solution[i, CODE] == UNSEEN or xs.shape[0] < x.shape[1]:
                fill_behind(entries[count], xs.shape[0], x.dtype.type(-np.inf))
                which[count], left[count], taus[count] = i, share, tau[i]
                count += 1
    return count


@scalar
def unpack_rows(count, x, k, packed, values, answers, out, solution):
    """Write what has been found of `pack_open_rows`' rows."""
    _, left, _, which = packed
    values = borrowed(values)
    for r in range(count):
        if answers[r, CODE] != OPEN:
            i = which[r]
            for field in range(solution.shape[1]):
                solution[i, field] = answers[r, field]
            solution[i, CODE] = MIXED
            if out.shape[1] > 0:
                with_infinities(x[i], values[r], k[i] - left[r], out[i])
        else:
            solution[which[r], CODE] = OPEN


@scalar
def room_for_packed(x, out, solution):
    """((entries, shares of k, temperatures, which rows), p, solutions) of the rows of one group."""
    n, several = x.shape[1], rows_at_once(x.shape[1])
    columns = n if out.shape[1] > 0 else 0
    packed = workspace(x, several, n), np.empty(several), np.empty(several)
    values, answers = (
        workspace(x, several, columns),
        workspace(solution, several, solution.shape[1]),
    )
    return (*packed, np.empty(several, np.int64)), values, answers


@kernel
def solve(lo, hi, x, k, tau, curve, method, out, solution, flags):
    """Rows lo .. hi that are open and have infinities: their finite entries, by `lanes.solve`."""
    packed, values, answers = room_for_packed(x, out, solution)
    several, own = rows_at_once(x.shape[1]), np.zeros(FLAGS, np.bool_)
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for first in range(lo, hi, several):
        count = pack_open_rows(first, min(first + several, hi), x, k, tau, solution, packed)
        entries, left, taus, _ = packed
        own[:] = False
        lanes.solve(0, count, entries, left, taus, curve, method, values, answers, own)
        if own[SOME_OPEN] or own[SOME_MISLED]:
            order.laws(0, count, entries, left, taus, True, answers)
            own[BY_LAW] = True
            lanes.solve(0, count, entries, left, taus, curve, method, values, answers, own)
        unpack_rows(count, x, k, packed, values, answers, out, solution)
        flags[SOME_OPEN] |= own[SOME_OPEN]


@kernel
def solve_sampled(lo, hi, x, k, tau, curve, method, out, solution, flags):
    """As `solve`, by `lanes.solve_sampled`."""
    packed, values, answers = room_for_packed(x, out, solution)
    several, own = rows_at_once(x.shape[1]), np.zeros(FLAGS, np.bool_)
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for first in range(lo, hi, several):
        count = pack_open_rows(first, min(first + several, hi), x, k, tau, solution, packed)
        entries, left, taus, _ = packed
        own[:] = False
        lanes.solve_sampled(0, count, entries, left, taus, curve, method, values, answers, own)
        if own[SOME_OPEN] or own[SOME_MISLED]:
            order.laws(0, count, entries, left, taus, True, answers)
            own[BY_LAW] = True
            lanes.solve_sampled(0, count, entries, left, taus, curve, method, values, answers, own)
        unpack_rows(count, x, k, packed, values, answers, out, solution)
        flags[SOME_OPEN] |= own[SOME_OPEN]
