"""The worst place of a bound: its largest value over a range, and where that is.

A bound on a page is a function of a variance, an angle or a step. Its constant is tested where the
function is largest, and not on a grid that may step over that place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def largest(
    function: Callable[[float], float],
    low: float,
    high: float,
    *,
    points: int = 400,
    zooms: int = 3,
    also: tuple[float, ...] = (),
) -> tuple[float, float]:
    """(largest value, place) over [low, high], low > 0, both ends and the places `also` included.

    The logarithm of the place is divided evenly, then the neighbourhoods of the three best places.
    The places `also` are those where the function jumps: it is evaluated there and just below.
    """
    places = [*np.geomspace(low, high, points), *also, *(np.nextafter(a, 0.0) for a in also)]
    found = {float(a): float(function(a)) for a in places if low <= a <= high}
    for _ in range(zooms):
        order = sorted(found)
        for best in sorted(found, key=found.__getitem__)[-3:]:
            at = order.index(best)
            left, right = order[max(at - 1, 0)], order[min(at + 1, len(order) - 1)]
            found |= {float(a): float(function(a)) for a in np.linspace(left, right, 41)}
    place = max(found, key=found.__getitem__)
    return found[place], place


def jumps(
    count: Callable[[float], int], low: float, high: float, step: int = 1
) -> tuple[float, ...]:
    """The places in (low, high] at which a number that never falls reaches its next values."""
    places = []
    for value in range(count(low) + step, count(high) + 1, step):
        below, there = low, high
        while below < (middle := 0.5 * (below + there)) < there:
            below, there = (below, middle) if count(middle) >= value else (middle, there)
        places.append(there)
    return tuple(places)
