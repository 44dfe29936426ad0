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

    Arrays of any library: h has one number for each row of t and p, whose last axis is n. t is x in
    temperatures from a level near the threshold, finite, and from the threshold itself where k
    moves; p has derivatives, and `stop` returns its argument without. The derivative of H is
    -<t, dp>, as sum dp is 0 or belongs to k; that of <t, dp> comes from both factors.
    """
    return h - (0.5 * (t + stop(t)) * (p - stop(p))).sum(-1)
