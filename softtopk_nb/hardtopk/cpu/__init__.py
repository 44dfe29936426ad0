"""The hard top-k on the CPU: its engine, as in `_api.engine`."""

from __future__ import annotations

from typing import Any

from ..._threads import pool
from ..._threads.long_rows import LONG
from . import long
from . import rows as kernels

# A pass of comparisons is so fast that shorter rows are done before the threads have started.
SHARED_OUT = 4 * LONG


def value(rows: Any, options: Any, out: Any) -> None:
    """Write p."""
    if rows.x.shape[1] >= SHARED_OUT:
        for x, k, p in zip(rows.x, rows.k, out, strict=True):
            long.solve(x, int(k), p)
    else:
        pool.over(len(rows.x), 4 * rows.x.size, kernels.solve, rows.x, rows.k, out)


def few(rows: Any, options: Any) -> Any:
    """A function (rows, out) that writes p of few rows like these; there is no state."""
    x, k, _ = rows
    count, solve = len(x), pool.code_of(kernels.solve, (x, k, x)).call

    def solve_few(rows: Any, out: Any) -> Any:
        x, k, _ = rows
        solve(0, count, x, k, out)
        return ()

    return solve_few
