"""The iterations on a device: what the operators ask of it. `kind` is the construction."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..._cuda.arrays import Argument, Buffer, Rows
from ..._cuda.thread_groups import Team
from . import long, long_slopes
from .rows import PULL, PUSH, VALUE, make_pull, make_push, make_solve

MOST_BLOCKS = 1024  # what fills the largest device
MEMORY = 2**28  # bytes for the vectors of all rows at work, unless one team needs more

# The first team takes the row. Nothing is held in registers between steps; a larger team has more
# threads to wait for in each of a step's sums.
_TEAMS = ((512, Team(32, 2)), (4096, Team(128, 2)))

MOVERS = 256  # threads of a block: more do not leave each the registers that a derivative takes


def choose(n: int, most: int = 512) -> Team:
    """The team for rows of n entries: `most` threads at most."""
    for longest, team in _TEAMS:
        if n <= longest:
            return team
    return Team(most, 2)


class _Launch(NamedTuple):
    """Who works on the rows, and where."""

    team: Team
    blocks: int
    teams: int
    work: Buffer


def _plan(rows: Rows, vectors: int, most: int = 512) -> _Launch:
    team = choose(rows.n, most)
    block_bytes = 8 * vectors * max(1, rows.n) * team.rows
    blocks = min(team.blocks(rows.rows), MOST_BLOCKS, max(1, MEMORY // block_bytes))
    teams = blocks * team.rows
    return _Launch(team, blocks, teams, rows.empty(teams * vectors * rows.n, np.float64))


def _problem(rows: Rows, teams: int) -> tuple[Any, ...]:
    return rows.x.pointer, rows.rows, rows.n, teams, *rows.k, *rows.temperature


def value(rows: Rows, kind: Any, out: Buffer) -> None:
    """Write p."""
    if long.is_long(rows):
        long.value(rows, kind, out, MEMORY)
        return
    team, blocks, teams, work = _plan(rows, VALUE)
    kernel = make_solve(rows.dtype, team, kind)
    kernel(blocks, rows.stream, *_problem(rows, teams), work.pointer, out.pointer)


def linearize(rows: Rows, kind: Any, out: Buffer) -> None:
    """Write p. Nothing is kept, as on the CPU."""
    value(rows, kind, out)


def push(
    rows: Rows, kind: Any, state: Any, dx: Buffer, dk: Argument, dtau: Argument, dp: Buffer
) -> None:
    """Write the derivative along a direction."""
    if long.is_long(rows):
        long_slopes.push(rows, kind, dx, dtau, dp, MEMORY)
        return
    team, blocks, teams, work = _plan(rows, PUSH, MOVERS)
    kernel = make_push(rows.dtype, team, kind)
    kernel(
        blocks,
        rows.stream,
        *_problem(rows, teams),
        dx.pointer,
        *dtau,
        work.pointer,
        dp.pointer,
    )


def pull(
    rows: Rows, kind: Any, state: Any, g: Buffer, gx: Buffer, gk: Buffer, gtau: Buffer
) -> None:
    """Write the gradients. A k that only the device knows may be as large as n."""
    if long.is_long(rows):
        long_slopes.pull(rows, kind, g, gx, gtau, MEMORY)
        return
    most = rows.n if rows.k.per_row else int(rows.k.value)
    stride = math.ceil(math.sqrt(most))
    team, blocks, teams, work = _plan(rows, PULL + 2 * stride, MOVERS)
    kernel = make_pull(rows.dtype, team, kind)
    kernel(
        blocks,
        rows.stream,
        *_problem(rows, teams),
        g.pointer,
        stride,
        work.pointer,
        gx.pointer,
        gtau.pointer,
    )
