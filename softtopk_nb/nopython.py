"""Row functions for use inside one's own ``@njit`` code.

Each works on one row: 1-D arrays of float32 or float64 and numbers, results written to arrays
that the caller gives, no Python objects and no threads. They follow the same rules for
non-finite entries as the operators. They cannot raise: a k outside [0, n] or a temperature that
is not positive and finite makes the row NaN.

A curve is a value: `laplace`, `sigmoid`, `exp`, `clip`, `normal`, ``entmax(alpha)``, or the
``compiled`` attribute of a `softtopk_nb.Curve`.

Examples
--------
>>> import numpy as np
>>> from numba import njit, prange
>>> from softtopk_nb import nopython as stkn
>>> @njit(parallel=True)
... def masses(x, k, out):
...     total = 0.0
...     for i in prange(x.shape[0]):
...         stkn.thretopk(x[i], k, 0.5, stkn.laplace, out[i])
...         total += out[i].sum()
...     return total
>>> x = np.random.default_rng(0).normal(size=(100, 30))
>>> round(masses(x, 3, np.empty_like(x)), 9)
300.0
"""

from __future__ import annotations

import numpy as np

from ._compile import kernel, scalar
from .hardtopk.rows import hard_row
from .thretopk.curves import CURVES
from .thretopk.curves import Entmax as entmax
from .thretopk.rows import METHODS, SOLUTION, pull_row, push_row, solve_row
from .thretopk.solver import REST, STATE, C, D

__all__ = [
    "clip",
    "entmax",
    "exp",
    "hardtopk",
    "laplace",
    "normal",
    "sigmoid",
    "thretopk",
    "thretopk_jvp",
    "thretopk_vjp",
]

exp = CURVES["exp"]
sigmoid = CURVES["sigmoid"]
laplace = CURVES["laplace"]
clip = CURVES["clip"]
normal = CURVES["normal"]

_NEWTON = METHODS["newton"]


@scalar
def _invalid(x, k, temperature):
    return not (k >= 0 and k <= x.shape[0] and temperature > 0.0 and temperature < np.inf)


@kernel
def hardtopk(x, k, out):
    """Write the indicator of the k largest entries of x to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
    k : int
    out : 1-D array like x
    """
    if not (k >= 0 and k <= x.shape[0]):
        out[:] = np.nan
    else:
        hard_row(x, k, out)


@kernel
def thretopk(x, k, temperature, curve, out):
    """Write p = f((x - lambda)/temperature), sum p = k, to `out`; return lambda.

    Parameters
    ----------
    x : 1-D array of float32 or float64
    k : float
    temperature : float
    curve : curve value
    out : 1-D array like x

    Returns
    -------
    lam : float
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        return np.nan
    state, solution = np.empty(STATE), np.empty(SOLUTION)
    tau = np.float64(temperature)
    solve_row(x, np.float64(k), tau, curve, _NEWTON, out, solution, state)
    return solution[C] + tau * (solution[D] + solution[REST])


@kernel
def thretopk_jvp(x, k, temperature, curve, dx, dk, dtemperature, out, dout):
    """Write p to `out` and its derivative along (dx, dk, dtemperature) to `dout`.

    Parameters
    ----------
    x, dx : 1-D arrays of float32 or float64
    k, temperature, dk, dtemperature : float
    curve : curve value
    out, dout : 1-D arrays like x
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        dout[:] = np.nan
        return
    state, solution = np.empty(STATE), np.empty(SOLUTION)
    tau = np.float64(temperature)
    solve_row(x, np.float64(k), tau, curve, _NEWTON, out, solution, state)
    push_row(x, tau, curve, solution, dx, np.float64(dk), np.float64(dtemperature), dout)


@kernel
def thretopk_vjp(x, k, temperature, curve, g, out, gx):
    """Write p to `out` and the gradient in x of <g, p> to `gx`; return the other gradients.

    Parameters
    ----------
    x, g : 1-D arrays of float32 or float64
    k, temperature : float
    curve : curve value
    out, gx : 1-D arrays like x

    Returns
    -------
    gk, gtemperature : float
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        gx[:] = np.nan
        return np.nan, np.nan
    state, solution = np.empty(STATE), np.empty(SOLUTION)
    tau = np.float64(temperature)
    solve_row(x, np.float64(k), tau, curve, _NEWTON, out, solution, state)
    return pull_row(x, tau, curve, solution, g, gx)
