"""Short rows, solved by the distribution of the count, if they need any solving."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._compile.decorators import kernel
from ..._nonfinite import FINITE, WITH_INFINITIES, classify, fill_constant, survey
from ..._threads import pool
from ..records import CODE
from . import poisson_binomial, poisson_binomial_tangent, rows
from .poisson_binomial import scratch_sizes

Array = npt.NDArray[Any]
Problem = tuple[Array, Array, Array]  # x, k, tau


@kernel
def fill_others(lo, hi, x, k, these, tilt, out):
    """Write the kind of these rows to their tilts, and p of those that need no solving."""
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
    if (tilt[:, CODE] == WITH_INFINITIES).any():
        pool.over(len(x), 3 * x.size, poisson_binomial.solve_mixed, *given)
    these = np.flatnonzero((tilt[:, CODE] != FINITE) & (tilt[:, CODE] != WITH_INFINITIES))
    pool.over(len(these), len(these) * x.shape[1], fill_others, x, k, these, tilt, out)
    if len(phi):
        some = np.empty(len(these))
        row = x[these], k[these], tau[these], tilt[these]
        pool.over(len(these), len(these) * x.shape[1], rows.potential, *row, some)
        phi[these] = some


def jvp(problem: Problem, tilt: Array, v: Array, dtau: Array, out: Array, gtau: Array) -> None:
    """Write the derivatives of all rows, as `rows.jvp`."""
    x, with_infinities = problem[0], np.zeros(1, np.bool_)
    given = *problem, tilt, scratch_sizes(x.shape[1], x.dtype), v, dtau, out, gtau, with_infinities
    pool.over(len(x), 2 * x.size, poisson_binomial_tangent.jvp, *given)
    if with_infinities[0]:
        move = pool.code_of(poisson_binomial_tangent.jvp, given).address
        pool.over(len(x), 2 * x.size, poisson_binomial_tangent.jvp_with_infinities, *given, move)


def few_vjp(problem: Problem, tilt: Array) -> Any:
    """A function (rows, tilt, g, gx) that writes the gradient in x of few rows with such tilts."""
    x, count, sizes = (
        problem[0],
        len(problem[0]),
        scratch_sizes(problem[0].shape[1], problem[0].dtype),
    )
    still, gtau, others = np.zeros(count), np.empty((count, 1)), np.zeros(1, np.bool_)
    given = *problem, tilt, sizes, x, still, x, gtau, others
    call = pool.code_of(poisson_binomial_tangent.jvp, given).call

    def vjp_few(rows: Any, tilt: Array, g: Array, gx: Array) -> None:
        x, k, tau = rows
        still, gtau, others = np.zeros(count), np.empty((count, 1)), np.zeros(1, np.bool_)
        call(0, count, x, k, tau, tilt, sizes, g, still, gx, gtau, others)

    return vjp_few
