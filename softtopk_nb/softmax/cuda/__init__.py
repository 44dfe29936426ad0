"""softmax, its logarithm and logsumexp on a device: what the front of the family asks for.

`f` is the name of a function. A value is of the shape of the rows, or for logsumexp one float64 a
row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose, choose_for_two
from ..._cuda.long_rows import is_long
from ..records import RECORD
from . import long, long_slopes
from .rows import make_value
from .slopes import make_pull, make_pull_sum, make_push, make_push_sum


def _solve(rows: Rows, f: str, out: Buffer, record: Buffer, keeps: bool) -> None:
    if is_long(rows):
        long.solve(rows, f, out, record, keeps)
        return
    team = choose(rows.n, rows.dtype)
    make_value(rows.dtype, team, f, keeps)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide() if f == "logsumexp" else rows.wide(out),
        *rows.temperature,
        out.pointer,
        record.pointer,
    )


def value(rows: Rows, f: str, out: Buffer) -> None:
    """Write the value."""
    _solve(rows, f, out, rows.nothing, False)


def linearize(rows: Rows, f: str, out: Buffer) -> Buffer:
    """Write the value; returns the records that the derivatives need."""
    record = rows.empty(rows.rows * RECORD, np.float64)
    _solve(rows, f, out, record, True)
    return record


def push(rows: Rows, f: str, record: Buffer, dx: Buffer, dtau: Argument, moved: Buffer) -> None:
    """Write the derivative of the value along a direction."""
    sums = f == "logsumexp"
    if is_long(rows):
        if sums:
            long_slopes.push_sum(rows, record, dx, dtau, moved)
        else:
            long_slopes.push(rows, f, record, dx, dtau, moved)
        return
    team = choose_for_two(rows.n, rows.dtype)
    kernel = make_push_sum(rows.dtype, team) if sums else make_push(rows.dtype, team, f)
    kernel(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(dx) if sums else rows.wide(dx, moved),
        *rows.temperature,
        record.pointer,
        dx.pointer,
        *dtau,
        moved.pointer,
    )


def pull(rows: Rows, f: str, record: Buffer, g: Any, gx: Buffer, gtau: Buffer) -> None:
    """Write the gradients; for logsumexp, g is one number a row."""
    sums = f == "logsumexp"
    if is_long(rows):
        if sums:
            long_slopes.pull_sum(rows, record, g, gx, gtau)
        else:
            long_slopes.pull(rows, f, record, g, gx, gtau)
        return
    team = choose_for_two(rows.n, rows.dtype)
    kernel = make_pull_sum(rows.dtype, team) if sums else make_pull(rows.dtype, team, f)
    kernel(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(gx) if sums else rows.wide(g, gx),
        *rows.temperature,
        record.pointer,
        *(g if sums else (g.pointer,)),
        gx.pointer,
        gtau.pointer,
    )
