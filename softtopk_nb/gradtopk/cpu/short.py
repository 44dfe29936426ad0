"""Short rows by the distribution of the count, and those among them that need no solving."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._compile.decorators import kernel
from ..._nonfinite import FINITE, MIXED, classify, fill_constant, survey
from ..._threads import pool
from ..records import CODE
from . import poisson_binomial, poisson_binomial_tangent, rows
from .poisson_binomial import scratch_sizes

Array = npt.NDArray[Any]
Problem = tuple[Array, Array, Array]  # x, k, tau


@kernel
def fill_others(lo, hi, x, k, these, tilt, out):
    """Write what these rows are to their tilts, and p of those that need no solving."""
    for j in range(lo, hi):
        i = these[j]
        code, _, above, _, _, _ = classify(x[i], k[i], *survey(x[i]))
        tilt[i, CODE] = code
        if out.shape[1] > 0:
            fill_constant(x[i], k[i], code, above, out[i])


def solve(problem: Problem, tilt: Array, out: Array, phi: Array) -> None:
    """Write p of all rows from their tilts, and the potential.

    `out` has no columns, or `phi` no entries, if they are not wanted.
    """
    (x, k, tau), left_out = problem, np.zeros(1, np.bool_)
    given = *problem, tilt, scratch_sizes(x.shape[1], x.dtype), out, phi, left_out
    pool.over(len(x), 3 * x.size, poisson_binomial.solve, *given)
    if not left_out[0]:
        return
    if (tilt[:, CODE] == MIXED).any():
        pool.over(len(x), 3 * x.size, poisson_binomial.solve_mixed, *given)
    these = np.flatnonzero((tilt[:, CODE] != FINITE) & (tilt[:, CODE] != MIXED))
    pool.over(len(these), len(these) * x.shape[1], fill_others, x, k, these, tilt, out)
    if len(phi):
        some = np.empty(len(these))
        row = x[these], k[these], tau[these], tilt[these]
        pool.over(len(these), len(these) * x.shape[1], rows.potential, *row, some)
        phi[these] = some


def push(problem: Problem, tilt: Array, v: Array, dtau: Array, out: Array, gtau: Array) -> None:
    """The tangents of all rows, as `rows.push`."""
    x, mixed = problem[0], np.zeros(1, np.bool_)
    given = *problem, tilt, scratch_sizes(x.shape[1], x.dtype), v, dtau, out, gtau, mixed
    pool.over(len(x), 2 * x.size, poisson_binomial_tangent.push, *given)
    if mixed[0]:
        pool.over(len(x), 2 * x.size, poisson_binomial_tangent.push_mixed, *given)
