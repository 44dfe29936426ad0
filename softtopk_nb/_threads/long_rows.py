"""One long row in parts of a fixed length, shared out among the threads.

What is summed over parts is added in their order, so that the bits do not depend on how many
threads there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._compile.decorators import kernel
from .._nonfinite import survey
from .pool import over

#: Rows from this length on are shared out among the threads in parts.
LONG = 1_000_000
PART = 1 << 16


def part_count(x: Any) -> int:
    """How many parts a row has."""
    return -(-len(x) // PART)


@kernel
def _survey_parts(lo: int, hi: int, x: Any, ordinals: Any) -> None:
    for j in range(lo, hi):
        ordinals[j, 0], ordinals[j, 1] = survey(x[j * PART : (j + 1) * PART])


def ordinals_of(x: Any) -> Any:
    """Room for the range of each part, as ordinals."""
    return np.empty((part_count(x), 2), np.int32 if x.dtype == np.float32 else np.int64)


def range_of(x: Any) -> tuple[Any, Any]:
    """`_nonfinite.survey` of a long row."""
    ordinals = ordinals_of(x)
    # By as many threads as the passes that follow: what one core has read, another one waits for.
    over(len(ordinals), x.size // 4, _survey_parts, x, ordinals)
    return ordinals[:, 0].min(), ordinals[:, 1].max()
