"""softmax, its logarithm and logsumexp on a device: what the front of the family asks for.

`f` is the name of a function. A value is of the shape of the rows, or for logsumexp one float64 a
row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose, choose_for_two
from ..._cuda.row_kernels import staged
from ..records import RECORD
from .rows import make_value
from .slopes import make_pull, make_pull_sum, make_push, make_push_sum


def value(rows: Rows, f: str, out: Buffer) -> None:
    """Write the value."""
    staged(rows, choose, make_value, f, False)(out, rows.nothing)


def linearize(rows: Rows, f: str, out: Buffer) -> Buffer:
    """Write the value; returns the records that the derivatives need."""
    record = rows.empty(rows.rows * RECORD, np.float64)
    staged(rows, choose, make_value, f, True)(out, record)
    return record


def push(rows: Rows, f: str, record: Buffer, dx: Buffer, dtau: Argument, moved: Buffer) -> None:
    """Write the derivative of the value along a direction."""
    made = (make_push_sum,) if f == "logsumexp" else (make_push, f)
    staged(rows, choose_for_two, *made)(record, dx, dtau, moved)


def pull(rows: Rows, f: str, record: Buffer, g: Any, gx: Buffer, gtau: Buffer) -> None:
    """Write the gradients; for logsumexp, g is one number a row."""
    made = (make_pull_sum,) if f == "logsumexp" else (make_pull, f)
    staged(rows, choose_for_two, *made)(record, g, gx, gtau)
