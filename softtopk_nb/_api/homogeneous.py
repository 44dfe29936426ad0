"""The derivative of potentials in the temperature, whose own derivatives fronts need.

A potential is homogeneous of degree 1 in x and the temperature. So its derivative in the
temperature is H = (potential - <x, p>)/temperature (Euler), for `gradtopk` an entropy. Engines sum
it without cancellation (`engine.Engine.surplus`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def with_derivatives(h: Any, t: Any, p: Any, stop: Callable[[Any], Any]) -> Any:
    """H with its first and second derivatives, from the number h alone.

    Takes arrays of any library. h has one number for each row of t and p, whose last axis is n.
    t = (x - level)/temperature must be finite, with any level near the threshold, or with the
    threshold itself if k has a derivative. `stop` returns its argument without derivatives, which p
    must have. The first derivative of H is -<t, dp>: the level has no part in it, as dp sums to 0
    unless k moves. Half of t has derivatives, so that the second one is right too.
    """
    return h - (0.5 * (t + stop(t)) * (p - stop(p))).sum(-1)
