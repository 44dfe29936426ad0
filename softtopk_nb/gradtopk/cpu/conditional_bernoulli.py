"""Conditional Bernoulli sampling: exact draws from the k-subset distribution.

Short rows are drawn one entry after the other from a table of suffix probabilities. Of a longer row
three quarters are drawn independently, and accepted with a probability proportional to that of the
last quarter making up the count; the last quarter is a smaller problem of the same kind. Both are
exact (Proposition prop-grad-sampling), and the second is O(n) in expectation.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.decorators import kernel, scalar
from ..formulas import core_limit, exponent
from ..nodes import CAPACITY, FIELDS
from ..records import VARIANCE
from .contour import excess_of_mean, power_sums, power_sums_scratch, quadrature
from .moments import tilted_probabilities


@scalar
def _tabulate(t, k, table, chance):
    """Write each entry's probability, and to table[i, b] that b of the entries from i on are 1."""
    n = t.shape[0]
    table[n, 0] = 1.0
    table[n, 1 : k + 1] = 0.0
    for i in range(n - 1, -1, -1):
        e = math.exp(-abs(t[i]))
        minor, major = e / (1.0 + e), 1.0 / (1.0 + e)
        chance[i], rest = (major, minor) if t[i] >= 0.0 else (minor, major)
        after, now = table[i + 1], table[i]
        now[0] = rest * after[0]
        for b in range(1, k + 1):
            now[b] = rest * after[b] + chance[i] * after[b - 1]


@scalar
def _choose(k, table, chance, uniform, out):
    """Draw the entries in order, each with its probability given how many are still to draw."""
    for i in range(out.shape[0]):
        chosen = False
        if k > 0:
            chosen = uniform[i] * table[i, k] < chance[i] * table[i + 1, k - 1]
        out[i] = chosen
        k -= chosen


@kernel
def draw(t, k, uniform, out):
    """Draw k of the entries with log-odds t, for each row of `uniform`; write masks to `out`."""
    n = t.shape[0]
    table, chance = np.empty((n + 1, k + 1)), np.empty(n)
    _tabulate(t, k, table, chance)
    for row in range(uniform.shape[0]):
        _choose(k, table, chance, uniform[row], out[row])


@kernel
def draw_rows(lo, hi, x, t, k, uniform, first, out):
    """Draw k of the finite entries of each row of x, with log-odds t, once for each row of `out`.

    Writes masks to `out`, which include entries of +inf. The random numbers of row i are `uniform`
    from first[i] on: one for each finite entry and draw, and none where k leaves no choice.
    """
    n = x.shape[1]
    places, odds, chance = np.empty(n, np.int64), np.empty(n), np.empty(n)
    scratch, chosen = np.empty(0), np.empty(n, np.bool_)
    for i in range(lo, hi):
        m = 0
        for j in range(n):
            out[:, i, j] = x[i, j] == np.inf
            if np.isfinite(x[i, j]):
                places[m], odds[m] = j, t[i, j]
                m += 1
        turned = 2 * k[i] > m  # the entries not chosen are fewer, and drawn instead
        few = m - k[i] if turned else k[i]
        if turned:
            odds[:m] = -odds[:m]
        size = (m + 1) * (few + 1)
        if scratch.shape[0] < size:
            scratch = np.empty(size)
        table = scratch[:size].reshape(m + 1, few + 1)
        if few > 0:
            _tabulate(odds[:m], few, table, chance)
        at = first[i]
        for each in range(out.shape[0]):
            chosen[:m] = False
            if few > 0:
                _choose(few, table, chance, uniform[at : at + m], chosen[:m])
                at += m
            for j in range(m):
                out[each, i, places[j]] = chosen[j] != turned


@kernel
def sums_of_count(t, sums, core):
    """Write the sums that the distribution of the count depends on; returns the core's size."""
    y = np.empty(t.shape[0])
    seen = tilted_probabilities(t, 0.0, 1.0, 0.0, y)
    return power_sums(
        y, seen, 1.0, core_limit(seen.variance, 1.0), power_sums_scratch(t), sums, core
    )


@kernel
def log_probability_of_count(n, k, sums, core, found):
    """log P(N = k) for n variables, from `sums_of_count`; -inf where P is 0 to rounding."""
    variance, far = sums[VARIANCE], abs(excess_of_mean(k, sums, core, found))
    # Bernstein: P is below e^-L. Up to there CAPACITY nodes are enough for every variance.
    if k < 0 or k > n or far * far > 2.0 * exponent(variance, 1.0) * (variance + far / 3.0):
        return -np.inf
    nodes = np.empty((FIELDS, CAPACITY))
    _, _, log_p = quadrature(n, k, 1.0, 0, sums, core, found, nodes, CAPACITY)
    return log_p if log_p == log_p else -np.inf  # the log of a number that is 0 but for rounding
