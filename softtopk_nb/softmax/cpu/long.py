"""Softmax, its logarithm and logsumexp on rows of any length.

A long row is processed in parts, as in `_threads.long_rows`. Here it has the shape (1, n), and each
of its numbers the shape (1,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._compile.decorators import kernel
from ..._math.elementary import from_ordinal, to_ordinal
from ..._threads import pool
from ..._threads.long_rows import (
    LONG,
    PART,
    Pass,
    Passes,
    RowScan,
    here,
    part_count,
    range_of,
    scratch,
)
from ..formulas import OF_LOGS, OF_LOGS_BACK, OF_SHARES, inverse
from ..records import EXCESS, TOP
from . import rows
from .rows import PRESENT, SOLVED, exponentials, normalize, probabilities, slopes

Array = npt.NDArray[Any]


@kernel
def _exponentials(lo, hi, x, m, tau, logs, out, sums):
    """Write the shares of each part before division, and their sums."""
    m = x.dtype.type(m)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j, 0], sums[j, 1] = exponentials(x[part], m, inverse(tau, m), logs, out[part])


@kernel
def _normalize(lo, hi, out, excess, logs):
    """Divide the shares of each part by their sum."""
    for j in range(lo, hi):
        normalize(excess, logs, out[j * PART : (j + 1) * PART])


@kernel
def _multiply(lo, hi, out, factor):
    """Multiply the entries of each part by `factor`."""
    factor = out.dtype.type(factor)
    for j in range(lo, hi):
        part = out[j * PART : (j + 1) * PART]
        for i in range(part.shape[0]):
            part[i] *= factor


@kernel
def _probabilities(lo, hi, x, v, m, tau, scale, out, sums):
    """Write softmax of each part, and the sums along a direction v."""
    m, scale = x.dtype.type(m), x.dtype.type(scale)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        found = probabilities(x[part], v[part], m, inverse(tau, m), scale, out[part])
        sums[j, 0], sums[j, 1], sums[j, 2] = found


@kernel
def _slopes(lo, hi, x, v, m, tau, dtau, mean, rule, out, sums):
    """Write the derivative of each part along v."""
    T = x.dtype.type
    m, dtau, mean = T(m), T(dtau), T(mean)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j] = slopes(x[part], v[part], m, inverse(tau, m), dtau, mean, rule, out[part])


def over(
    whole: Any, in_parts: Callable[..., None], x: Array, tau: Array, record: Array, *args: Any
) -> None:
    """Call the kernel `whole` on all rows, or `in_parts` on each of them if they are long.

    Entries at -inf are removed from a long row first: in the last of the arguments, if it has x's
    shape, they are 0. The rest may be so few that the row is no longer a long one.
    """
    if x.shape[1] < LONG:
        pool.over(len(x), x.size, whole, x, tau, record, *args)
        return
    for i in range(len(x)):
        one = [a[i : i + 1] if isinstance(a, np.ndarray) else a for a in (x, tau, record, *args)]
        if record[i, PRESENT] == x.shape[1]:
            in_parts(*one)
            continue
        present, out = np.isfinite(x[i]), one.pop()
        some = [a[0, present][None] if np.shape(a) == (1, x.shape[1]) else a for a in one]
        of_entries = np.shape(out) == (1, x.shape[1])
        values = np.empty_like(some[0]) if of_entries else out
        if some[0].shape[1] < LONG:
            whole(0, 1, *some, values)
        else:
            in_parts(*some, values)
        if of_entries:
            out[...] = 0
            out[:, present] = values


def value(x: Array, tau: Array, logs: bool, out: Array) -> Array:
    """Write softmax or its logarithm, unless the rows of `out` are empty; returns the records."""
    record = np.empty((len(x), SOLVED))
    if x.shape[1] < LONG:
        pool.over(len(x), x.size, rows.value, x, tau, record, logs, out)
        return record
    lost = [i for i in range(len(x)) if _survey(x[i], record[i])]
    over(rows.value, _value, x, tau, record, logs, out)
    if logs and out.shape[1]:
        for i in lost:
            out[i, x[i] == -np.inf] = -np.inf
    return record


def record_of(seen: RowScan) -> Array:
    """The record of a row from its scan, with its largest entry, or NaN if the row has one."""
    record = np.zeros(SOLVED)
    record[TOP], _ = _top(seen.lowest, seen.highest)
    return record


def _top(lo: Any, hi: Any) -> tuple[float, bool]:
    """The results of `rows.top`, from the range of a row as ordinals."""
    T = np.float32 if isinstance(lo, np.int32) else np.float64
    lowest, highest = to_ordinal(T(-np.inf)), to_ordinal(T(np.inf))
    ordered = lowest <= lo and hi <= highest
    return from_ordinal(hi) if ordered else math.nan, bool(lo == lowest and lowest < hi < highest)


def _survey(x: Array, record: Array) -> bool:
    """Write TOP and PRESENT of a long row to its record; returns whether -inf is to be removed."""
    record[TOP], excluded = _top(*range_of(x))
    record[PRESENT] = np.count_nonzero(np.isfinite(x)) if excluded else len(x)
    return excluded


def _value(x: Array, tau: Array, record: Array, logs: bool, out: Array) -> None:
    here(value_finite(x[0], tau[0], record[0], logs, out[0]))
    record[0, PRESENT] = x.shape[1]


def value_finite(x: Any, tau: float, record: Array, logs: bool, out: Any) -> Passes[None]:
    """Solve one row without entries at -inf, as `rows.value`; its record has TOP already."""
    sums, target = np.empty((part_count(x), 2)), out if len(out) else scratch(x)
    problem = x, record[TOP], tau, logs, target, sums
    yield Pass(_exponentials, x.size // 4, problem, (sums,), (), (target,))
    record[EXCESS] = rows.total_of(record[TOP], *sums.sum(axis=0))
    if len(out):
        yield Pass(_normalize, x.size // 8, (target, record[EXCESS], logs), changed=(target,))


def _sums_along(x: Any, v: Any, tau: float, record: Array, out: Any) -> Passes[Any]:
    """Write p to `out`; returns <p, v>, <p, z> and the sum of v."""
    sums = np.empty((part_count(x), 3))
    problem = x, v, record[TOP], tau, 1.0 / (1.0 + record[EXCESS]), out, sums
    yield Pass(_probabilities, x.size // 4, problem, (sums,), (), (out,))
    return sums.sum(axis=0)


def _derive(x: Any, v: Any, tau: float, record: Array, *rule_and_out: Any) -> Passes[float]:
    """Write the derivative of a long row, as `rows.slopes`."""
    sums, out = np.empty(part_count(x)), rule_and_out[-1]
    problem = x, v, record[TOP], tau, *rule_and_out, sums
    yield Pass(_slopes, x.size // 4, problem, (sums,), (), (), (out,))
    return float(sums.sum())


def jvp_finite(
    x: Any, tau: float, record: Array, logs: bool, dx: Any, dtau: float, out: Any
) -> Passes[None]:
    """Write the derivative of a row with a finite maximum and no entry at -inf, as `rows.jvp`."""
    mean_v, mean_z, _ = yield from _sums_along(x, dx, tau, record, out)
    mean, rule = mean_v - dtau * mean_z, OF_LOGS if logs else OF_SHARES
    yield from _derive(x, dx, tau, record, dtau, mean, rule, out)


def vjp_finite(x: Any, tau: float, record: Array, logs: bool, g: Any, gx: Any) -> Passes[float]:
    """Write the gradient in x of such a row, as `rows.vjp`; returns the one in the temperature."""
    mean, _, whole = yield from _sums_along(x, g, tau, record, gx)
    back, rule = (whole, OF_LOGS_BACK) if logs else (mean, OF_SHARES)
    return -(yield from _derive(x, g, tau, record, 0.0, back, rule, gx))


def jvp_logsumexp_finite(x: Any, tau: float, record: Array, dx: Any, dtau: float) -> Passes[float]:
    """The derivative of such a row, as `rows.jvp_logsumexp`."""
    moved, mean_z, _ = yield from _sums_along(x, dx, tau, record, scratch(x))
    return float(moved + (math.log1p(record[EXCESS]) - mean_z) * dtau)


def vjp_logsumexp_finite(x: Any, tau: float, record: Array, g: float, gx: Any) -> Passes[float]:
    """Write the gradient in x of such a row, as `rows.vjp_logsumexp`; returns the other one."""
    _, mean_z, _ = yield from _sums_along(x, x, tau, record, gx)
    yield Pass(_multiply, x.size // 8, (gx, g), changed=(gx,))
    return float(g * (math.log1p(record[EXCESS]) - mean_z))


def jvp(
    x: Array, tau: Array, record: Array, logs: bool, dx: Array, dtau: Array, out: Array
) -> None:
    """Write the derivative of one long row, as `rows.jvp`."""
    if not rows.constant(record[0, TOP], False, out[0]):
        here(jvp_finite(x[0], tau[0], record[0], logs, dx[0], dtau[0], out[0]))


def vjp(x: Array, tau: Array, record: Array, logs: bool, g: Array, gtau: Array, gx: Array) -> None:
    """Write the gradients of one long row, as `rows.vjp`."""
    if rows.constant(record[0, TOP], False, gx[0]):
        gtau[0] = gx[0, 0]
    else:
        gtau[0] = here(vjp_finite(x[0], tau[0], record[0], logs, g[0], gx[0]))


def jvp_logsumexp(x: Array, tau: Array, record: Array, dx: Array, dtau: Array, out: Array) -> None:
    """Write the derivative of one long row, as `rows.jvp_logsumexp`."""
    still = np.empty(1)
    if rows.constant(record[0, TOP], True, still):
        out[0] = still[0]
    else:
        out[0] = here(jvp_logsumexp_finite(x[0], tau[0], record[0], dx[0], dtau[0]))


def vjp_logsumexp(x: Array, tau: Array, record: Array, g: Array, gtau: Array, gx: Array) -> None:
    """Write the gradients of one long row, as `rows.vjp_logsumexp`."""
    if rows.constant(record[0, TOP], True, gx[0]):
        gtau[0] = gx[0, 0]
    else:
        gtau[0] = here(vjp_logsumexp_finite(x[0], tau[0], record[0], g[0], gx[0]))
