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
from . import poisson_binomial, poisson_binomial_tangent, rows
from .poisson_binomial import scratch_sizes

Array = npt.NDArray[Any]
Problem = tuple[Array, Array, Array]  # x, k, tau


class Others(NamedTuple):
    """Rows with infinities, and rows that need no solving."""

    mixed: Array  # which have infinities
    packed: Array  # their finite entries
    left: Array  # what of k these get
    tilt: Array
    constant: Array  # which need no solving
    codes: Array  # what each of those is


@kernel
def _fill_constant(lo, hi, x, k, these, codes, left, out):
    """Write what these rows are, what of k their finite entries get, and p if that is constant."""
    for j in range(lo, hi):
        i = these[j]
        codes[j], _, above, left[j], _, _ = classify(x[i], k[i], *survey(x[i]))
        if codes[j] > MIXED and out.shape[1] > 0:
            fill_constant(x[i], k[i], codes[j], above, out[i])


def solve(problem: Problem, tilt: Array, out: Array, phi: Array) -> list[Others]:
    """Write p of all rows from their tilts, and the potential; returns what derivatives need.

    `out` has no columns, or `phi` no entries, if they are not wanted.
    """
    x, found = problem[0], np.zeros(1, np.bool_)
    given = tilt, scratch_sizes(x.shape[1], x.dtype), out, phi, found
    pool.over(len(x), 3 * x.size, poisson_binomial.solve, *problem, *given)
    if not found[0]:
        return []
    these = np.flatnonzero(tilt[:, CODE] == MIXED)
    return [_solve_others(problem, tilt, some, out, phi) for some in chunks(these, x.shape[1])]


def _solve_others(problem: Problem, tilt: Array, these: Array, out: Array, phi: Array) -> Others:
    x, k, tau = problem
    codes, left = np.empty((2, len(these)), np.int64)
    pool.over(len(these), len(these) * x.shape[1], _fill_constant, x, k, these, codes, left, out)
    solved = codes == MIXED
    mixed, left, constant = these[solved], left[solved], these[~solved]
    entries, above = count(x, mixed)
    packed = np.empty((len(mixed), entries.max(initial=0)), x.dtype)
    gather(x, mixed, x, -np.inf, packed)
    tilts, codes = tilt[mixed], codes[~solved]
    tilts[:, CODE] = FINITE
    p = np.empty((len(mixed), packed.shape[1] if out.shape[1] else 0), x.dtype)
    phis = np.empty(len(mixed) if len(phi) else 0)
    sizes, found = scratch_sizes(packed.shape[1], x.dtype), np.zeros(1, np.bool_)
    row = packed, left, tau[mixed], tilts, sizes, p, phis, found
    pool.over(len(mixed), 3 * packed.size, poisson_binomial.solve, *row)
    if out.shape[1]:
        scatter(x, mixed, p, 0.0, out)
        put_ones(x, mixed[above > 0], out)
    if len(phi):
        phi[mixed] = np.where(above > 0, np.inf, phis)
        phi[constant] = _potential_of_constant(x[constant], k[constant], tau[constant], codes)
    return Others(mixed, packed, left, tilts, constant, codes)


def _potential_of_constant(x: Array, k: Array, tau: Array, codes: Array) -> Array:
    kinds, phi = np.zeros((len(x), CODE + 1)), np.empty(len(x))
    kinds[:, CODE] = codes
    pool.over(len(x), x.size, rows.potential, x, k, tau, kinds, phi)
    return phi


def push(
    problem: Problem,
    tilt: Array,
    others: list[Others],
    v: Array,
    dtau: Array,
    out: Array,
    gtau: Array,
) -> None:
    """The tangents of all rows, as `rows.push`."""
    x, _, tau = problem
    given = tilt, scratch_sizes(x.shape[1], x.dtype), v, dtau, out, gtau
    pool.over(len(x), 2 * x.size, poisson_binomial_tangent.push, *problem, *given)
    for some in others:
        out[some.constant] = gtau[some.constant] = np.where(some.codes == UNDEFINED, np.nan, 0.0)[
            :, None
        ]
        these, packed, left, tilts, *_ = some
        vs, dp, slopes = np.empty_like(packed), np.empty_like(packed), gtau[these]
        gather(x, these, v, 0.0, vs)
        given = tilts, scratch_sizes(packed.shape[1], x.dtype), vs, dtau[these], dp, slopes
        row = packed, left, tau[these]
        pool.over(len(these), 2 * packed.size, poisson_binomial_tangent.push, *row, *given)
        scatter(x, these, dp, 0.0, out)
        gtau[these] = slopes
