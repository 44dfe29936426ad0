"""The iterations on the CPU: their engine, as in `_api.engine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import long
from . import rows as kernels


def value(rows: Any, options: Any, out: Any) -> None:
    """Write p."""
    long.over(kernels.solve, long.solve, *rows, options, out)


def linearize(rows: Any, options: Any, out: Any) -> None:
    """Write p. No state is kept: it would be k rows for each, and steps are repeated instead."""
    value(rows, options, out)


def jvp(rows: Any, options: Any, state: Any, dx: Any, dk: Any, dtau: Any, out: Any) -> None:
    """Write dp along (dx, dtau); k does not move."""
    long.over(kernels.jvp, long.jvp, *rows, options, dx, dtau, out)


def vjp(rows: Any, options: Any, state: Any, g: Any, gx: Any, gk: Any, gtau: Any) -> None:
    """Write the gradients of <g, p>; gk has no meaning here."""
    long.over(kernels.vjp, long.vjp, *rows, options, g, gx, gtau)


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state: none."""
    return 0


def pack(rows: Any, options: Any, state: Any) -> Any:
    """The state as an array without columns."""
    return np.empty((len(rows.x), 0))


def unpack(rows: Any, options: Any, packed: Any) -> None:
    """The state, which is empty."""
