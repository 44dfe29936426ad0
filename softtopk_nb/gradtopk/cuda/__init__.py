"""GradTopK on a device: what the operator asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.long_rows import is_long
from ..records import SOLUTION
from . import long, long_tangent
from .cumulant import make_second
from .nodes import choose_whole
from .rows import make_solve
from .tangent import make_push

MOVERS = 256  # threads of a block: more do not leave each the registers that a tangent takes


def enough(n: int) -> float:
    """As `GradTopK._tilt`, by powers of 2: a kernel serves rows of many lengths."""
    return min(0.02, 2.0 ** (-0.25 * n.bit_length()))


def _solve(rows: Rows, out: Buffer, solution: Buffer, phi: Buffer) -> None:
    """Write p, and what derivatives need, or else phi; what is not wanted is nothing."""
    if is_long(rows):
        if phi is rows.nothing:
            long.solve(rows, enough(rows.n), out, solution)
        else:
            long.potential(rows, enough(rows.n), phi)
        return
    group = choose_whole(rows.n, rows.dtype)
    writes, keeps = phi is rows.nothing, solution is not rows.nothing
    make_solve(rows.dtype, group, enough(rows.n), writes, keeps).run(rows, out, solution, phi)


def _check(method: str) -> None:
    if method not in ("auto", "contour"):
        raise ValueError(
            f"method {method!r} runs on the CPU only; expected 'auto' or 'contour' on a device"
        )


def value(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write p."""
    _check(plan)
    _solve(rows, out, rows.nothing, rows.nothing)


def linearize(rows: Rows, plan: Any, out: Buffer) -> Buffer:
    """Write p; returns the solutions, which the derivatives need."""
    _check(plan)
    solution = rows.empty(rows.rows * SOLUTION, np.float64)
    _solve(rows, out, solution, rows.nothing)
    return solution


def potential(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write phi, one number for each row, whatever the method."""
    _solve(rows, rows.nothing, rows.nothing, out)


def _push(
    rows: Rows, solution: Buffer, v: Buffer, dtau: Argument, out: Buffer, gtau: Buffer
) -> None:
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    if is_long(rows):
        long_tangent.push(rows, group, solution, v, dtau, out, gtau)
        return
    kernel = make_push(rows.dtype, group, gtau is not rows.nothing)
    kernel.run(rows, solution, v, dtau, out, gtau)


def push(
    rows: Rows, plan: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, dp: Buffer
) -> None:
    """Write dp along (dx, dtau); k does not move."""
    _push(rows, state, dx, dtau, dp, rows.nothing)


def pull(
    rows: Rows, plan: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>: the Jacobian is symmetric. gk has no meaning here."""
    _push(rows, state, g, Argument(rows.nothing.pointer, 0.0, 0), gx, gtau)


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
    """Write the gradients of <g, dp>, dp the tangent along (v, dtau); gk has no meaning here."""
    # A row has one block at any length.
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    make_second(rows.dtype, group).run(rows, state, v, g, dtau, gx, gtau)
