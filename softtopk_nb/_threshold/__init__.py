"""The threshold equation: find lambda with sum f((x - lambda)/tau) = k, for each row.

It is ThreTopK itself, and the start of GradTopK's search for a tilt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._threads.long_rows import LONG
from .cpu import batch as _batch
from .cpu import long as _long
from .cpu.batch import few
from .records import SOLUTION

__all__ = ["few", "is_long", "solve"]


def is_long(x: Any, method: Any) -> bool:
    """Whether the rows of x are solved one by one, each in parts shared among the threads."""
    return x.shape[1] >= LONG and bool(method.sampled)


def solve(x: Any, k: Any, tau: Any, curve: Any, method: Any, out: Any) -> Any:
    """Solve every row: write p to `out` unless its rows are empty.

    Returns the solutions, shape (rows, `records.SOLUTION`).
    """
    solution = np.empty((len(x), SOLUTION))
    if is_long(x, method):
        for i in range(len(x)):
            _long.solve(x[i], k[i], tau[i], curve, method, out[i], solution[i])
    else:
        _batch.solve(x, k, tau, curve, method, out, solution)
    return solution
