"""Exact draws of n independent coins given how many came up: samples of the k-subset law.

Short rows are drawn one entry after the other from a table of suffix probabilities. Of a longer
row three quarters are tossed freely, and the toss is kept with a probability proportional to that
of the quarter left making up the count; what is left is a smaller problem of the same kind. Both
are exact (Proposition prop-grad-sampling), and the second is O(n) in expectation.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.decorators import kernel
from ..formulas import cut_of, exponent
from ..nodes import FIELDS, ROOM
from ..records import VARIANCE
from .contour import excess_of_mean, gather, gather_room, quadrature
from .moments import toss


@kernel
def draw(t, k, uniform, out):
    """Draw k of the coins with log-odds t, for each row of `uniform`; write whether to `out`.

    table[i, b] is the probability that b of the coins from i on come up.
    """
    n = t.shape[0]
    table = np.zeros((n + 1, k + 1))
    table[n, 0] = 1.0
    heads = np.empty(n)
    for i in range(n - 1, -1, -1):
        e = math.exp(-abs(t[i]))
        minor, major = e / (1.0 + e), 1.0 / (1.0 + e)
        heads[i], tails = (major, minor) if t[i] >= 0.0 else (minor, major)
        after, now = table[i + 1], table[i]
        now[0] = tails * after[0]
        for b in range(1, k + 1):
            now[b] = tails * after[b] + heads[i] * after[b - 1]
    for row in range(uniform.shape[0]):
        left = k
        for i in range(n):
            up = False
            if left > 0:
                up = uniform[row, i] * table[i, left] < heads[i] * table[i + 1, left - 1]
            out[row, i] = up
            left -= up


@kernel
def count_coins(t, sums, core):
    """The sums over coins of log-odds t that their count depends on; returns the core's size."""
    y = np.empty(t.shape[0])
    seen = toss(t, 0.0, 1.0, 0.0, y)
    return gather(y, seen, 1.0, cut_of(seen[3], 1.0), gather_room(t), sums, core)


@kernel
def log_chance(n, k, sums, core, found):
    """log P(k of the coins come up), from `count_coins`; -inf where that is 0 to rounding."""
    variance, far = sums[VARIANCE], abs(excess_of_mean(k, 0.0, sums, core, found))
    # Bernstein: below e^-L. Up to there ROOM nodes are enough for every variance.
    if k < 0 or k > n or far * far > 2.0 * exponent(variance, 1.0) * (variance + far / 3.0):
        return -np.inf
    nodes = np.empty((FIELDS, ROOM))
    _, _, log_p = quadrature(n, k, 1.0, 0.0, sums, core, found, nodes, ROOM)
    return log_p if log_p == log_p else -np.inf  # the log of 0 but for rounding
