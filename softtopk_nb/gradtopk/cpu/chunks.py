"""GradTopK of one row in chunks, as in `_api.engine.ChunkedEngine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.chunked import constant, ends, kind, unmoved
from ..records import SOLUTION
from . import long
from .solving import potentials

__all__ = [
    "constant",
    "ends",
    "jvp",
    "kind",
    "number",
    "number_of_constant",
    "number_of_few",
    "unmoved",
    "value",
    "vjp",
]


def value(x: Any, numbers: Any, options: str, look: Any, out: Any) -> Any:
    """Write the value; returns the state."""
    (k, tau), solution = numbers, np.zeros(SOLUTION)
    yield from long.solve_finite(x, k, tau, look, out, solution)
    return solution


def jvp(x: Any, options: str, solved: Any, v: Any, moves: Any, out: Any) -> Any:
    """Write the derivative along v and `moves`."""
    at = solved.numbers[-1], solved.state
    yield from long.jvp_finite(x, *at, v, moves[-1], out, np.empty(0))


def vjp(x: Any, options: str, solved: Any, g: Any, out: Any) -> Any:
    """Write the gradient in x; returns those in the numbers."""
    in_tau = np.empty(1)
    yield from long.jvp_finite(x, solved.numbers[-1], solved.state, g, 0.0, out, in_tau)
    return np.nan, in_tau[0]


def number(name: str, x: Any, options: str, solved: Any) -> Any:
    """The potential of a row."""
    k, tau = solved.numbers
    return (yield from long.potential_of_finite(x, k, tau, solved.state))


def number_of_few(name: str, options: str, rows: Any, solved: Any) -> float:
    """The potential of a row of few entries."""
    return float(potentials(rows)[0])


def number_of_constant(name: str, options: str, solved: Any, total: float) -> float:
    """The potential of a row that needs no solving."""
    return total
