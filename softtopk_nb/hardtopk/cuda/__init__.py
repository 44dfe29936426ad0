"""The hard top-k on a device: its engine, as in `_api.engine`."""

from __future__ import annotations

from typing import Any

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import choose
from ..._cuda.long_rows import is_long
from . import long
from .solve import make_hard

SORTED = 32  # rows of at most this many entries are sorted


def value(rows: Rows, options: Any, out: Buffer) -> None:
    """Write p."""
    if is_long(rows):
        long.value(rows, out)
    else:
        make_hard(rows.dtype, choose(rows.n, rows.dtype), rows.n <= SORTED).run(rows, out)
