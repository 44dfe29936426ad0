"""The distribution of a row by its order, where moments mislead: one entry far out decides them.

Nothing here is compiled before such a row comes.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import borrowed, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._math.elementary import exp_neg, wide_vectors
from ..._math.special import natural_log
from ..._nonfinite import length, without_infinities
from ..distribution import normal_quantile
from ..newton import inverse_temperature
from ..records import CODE, DISTRIBUTION, MISLED
from .start import finite

SAMPLE = 16  # numbers of a row that are sorted, of shorter rows all
HALF = 0.6  # of windows, in entries for each one chosen: half of their maxima are above the k-th
APART = 3.0  # the ratio of the odds of the two quantiles that are taken
LOG_APART = math.log(APART)
VALUES, RANKS, SORTED = range(3)  # rows of the room
ROOM = 3  # how many those are


@scalar
def outermost(x, sign, windows, out):
    """Write the maxima of so many entries each, times the sign, from windows all over the row."""
    wide_vectors()
    n, count = x.shape[0], out.shape[0]
    for w in range(windows):
        start = (2 * w + 1) * n // (2 * windows) - count // 2
        start = 0 if start < 0 else start if start < n - count else n - count
        part = window(x, start, count)
        for j in range(count):
            value = sign * part[j]
            out[j] = value if w == 0 or value > out[j] else out[j]


@summing
def sort(values, ranks, ordered):
    """Write the values in descending order: by how many are greater, without a branch."""
    wide_vectors()
    T = values.dtype.type
    for i in range(values.shape[0]):
        value, greater = values[i], T(0)
        for j in range(values.shape[0]):
            greater += T(1) if values[j] > value else T(0)
        ranks[i], ordered[i] = greater, T(np.nan)
    for i in range(values.shape[0]):
        ordered[np.int64(ranks[i])] = values[i]
    for i in range(1, values.shape[0]):  # of equal ones the first alone has a place
        ordered[i] = ordered[i - 1] if ordered[i] != ordered[i] else ordered[i]


@scalar
def share_above(share, each):
    """The share of numbers, each the greatest of so many entries, above what a share of those is.

    1 - (1 - share)^each, the logarithm about.
    """
    return 1.0 - exp_neg(-2.0 * each * share / (2.0 - share))


@scalar
def quantile_of(ordered, share):
    """The quantile of sorted numbers that a share of them is above."""
    last = ordered.shape[0] - 1
    at = share * ordered.shape[0] - 0.5
    at = 0.0 if at < 0.0 else np.float64(last) if at > last else at
    i = np.int64(at)
    here, after = np.float64(ordered[i]), np.float64(ordered[min(i + 1, last)])
    return here + (at - i) * (after - here)


@scalar
def distribution_by_order(x, k, inv, room):
    """(pivot, means of z, z^2 and |z|) of a normal distribution with two quantiles of the row.

    z = (x - pivot)/tau. One quantile is the k-th largest entry, about, the other lies on that side
    of it where there is more of the sample.
    """
    T, n = x.dtype.type, x.shape[0]
    few, sign = (k, T(1)) if 2.0 * k <= n else (n - k, T(-1))
    count, windows = n if n < SAMPLE else SAMPLE, HALF * n / few
    most = (n + count - 1) // count
    windows = most if windows > most else np.int64(windows) if windows > 1.0 else 1
    values, ordered = window(room[VALUES], 0, count), window(room[SORTED], 0, count)
    outermost(x, sign, windows, values)
    sort(values, room[RANKS], ordered)
    odds = (n - few) / few
    share = share_above(few / n, windows)
    outward = share > 0.5
    others = odds * APART if outward else odds / APART
    at = quantile_of(ordered, share)
    away = quantile_of(ordered, share_above(1.0 / (1.0 + others), windows))
    log_odds = natural_log(odds)
    here = normal_quantile(log_odds)
    there = normal_quantile(log_odds + (LOG_APART if outward else -LOG_APART))
    spread = (at - away) * inv / (here - there)
    mean = -spread * here
    return sign * at, sign * mean, mean * mean + spread * spread, abs(mean) + spread


@kernel
def distributions(lo, hi, x, k, tau, solution):
    """Rows lo .. hi that are MISLED: the distributions of their finite entries to `solution`."""
    room, apart = workspace(x, ROOM, SAMPLE), workspace(x, 1, x.shape[1])
    x, room, solution = borrowed(x), borrowed(room), borrowed(solution)
    for i in range(lo, hi):
        if solution[i, CODE] == MISLED:
            entries, left = window(x[i], 0, length(x[i])), k[i]
            if not finite(entries):
                entries, left = without_infinities(entries, left, apart[0])
            distribution = distribution_by_order(
                entries, left, inverse_temperature(tau[i], x), room
            )
            for j in range(DISTRIBUTION):
                solution[i, j] = distribution[j]
