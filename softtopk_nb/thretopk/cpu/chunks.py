"""ThreTopK of one row in chunks, as in `_api.engine.ChunkedEngine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.chunked import constant, ends, kind, unmoved
from ..._curves.base import is_steep, kernel_for, mean_of_distribution, origin
from ..._curves.user import UserCurve
from ..._nonfinite import ALL
from ..._threads.long_rows import scratch
from ..._threshold.cpu.long import solve_finite
from ..._threshold.methods import METHODS
from ..._threshold.records import REST, SOLUTION, C, D
from ..curve import check_one_mass, misses
from ..formulas import potential_of_nothing
from . import long
from . import rows as kernels

__all__ = [
    "constant",
    "ends",
    "jvp",
    "kind",
    "number",
    "number_of_constant",
    "number_of_few",
    "unmoved",
    "value",
    "vjp",
]


def value(x: Any, numbers: Any, options: Any, look: Any, out: Any) -> Any:
    """Write the value; returns the state."""
    (k, tau), solution = numbers, np.empty(SOLUTION)
    own = isinstance(options.curve, UserCurve)
    p, at = scratch(x) if own and not len(out) else out, (options.curve, options.method)
    yield from solve_finite(x, k, tau, *at, look, p, solution)
    if not own:
        return solution
    if misses(k, (yield from long.mass_of_finite(p))):
        # The mean or the moments of the user's curve have misled the steps.
        at = options.curve, METHODS["bisect"]
        yield from solve_finite(x, k, tau, *at, look, p, solution)
        check_one_mass(options.name, k, (yield from long.mass_of_finite(p)))
    return solution


def jvp(x: Any, options: Any, solved: Any, v: Any, moves: Any, out: Any) -> Any:
    """Write the derivative along v and `moves`."""
    at = solved.numbers[-1], options.curve, solved.state
    if is_steep(options.curve):
        v, _ = yield from long.beside_finite(x, *at, v)
    dk, dtau = moves
    yield from long.jvp_finite(x, *at, v, dk, dtau, out)


def vjp(x: Any, options: Any, solved: Any, g: Any, out: Any) -> Any:
    """Write the gradient in x; returns those in the numbers."""
    at, u = (solved.numbers[-1], options.curve, solved.state), 0.0
    if is_steep(options.curve):
        g, u = yield from long.beside_finite(x, *at, g)
    gk, gtau = yield from long.vjp_finite(x, *at, g, out)
    return gk + u, gtau


def number(name: str, x: Any, options: Any, solved: Any) -> Any:
    """The potential or the threshold of a row."""
    (k, tau), solution, shift = solved.numbers, solved.state, origin(options.curve)
    if name == "threshold":
        return solution[C] + tau * (solution[D] + solution[REST] - shift)
    phi = yield from long.potential_of_finite(x, k, tau, options.curve, solution)
    return phi - k * tau * shift


def number_of_few(name: str, options: Any, rows: Any, solved: Any) -> float:
    """The potential or the threshold of a row of few entries."""
    (k, tau), solution, shift = solved.numbers, solved.state, origin(options.curve)
    if name == "threshold":
        lam: float = solution[0, C] + tau * (solution[0, D] + solution[0, REST] - shift)
        return lam
    phi, kernel = np.empty(1), kernel_for(options.curve, kernels.potential)
    kernel(0, 1, *rows, options.curve, solution, phi)
    return float(phi[0] - k * tau * shift)


def number_of_constant(name: str, options: Any, solved: Any, total: float) -> float:
    """The potential or the threshold of a row that needs no solving."""
    k, tau = solved.numbers
    if name == "threshold":
        return -np.inf if solved.constant == ALL else np.inf
    if solved.constant != ALL or k == 0:
        return float(potential_of_nothing(options.curve, int(solved.seen.size)))
    far = mean_of_distribution(options.curve)
    return float(total - k * tau * (far + origin(options.curve)))
