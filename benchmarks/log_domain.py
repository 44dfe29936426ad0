"""The usual way to the marginals of a random k-subset, as a baseline: dynamic programs of logs.

Logarithms of the sums over prefixes and over suffixes, each term added with log(1 + e^t), then one
log-sum-exp over the ways to split k - 1 between the two for each entry: O(n k) time and memory,
stable, and about two exponentials and logarithms for each of 3 n k terms. Serial, float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["marginals"]


@njit(cache=True, error_model="numpy")
def log_add(a, b):
    """log(e^a + e^b)."""
    high, low = (a, b) if a > b else (b, a)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))


@njit(cache=True, error_model="numpy")
def log_symmetric(z, table):
    """table[i, b] becomes the log of the sum over the b-subsets of z[:i]."""
    table[0, 0] = 0.0
    table[0, 1:] = -np.inf
    for i in range(z.shape[0]):
        table[i + 1, 0] = 0.0
        for b in range(1, table.shape[1]):
            table[i + 1, b] = log_add(table[i, b], table[i, b - 1] + z[i])


@njit(cache=True, error_model="numpy")
def marginals(z, k):
    """P(i in S) of one row of log-odds z, 0 < k < n."""
    n = z.shape[0]
    before, after = np.empty((n + 1, k + 1)), np.empty((n + 1, k + 1))
    log_symmetric(z, before)
    log_symmetric(z[::-1], after)
    p = np.empty(n)
    for i in range(n):
        left, right = before[i], after[n - 1 - i]
        total = -np.inf
        for a in range(k):
            total = log_add(total, left[a] + right[k - 1 - a])
        p[i] = math.exp(z[i] + total - before[n, k])
    return p
