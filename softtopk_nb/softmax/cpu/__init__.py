"""softmax, its logarithm and logsumexp on the CPU: their engine, as in `_api.engine`.

`options` is the name of the function. A value has the shape of the rows; logsumexp has one number
for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._threads import pool
from ..records import EXCESS, TOP
from . import long
from . import rows as kernels


def value(rows: Any, options: str, out: Any) -> None:
    """Write the value."""
    linearize(rows, options, out)


def linearize(rows: Any, options: str, out: Any) -> Any:
    """Write the value; returns the records that the derivatives need."""
    x, tau = rows
    if options != "logsumexp":
        return long.value(x, tau, options == "log_softmax", out)
    record = long.value(x, tau, False, np.empty((len(x), 0), x.dtype))
    with np.errstate(all="ignore"):
        # -inf in a row without entries, as log 0 is.
        out[...] = record[:, TOP] + tau * np.log1p(record[:, EXCESS])
    return record


def few(rows: Any, options: str) -> Any:
    """A function (rows, out) that writes the value of few rows, or None; returns the records."""
    if options == "logsumexp":
        return None
    (x, tau), logs = rows, options == "log_softmax"
    count = len(x)
    call = pool.code_of(kernels.value, (x, tau, np.empty((count, kernels.SOLVED)), logs, x)).call

    def solve_few(rows: Any, out: Any) -> Any:
        x, tau = rows
        record = np.empty((count, kernels.SOLVED))
        call(0, count, x, tau, record, logs, out)
        return record

    return solve_few


def jvp(rows: Any, options: str, state: Any, dx: Any, dtau: Any, out: Any) -> None:
    """Write the derivative along (dx, dtau)."""
    if options == "logsumexp":
        long.over(kernels.jvp_logsumexp, long.jvp_logsumexp, *rows, state, dx, dtau, out)
    else:
        logs = options == "log_softmax"
        long.over(kernels.jvp, long.jvp, *rows, state, logs, dx, dtau, out)


def vjp(rows: Any, options: str, state: Any, g: Any, gx: Any, gtau: Any) -> None:
    """Write the gradients; for logsumexp, g has one number for each row."""
    if options == "logsumexp":
        long.over(kernels.vjp_logsumexp, long.vjp_logsumexp, *rows, state, g, gtau, gx)
    else:
        logs = options == "log_softmax"
        long.over(kernels.vjp, long.vjp, *rows, state, logs, g, gtau, gx)


def state_width(n: int, options: str) -> int:
    """Number of float64 per row in the packed state."""
    return kernels.SOLVED


def pack(rows: Any, options: str, state: Any) -> Any:
    """The state as an array."""
    return state


def unpack(rows: Any, options: str, packed: Any) -> Any:
    """The state from an array."""
    return packed
