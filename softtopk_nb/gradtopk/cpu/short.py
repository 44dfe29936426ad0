"""Short rows by the law of the count; those with infinities, and those that need no solving.

`poisson_binomial` takes finite rows, 0 < k < n, as all are as a rule. Of rows with infinities the
finite entries are such a row, and other rows are constant there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._compile.decorators import kernel
from ..._nonfinite import FINITE, MIXED, UNDEFINED, classify, fill_constant, survey
from ..._threads import pool
from ..._threads.packing import chunks, count, gather, put_ones, scatter
from ..records import CODE
from . import poisson_binomial, poisson_binomial_tangent
from .poisson_binomial import scratch_sizes

Array = npt.NDArray[Any]


class Others(NamedTuple):
    """Rows with infinities, and rows that need no solving."""

    mixed: Array  # which have infinities
    packed: Array  # their finite entries
    left: Array  # what of k these get
    tilt: Array
    constant: Array  # which need no solving
    undefined: Array  # whether each of those is NaN


@kernel
def _fill_constant(lo, hi, x, k, these, codes, left, out):
    """Write what these rows are, what of k their finite entries get, and p if that is constant."""
    for j in range(lo, hi):
        i = these[j]
        codes[j], _, above, left[j], _, _ = classify(x[i], k[i], *survey(x[i]))
        if codes[j] > MIXED:
            fill_constant(x[i], k[i], codes[j], above, out[i])


def solve(x: Array, k: Array, tau: Array, tilt: Array, out: Array) -> list[Others]:
    """Write p of all rows from their tilts; returns what derivatives need of some."""
    sizes, found = scratch_sizes(x.shape[1], x.dtype), np.zeros(1, np.bool_)
    pool.over(len(x), 3 * x.size, poisson_binomial.solve, x, k, tau, tilt, sizes, out, found)
    if not found[0]:
        return []
    these = np.flatnonzero(tilt[:, CODE] == MIXED)
    return [_solve_others(x, k, tau, tilt, some, out) for some in chunks(these, x.shape[1])]


def _solve_others(x: Array, k: Array, tau: Array, tilt: Array, these: Array, out: Array) -> Others:
    codes, left = np.empty((2, len(these)), np.int64)
    pool.over(len(these), len(these) * x.shape[1], _fill_constant, x, k, these, codes, left, out)
    solved = codes == MIXED
    mixed, left, constant = these[solved], left[solved], these[~solved]
    entries, above = count(x, mixed)
    packed = np.empty((len(mixed), entries.max(initial=0)), x.dtype)
    gather(x, mixed, x, -np.inf, packed)
    tilts, p = tilt[mixed], np.empty_like(packed)
    tilts[:, CODE] = FINITE
    sizes, found = scratch_sizes(packed.shape[1], x.dtype), np.zeros(1, np.bool_)
    problem = packed, left, tau[mixed], tilts, sizes, p, found
    pool.over(len(mixed), 3 * packed.size, poisson_binomial.solve, *problem)
    scatter(x, mixed, p, 0.0, out)
    put_ones(x, mixed[above > 0], out)
    return Others(mixed, packed, left, tilts, constant, codes[~solved] == UNDEFINED)


def push(
    problem: tuple[Array, Array, Array],
    tilt: Array,
    others: list[Others],
    v: Array,
    dtau: Array,
    out: Array,
    gtau: Array,
) -> None:
    """The tangents of all rows, as `rows.push`; `problem` is (x, k, tau)."""
    x, _, tau = problem
    given = tilt, scratch_sizes(x.shape[1], x.dtype), v, dtau, out, gtau
    pool.over(len(x), 2 * x.size, poisson_binomial_tangent.push, *problem, *given)
    for some in others:
        out[some.constant] = gtau[some.constant] = np.where(some.undefined, np.nan, 0.0)[:, None]
        these, packed, left, tilts, *_ = some
        vs, dp, slopes = np.empty_like(packed), np.empty_like(packed), gtau[these]
        gather(x, these, v, 0.0, vs)
        given = tilts, scratch_sizes(packed.shape[1], x.dtype), vs, dtau[these], dp, slopes
        row = packed, left, tau[these]
        pool.over(len(these), 2 * packed.size, poisson_binomial_tangent.push, *row, *given)
        scatter(x, these, dp, 0.0, out)
        gtau[these] = slopes
