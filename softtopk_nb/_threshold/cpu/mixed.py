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
from ..records import BY_DISTRIBUTION, CODE, MISLED, OPEN, UNSEEN
from . import lanes


@scalar
def pack_rows(first, last, x, k, tau, by_distribution, solution, packed, answers):
    """Lay out the finite entries of rows as rows of a batch; how many.

    Of those that are UNSEEN, and of those that are OPEN and have infinities; or `by_distribution`,
    of those that are MISLED, with their distributions.
    """
    entries, left, taus, which = packed
    entries, count = borrowed(entries), 0
    for i in range(first, last):
        code = solution[i, CODE]
        if code == MISLED if by_distribution else code in (UNSEEN, OPEN):
            xs, share = without_infinities(x[i], k[i], entries[count])
            if code != OPEN or xs.shape[0] < x.shape[1]:
                fill_behind(entries[count], xs.shape[0], x.dtype.type(-np.inf))
                which[count], left[count], taus[count] = i, share, tau[i]
                for field in range(solution.shape[1]):
                    answers[count, field] = solution[i, field]
                count += 1
    return count


@scalar
def unpack_rows(count, x, k, packed, values, answers, out, solution):
    """Write what has been found of the rows that `pack_rows` has laid out."""
    _, left, _, which = packed
    values = borrowed(values)
    for r in range(count):
        i, code = which[r], answers[r, CODE]
        for field in range(solution.shape[1]):
            solution[i, field] = answers[r, field]
        if code != OPEN and code != MISLED:
            solution[i, CODE] = MIXED
            if out.shape[1] > 0:
                with_infinities(x[i], values[r], k[i] - left[r], out[i])


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
    """Rows lo .. hi with infinities: their finite entries, by `lanes.solve`."""
    packed, values, answers = room_for_packed(x, out, solution)
    several, (entries, left, taus, _) = rows_at_once(x.shape[1]), packed
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for first in range(lo, hi, several):
        group = first, min(first + several, hi)
        count = pack_rows(*group, x, k, tau, flags[BY_DISTRIBUTION], solution, packed, answers)
        lanes.solve(0, count, entries, left, taus, curve, method, values, answers, flags)
        unpack_rows(count, x, k, packed, values, answers, out, solution)


@kernel
def solve_sampled(lo, hi, x, k, tau, curve, method, out, solution, flags):
    """As `solve`, by `lanes.solve_sampled`."""
    packed, values, answers = room_for_packed(x, out, solution)
    several, (entries, left, taus, _) = rows_at_once(x.shape[1]), packed
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for first in range(lo, hi, several):
        group = first, min(first + several, hi)
        count = pack_rows(*group, x, k, tau, flags[BY_DISTRIBUTION], solution, packed, answers)
        lanes.solve_sampled(0, count, entries, left, taus, curve, method, values, answers, flags)
        unpack_rows(count, x, k, packed, values, answers, out, solution)
