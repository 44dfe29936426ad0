"""The ways to search for a threshold that can be chosen."""

from __future__ import annotations

from typing import Any, NamedTuple


class Newton(NamedTuple):
    """Sort-free passes, steered by a model of the row.

    `enough`: the length of a step, in temperatures, that ends the search; 0: as exact as can be.
    `fades`: where it is not 0, that length is at most so much times n^(-1/6).
    """

    enough: float = 0.0
    modelled: bool = True
    sampled: bool = True
    fades: float = 0.0


class Scan(NamedTuple):
    """Sort, then try every number of entries above the threshold."""

    enough: float = 0.0
    modelled: bool = True
    sampled: bool = False
    fades: float = 0.0


class Bisect(NamedTuple):
    """Halve the bracket until the mass is right."""

    enough: float = 0.0
    modelled: bool = False
    sampled: bool = False
    fades: float = 0.0


METHODS: dict[str, Any] = {"newton": Newton(), "scan": Scan(), "bisect": Bisect()}
