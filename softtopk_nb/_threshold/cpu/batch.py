"""The thresholds of a batch of rows, each row searched by one thread.

The search that suits most rows is compiled separately, in `lanes`; the others are compiled only
when a row needs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._curves.base import kernel_for
from ..._curves.user import UserCurve
from ..._threads import pool
from ..records import (
    BY_DISTRIBUTION,
    CODE,
    FLAGS,
    SOLUTION,
    SOME_BAD_MOMENTS,
    SOME_UNSOLVED,
    UNSOLVED,
    UNTRIED,
)
from . import lanes, order_statistics, rows, with_infinities
from .start import SAMPLED

LARGE = 1 << 16  # entries of a batch from which on the cost of checking one row is negligible
EXPENSIVE = (
    32  # the cost of a sort, a bisection or a search with a user's functions, in passes, roughly
)


def fast_search(x: Any) -> Any:
    """The kernel of the fast search for rows of this length; the other one is then not compiled."""
    return lanes.solve_sampled if x.shape[1] >= SAMPLED else lanes.solve


def search(
    kernel: Any,
    x: Any,
    k: Any,
    tau: Any,
    curve: Any,
    method: Any,
    out: Any,
    solution: Any,
    flags: Any,
) -> None:
    """Run the fast search, and again for rows whose moments mislead, or whose search failed."""
    problem: tuple[Any, ...] = x, k, tau, curve, method, out, solution, flags
    if kernel is with_infinities.solve:
        problem = *problem, pool.code_of(fast_search(x), problem).address
    pool.over(len(x), x.size, kernel, *problem)
    if flags[SOME_BAD_MOMENTS]:
        pool.over(len(x), x.size, order_statistics.distributions, x, k, tau, solution)
        flags[BY_DISTRIBUTION] = True
        pool.over(len(x), x.size, kernel, *problem)
        flags[SOME_BAD_MOMENTS] = flags[BY_DISTRIBUTION] = False


def _has_gaps(row: Any) -> bool:
    """Whether a row has infinities other than a block at its end."""
    infinite = np.isinf(row)
    return bool(infinite.any()) and not infinite[infinite.argmax() :].all()


def _have_infinities(x: Any, these: Any) -> bool:
    """Whether any of these rows has infinities, checked 16 rows at a time."""
    return any(np.isinf(x[these[i : i + 16]]).any() for i in range(0, len(these), 16))


def solve(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """Solve every row: write p to `out` (unless its rows are empty) and solutions to `solution`."""
    # A user's functions are called entry by entry, and each kernel compiles them anew.
    if method.sampled and not isinstance(curve, UserCurve):
        flags = np.zeros(FLAGS, np.bool_)
        problem = x, k, tau, curve, method, out, solution, flags
        if x.size >= LARGE and _has_gaps(x[0]):  # then most others probably have some too
            solution[:, CODE] = UNTRIED
            search(with_infinities.solve, *problem)
        else:
            search(fast_search(x), *problem)
            if flags[SOME_UNSOLVED] and _have_infinities(
                x, np.flatnonzero(solution[:, CODE] == UNSOLVED)
            ):
                search(with_infinities.solve, *problem)
        if not flags[SOME_UNSOLVED]:
            return
    else:
        solution[:, CODE] = UNSOLVED
    solve_open(x, k, tau, curve, method, out, solution)


def few(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any) -> Any:
    """A function ((x, k, tau), out) that solves few rows like these by the fast search.

    It returns the solutions, or None if the search leaves rows to others. Here None: there is no
    fast search.
    """
    if not method.sampled or isinstance(curve, UserCurve):
        return None
    count = len(x)
    given = x, k, tau, curve, method, out, np.empty((count, SOLUTION)), np.zeros(FLAGS, np.bool_)
    search_rows = pool.code_of(fast_search(x), given).call

    def solve_few(rows: Any, out: Any) -> Any:
        x, k, tau = rows
        solution, flags = np.empty((count, SOLUTION)), np.zeros(FLAGS, np.bool_)
        search_rows(0, count, x, k, tau, curve, method, out, solution, flags)
        return None if flags[SOME_UNSOLVED] or flags[SOME_BAD_MOMENTS] else solution

    return solve_few


def solve_open(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """Solve the rows whose CODE is UNSOLVED by the robust search."""
    still = np.count_nonzero(solution[:, CODE] == UNSOLVED)
    if still:
        kernel, work = kernel_for(curve, rows.solve), EXPENSIVE * still * x.shape[1]
        pool.over(len(x), work, kernel, x, k, tau, curve, method, out, solution)
