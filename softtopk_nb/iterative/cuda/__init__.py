"""The iterations on a device: their engine, as in `_api.engine`.

`options` is the construction.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.thread_groups import ThreadGroup
from . import long, long_slopes
from .rows import make_jvp, make_solve, make_vjp
from .steps import JVP, PULL, VALUE

MOST_BLOCKS = 1024  # enough for the largest device
MEMORY = 2**28  # bytes for the vectors of all rows in progress, unless one group needs more

# A row gets the first group that is long enough. Nothing is held in registers between steps; in a
# larger group more threads wait for each of a step's sums.
_GROUPS = ((512, ThreadGroup(32, 2)), (4096, ThreadGroup(128, 2)))

MOVERS = 256  # threads of a block: with more, each would lack registers for a derivative


def _choose(n: int, most: int = 512) -> ThreadGroup:
    """The group for rows of n entries: `most` threads at most."""
    for longest, group in _GROUPS:
        if n <= longest:
            return group
    return ThreadGroup(most, 2)


def _run(rows: Rows, make: Any, options: Any, most: int, vectors: int, *given: Any) -> None:
    """Launch a kernel whose groups have `vectors` vectors each, and `most` threads at most."""
    group = _choose(rows.n, most)
    block_bytes = 8 * vectors * max(1, rows.n) * group.rows
    blocks = min(group.blocks(rows.rows), MOST_BLOCKS, max(1, MEMORY // block_bytes))
    work = rows.empty(blocks * group.rows * vectors * rows.n, np.float64)
    make(rows.dtype, group, options).work(rows, blocks, vectors, work, *given)


def value(rows: Rows, options: Any, out: Buffer) -> None:
    """Write p."""
    if long.is_long(rows):
        long.value(rows, options, out, MEMORY)
    else:
        _run(rows, make_solve, options, 512, VALUE, out)


def linearize(rows: Rows, options: Any, out: Buffer) -> None:
    """Write p. The state is empty, as on the CPU."""
    value(rows, options, out)


def jvp(
    rows: Rows, options: Any, state: Any, dx: Buffer, dk: Argument, dtau: Argument, out: Buffer
) -> None:
    """Write the derivative along a direction."""
    if long.is_long(rows):
        long_slopes.jvp(rows, options, dx, dtau, out, MEMORY)
    else:
        _run(rows, make_jvp, options, MOVERS, JVP, dx, dtau, out)


def vjp(
    rows: Rows, options: Any, state: Any, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients. A k that only the device knows may be as large as n."""
    if long.is_long(rows):
        long_slopes.vjp(rows, options, g, gx, gtau, MEMORY)
        return
    most = rows.n if rows.k.per_row else int(rows.k.value)
    vectors = PULL + 2 * math.ceil(math.sqrt(most))
    _run(rows, make_vjp, options, MOVERS, vectors, g, gx, gtau)


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state, which is empty."""
    return 0
