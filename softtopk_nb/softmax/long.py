"""Softmax, its logarithm and logsumexp on one long row, in the manner of `_parts`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._compile import kernel
from .._parts import PART, part_count, range_of
from .._scalars import from_ordinal, to_ordinal
from .._schedule import over
from . import rows
from .entry import OF_LOGS, OF_LOGS_BACK, OF_SHARES, inverse
from .rows import EXCESS, TOP, chances, finish, gather, spread

__all__ = ["pull", "pull_sum", "push", "push_sum", "value"]

Array = Any


@kernel
def gather_parts(lo, hi, x, m, tau, logs, out, sums):
    m = x.dtype.type(m)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j, 0], sums[j, 1] = gather(x[part], m, inverse(tau, m), logs, out[part])


@kernel
def finish_parts(lo, hi, excess, logs, out):
    for j in range(lo, hi):
        finish(excess, logs, out[j * PART : (j + 1) * PART])


@kernel
def chances_parts(lo, hi, x, v, m, tau, scale, out, sums):
    m, scale = x.dtype.type(m), x.dtype.type(scale)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        found = chances(x[part], v[part], m, inverse(tau, m), scale, out[part])
        sums[j, 0], sums[j, 1], sums[j, 2] = found


@kernel
def spread_parts(lo, hi, x, v, m, tau, dtau, mean, rule, out, sums):
    T = x.dtype.type
    m, dtau, mean = T(m), T(dtau), T(mean)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j] = spread(x[part], v[part], m, inverse(tau, m), dtau, mean, rule, out[part])


def _top(x: Array) -> Any:
    lo, hi = range_of(x)
    ordered = to_ordinal(x.dtype.type(-np.inf)) <= lo and hi <= to_ordinal(x.dtype.type(np.inf))
    return float(from_ordinal(hi)) if ordered else math.nan


def value(x: Array, tau: float, logs: bool, out: Array, record: Array) -> None:
    """One row, as `rows.value`."""
    m, sums = _top(x), np.empty((part_count(x), 2))
    target = out if len(out) else np.empty_like(x)
    over(len(sums), x.size // 4, gather_parts, x, m, tau, logs, target, sums)
    record[TOP], record[EXCESS] = m, rows.total_of(m, *sums.sum(axis=0))
    if len(out):
        over(len(sums), x.size // 8, finish_parts, record[EXCESS], logs, out)


def _chances(x: Array, v: Array, tau: float, record: Array, out: Array) -> Any:
    sums = np.empty((part_count(x), 3))
    scale = 1.0 / (1.0 + record[EXCESS])
    over(len(sums), x.size // 4, chances_parts, x, v, record[TOP], tau, scale, out, sums)
    return sums.sum(axis=0)


def push(
    x: Array, tau: float, record: Array, logs: bool, dx: Array, dtau: float, out: Array
) -> None:
    """One row, as `rows.push`."""
    if not rows.constant(record[TOP], False, out):
        mean_v, mean_z, _ = _chances(x, dx, tau, record, out)
        mean, rule = mean_v - dtau * mean_z, OF_LOGS if logs else OF_SHARES
        sums = np.empty(part_count(x))
        over(
            len(sums),
            x.size // 4,
            spread_parts,
            x,
            dx,
            record[TOP],
            tau,
            dtau,
            mean,
            rule,
            out,
            sums,
        )


def pull(x: Array, tau: float, record: Array, logs: bool, g: Array, gx: Array) -> float:
    """One row, as `rows.pull`; returns the gradient in the temperature."""
    if rows.constant(record[TOP], False, gx):
        return float(gx[0])
    mean, _, whole = _chances(x, g, tau, record, gx)
    back, rule = (whole, OF_LOGS_BACK) if logs else (mean, OF_SHARES)
    sums = np.empty(part_count(x))
    over(len(sums), x.size // 4, spread_parts, x, g, record[TOP], tau, 0.0, back, rule, gx, sums)
    return float(-sums.sum())


def push_sum(x: Array, tau: float, record: Array, dx: Array, dtau: float) -> float:
    """One row, as `rows.push_sum`."""
    weights = np.empty_like(x)
    if rows.constant(record[TOP], True, weights):
        return float(weights[0])
    moved, mean_z, _ = _chances(x, dx, tau, record, weights)
    return float(moved + (math.log1p(record[EXCESS]) - mean_z) * dtau)


def pull_sum(x: Array, tau: float, record: Array, g: float, gx: Array) -> float:
    """One row, as `rows.pull_sum`; returns the gradient in the temperature."""
    if rows.constant(record[TOP], True, gx):
        return float(gx[0])
    _, mean_z, _ = _chances(x, x, tau, record, gx)
    gx *= gx.dtype.type(g)
    return float(g * (math.log1p(record[EXCESS]) - mean_z))
