"""ThreTopK on a device: what the operator asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose, choose_for_two
from ..._cuda.long_rows import is_long
from ..._cuda.row_kernels import staged
from ..._curves.base import origin
from ..._curves.user import UserCurve
from ..._threshold.cuda.long import solve as solve_long
from ..._threshold.cuda.rows import in_order, make_solve
from ..._threshold.records import SOLUTION
from ..curve import check_integral, check_slope
from .rows import THREADS, make_potential, make_pull, make_push, make_second, make_threshold


def _solve(rows: Rows, plan: Any, out: Buffer | None, solution: Buffer | None) -> None:
    """Write p to `out` and the solutions to `solution`, if wanted."""
    if is_long(rows):
        solve_long(rows, plan.curve, plan.method, out, solution)
        return
    # The compiler may not unroll a loop over a user's function, and would keep the row in memory.
    chosen = choose_for_two if isinstance(plan.curve, UserCurve) else choose
    group, writes, keeps = chosen(rows.n, rows.dtype), out is not None, solution is not None
    kernel = make_solve(rows.dtype, group, plan.curve, plan.method, writes, keeps)
    ordered = in_order(rows, plan.method)
    kernel.run(rows, ordered, out or rows.nothing, solution or rows.nothing)


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
    staged(rows, choose_for_two, make_push, plan.curve)(state, dx, dk, dtau, dp)


def pull(
    rows: Rows, plan: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>."""
    staged(rows, choose_for_two, make_pull, plan.curve)(state, g, gx, gk, gtau)


def second(
    rows: Rows,
    plan: Any,
    state: Buffer,
    v: Buffer,
    dk: Argument,
    dtau: Argument,
    g: Buffer,
    gx: Buffer,
    gk: Buffer,
    gtau: Buffer,
) -> None:
    """Write the gradients of <g, dp>, dp the tangent along (v, dk, dtau)."""
    check_slope(plan.curve, plan.name)
    given = state, v, g, dk, dtau, gx, gk, gtau
    staged(rows, choose_for_two, make_second, plan.curve)(*given)


def potential(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write phi, one number for each row."""
    check_integral(plan.curve, plan.name)
    staged(rows, choose_for_two, make_potential, plan.curve)(_solution(rows, plan, None), out)


def threshold(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write lambda, one number for each row."""
    solution = _solution(rows, plan, None)
    given = rows.temperature, origin(plan.curve), solution.pointer, out.pointer
    make_threshold()(-(-rows.rows // THREADS), rows.stream, rows.rows, *given)
