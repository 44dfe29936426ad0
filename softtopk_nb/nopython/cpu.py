"""Row functions that run on the CPU."""

from __future__ import annotations

import numpy as np

from .._compile.decorators import kernel, scalar
from .._curves.base import origin
from .._curves.entmax import Entmax
from .._curves.registry import CURVES
from .._threshold.cpu.rows import solve
from .._threshold.methods import METHODS, Newton
from .._threshold.records import OPEN, REST, SOLUTION, C, D
from ..gradtopk.cpu import rows as _subsets
from ..gradtopk.records import FLAGS, NONE_SHORT
from ..gradtopk.records import SOLUTION as SUBSET
from ..hardtopk.cpu.rows import hard_row
from ..iterative.cpu import rows as _iterations
from ..iterative.formulas import Plain, Weighted
from ..thretopk.cpu.rows import pull, pull_mixed, push, push_mixed

_SIGMOID = CURVES["sigmoid"]
_NEWTON = METHODS["newton"]
_PLAIN = Plain()
_WEIGHTED = Weighted()


@scalar
def entmax(alpha):
    """The curve of alpha-entmax, 1 < alpha <= 100; with alpha > 2 for rows of float64."""
    return Entmax(alpha)


@scalar
def _invalid(x, k, temperature):
    return not (k >= 0 and k <= x.shape[0] and temperature > 0.0 and temperature < np.inf)


@scalar
def _solve(x, k, temperature, curve, out):
    """A batch of this one row, solved: (x, tau, solution)."""
    batch, tau = np.expand_dims(x, 0), np.full(1, np.float64(temperature))
    solution = np.full((1, SOLUTION), OPEN)
    shares = np.full(1, np.float64(k))
    solve(0, 1, batch, shares, tau, curve, _NEWTON, np.expand_dims(out, 0), solution)
    return batch, tau, solution


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
    _, tau, solution = _solve(x, k, temperature, curve, out)
    return solution[0, C] + tau[0] * (solution[0, D] + solution[0, REST] - origin(curve))


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
    batch, tau, solution = _solve(x, k, temperature, curve, out)
    dks, dtaus = np.full(1, np.float64(dk)), np.full(1, np.float64(dtemperature))
    direction, target = np.expand_dims(dx, 0), np.expand_dims(dout, 0)
    mixed = np.zeros(1, np.bool_)
    push(0, 1, batch, tau, curve, solution, direction, target, dks, dtaus, mixed)
    if mixed[0]:
        push_mixed(0, 1, batch, tau, curve, solution, direction, target, dks, dtaus, mixed)


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
    batch, tau, solution = _solve(x, k, temperature, curve, out)
    gk, gtau = np.empty(1), np.empty(1)
    cotangent, target = np.expand_dims(g, 0), np.expand_dims(gx, 0)
    mixed = np.zeros(1, np.bool_)
    pull(0, 1, batch, tau, curve, solution, cotangent, target, gk, gtau, mixed)
    if mixed[0]:
        pull_mixed(0, 1, batch, tau, curve, solution, cotangent, target, gk, gtau, mixed)
    return gk[0], gtau[0]


@scalar
def _linearize(x, k, temperature, out):
    """A batch of this one row, with GradTopK written to `out`: (x, tau, solution)."""
    batch, tau = np.expand_dims(x, 0), np.full(1, np.float64(temperature))
    shares, sizes = np.full(1, k - 0.5), np.full(1, np.int64(k))
    tilt, nothing = np.full((1, SOLUTION), OPEN), np.empty((1, 0), x.dtype)
    newton = Newton(_subsets.step_of_tilt(x.shape[0]), True, True, 0.0)
    solve(0, 1, batch, shares, tau, _SIGMOID, newton, nothing, tilt)
    solution = np.empty((1, SUBSET))
    target, flags = np.expand_dims(out, 0), np.zeros(FLAGS, np.bool_)
    _subsets.solve(0, 1, batch, sizes, tau, tilt, NONE_SHORT, target, solution, flags)
    return batch, tau, solution


@kernel
def gradtopk(x, k, temperature, out):
    """Write the marginals of the k-subset distribution to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
    k : int
    temperature : float
    out : 1-D array like x
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
    else:
        _linearize(x, k, temperature, out)


@kernel
def gradtopk_jvp(x, k, temperature, dx, dtemperature, out, dout):
    """Write p to `out` and its derivative along (dx, dtemperature) to `dout`.

    Parameters
    ----------
    x, dx : 1-D arrays of float32 or float64
    k : int
    temperature, dtemperature : float
    out, dout : 1-D arrays like x
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        dout[:] = np.nan
        return
    batch, tau, solution = _linearize(x, k, temperature, out)
    moves, target = np.full(1, np.float64(dtemperature)), np.expand_dims(dout, 0)
    _subsets.push(
        0, 1, batch, tau, solution, np.expand_dims(dx, 0), moves, target, np.empty((1, 0))
    )


@kernel
def gradtopk_vjp(x, k, temperature, g, out, gx):
    """Write p to `out` and the gradient in x of <g, p> to `gx`; return that in the temperature.

    Parameters
    ----------
    x, g : 1-D arrays of float32 or float64
    k : int
    temperature : float
    out, gx : 1-D arrays like x

    Returns
    -------
    gtemperature : float
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        gx[:] = np.nan
        return np.nan
    batch, tau, solution = _linearize(x, k, temperature, out)
    target, gtau = np.expand_dims(gx, 0), np.empty((1, 1))
    _subsets.push(0, 1, batch, tau, solution, np.expand_dims(g, 0), np.zeros(1), target, gtau)
    return gtau[0, 0]


@scalar
def _iterate(x, k, temperature, kind, out):
    if _invalid(x, k, temperature):
        out[:] = np.nan
        return
    batch, target = np.expand_dims(x, 0), np.expand_dims(out, 0)
    sizes, tau = np.full(1, np.int64(k)), np.full(1, np.float64(temperature))
    _iterations.solve(0, 1, batch, sizes, tau, kind, target)


@kernel
def itertopk(x, k, temperature, out):
    """Write k steps of p += softmax((1 - p) (x - min x)/temperature) to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
    k : int
    temperature : float
    out : 1-D array like x
    """
    _iterate(x, k, temperature, _PLAIN, out)


@kernel
def wsoftmaxtopk(x, k, temperature, out):
    """Write k steps of the weighted softmax of x/temperature, weights 1 - p, to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
    k : int
    temperature : float
    out : 1-D array like x
    """
    _iterate(x, k, temperature, _WEIGHTED, out)
