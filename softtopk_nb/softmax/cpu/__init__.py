"""softmax, its logarithm and logsumexp on the CPU: their part of the protocol `_api.engine`.

`options` is the name of the function. A value has the shape of the rows; of logsumexp it is one
number for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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


def jvp(rows: Any, options: str, state: Any, dx: Any, dtau: Any, out: Any) -> None:
    """Write the derivative along (dx, dtau)."""
    if options == "logsumexp":
        long.over(kernels.push_sum, long.push_sum, *rows, state, dx, dtau, out)
    else:
        logs = options == "log_softmax"
        long.over(kernels.push, long.push, *rows, state, logs, dx, dtau, out)


def vjp(rows: Any, options: str, state: Any, g: Any, gx: Any, gtau: Any) -> None:
    """Write the gradients; for logsumexp, g is one number for each row."""
    if options == "logsumexp":
        long.over(kernels.pull_sum, long.pull_sum, *rows, state, g, gtau, gx)
    else:
        logs = options == "log_softmax"
        long.over(kernels.pull, long.pull, *rows, state, logs, g, gtau, gx)
