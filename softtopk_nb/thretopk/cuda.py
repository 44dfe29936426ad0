"""ThreTopK on a device: what the operator asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._device import Buffer, Rows
from .._launch import choose
from .._threshold.cuda import make_solve
from .._threshold.rows import SOLUTION

__all__ = ["linearize", "value"]


def _solve(rows: Rows, plan: Any, out: Buffer, solution: Buffer, writes: bool, keeps: bool) -> None:
    team = choose(rows.n, rows.dtype)
    kernel = make_solve(rows.dtype, team, plan.curve, plan.method, writes, keeps)
    kernel(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(out),
        *rows.k,
        *rows.temperature,
        out.pointer,
        solution.pointer,
    )


def value(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write p."""
    _solve(rows, plan, out, rows.nothing, True, False)


def linearize(rows: Rows, plan: Any, out: Buffer) -> Buffer:
    """Write p; returns the solutions, which the derivatives need."""
    solution = rows.empty(rows.rows * SOLUTION, np.float64)
    _solve(rows, plan, out, solution, True, True)
    return solution
