"""The iterations on the CPU: their part of the protocol `_api.engine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._threads import pool
from . import rows as kernels


def _work(rows: Any) -> int:
    """Work in entries: each step visits all of them, for an exponential or a division."""
    work: int = 2 * rows.x.size * int(rows.k.max(initial=1))
    return work


def value(rows: Any, options: Any, out: Any) -> None:
    """Write p."""
    pool.over(len(rows.x), _work(rows), kernels.solve, *rows, options, out)


def linearize(rows: Any, options: Any, out: Any) -> None:
    """Write p. Nothing is kept: it would be k rows for each, and the steps are done again."""
    value(rows, options, out)


def jvp(rows: Any, options: Any, state: Any, dx: Any, dk: Any, dtau: Any, out: Any) -> None:
    """Write dp along (dx, dtau); k does not move."""
    pool.over(len(rows.x), _work(rows), kernels.push, *rows, options, dx, dtau, out)


def vjp(rows: Any, options: Any, state: Any, g: Any, gx: Any, gk: Any, gtau: Any) -> None:
    """Write the gradients of <g, p>; gk has no meaning here."""
    pool.over(len(rows.x), _work(rows), kernels.pull, *rows, options, g, gx, gtau)


def state_width(n: int, options: Any) -> int:
    """How many numbers of a row are kept: none."""
    return 0


def pack(rows: Any, options: Any, state: Any) -> Any:
    """The state as an array: no columns."""
    return np.empty((len(rows.x), 0))


def unpack(rows: Any, options: Any, packed: Any) -> None:
    """The state: none."""
