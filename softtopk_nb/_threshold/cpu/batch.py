"""The thresholds of a batch of rows, each by one thread.

What most rows need is compiled apart, in `lanes`; a process that meets nothing else compiles
nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.array_intrinsics import borrowed
from ..._compile.decorators import kernel
from ..._curves.base import kernel_for
from ..._curves.user import UserCurve
from ..._nonfinite import MIXED, classify, compress, expand_apart, survey
from ..._threads import pool
from ..._threads.packing import CHUNK, WHOLE
from ..records import CODE, OPEN
from . import lanes, rows
from .start import SAMPLED

EXPENSIVE = (
    32  # passes that a sort, a bisection or a search with a user's own functions takes, about
)


@kernel
def _gather(lo, hi, x, k, solution, entries, sizes, left):
    """Write the finite entries of open rows with infinities, how many, and what of k they get."""
    x, entries = borrowed(x), borrowed(entries)
    for i in range(lo, hi):
        sizes[i] = -1
        if solution[i, CODE] == OPEN:
            code, n, _, rest, _, _ = classify(x[i], k[i], *survey(x[i]))
            if code == MIXED:
                sizes[i], left[i] = n, rest
                compress(x[i], x[i], entries[i])


@kernel
def _scatter(lo, hi, x, sizes, values, out, solution):
    """Write p of the gathered rows that have been solved; infinite entries are 1 or 0."""
    x, values, out = borrowed(x), borrowed(values), borrowed(out)
    for i in range(lo, hi):
        if sizes[i] >= 0 and solution[i, CODE] != OPEN:
            solution[i, CODE] = MIXED
            if out.shape[1] > 0:
                expand_apart(x[i], values[i], 1.0, out[i])


def _solve_mixed(
    x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any
) -> None:
    """Rows with infinities: their finite entries as rows of their own, with the same bits."""
    entries, values = np.empty_like(x), np.empty_like(out)
    sizes, left = np.empty(len(x), np.int64), np.empty(len(x))
    over, work = pool.over, x.size
    over(len(x), work, _gather, x, k, solution, entries, sizes, left)
    if (sizes >= 0).any():
        again, left_open = (tau, curve, method), np.zeros(1, np.bool_)
        problem = entries, sizes, left, *again, values, solution, left_open
        over(len(x), work, fast_search(x), *problem)
        over(len(x), work, _scatter, x, sizes, values, out, solution)


def fast_search(x: Any) -> Any:
    """The kernel for rows of this length; what either does not need it does not compile."""
    return lanes.solve_sampled if x.shape[1] >= SAMPLED else lanes.solve


def _some_open(solution: Any) -> bool:
    return len(solution) > 0 and bool(solution[:, CODE].min() == OPEN)  # the least of all codes


def solve(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """Solve every row: p to `out` (unless its rows are empty), the thresholds to `solution`."""
    # A user's own functions are called entry by entry, and each kernel compiles them anew.
    if method.sampled and not isinstance(curve, UserCurve):
        left_open = np.zeros(1, np.bool_)
        problem = x, WHOLE, k, tau, curve, method, out, solution, left_open
        pool.over(len(x), x.size, fast_search(x), *problem)
        if not left_open[0]:
            return
        several = max(1, CHUNK // max(1, x.shape[1]))
        for start in range(0, len(x), several):
            some = slice(start, start + several)
            if _some_open(solution[some]):
                numbers = k[some], tau[some], curve, method
                _solve_mixed(x[some], *numbers, out[some], solution[some])
    else:
        solution[:, CODE] = OPEN
    solve_open(x, k, tau, curve, method, out, solution)


def solve_open(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """As `solve`, by the robust search, for the rows whose CODE is OPEN."""
    still = np.count_nonzero(solution[:, CODE] == OPEN)
    if still:
        kernel, work = kernel_for(curve, rows.solve), EXPENSIVE * still * x.shape[1]
        pool.over(len(x), work, kernel, x, k, tau, curve, method, out, solution)
