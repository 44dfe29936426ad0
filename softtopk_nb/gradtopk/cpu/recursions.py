"""Two other algorithms for GradTopK: sums over prefixes and suffixes, and Su's (2024) recursion."""

from __future__ import annotations

import math

import numpy as np

from ..._compile.decorators import scalar


@scalar
def extend(counts, t, out):
    """Add a Bernoulli variable of odds e^t to the count: write P(count = a)."""
    e = math.exp(-abs(t))
    minor, major = e / (1.0 + e), 1.0 / (1.0 + e)
    chance, rest = (major, minor) if t >= 0.0 else (minor, major)
    out[0] = rest * counts[0]
    for a in range(1, counts.shape[0]):
        out[a] = rest * counts[a] + chance * counts[a - 1]


@scalar
def dp(x, k, c, inv, d, out):
    """Write p in O(n k) time and O(k sqrt(n)) memory, in float64, from sums of positive terms.

    p_i = pi_i P(the others' count is k - 1)/P(N = k), with the others split at i. Prefixes are
    stored every sqrt(n) entries, and those between are recomputed on the way back.
    """
    T = out.dtype.type
    n = x.shape[0]
    every = int(math.sqrt(n)) + 1
    blocks = (n + every - 1) // every
    kept = np.zeros((blocks, k + 1))
    local = np.zeros((every + 1, k + 1))
    suffix, longer = np.zeros(k + 1), np.zeros(k + 1)
    t = np.empty(n)
    for i in range(n):
        t[i] = (np.float64(x[i]) - c) * inv - d
    kept[0, 0] = 1.0
    for b in range(blocks - 1):
        local[0] = kept[b]
        for i in range(b * every, (b + 1) * every):
            j = i - b * every
            extend(local[j], t[i], local[j + 1])
        kept[b + 1] = local[every]
    suffix[0] = 1.0
    total = 0.0
    for b in range(blocks - 1, -1, -1):
        first, last = b * every, min(n, (b + 1) * every)
        local[0] = kept[b]
        for i in range(first, last):
            extend(local[i - first], t[i], local[i - first + 1])
        if b == blocks - 1:
            total = local[last - first, k]
        for i in range(last - 1, first - 1, -1):
            before = local[i - first]
            upper = t[i] >= 0.0
            rest = k if upper else k - 1  # count of the others; above 1/2 for 1 - p
            ways = 0.0
            for a in range(rest + 1):
                ways += before[a] * suffix[rest - a]
            e = math.exp(-abs(t[i]))
            tail = min(1.0, e / (1.0 + e) * ways / total)
            out[i] = T(1.0 - tail) if upper else T(tail)
            extend(suffix, t[i], longer)
            suffix, longer = longer, suffix


@scalar
def recursion(x, k, tau, out):
    """Write p by the recursion of Su (2024): logs of differences of nearly equal numbers.

    It is kept for teaching (Proposition prop-grad-recursion): where it fails it gives NaN, or wrong
    finite numbers.
    """
    T = out.dtype.type
    n = x.shape[0]
    top = x.max()
    z, share = np.empty(n), np.empty(n)
    for i in range(n):
        z[i] = (np.float64(x[i]) - top) / tau
        share[i] = z[i]
    log_z = 0.0
    for step in range(1, k + 1):
        if step > 1:
            for i in range(n):
                share[i] = z[i] + log_z + math.log(1.0 - math.exp(share[i] - log_z))
        most = share.max()
        total = 0.0
        for i in range(n):
            total += math.exp(share[i] - most)
        log_z = most + math.log(total) - math.log(step)
    for i in range(n):
        out[i] = T(math.exp(share[i] - log_z))
