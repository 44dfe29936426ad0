"""Derivatives of one matrix, by the system of Newton's step (thm-balanced-derivative).

A change of the problem moves both thresholds so that all sums stay what they must be. The
thresholds of rows are eliminated; what is left is a system of the columns, factored once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._api.base import Array
from . import kernels
from .schur import Schur, schur
from .solve import Matrix, Solved


class Linear(NamedTuple):
    """The derivative of a solved matrix."""

    matrix: Matrix
    solved: Solved
    v: Array  # (m, n), u/sqrt(r) with u = f'(t)/tau
    r: Array  # (m,), the sums of u over rows
    system: Schur


def linearize(matrix: Matrix, solved: Solved) -> Linear:
    """The derivative at a solution."""
    curve = matrix.options.curve
    v = np.empty_like(solved.y)
    r = kernels.weigh(solved.y, matrix.temperature, curve, solved.solution, v)
    free = solved.columns > 0.0 if matrix.bounded else np.ones(v.shape[1], np.bool_)
    return Linear(matrix, solved, v, r, schur(v, free))


def jvp(linear: Linear, dx: Array, dk: Array, dload: Array, dtau: float) -> Array:
    """dp along a direction; that in the loads is scaled to the sum of that in k."""
    matrix, solved, v, r, system = linear
    if dtau != 0.0:
        dx = dx.copy()
        kernels.stretch(solved.y, matrix.temperature, solved.solution, dtau, dx)
    if not matrix.bounded:
        dload = dload + (dk.sum() - dload.sum()) * _shares(matrix)
    mean, sums = kernels.project(v, r, dx, dk)
    dp = np.empty_like(v)
    kernels.spread(v, r, dx, mean, system.solve(sums - dload), dp)
    return dp


def vjp(linear: Linear, g: Array) -> tuple[Array, Array, Array, float]:
    """The gradients of <g, p> in x, k, the load and the temperature."""
    matrix, solved, v, r, system = linear
    mean, sums = kernels.project(v, r, g, np.zeros(len(v)))
    gload = system.solve(sums)
    gx = np.empty_like(v)
    gk = np.where(r > 0.0, kernels.spread(v, r, g, mean, gload, gx), 0.0)
    gtau = -kernels.along_t(solved.y, matrix.temperature, solved.solution, gx)
    if not matrix.bounded:
        # The loads are scaled to the sum of k: along themselves they change nothing.
        along = float(gload @ _shares(matrix))
        gload, gk = gload - along, gk + along
    return gx, gk, gload, gtau


def _shares(matrix: Matrix) -> Array:
    shares: Array = matrix.load / matrix.load.sum()
    return shares
