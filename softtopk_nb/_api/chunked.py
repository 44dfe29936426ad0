"""Functions of the chunked engine (`engine`) that operators with a k share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._nonfinite import UNDEFINED, WITH_INFINITIES, constant_values, verdict_of


def ends(options: Any) -> tuple[float, float]:
    """The values at entries of +inf and of -inf."""
    return 1.0, 0.0


def kind(n: int, seen: Any, k: Any, tau: float) -> Any:
    """(kind of a row, whether only the finite entries are solved, the numbers for these)."""
    found = verdict_of(n, k, tau, seen.nans, seen.above, seen.excluded)
    return (
        (found if found > WITH_INFINITIES else -1),
        found == WITH_INFINITIES,
        (k - seen.above, tau),
    )


def constant(found: int, seen: Any, k: Any, tau: float) -> Any:
    """The values at finite entries, at +inf and at -inf in a row of this kind."""
    return constant_values(found, k + seen.above, seen.above, 1.0)


def unmoved(options: Any, solved: Any) -> float | None:
    """The derivative of a row that is constant, 0 or NaN; None for any other row."""
    if solved.constant < 0:
        return None
    return np.nan if solved.constant == UNDEFINED else 0.0
