"""ThreTopK with costs on the CPU: its engine, as in `_api.engine`.

`rows.cost` are checked costs (`_api.prices.Costs`). A state is a record of `priced_rows` for each
row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.operator import Array
from ..._curves.base import kernel_for
from ..._curves.user import UserCurve
from ..._nonfinite import UNDEFINED
from ..._threads import pool
from ..._threshold.records import REST, C, D
from ..curve import check_integral, check_one_mass
from . import priced_derivatives, priced_rows

PASSES = 8  # over a row in a search, roughly


def _over(rows: Any, options: Any, work: int, kernel: Any, *given: Any) -> None:
    """Call a kernel on all rows; `work`: its passes."""
    pool.over(len(rows.x), work * rows.x.size, kernel_for(options.curve, kernel), *given)


def _solve(rows: Any, options: Any, out: Array) -> Array:
    """Write p, unless `out` has no columns; returns the solutions."""
    x, curve = rows.x, options.curve
    user = isinstance(curve, UserCurve)
    p = np.empty_like(x) if user and out.shape != x.shape else out
    solution = np.empty((len(x), priced_rows.SOLUTION))
    given = x, rows.k, rows.temperature, *rows.cost, curve, options.method, p, solution
    _over(rows, options, PASSES, priced_rows.solve, *given)
    if user:
        _check_mass(rows, options, p, solution)
    return solution


def _check_mass(rows: Any, options: Any, p: Array, solution: Array) -> None:
    """Raise ValueError if the search has failed for any row: the user's curve has a jump."""
    spent = np.where(p > 0.0, rows.cost.table, 0.0)
    spent *= p
    for i in np.flatnonzero(solution[:, priced_rows.CODE] != UNDEFINED):
        check_one_mass(options.name, rows.k[i], spent[i].sum(), f"row {i}")


def value(rows: Any, options: Any, out: Array) -> None:
    """Write p."""
    _solve(rows, options, out)


def linearize(rows: Any, options: Any, out: Array) -> Array:
    """Write p; returns the solutions, which the derivatives need."""
    return _solve(rows, options, out)


def jvp(
    rows: Any,
    options: Any,
    state: Array,
    dx: Array,
    dk: Array,
    dtau: Array,
    dcost: Array,
    out: Array,
) -> None:
    """Write dp along (dx, dk, dtau, dcost)."""
    table, _, unit = rows.cost
    given = rows.x, rows.temperature, table, unit, options.curve, state, dx, dcost, out, dk, dtau
    _over(rows, options, 4, priced_derivatives.jvp, *given)


def vjp(
    rows: Any,
    options: Any,
    state: Array,
    g: Array,
    gx: Array,
    gk: Array,
    gtau: Array,
    gcost: Array,
) -> None:
    """Write the gradients of <g, p>."""
    table, _, unit = rows.cost
    given = rows.x, rows.temperature, table, unit, options.curve, state, g, gx, gk, gtau, gcost
    _over(rows, options, 4, priced_derivatives.vjp, *given)


def potential(rows: Any, options: Any, out: Array) -> None:
    """Write phi, the potential of each row."""
    check_integral(options.curve, options.name)
    solution = _solve(rows, options, np.empty((len(rows.x), 0), rows.x.dtype))
    given = rows.x, rows.k, rows.temperature, *rows.cost, options.curve, solution, out
    _over(rows, options, 16, priced_derivatives.potential, *given)


def threshold(rows: Any, options: Any, out: Array) -> None:
    """Write lambda, the marginal value of a unit of k, of each row."""
    solution = _solve(rows, options, np.empty((len(rows.x), 0), rows.x.dtype))
    with np.errstate(over="ignore"):
        d = solution[:, D] + solution[:, REST]
        out[...] = (solution[:, C] + rows.temperature * d) * rows.cost.unit


def state_width(n: int, options: Any) -> int:
    """Number of float64 per row in the state."""
    return priced_rows.SOLUTION


def pack(rows: Any, options: Any, state: Array) -> Array:
    """The state as an array, which it already is."""
    return state


def unpack(rows: Any, options: Any, packed: Array) -> Array:
    """The state from its array, which it already is."""
    return packed
