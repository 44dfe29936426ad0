"""Passes over a matrix: its rows in blocks, each of which has sums over columns of its own.

The blocks do not depend on the number of threads, so neither do the bits of what is summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._api.base import Array
from .._compile.array_intrinsics import borrowed
from .._compile.decorators import kernel
from .._curves.base import kernel_for, split
from .._math.elementary import wide_vectors
from .._nonfinite import WITH_INFINITIES
from .._threads import pool
from .._threshold.newton import inverse_temperature
from .._threshold.records import CODE, C, D

BLOCK = 128  # rows of a block
ALONE = 1 << 18  # multiplications that BLAS does not share out
SEVERAL = 8  # such products at a time
FAINTEST = 1e-280  # sums of weights below count as 0: their inverses would overflow


@kernel
def _less(lo: int, hi: int, x: Any, b: Any, out: Any) -> None:
    """Write x - b of rows lo .. hi, rounded once."""
    T = x.dtype.type
    x, b, out = borrowed(x), borrowed(b), borrowed(out)
    for i in range(lo, hi):
        wide_vectors()
        for j in range(x.shape[1]):
            out[i, j] = T(x[i, j] - b[j])


@kernel
def _sum_columns(lo: int, hi: int, p: Any, sums: Any) -> None:
    """Write the sums over the rows of blocks lo .. hi."""
    p, sums = borrowed(p), borrowed(sums)
    for block in range(lo, hi):
        total = sums[block]
        total[:] = 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, p.shape[0])):
            wide_vectors()
            for j in range(p.shape[1]):
                total[j] += p[i, j]


@kernel
def _weigh(lo, hi, y, tau, curve, solution, v, r):
    """Write u/sqrt(r) of rows lo .. hi, u = f'(t)/tau and r its sum; 0 for a saturated row."""
    T = y.dtype.type
    y, solution, v, r = borrowed(y), borrowed(solution), borrowed(v), borrowed(r)
    inv, least = inverse_temperature(tau, y), T(-np.inf)
    for i in range(lo, hi):
        wide_vectors()
        c, d = T(solution[i, C]), T(solution[i, D])
        total = 0.0
        for j in range(y.shape[1]):
            present = y[i, j] > least
            t = (y[i, j] - c) * inv - d if present else T(0)
            _, _, _, w = split(curve, t)
            v[i, j] = T(w) if present else T(0)
        for j in range(y.shape[1]):
            total += v[i, j]
        solved = total > FAINTEST and solution[i, CODE] <= WITH_INFINITIES
        r[i] = total * inv if solved else 0.0
        scale = T(np.sqrt(inv / total)) if solved else T(0)
        for j in range(y.shape[1]):
            v[i, j] *= scale


@kernel
def _project(lo: int, hi: int, v: Any, r: Any, g: Any, moved: Any, mean: Any, sums: Any) -> None:
    """Write the weighted mean of g in the rows of blocks lo .. hi; sum u (g - mean) over columns.

    The mean is less moved/r: what the row's sum shall move by. g is not looked at where u is 0.
    """
    zero = v.dtype.type(0)
    v, r, g, moved, mean, sums = (
        borrowed(v),
        borrowed(r),
        borrowed(g),
        borrowed(moved),
        borrowed(mean),
        borrowed(sums),
    )
    for block in range(lo, hi):
        total = sums[block]
        total[:] = 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, v.shape[0])):
            mean[i] = 0.0
            if r[i] == 0.0:
                continue
            wide_vectors()
            root, along = np.sqrt(r[i]), 0.0
            for j in range(v.shape[1]):
                along += np.float64(v[i, j]) * (g[i, j] if v[i, j] > zero else zero)
            middle = along / root - moved[i] / r[i]
            mean[i] = middle
            for j in range(v.shape[1]):
                total[j] += root * v[i, j] * ((g[i, j] if v[i, j] > zero else zero) - middle)


@kernel
def _spread(
    lo: int, hi: int, v: Any, r: Any, g: Any, mean: Any, other: Any, out: Any, shares: Any
) -> None:
    """Write u (g - mean - other + the row's mean of other), and the difference of the means."""
    T, zero = v.dtype.type, v.dtype.type(0)
    v, r, g, mean, other, out, shares = (
        borrowed(v),
        borrowed(r),
        borrowed(g),
        borrowed(mean),
        borrowed(other),
        borrowed(out),
        borrowed(shares),
    )
    for i in range(lo, hi):
        wide_vectors()
        root, along = np.sqrt(r[i]), 0.0
        for j in range(v.shape[1]):
            along += v[i, j] * other[j]
        share = mean[i] - (along / root if root > 0.0 else 0.0)
        shares[i] = share
        for j in range(v.shape[1]):
            move = (g[i, j] if v[i, j] > zero else zero) - share - other[j]
            out[i, j] = T(root * v[i, j] * move)


@kernel
def _stretch(lo: int, hi: int, y: Any, tau: float, solution: Any, dtau: float, dx: Any) -> None:
    """Subtract t dtau from dx, t = (y - a)/tau; 0 for entries that are excluded."""
    T = y.dtype.type
    y, solution, dx = borrowed(y), borrowed(solution), borrowed(dx)
    inv, least = inverse_temperature(tau, y), T(-np.inf)
    for i in range(lo, hi):
        wide_vectors()
        c, d = T(solution[i, C]), T(solution[i, D])
        for j in range(y.shape[1]):
            t = (y[i, j] - c) * inv - d if y[i, j] > least else T(0)
            dx[i, j] -= T(dtau * t)


@kernel
def _along_t(lo: int, hi: int, y: Any, tau: float, solution: Any, g: Any, sums: Any) -> None:
    """Write the sum of g t over each row; g is 0 where t may be infinite."""
    T = y.dtype.type
    y, solution, g, sums = borrowed(y), borrowed(solution), borrowed(g), borrowed(sums)
    inv = inverse_temperature(tau, y)
    for i in range(lo, hi):
        wide_vectors()
        c, d, total = T(solution[i, C]), T(solution[i, D]), 0.0
        for j in range(y.shape[1]):
            t = (y[i, j] - c) * inv - d
            total += g[i, j] * t if g[i, j] != T(0) else T(0)
        sums[i] = total


def less(x: Array, b: Array, out: Array) -> None:
    """Write x - b, b a number for each column, to `out`."""
    pool.over(len(x), x.size // 2, _less, x, b, out)


def _blocks(table: Array) -> Array:
    return np.empty((-(-len(table) // BLOCK), table.shape[1]))


def column_sums(p: Array) -> Array:
    """The sums over rows, in float64."""
    sums = _blocks(p)
    pool.over(len(sums), p.size // 2, _sum_columns, p, sums)
    total: Array = sums.sum(axis=0)
    return total


def weigh(y: Array, tau: float, curve: Any, solution: Array, v: Array) -> Array:
    """Write u/sqrt(r) to `v`, u = f'(t)/tau; returns r, the sums of u over rows."""
    r = np.empty(len(y))
    pool.over(len(y), y.size, kernel_for(curve, _weigh), y, tau, curve, solution, v, r)
    return r


def products(v: Array) -> Array:
    """v^T v, in float64 from sums over blocks of rows in the type of v.

    A block is so small that BLAS works on it alone: threads of its own would wait for each other
    wherever the cores are busy, and bits would depend on how many there are.
    """
    m, n = v.shape
    height = max(ALONE // (n * n), 1)
    total = np.zeros((n, n))
    if height < 4 * SEVERAL:  # then its threads are worth their while
        total += v.T @ v
        return total
    for first in range(0, m, SEVERAL * height):
        some = v[first : first + SEVERAL * height]
        whole = len(some) // height * height
        blocks = some[:whole].reshape(-1, height, n)
        total += np.matmul(blocks.transpose(0, 2, 1), blocks).sum(axis=0, dtype=np.float64)
        rest = some[whole:]
        total += rest.T @ rest
    return total


def project(v: Array, r: Array, g: Array, moved: Array) -> tuple[Array, Array]:
    """(the weighted mean of each row of g, less moved/r; the sums of u (g - mean) over rows)."""
    mean, sums = np.empty(len(v)), _blocks(v)
    pool.over(len(sums), v.size, _project, v, r, g, moved, mean, sums)
    return mean, sums.sum(axis=0)


def spread(v: Array, r: Array, g: Array, mean: Array, other: Array, out: Array) -> Array:
    """Write u (g - a - other) to `out`; returns a, the mean less that of `other` in each row."""
    shares = np.empty(len(v))
    pool.over(len(v), v.size, _spread, v, r, g, mean, other, out, shares)
    return shares


def stretch(y: Array, tau: float, solution: Array, dtau: float, dx: Array) -> None:
    """Subtract t dtau from dx, t = (y - a)/tau."""
    pool.over(len(y), y.size, _stretch, y, tau, solution, dtau, dx)


def along_t(y: Array, tau: float, solution: Array, g: Array) -> float:
    """The sum of g t over the matrix."""
    sums = np.empty(len(y))
    pool.over(len(y), y.size, _along_t, y, tau, solution, g, sums)
    return float(sums.sum())
