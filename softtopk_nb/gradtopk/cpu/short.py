"""Short rows by the law of the count, and those among them that need no solving."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._compile.decorators import kernel
from ..._nonfinite import classify, fill_constant, survey
from ..._threads import pool
from ..._threshold.records import OPEN
from ..records import CODE
from . import poisson_binomial, poisson_binomial_tangent, rows
from .poisson_binomial import scratch_sizes

Array = npt.NDArray[Any]
Problem = tuple[Array, Array, Array]  # x, k, tau


@kernel
def _fill_constant(lo, hi, x, k, these, tilt, out):
    """Write what these rows are to their tilts, and p, which is constant."""
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
    given = tilt, scratch_sizes(x.shape[1], x.dtype), out, phi, left_out
    pool.over(len(x), 3 * x.size, poisson_binomial.solve, *problem, *given)
    if not left_out[0]:
        return
    these = np.flatnonzero(tilt[:, CODE] == OPEN)
    work = len(these) * x.shape[1]
    pool.over(len(these), work, _fill_constant, x, k, these, tilt, out)
    if len(phi):
        some = np.empty(len(these))
        row = x[these], k[these], tau[these], tilt[these]
        pool.over(len(these), work, rows.potential, *row, some)
        phi[these] = some


def push(problem: Problem, tilt: Array, v: Array, dtau: Array, out: Array, gtau: Array) -> None:
    """The tangents of all rows, as `rows.push`."""
    x = problem[0]
    given = tilt, scratch_sizes(x.shape[1], x.dtype), v, dtau, out, gtau
    pool.over(len(x), 2 * x.size, poisson_binomial_tangent.push, *problem, *given)
