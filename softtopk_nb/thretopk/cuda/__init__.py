"""ThreTopK on a device: its engine, as in `_api.engine`."""

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
from .loss import make_losses
from .rows import THREADS, make_jvp, make_potential, make_second, make_threshold, make_vjp


def _solve(rows: Rows, options: Any, out: Buffer | None, solution: Buffer | None) -> None:
    """Write p to `out` and the solutions to `solution`, unless None."""
    if is_long(rows):
        solve_long(rows, options.curve, options.method, out, solution)
        return
    # The compiler may not unroll a loop over a user's function, and would keep the row in memory.
    chosen = choose_for_two if isinstance(options.curve, UserCurve) else choose
    group, writes, keeps = chosen(rows.n, rows.dtype), out is not None, solution is not None
    kernel = make_solve(rows.dtype, group, options.curve, options.method, writes, keeps)
    ordered = in_order(rows, options.method)
    kernel.run(rows, ordered, out or rows.nothing, solution or rows.nothing)


def _solution(rows: Rows, options: Any, out: Buffer | None) -> Buffer:
    solution = rows.empty(rows.rows * SOLUTION, np.float64)
    _solve(rows, options, out, solution)
    return solution


def value(rows: Rows, options: Any, out: Buffer) -> None:
    """Write p."""
    _solve(rows, options, out, None)


def linearize(rows: Rows, options: Any, out: Buffer) -> Buffer:
    """Write p; returns the solutions, which the derivatives need."""
    return _solution(rows, options, out)


def jvp(
    rows: Rows, options: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, out: Buffer
) -> None:
    """Write dp along (dx, dk, dtau)."""
    staged(rows, choose_for_two, make_jvp, options.curve)(state, dx, dk, dtau, out)


def vjp(
    rows: Rows, options: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>."""
    staged(rows, choose_for_two, make_vjp, options.curve)(state, g, gx, gk, gtau)


def second(
    rows: Rows,
    options: Any,
    state: Buffer,
    v: Buffer,
    a: Buffer,
    moves: tuple[Argument, ...],
    out: Buffer,
    sums: tuple[Buffer, ...],
) -> None:
    """Write the gradients of <a, dp>, dp along v and `moves`; those in the numbers to `sums`."""
    check_slope(options.curve, options.name)
    staged(rows, choose_for_two, make_second, options.curve)(state, v, a, *moves, out, *sums)


def potential(rows: Rows, options: Any, out: Buffer) -> None:
    """Write phi, the potential of each row."""
    check_integral(options.curve, options.name)
    staged(rows, choose_for_two, make_potential, options.curve)(_solution(rows, options, None), out)


def threshold(rows: Rows, options: Any, out: Buffer) -> None:
    """Write lambda, the threshold of each row."""
    solution = _solution(rows, options, None)
    given = rows.temperature, origin(options.curve), solution.pointer, out.pointer
    make_threshold()(-(-rows.rows // THREADS), rows.stream, rows.rows, *given)


def losses(rows: Rows, options: Any, y: Buffer, constant: bool, out: Buffer | None) -> Buffer:
    """The Fenchel-Young loss of each row against y; p to `out` unless that is None."""
    check_integral(options.curve, options.name)
    solution, found = _solution(rows, options, out), rows.empty(rows.rows, np.float64)
    staged(rows, choose_for_two, make_losses, options.curve, constant)(solution, y, found)
    return found


def surplus(rows: Rows, options: Any, out: Buffer) -> None:
    """Write the potential less <x, p>: the loss against p itself."""
    check_integral(options.curve, options.name)
    p = rows.empty(rows.rows * rows.n, rows.dtype)
    solution = _solution(rows, options, p)
    staged(rows, choose_for_two, make_losses, options.curve, False)(solution, p, out)


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state."""
    return SOLUTION
