"""Conditional Bernoulli sampling: exact draws from the k-subset distribution.

Short rows are drawn one entry after the other from a table of suffix probabilities. Of a longer
row three quarters are drawn independently, and accepted with a probability proportional to that
of the last quarter making up the count; the last quarter is a smaller problem of the same kind.
Both are exact (Proposition prop-grad-sampling), and the second is O(n) in expectation.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.decorators import kernel
from ..formulas import core_limit, exponent
from ..nodes import CAPACITY, FIELDS
from ..records import VARIANCE
from .contour import excess_of_mean, power_sums, power_sums_room, quadrature
from .moments import tilted_probabilities


@kernel
def draw(t, k, uniform, out):
    """Draw k of the entries with log-odds t, for each row of `uniform`; write which to `out`.

    table[i, b] is the probability that b of the Bernoulli variables from i on are 1.
    """
    n = t.shape[0]
    table = np.zeros((n + 1, k + 1))
    table[n, 0] = 1.0
    chance = np.empty(n)
    for i in range(n - 1, -1, -1):
        e = math.exp(-abs(t[i]))
        minor, major = e / (1.0 + e), 1.0 / (1.0 + e)
        chance[i], rest = (major, minor) if t[i] >= 0.0 else (minor, major)
        after, now = table[i + 1], table[i]
        now[0] = rest * after[0]
        for b in range(1, k + 1):
            now[b] = rest * after[b] + chance[i] * after[b - 1]
    for row in range(uniform.shape[0]):
        left = k
        for i in range(n):
            chosen = False
            if left > 0:
                chosen = uniform[row, i] * table[i, left] < chance[i] * table[i + 1, left - 1]
            out[row, i] = chosen
            left -= chosen


@kernel
def sums_of_count(t, sums, core):
    """Write the sums that the distribution of the count depends on; returns the core's size."""
    y = np.empty(t.shape[0])
    seen = tilted_probabilities(t, 0.0, 1.0, 0.0, y)
    return power_sums(y, seen, 1.0, core_limit(seen.variance, 1.0), power_sums_room(t), sums, core)


@kernel
def log_probability_of_count(n, k, sums, core, found):
    """log P(N = k) of n variables, from `sums_of_count`; -inf where that is 0 to rounding."""
    variance, far = sums[VARIANCE], abs(excess_of_mean(k, 0, sums, core, found))
    # Bernstein: below e^-L. Up to there CAPACITY nodes are enough for every variance.
    if k < 0 or k > n or far * far > 2.0 * exponent(variance, 1.0) * (variance + far / 3.0):
        return -np.inf
    nodes = np.empty((FIELDS, CAPACITY))
    _, _, log_p = quadrature(n, k, 1.0, 0, sums, core, found, nodes, CAPACITY)
    return log_p if log_p == log_p else -np.inf  # the log of 0 but for rounding
