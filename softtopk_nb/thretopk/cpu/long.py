"""ThreTopK on one long row, whose parts are shared among the threads (`_threads.long_rows`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.decorators import kernel
from ..._curves.base import kernel_for
from ..._nonfinite import FINITE
from ..._threads.long_rows import (
    LONG,
    PART,
    Pass,
    Passes,
    derivative_of_row,
    here,
    nothing,
    part_count,
    scratch,
)
from ..._threshold.newton import inverse_temperature
from ..._threshold.records import CODE, REST, C, D
from ..formulas import centre
from . import rows
from .rows import moments, smoothed_sum, spread

Array = Any


@kernel
def moments_parts(lo, hi, x, v, tau, solution, curve, out, sums):
    """Write the weights of each part, and the sums of weights along v (`rows.moments`)."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        w0, wv, wt, wvt = moments(x[part], v[part], c, inv, d, curve, out[part])
        sums[j, 0], sums[j, 1], sums[j, 2], sums[j, 3] = w0, wv, wt, wvt


@kernel
def smoothed_parts(lo, hi, x, tau, solution, curve, sums):
    """Write the sums of each part for the potential."""
    c, d = solution[C], solution[D] + solution[REST]
    for j in range(lo, hi):
        part = x[j * PART : (j + 1) * PART]
        sums[j, 0], sums[j, 1] = smoothed_sum(part, tau, curve, c, d)


@kernel
def spread_parts(lo, hi, x, v, tau, solution, mean, dtau, out):
    """Write the derivative of each part along v."""
    T = x.dtype.type
    inv, c, d = inverse_temperature(tau, x), T(solution[C]), T(solution[D])
    for j in range(lo, hi):
        part = slice(j * PART, (j + 1) * PART)
        spread(x[part], v[part], c, inv, d, mean, dtau, out[part])


@kernel
def mass_parts(lo, hi, p, sums):
    """Write the sum of each part."""
    for j in range(lo, hi):
        sums[j] = p[j * PART : (j + 1) * PART].sum()


@kernel
def edge_parts(lo, hi, x, v, tau, solution, alpha, edges):
    """Write, for each part, t and v of the entry with the largest weight (`at_edge`)."""
    for j in range(lo, hi):
        edges[j, 0], edges[j, 1] = np.inf, 0.0
        for i in range(j * PART, min((j + 1) * PART, x.shape[0])):
            t = (x[i] - solution[C]) / tau - solution[D]
            if 0.0 < t < edges[j, 0] and (alpha - 1.0) * t < 1.0:
                edges[j, 0], edges[j, 1] = t, v[i]


@kernel
def subtract_parts(lo, hi, v, u, out):
    """Write v - u of each part."""
    for i in range(lo * PART, min(hi * PART, v.shape[0])):
        out[i] = v[i] - u


def mass_of_finite(p: Array) -> Passes[float]:
    """The sum of p."""
    sums = np.empty(part_count(p))
    yield Pass(mass_parts, p.size, (p, sums), (sums,))
    return float(sums.sum())


def beside_finite(
    x: Array, tau: float, curve: Any, solution: Array, v: Array
) -> Passes[tuple[Array, float]]:
    """(v - u, u) for one row, as `at_edge.beside`."""
    edges, out = np.empty((part_count(x), 2)), scratch(x)
    yield Pass(edge_parts, x.size, (x, v, tau, solution, curve.alpha, edges), (edges,))
    u = float(edges[edges[:, 0].argmin(), 1])
    u = u if abs(u) < np.inf else 0.0
    yield Pass(subtract_parts, x.size, (v, u, out), written=(out,))
    return out, u


def _moments(
    x: Array, v: Array, tau: float, curve: Any, solution: Array, out: Array
) -> Passes[Any]:
    sums = np.empty((part_count(x), 4))
    problem = x, v, tau, solution, curve, out, sums
    yield Pass(kernel_for(curve, moments_parts), x.size // 2, problem, (sums,), (), (out,))
    return sums.sum(axis=0)


def _spread(
    x: Array, v: Array, tau: float, solution: Array, mean: float, dtau: float, out: Array
) -> Pass:
    problem = x, v, tau, solution, mean, dtau, out
    return Pass(spread_parts, x.size // 4, problem, changed=(out,))


def potential_of_finite(
    x: Array, k: float, tau: float, curve: Any, solution: Array
) -> Passes[float]:
    """The potential of a finite row, 0 < k < n."""
    sums = np.empty((part_count(x), 2))
    problem = x, tau, solution, curve, sums
    yield Pass(kernel_for(curve, smoothed_parts), 16 * x.size, problem, (sums,))
    smoothed, upper = sums.sum(axis=0)
    threshold = solution[C] + tau * (solution[D] + solution[REST])
    return float(smoothed + (k - upper) * threshold)


def jvp_finite(
    x: Array, tau: float, curve: Any, solution: Array, v: Array, dk: float, dtau: float, out: Array
) -> Passes[None]:
    """Write the derivative of a finite row, 0 < k < n, along (v, dk, dtau)."""
    w0, wv, wt, _ = yield from _moments(x, v, tau, curve, solution, out)
    inv = float(inverse_temperature(tau, nothing(x)))
    mean = centre(w0, wv - dtau * wt - dk / inv)
    yield _spread(x, v, tau, solution, mean, dtau, out)


def vjp_finite(
    x: Array, tau: float, curve: Any, solution: Array, g: Array, out: Array
) -> Passes[tuple[float, float]]:
    """Write the gradient in x of a finite row, 0 < k < n; returns (gk, gtau)."""
    w0, wg, wt, wgt = yield from _moments(x, g, tau, curve, solution, out)
    mean = centre(w0, wg)
    yield _spread(x, g, tau, solution, mean, 0.0, out)
    return mean, -(wgt - mean * wt) / tau


def potential(x: Array, k: float, tau: float, curve: Any, solution: Array) -> float:
    """The potential of one row, as `rows.potential`."""
    if solution[CODE] != FINITE:
        phi = np.empty(1)
        one = x[None], np.array([k]), np.array([tau])
        kernel_for(curve, rows.potential)(0, 1, *one, curve, solution[None], phi)
        return float(phi[0])
    return here(potential_of_finite(x, k, tau, curve, solution))


def jvp(
    x: Array, tau: float, curve: Any, solution: Array, v: Array, dk: float, dtau: float, out: Array
) -> None:
    """Write the derivative of one row, as `rows.jvp`."""
    solved = _as_finite(solution)

    def along(x: Array, v: Array, out: Array) -> None:
        if len(x) >= LONG:
            here(jvp_finite(x, tau, curve, solved, v, dk, dtau, out))
            return
        # The finite entries of a long row.
        one = x[None], np.array([tau]), curve, solved[None], v[None]
        moves = np.array([dk]), np.array([dtau])
        kernel_for(curve, rows.jvp)(0, 1, *one, out[None], *moves, np.zeros(1, np.bool_))

    derivative_of_row(solution[CODE], x, v, out, np.empty(0), along)


def vjp(x: Array, tau: float, curve: Any, solution: Array, g: Array, out: Array) -> Array:
    """The VJP of one row, as `rows.vjp`: the gradient in x to `out`; returns (gk, gtau)."""
    solved, numbers = _as_finite(solution), np.empty(2)

    def along(x: Array, g: Array, out: Array) -> None:
        if len(x) >= LONG:
            numbers[...] = here(vjp_finite(x, tau, curve, solved, g, out))
            return
        # The finite entries of a long row.
        one = x[None], np.array([tau]), curve, solved[None], g[None], out[None]
        kernel = kernel_for(curve, rows.vjp)
        kernel(0, 1, *one, numbers[:1], numbers[1:], np.zeros(1, np.bool_))

    derivative_of_row(solution[CODE], x, g, out, numbers, along)
    return numbers


def _as_finite(solution: Array) -> Array:
    """The solution for the finite entries of a row: the threshold is the same."""
    finite = solution.copy()
    finite[CODE] = FINITE
    return finite
