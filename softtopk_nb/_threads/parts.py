"""Arrays in parts, for long operations of NumPy: Python handles signals between the parts."""

from __future__ import annotations

import math
from collections.abc import Iterator

AT_A_TIME = 1 << 20  # entries of a part


def parts(shape: tuple[int, ...], each: int = 1) -> Iterator[tuple[slice, ...]]:
    """Yield slices that cover an array of this shape, whose items have `each` entries."""
    if not shape:
        yield ()
        return
    several = max(1, AT_A_TIME // max(1, math.prod(shape[1:]) * each))
    for first in range(0, shape[0], several):
        for others in parts(shape[1:], each):
            yield slice(first, min(first + several, shape[0])), *others
