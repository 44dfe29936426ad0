"""GradTopK on a device: its part of the protocol `_api.engine`."""

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


def _enough(n: int) -> float:
    """How near a tilt must be, by powers of 2: a kernel serves rows of many lengths."""
    return min(0.02, 2.0 ** (-0.25 * n.bit_length()))


def _solve(rows: Rows, out: Buffer, solution: Buffer, phi: Buffer) -> None:
    """Write p, and what derivatives need, or else phi; what is not wanted is nothing."""
    if is_long(rows):
        if phi is rows.nothing:
            long.solve(rows, _enough(rows.n), out, solution)
        else:
            long.potential(rows, _enough(rows.n), phi)
        return
    group = choose_whole(rows.n, rows.dtype)
    writes, keeps = phi is rows.nothing, solution is not rows.nothing
    make_solve(rows.dtype, group, _enough(rows.n), writes, keeps).run(rows, out, solution, phi)


def _check(method: str) -> None:
    if method not in ("auto", "contour"):
        raise ValueError(
            f"method {method!r} runs on the CPU only; expected 'auto' or 'contour' on a device"
        )


def value(rows: Rows, options: Any, out: Buffer) -> None:
    """Write p."""
    _check(options)
    _solve(rows, out, rows.nothing, rows.nothing)


def linearize(rows: Rows, options: Any, out: Buffer) -> Buffer:
    """Write p; returns the solutions, which the derivatives need."""
    _check(options)
    solution = rows.empty(rows.rows * SOLUTION, np.float64)
    _solve(rows, out, solution, rows.nothing)
    return solution


def _push(
    rows: Rows, solution: Buffer, v: Buffer, dtau: Argument, out: Buffer, gtau: Buffer
) -> None:
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    if is_long(rows):
        long_tangent.push(rows, group, solution, v, dtau, out, gtau)
        return
    kernel = make_push(rows.dtype, group, gtau is not rows.nothing)
    kernel.run(rows, solution, v, dtau, out, gtau)


def jvp(
    rows: Rows, options: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, out: Buffer
) -> None:
    """Write dp along (dx, dtau); k does not move."""
    _push(rows, state, dx, dtau, out, rows.nothing)


def vjp(
    rows: Rows, options: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>: the Jacobian is symmetric. gk has no meaning here."""
    _push(rows, state, g, Argument(rows.nothing.pointer, 0.0, 0), gx, gtau)


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
    """Write the gradients of <a, dp>, dp the derivative along v and `moves`; k has none."""
    # A row has one block at any length.
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    make_second(rows.dtype, group).run(rows, state, v, a, moves[-1], out, sums[-1])


def potential(rows: Rows, options: Any, out: Buffer) -> None:
    """Write phi, one number for each row, whatever the method."""
    _solve(rows, rows.nothing, rows.nothing, out)
