"""Derivatives of one matrix, by the system of Newton's step (thm-balanced-derivative).

A change of the problem moves both thresholds so that all sums stay what they must be. The
thresholds of rows are eliminated; what is left is a system of the columns, factored once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._api.base import Array
from .schur import Schur, schur
from .solve import Matrix, Solved

# A direction or a cotangent that is not finite gives NaN, without a warning.
_quiet = np.errstate(over="ignore", invalid="ignore")


class Linear(NamedTuple):
    """The derivative of a solved matrix."""

    matrix: Matrix
    solved: Solved
    system: Schur
    shares: Array  # (n,), what each load grows by where the sum of k grows by 1, if it follows k


def linearize(matrix: Matrix, solved: Solved, shares: Array) -> Linear:
    """The derivative at a solution."""
    w, b = matrix.passes.weigh(solved.solution, matrix.temperature), solved.columns
    free = b > 0.0 if matrix.bounded else np.ones(len(b), np.bool_)
    return Linear(matrix, solved, schur(w, free), shares)


@_quiet
def jvp(linear: Linear, dx: Any, dk: Array, dload: Array, dtau: float) -> Any:
    """dp along a direction, where the loads follow the sum of k by their shares."""
    matrix, solved, system, shares = linear
    dload = dload + (dk.sum() - dload.sum()) * shares
    at = solved.solution, matrix.temperature
    projected, sums = matrix.passes.project(*at, dx, dk, dtau)
    return matrix.passes.spread(projected, system.solve(sums - dload))[0]


@_quiet
def vjp(linear: Linear, g: Any) -> tuple[Any, Array, Array, float]:
    """The gradients of <g, p> in x, k, the load and the temperature."""
    matrix, solved, system, shares = linear
    at = solved.solution, matrix.temperature
    projected, sums = matrix.passes.project(*at, g, np.zeros(len(matrix.k)), 0.0)
    gload = system.solve(sums)
    gx, gk = matrix.passes.spread(projected, gload)
    gtau = -matrix.passes.along_t(*at, gx)
    # Along themselves, loads that follow the sum of k change nothing.
    along = float(gload @ shares)
    return gx, gk + along, gload - along, gtau
