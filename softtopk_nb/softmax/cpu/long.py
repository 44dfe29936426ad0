"""Softmax, its logarithm and logsumexp on one long row, in the manner of `_threads.long_rows`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._math.elementary import from_ordinal, to_ordinal
from ..._threads.long_rows import LONG, PART, part_count, range_of
from ..._threads.pool import over
from ..formulas import OF_LOGS, OF_LOGS_BACK, OF_SHARES, inverse
from ..records import EXCESS, TOP
from . import rows
from .rows import PRESENT, chances, finish, gather, spread

Array = Any


@kernel
def gather_parts(lo, hi, x, m, tau, logs, out, sums):
    """Write the shares of each part before division, and their sums."""
    m = x.dtype.type(m)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j, 0], sums[j, 1] = gather(x[part], m, inverse(tau, m), logs, out[part])


@kernel
def finish_parts(lo, hi, excess, logs, out):
    """Divide the shares of each part by their sum."""
    for j in range(lo, hi):
        finish(excess, logs, out[j * PART : (j + 1) * PART])


@kernel
def chances_parts(lo, hi, x, v, m, tau, scale, out, sums):
    """Write softmax of each part, and the sums along a direction v."""
    m, scale = x.dtype.type(m), x.dtype.type(scale)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        found = chances(x[part], v[part], m, inverse(tau, m), scale, out[part])
        sums[j, 0], sums[j, 1], sums[j, 2] = found


@kernel
def spread_parts(lo, hi, x, v, m, tau, dtau, mean, rule, out, sums):
    """Write the derivative of each part along v."""
    T = x.dtype.type
    m, dtau, mean = T(m), T(dtau), T(mean)
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        sums[j] = spread(x[part], v[part], m, inverse(tau, m), dtau, mean, rule, out[part])


def _top(x: Array) -> tuple[float, bool]:
    """`rows.top` of a long row."""
    lo, hi = range_of(x)
    lowest, highest = to_ordinal(x.dtype.type(-np.inf)), to_ordinal(x.dtype.type(np.inf))
    ordered = lowest <= lo and hi <= highest
    top = float(from_ordinal(hi)) if ordered else math.nan
    return top, bool(lo == lowest and lowest < hi < highest)


def value(x: Array, tau: float, logs: bool, out: Array, record: Array) -> None:
    """One row, as `rows.value`."""
    if len(x) < LONG:  # what is left of a long row without its entries at -inf
        rows.value(0, 1, x[None], np.array([tau]), logs, out[None], record[None])
        return
    m, absent = _top(x)
    if absent:
        present = np.isfinite(x)
        values = np.empty(np.count_nonzero(present) if len(out) else 0, x.dtype)
        value(x[present], tau, logs, values, record)
        if len(out):
            out[...] = -np.inf if logs else 0.0
            out[present] = values
        return
    sums = np.empty((part_count(x), 2))
    target = out if len(out) else np.empty_like(x)
    over(len(sums), x.size // 4, gather_parts, x, m, tau, logs, target, sums)
    record[TOP], record[EXCESS] = m, rows.total_of(m, *sums.sum(axis=0))
    record[PRESENT] = len(x)
    if len(out):
        over(len(sums), x.size // 8, finish_parts, record[EXCESS], logs, out)


def _taking_part(x: Array, record: Array) -> Array | None:
    """Which entries are above -inf, if not all take part."""
    return np.isfinite(x) if record[PRESENT] < len(x) else None


def _chances(x: Array, v: Array, tau: float, record: Array, out: Array) -> Any:
    sums = np.empty((part_count(x), 3))
    scale = 1.0 / (1.0 + record[EXCESS])
    over(len(sums), x.size // 4, chances_parts, x, v, record[TOP], tau, scale, out, sums)
    return sums.sum(axis=0)


def push(
    x: Array, tau: float, record: Array, logs: bool, dx: Array, dtau: float, out: Array
) -> None:
    """One row, as `rows.push`."""
    present = _taking_part(x, record)
    if present is not None:
        values = np.empty(np.count_nonzero(present), x.dtype)
        push(x[present], tau, record, logs, dx[present], dtau, values)
        out[...] = 0
        out[present] = values
    elif len(x) < LONG:
        one = x[None], np.array([tau]), record[None], logs, dx[None], np.array([dtau])
        rows.push(0, 1, *one, out[None])
    elif not rows.constant(record[TOP], False, out):
        mean_v, mean_z, _ = _chances(x, dx, tau, record, out)
        mean, rule = mean_v - dtau * mean_z, OF_LOGS if logs else OF_SHARES
        sums, numbers = np.empty(part_count(x)), (record[TOP], tau, dtau, mean, rule)
        over(len(sums), x.size // 4, spread_parts, x, dx, *numbers, out, sums)


def pull(x: Array, tau: float, record: Array, logs: bool, g: Array, gx: Array) -> float:
    """One row, as `rows.pull`; returns the gradient in the temperature."""
    present = _taking_part(x, record)
    if present is not None:
        values = np.empty(np.count_nonzero(present), x.dtype)
        in_tau = pull(x[present], tau, record, logs, g[present], values)
        gx[...] = 0
        gx[present] = values
        return in_tau
    if len(x) < LONG:
        gtau = np.empty(1)
        one = x[None], np.array([tau]), record[None], logs, g[None]
        rows.pull(0, 1, *one, gx[None], gtau)
        return float(gtau[0])
    if rows.constant(record[TOP], False, gx):
        return float(gx[0])
    mean, _, whole = _chances(x, g, tau, record, gx)
    back, rule = (whole, OF_LOGS_BACK) if logs else (mean, OF_SHARES)
    sums = np.empty(part_count(x))
    over(len(sums), x.size // 4, spread_parts, x, g, record[TOP], tau, 0.0, back, rule, gx, sums)
    return float(-sums.sum())


def push_sum(x: Array, tau: float, record: Array, dx: Array, dtau: float) -> float:
    """One row, as `rows.push_sum`."""
    present = _taking_part(x, record)
    if present is not None:
        return push_sum(x[present], tau, record, dx[present], dtau)
    if len(x) < LONG:
        out = np.empty(1)
        one = x[None], np.array([tau]), record[None], dx[None], np.array([dtau])
        rows.push_sum(0, 1, *one, out)
        return float(out[0])
    weights = np.empty_like(x)
    if rows.constant(record[TOP], True, weights):
        return float(weights[0])
    moved, mean_z, _ = _chances(x, dx, tau, record, weights)
    return float(moved + (math.log1p(record[EXCESS]) - mean_z) * dtau)


def pull_sum(x: Array, tau: float, record: Array, g: float, gx: Array) -> float:
    """One row, as `rows.pull_sum`; returns the gradient in the temperature."""
    present = _taking_part(x, record)
    if present is not None:
        values = np.empty(np.count_nonzero(present), x.dtype)
        in_tau = pull_sum(x[present], tau, record, g, values)
        gx[...] = 0
        gx[present] = values
        return in_tau
    if len(x) < LONG:
        gtau = np.empty(1)
        one = x[None], np.array([tau]), record[None], np.array([g])
        rows.pull_sum(0, 1, *one, gx[None], gtau)
        return float(gtau[0])
    if rows.constant(record[TOP], True, gx):
        return float(gx[0])
    _, mean_z, _ = _chances(x, x, tau, record, gx)
    gx *= gx.dtype.type(g)
    return float(g * (math.log1p(record[EXCESS]) - mean_z))
