"""The threshold equation: lambda such that sum f((x - lambda)/tau) = k, one for each row.

It is ThreTopK itself, and where GradTopK starts from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._threads.long_rows import LONG
from .cpu import batch as _batch
from .cpu import long as _long
from .records import SOLUTION

__all__ = ["is_long", "solve"]


def is_long(x: Any, method: Any) -> bool:
    """Whether the rows of x are shared out among the threads in parts, one row after the other."""
    return x.shape[1] >= LONG and bool(method.sampled)


def solve(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any) -> Any:
    """Solve every row; p goes to `out` unless its rows are empty.

    Returns the solutions, (rows, `records.SOLUTION`).
    """
    solution = np.empty((len(x), SOLUTION))
    if is_long(x, method):
        for i in range(len(x)):
            _long.solve(x[i], k[i], tau[i], curve, method, out[i], solution[i])
    else:
        _batch.solve(x, k, tau, curve, method, out, solution)
    return solution
