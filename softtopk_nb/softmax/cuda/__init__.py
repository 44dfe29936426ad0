"""softmax, its logarithm and logsumexp on a device: their engine, as in `_api.engine`.

`options` is the name of the function. A value has the shape of the rows; logsumexp has one float64
for each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose, choose_for_two
from ..._cuda.row_kernels import staged
from ..records import RECORD
from .rows import make_value
from .slopes import make_jvp, make_jvp_logsumexp, make_vjp, make_vjp_logsumexp


def value(rows: Rows, options: str, out: Buffer) -> None:
    """Write the value."""
    staged(rows, choose, make_value, options, False)(out, rows.nothing)


def linearize(rows: Rows, options: str, out: Buffer) -> Buffer:
    """Write the value; returns the records that the derivatives need."""
    record = rows.empty(rows.rows * RECORD, np.float64)
    staged(rows, choose, make_value, options, True)(out, record)
    return record


def jvp(rows: Rows, options: str, state: Buffer, dx: Buffer, dtau: Argument, out: Buffer) -> None:
    """Write the derivative of the value along a direction."""
    made = (make_jvp_logsumexp,) if options == "logsumexp" else (make_jvp, options)
    staged(rows, choose_for_two, *made)(state, dx, dtau, out)


def vjp(rows: Rows, options: str, state: Buffer, g: Any, gx: Buffer, gtau: Buffer) -> None:
    """Write the gradients; for logsumexp, g has one number for each row."""
    made = (make_vjp_logsumexp,) if options == "logsumexp" else (make_vjp, options)
    staged(rows, choose_for_two, *made)(state, g, gx, gtau)


def state_width(n: int, options: str) -> int:
    """Number of float64 per row in the state."""
    return RECORD
