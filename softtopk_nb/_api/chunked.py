"""What operators with a k share of the chunked engine (`engine`): rows that need no solving."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._nonfinite import MIXED, UNDEFINED, constant_values, verdict_of


def ends(options: Any) -> tuple[float, float]:
    """The values at entries of +inf and of -inf."""
    return 1.0, 0.0


def kind(n: int, seen: Any, k: Any, tau: float) -> Any:
    """(kind, whether the finite entries alone are solved, the numbers for these) of a row."""
    found = verdict_of(n, k, tau, seen.nans, seen.above, seen.excluded)
    return (found if found > MIXED else -1), found == MIXED, (k - seen.above, tau)


def constant(found: int, seen: Any, k: Any, tau: float) -> Any:
    """The values at finite entries, at +inf and at -inf in a row of this kind."""
    return constant_values(found, k + seen.above, seen.above, 1.0)


def unmoved(options: Any, solved: Any) -> float | None:
    """The derivative of a solved row that nothing moves, or None."""
    if solved.constant < 0:
        return None
    return np.nan if solved.constant == UNDEFINED else 0.0
