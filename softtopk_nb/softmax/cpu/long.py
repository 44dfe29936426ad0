"""Softmax, its logarithm and logsumexp on rows of any length.

A long row is worked on in parts, in the manner of `_threads.long_rows`. Here it has the shape
(1, n), and each of its numbers the shape (1,).
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
from ..._threads.long_rows import LONG, PART, part_count, range_of
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
def _normalize(lo, hi, excess, logs, out):
    """Divide the shares of each part by their sum."""
    for j in range(lo, hi):
        normalize(excess, logs, out[j * PART : (j + 1) * PART])


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
    """The kernel `whole` on all rows, or `in_parts` on each of those that are long.

    Entries at -inf are taken out of a long row first: in the last of the arguments, if it has x's
    shape, they are 0. If this leaves few, the row is no longer a long one.
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


def _survey(x: Array, record: Array) -> bool:
    """`rows.top` of a long row, and how many entries take part, to its record; whether not all."""
    lo, hi = range_of(x)
    lowest, highest = to_ordinal(x.dtype.type(-np.inf)), to_ordinal(x.dtype.type(np.inf))
    absent = bool(lo == lowest and lowest < hi < highest)
    record[TOP] = from_ordinal(hi) if lowest <= lo and hi <= highest else math.nan
    record[PRESENT] = np.count_nonzero(np.isfinite(x)) if absent else len(x)
    return absent


def _value(x: Array, tau: Array, record: Array, logs: bool, out: Array) -> None:
    sums, m = np.empty((part_count(x[0]), 2)), record[0, TOP]
    target = out[0] if out.shape[1] else np.empty_like(x[0])
    pool.over(len(sums), x.size // 4, _exponentials, x[0], m, tau[0], logs, target, sums)
    record[0, EXCESS] = rows.total_of(m, *sums.sum(axis=0))
    record[0, PRESENT] = x.shape[1]
    if out.shape[1]:
        pool.over(len(sums), x.size // 8, _normalize, record[0, EXCESS], logs, target)


def _sums_along(x: Array, v: Array, tau: Array, record: Array, out: Array) -> Any:
    """Write p to `out`; <p, v>, <p, z> and the sum of v."""
    sums = np.empty((part_count(x[0]), 3))
    numbers = record[0, TOP], tau[0], 1.0 / (1.0 + record[0, EXCESS])
    pool.over(len(sums), x.size // 4, _probabilities, x[0], v[0], *numbers, out[0], sums)
    return sums.sum(axis=0)


def _derive(x: Array, v: Array, tau: Array, record: Array, *rule_and_out: Any) -> float:
    """`rows.slopes` of a long row."""
    *rule, out = rule_and_out
    sums = np.empty(part_count(x[0]))
    numbers = record[0, TOP], tau[0], *rule
    pool.over(len(sums), x.size // 4, _slopes, x[0], v[0], *numbers, out[0], sums)
    return float(sums.sum())


def push(
    x: Array, tau: Array, record: Array, logs: bool, dx: Array, dtau: Array, out: Array
) -> None:
    """One long row, as `rows.push`."""
    if not rows.constant(record[0, TOP], False, out[0]):
        mean_v, mean_z, _ = _sums_along(x, dx, tau, record, out)
        mean, rule = mean_v - dtau[0] * mean_z, OF_LOGS if logs else OF_SHARES
        _derive(x, dx, tau, record, dtau[0], mean, rule, out)


def pull(x: Array, tau: Array, record: Array, logs: bool, g: Array, gtau: Array, gx: Array) -> None:
    """One long row, as `rows.pull`."""
    if rows.constant(record[0, TOP], False, gx[0]):
        gtau[0] = gx[0, 0]
    else:
        mean, _, whole = _sums_along(x, g, tau, record, gx)
        back, rule = (whole, OF_LOGS_BACK) if logs else (mean, OF_SHARES)
        gtau[0] = -_derive(x, g, tau, record, 0.0, back, rule, gx)


def push_sum(x: Array, tau: Array, record: Array, dx: Array, dtau: Array, out: Array) -> None:
    """One long row, as `rows.push_sum`."""
    weights = np.empty_like(x)
    if rows.constant(record[0, TOP], True, weights[0]):
        out[0] = weights[0, 0]
    else:
        moved, mean_z, _ = _sums_along(x, dx, tau, record, weights)
        out[0] = moved + (math.log1p(record[0, EXCESS]) - mean_z) * dtau[0]


def pull_sum(x: Array, tau: Array, record: Array, g: Array, gtau: Array, gx: Array) -> None:
    """One long row, as `rows.pull_sum`."""
    if rows.constant(record[0, TOP], True, gx[0]):
        gtau[0] = gx[0, 0]
    else:
        _, mean_z, _ = _sums_along(x, x, tau, record, gx)
        gx *= gx.dtype.type(g[0])
        gtau[0] = g[0] * (math.log1p(record[0, EXCESS]) - mean_z)
