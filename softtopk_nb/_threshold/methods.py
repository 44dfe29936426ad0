"""The methods of a threshold search."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Newton(NamedTuple):
    """Passes without sorting, steered by a model of the row.

    `enough`: the length of a step, in temperatures, that ends the search; 0: as exact as possible.
    `fades`: unless it is 0, `enough` is at most `fades` times n^(-1/6).
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
    """Bisect the bracket until the sum of p is k."""

    enough: float = 0.0
    modelled: bool = False
    sampled: bool = False
    fades: float = 0.0


#: The names of all methods, and of the choice among them.
Name = Literal["auto", "newton", "scan", "bisect"]
METHODS: dict[str, Any] = {"newton": Newton(), "scan": Scan(), "bisect": Bisect()}
