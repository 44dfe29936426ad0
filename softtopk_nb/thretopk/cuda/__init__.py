"""ThreTopK on a device: what the operator asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose, choose_for_two
from ..._cuda.long_rows import is_long
from ..._curves.base import origin
from ..._curves.user import UserCurve
from ..._threshold.cuda.long import solve as solve_long
from ..._threshold.cuda.rows import in_order, make_solve
from ..._threshold.records import SOLUTION
from ..curve import check_integral
from . import long
from .rows import THREADS, make_potential, make_pull, make_push, make_threshold


def _solve(rows: Rows, plan: Any, out: Buffer | None, solution: Buffer | None) -> None:
    """Write p to `out` and the solutions to `solution`, if wanted."""
    if is_long(rows):
        solve_long(rows, plan.curve, plan.method, out, solution)
        return
    # The compiler may not unroll a loop over a user's function, and would keep the row in memory.
    chosen = choose_for_two if isinstance(plan.curve, UserCurve) else choose
    team, writes, keeps = chosen(rows.n, rows.dtype), out is not None, solution is not None
    kernel = make_solve(rows.dtype, team, plan.curve, plan.method, writes, keeps)
    ordered = in_order(rows, plan.method)
    kernel(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        ordered.pointer,
        rows.rows,
        rows.n,
        rows.wide(*([out] if out else [])),
        *rows.k,
        *rows.temperature,
        (out or rows.nothing).pointer,
        (solution or rows.nothing).pointer,
    )


def _solution(rows: Rows, plan: Any, out: Buffer | None) -> Buffer:
    solution = rows.empty(rows.rows * SOLUTION, np.float64)
    _solve(rows, plan, out, solution)
    return solution


def value(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write p."""
    _solve(rows, plan, out, None)


def linearize(rows: Rows, plan: Any, out: Buffer) -> Buffer:
    """Write p; returns the solutions, which the derivatives need."""
    return _solution(rows, plan, out)


def push(
    rows: Rows, plan: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, dp: Buffer
) -> None:
    """Write dp along (dx, dk, dtau)."""
    if is_long(rows):
        long.push(rows, plan.curve, state, dx, dk, dtau, dp)
        return
    team = choose_for_two(rows.n, rows.dtype)
    make_push(rows.dtype, team, plan.curve)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(dx, dp),
        *rows.temperature,
        state.pointer,
        dx.pointer,
        *dk,
        *dtau,
        dp.pointer,
    )


def pull(
    rows: Rows, plan: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>."""
    if is_long(rows):
        long.pull(rows, plan.curve, state, g, gx, gk, gtau)
        return
    team = choose_for_two(rows.n, rows.dtype)
    make_pull(rows.dtype, team, plan.curve)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(g, gx),
        *rows.temperature,
        state.pointer,
        g.pointer,
        gx.pointer,
        gk.pointer,
        gtau.pointer,
    )


def potential(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write phi, one number for each row."""
    check_integral(plan.curve, plan.name)
    solution = _solution(rows, plan, None)
    if is_long(rows):
        long.potential(rows, plan.curve, solution, out)
        return
    team = choose_for_two(rows.n, rows.dtype)
    make_potential(rows.dtype, team, plan.curve)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(),
        *rows.k,
        *rows.temperature,
        solution.pointer,
        out.pointer,
    )


def threshold(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write lambda, one number for each row."""
    solution = _solution(rows, plan, None)
    make_threshold()(
        -(-rows.rows // THREADS),
        rows.stream,
        rows.rows,
        *rows.temperature,
        origin(plan.curve),
        solution.pointer,
        out.pointer,
    )
