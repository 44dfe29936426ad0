"""GradTopK on a device: its engine, as in `_api.engine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.launch import choose_for_two
from ..._cuda.long_rows import is_long
from ..._cuda.row_kernels import staged
from ..records import SOLUTION
from . import long, long_tangent
from .cumulant import make_second
from .loss import make_losses
from .nodes import choose_whole
from .rows import make_solve
from .tangent import make_jvp

MOVERS = 256  # threads of a block: with more, each would lack registers for a derivative


def _tilt_tolerance(n: int) -> float:
    """The accuracy needed of a tilt, constant between powers of 2: a kernel serves many lengths."""
    return min(0.02, 2.0 ** (-0.25 * n.bit_length()))


def _solve(rows: Rows, out: Buffer, solution: Buffer, phi: Buffer) -> None:
    """Write p, and the state for derivatives, or phi; `rows.nothing` where not wanted."""
    if is_long(rows):
        if phi is rows.nothing:
            long.solve(rows, _tilt_tolerance(rows.n), out, solution)
        else:
            long.potential(rows, _tilt_tolerance(rows.n), phi)
        return
    group = choose_whole(rows.n, rows.dtype)
    writes, keeps = phi is rows.nothing, solution is not rows.nothing
    make_solve(rows.dtype, group, _tilt_tolerance(rows.n), writes, keeps).run(
        rows, out, solution, phi
    )


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


def _jvp_or_vjp(
    rows: Rows, solution: Buffer, v: Buffer, dtau: Argument, out: Buffer, gtau: Buffer
) -> None:
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    if is_long(rows):
        long_tangent.jvp(rows, group, solution, v, dtau, out, gtau)
        return
    kernel = make_jvp(rows.dtype, group, gtau is not rows.nothing)
    kernel.run(rows, solution, v, dtau, out, gtau)


def jvp(
    rows: Rows, options: Any, state: Buffer, dx: Buffer, dk: Argument, dtau: Argument, out: Buffer
) -> None:
    """Write dp along (dx, dtau); k is an integer and has no direction."""
    _jvp_or_vjp(rows, state, dx, dtau, out, rows.nothing)


def vjp(
    rows: Rows, options: Any, state: Buffer, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients of <g, p>: the Jacobian is symmetric. gk is not written."""
    _jvp_or_vjp(rows, state, g, Argument(rows.nothing.pointer, 0.0, 0), gx, gtau)


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
    """Write the gradients of <a, dp>, dp along v and `moves`; k has none."""
    # A row has one block at any length.
    group = choose_whole(rows.n, rows.dtype, MOVERS)
    make_second(rows.dtype, group).run(rows, state, v, a, moves[-1], out, sums[-1])


def potential(rows: Rows, options: Any, out: Buffer) -> None:
    """Write phi, the potential of each row, for any method."""
    _solve(rows, rows.nothing, rows.nothing, out)


def losses(rows: Rows, options: Any, y: Buffer, constant: bool, out: Buffer | None) -> Buffer:
    """The Fenchel-Young loss of each row against y; p to `out` unless that is None."""
    p = out or rows.empty(rows.rows * rows.n, rows.dtype)
    solution, found = linearize(rows, options, p), rows.empty(rows.rows, np.float64)
    staged(rows, choose_for_two, make_losses, constant)(solution, y, found)
    return found


def surplus(rows: Rows, options: Any, out: Buffer) -> None:
    """Write the potential less <x, p>: the loss against p itself."""
    p = rows.empty(rows.rows * rows.n, rows.dtype)
    staged(rows, choose_for_two, make_losses, False)(linearize(rows, options, p), p, out)


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state."""
    return SOLUTION
