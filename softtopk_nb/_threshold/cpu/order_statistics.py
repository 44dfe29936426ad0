"""The distribution of a row from order statistics, where outliers make its moments mislead.

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
from ..records import BAD_MOMENTS, CODE, DISTRIBUTION
from .start import finite

SAMPLE = 16  # numbers of a row that are sorted; of a shorter row all
HALF = 0.6  # of windows for each entry chosen: half of their maxima are then above the k-th
APART = 3.0  # the ratio of the odds of the two quantiles
LOG_APART = math.log(APART)
VALUES, RANKS, SORTED = range(3)  # rows of the scratch
SCRATCH = 3  # the number of these rows


@scalar
def outermost(x, sign, windows, out):
    """Write the elementwise maxima, times the sign, of `windows` windows spread over the row."""
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
    """Write the values in descending order, ranked by how many are greater, without branches."""
    wide_vectors()
    T = values.dtype.type
    for i in range(values.shape[0]):
        value, greater = values[i], T(0)
        for j in range(values.shape[0]):
            greater += T(1) if values[j] > value else T(0)
        ranks[i], ordered[i] = greater, T(np.nan)
    for i in range(values.shape[0]):
        ordered[np.int64(ranks[i])] = values[i]
    for i in range(1, values.shape[0]):  # of equal values only the first has been written
        ordered[i] = ordered[i - 1] if ordered[i] != ordered[i] else ordered[i]


@scalar
def share_above(share, each):
    """The share of maxima of `each` numbers above the value that `share` of the numbers exceed.

    It is 1 - (1 - share)^each, with an approximate logarithm.
    """
    return 1.0 - exp_neg(-2.0 * each * share / (2.0 - share))


@scalar
def quantile_of(ordered, share):
    """The quantile of numbers sorted in descending order that a share of them exceeds."""
    last = ordered.shape[0] - 1
    at = share * ordered.shape[0] - 0.5
    at = 0.0 if at < 0.0 else np.float64(last) if at > last else at
    i = np.int64(at)
    here, after = np.float64(ordered[i]), np.float64(ordered[min(i + 1, last)])
    return here + (at - i) * (after - here)


@scalar
def distribution_by_order(x, k, inv, scratch):
    """(pivot, means of z, z^2 and |z|) of a normal distribution with two quantiles of the row.

    z = (x - pivot)/tau. One quantile is about the k-th largest entry; the other lies on the side of
    it where more of the sample is.
    """
    T, n = x.dtype.type, x.shape[0]
    few, sign = (k, T(1)) if 2.0 * k <= n else (n - k, T(-1))
    count, windows = n if n < SAMPLE else SAMPLE, HALF * n / few
    most = (n + count - 1) // count
    windows = most if windows > most else np.int64(windows) if windows > 1.0 else 1
    values, ordered = window(scratch[VALUES], 0, count), window(scratch[SORTED], 0, count)
    outermost(x, sign, windows, values)
    sort(values, scratch[RANKS], ordered)
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
    """Write the distributions of the rows of lo .. hi with BAD_MOMENTS to `solution`."""
    scratch, apart = workspace(x, SCRATCH, SAMPLE), workspace(x, 1, x.shape[1])
    x, scratch, solution = borrowed(x), borrowed(scratch), borrowed(solution)
    for i in range(lo, hi):
        if solution[i, CODE] == BAD_MOMENTS:
            entries, left = window(x[i], 0, length(x[i])), k[i]
            if not finite(entries):
                entries, left = without_infinities(entries, left, apart[0])
            distribution = distribution_by_order(
                entries, left, inverse_temperature(tau[i], x), scratch
            )
            for j in range(DISTRIBUTION):
                solution[i, j] = distribution[j]
