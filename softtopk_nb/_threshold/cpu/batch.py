"""The thresholds of a batch of rows, each by one thread.

What most rows need is compiled apart, in `lanes`; a process that meets nothing else compiles
nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._curves.base import kernel_for
from ..._curves.user import UserCurve
from ..._threads import pool
from ..records import BY_DISTRIBUTION, CODE, FLAGS, OPEN, SOME_MISLED, SOME_OPEN, UNSEEN
from . import lanes, mixed, order, rows
from .start import SAMPLED

LARGE = 1 << 16  # entries, of which a look at one row takes next to nothing
EXPENSIVE = (
    32  # passes that a sort, a bisection or a search with a user's own functions takes, about
)


def fast_search(x: Any) -> Any:
    """The kernel for rows of this length; what either does not need it does not compile."""
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
    """A fast search, and another for rows whose moments mislead, or led nowhere."""
    problem = x, k, tau, curve, method, out, solution, flags
    pool.over(len(x), x.size, kernel, *problem)
    if flags[SOME_MISLED]:
        pool.over(len(x), x.size, order.distributions, x, k, tau, solution)
        flags[BY_DISTRIBUTION] = True
        pool.over(len(x), x.size, kernel, *problem)
        flags[SOME_MISLED] = flags[BY_DISTRIBUTION] = False


def search_without_infinities(x: Any) -> Any:
    """The same for rows with infinities."""
    return mixed.solve_sampled if x.shape[1] >= SAMPLED else mixed.solve


def _has_gaps(row: Any) -> bool:
    """Whether a row has infinities elsewhere than at its end."""
    infinite = np.isinf(row)
    return bool(infinite.any()) and not infinite[infinite.argmax() :].all()


def _have_infinities(x: Any, these: Any) -> bool:
    """Whether any of these rows has, which mostly the first few tell."""
    return any(np.isinf(x[these[i : i + 16]]).any() for i in range(0, len(these), 16))


def solve(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """Solve every row: p to `out` (unless its rows are empty), the thresholds to `solution`."""
    # A user's own functions are called entry by entry, and each kernel compiles them anew.
    if method.sampled and not isinstance(curve, UserCurve):
        flags = np.zeros(FLAGS, np.bool_)
        problem = x, k, tau, curve, method, out, solution, flags
        if x.size >= LARGE and _has_gaps(x[0]):  # then others have too, mostly
            solution[:, CODE] = UNSEEN
            search(search_without_infinities(x), *problem)
        else:
            search(fast_search(x), *problem)
            if flags[SOME_OPEN] and _have_infinities(x, np.flatnonzero(solution[:, CODE] == OPEN)):
                search(search_without_infinities(x), *problem)
        if not flags[SOME_OPEN]:
            return
    else:
        solution[:, CODE] = OPEN
    solve_open(x, k, tau, curve, method, out, solution)


def solve_open(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any, solution: Any) -> None:
    """As `solve`, by the robust search, for the rows whose CODE is OPEN."""
    still = np.count_nonzero(solution[:, CODE] == OPEN)
    if still:
        kernel, work = kernel_for(curve, rows.solve), EXPENSIVE * still * x.shape[1]
        pool.over(len(x), work, kernel, x, k, tau, curve, method, out, solution)
