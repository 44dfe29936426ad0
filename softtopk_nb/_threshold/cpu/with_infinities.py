"""Rows with infinities: their finite entries are packed as rows of a batch, a few at a time.

The kernels of `lanes` search for their thresholds, as compiled for rows without infinities: so the
bits are the same. Nothing here is compiled before a row with infinities comes, and then only for
the search that it needs.
"""

from __future__ import annotations

import numpy as np

from ..._compile.array_intrinsics import borrowed, empty, workspace
from ..._compile.decorators import kernel, scalar
from ..._nonfinite import (
    WITH_INFINITIES,
    fill_behind,
    rows_at_once,
    with_infinities,
    without_infinities,
)
from ..._threads.jobs import call_and_raise
from ..records import BAD_MOMENTS, BY_DISTRIBUTION, CODE, UNSOLVED, UNTRIED


@scalar
def pack_rows(first, last, x, k, tau, by_distribution, solution, packed, answers):
    """Pack the finite entries of rows as rows of a batch; returns the number of rows.

    They are the rows that are UNTRIED, or UNSOLVED and have infinities; or, if `by_distribution`,
    those with BAD_MOMENTS, with their distributions.
    """
    entries, left, taus, which = packed
    entries, count = borrowed(entries), 0
    for i in range(first, last):
        code = solution[i, CODE]
        if code == BAD_MOMENTS if by_distribution else code in (UNTRIED, UNSOLVED):
            xs, share = without_infinities(x[i], k[i], entries[count])
            if code != UNSOLVED or xs.shape[0] < x.shape[1]:
                fill_behind(entries[count], xs.shape[0], x.dtype.type(-np.inf))
                which[count], left[count], taus[count] = i, share, tau[i]
                for field in range(solution.shape[1]):
                    answers[count, field] = solution[i, field]
                count += 1
    return count


@scalar
def unpack_rows(count, x, k, packed, values, answers, out, solution):
    """Write the results for the rows that `pack_rows` has packed."""
    _, left, _, which = packed
    values = borrowed(values)
    for r in range(count):
        i, code = which[r], answers[r, CODE]
        for field in range(solution.shape[1]):
            solution[i, field] = answers[r, field]
        if code != UNSOLVED and code != BAD_MOMENTS:
            solution[i, CODE] = WITH_INFINITIES
            if out.shape[1] > 0:
                with_infinities(x[i], values[r], k[i] - left[r], out[i])


@scalar
def scratch_for_packed(x, out, solution):
    """Scratch for one group: ((entries, shares of k, temperatures, row indices), p, solutions)."""
    n, several = x.shape[1], rows_at_once(x.shape[1])
    columns = n if out.shape[1] > 0 else 0
    packed = workspace(x, several, n), empty(several), empty(several)
    values, answers = (
        workspace(x, several, columns),
        workspace(solution, several, solution.shape[1]),
    )
    return (*packed, empty(several, np.int64)), values, answers


@kernel
def solve(lo, hi, x, k, tau, curve, method, out, solution, flags, search):
    """Solve the rows of lo .. hi that have infinities: their finite entries, by the fast search.

    `search`: the address of the kernel of `lanes` for rows of this length.
    """
    packed, values, answers = scratch_for_packed(x, out, solution)
    several, (entries, left, taus, _) = rows_at_once(x.shape[1]), packed
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for first in range(lo, hi, several):
        group = first, min(first + several, hi)
        count = pack_rows(*group, x, k, tau, flags[BY_DISTRIBUTION], solution, packed, answers)
        given = entries, left, taus, curve, method, values, answers, flags
        call_and_raise(search, 0, count, given)
        unpack_rows(count, x, k, packed, values, answers, out, solution)
