"""The hard top-k of one row in chunks."""

from __future__ import annotations

from typing import Any

from ..._api.chunked import constant, ends, unmoved
from ..._nonfinite import UNDEFINED
from . import long

__all__ = ["constant", "ends", "kind", "unmoved", "value"]


def kind(n: int, seen: Any, k: Any, tau: float) -> Any:
    """(kind of a row, UNDEFINED or -1; False, as all entries are solved; the numbers for them)."""
    wrong = seen.nans > 0 or k > n - seen.excluded
    return (UNDEFINED if wrong else -1), False, (k, tau)


def value(x: Any, numbers: Any, options: Any, look: Any, out: Any) -> Any:
    """Write the value; returns no state."""
    between = int(look.lowest), int(look.highest)
    yield from long.solve_present(x, int(numbers[0]), *between, out)
