"""Row functions that run on the CPU."""

from __future__ import annotations

import numpy as np

from .._compile.decorators import kernel, scalar
from .._compile.permute import unpack
from .._curves.base import origin
from .._curves.entmax import Entmax
from .._curves.registry import CURVES
from .._threshold.cpu.rows import solve
from .._threshold.methods import METHODS, Newton
from .._threshold.records import REST, SOLUTION, UNSOLVED, C, D
from ..gradtopk.cpu import rows as _subsets
from ..gradtopk.cpu import with_core as _with_core
from ..gradtopk.records import FLAGS, NONE_SHORT, SOME_WITH_CORE
from ..gradtopk.records import SOLUTION as SUBSET
from ..hardtopk.cpu.rows import hard_row
from ..iterative.cpu import rows as _iterations
from ..iterative.formulas import Plain, Weighted
from ..thretopk.cpu.rows import jvp, pack_rows, scratch_for_packed, vjp

_SIGMOID = CURVES["sigmoid"]
_NEWTON = METHODS["newton"]
_PLAIN = Plain()
_WEIGHTED = Weighted()


@scalar
def entmax(alpha):
    """The curve of alpha-entmax.

    Parameters
    ----------
    alpha : float
        1 < alpha <= 100; above 2 for rows of float64 only.

    Returns
    -------
    curve : curve value
        For `thretopk` and its derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> out = np.empty(4)
    >>> lam = stkn.thretopk(np.array([3.0, 2.0, 1.0, 4.0]), 2.0, 0.5, stkn.entmax(1.5), out)
    >>> out.round(3)
    array([1., 0., 0., 1.])
    """
    return Entmax(alpha)


@scalar
def _invalid(x, k, temperature):
    return not (k >= 0 and k <= x.shape[0] and temperature > 0.0 and temperature < np.inf)


@scalar
def _solve(x, k, temperature, curve, out):
    """Solve a batch of this one row; returns (x, tau, solution)."""
    batch, tau = np.expand_dims(x, 0), np.full(1, np.float64(temperature))
    solution = np.full((1, SOLUTION), UNSOLVED)
    shares = np.full(1, np.float64(k))
    solve(0, 1, batch, shares, tau, curve, _NEWTON, np.expand_dims(out, 0), solution)
    return batch, tau, solution


@kernel
def hardtopk(x, k, out):
    """Write the indicator of the k largest entries of x to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
        The row of scores.
    k : int
        How many, 0 <= k <= n.
    out : 1-D array like x
        Where the result goes.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> stkn.hardtopk(x, 2, out)
    >>> out
    array([1., 0., 0., 1.])
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
        The row of scores.
    k : float
        The sum of p, 0 <= k <= n.
    temperature : float
        Positive and finite, in the units of x.
    curve : curve value
        A curve of this module, as `laplace`, or that of a `Curve`.
    out : 1-D array like x
        Where the result goes.

    Returns
    -------
    lam : float
        The threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> stkn.thretopk(x, 2.0, 0.5, stkn.laplace, out)
    2.5
    >>> out.round(3)
    array([0.816, 0.184, 0.025, 0.975])
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
        The row of scores, and the direction in it.
    k, temperature, dk, dtemperature : float
        The sum of p, the temperature, and the directions in them.
    curve : curve value
        A curve of this module, as `laplace`, or that of a `Curve`.
    out, dout : 1-D arrays like x
        Where p and its derivative go.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> dx, dout = np.array([0.0, 1.0, 0.0, 0.0]), np.empty(4)
    >>> stkn.thretopk_jvp(x, 2.0, 0.5, stkn.laplace, dx, 0.0, 0.0, out, dout)
    >>> dout.round(3)
    array([-0.162,  0.206, -0.022, -0.022])
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        dout[:] = np.nan
        return
    batch, tau, solution = _solve(x, k, temperature, curve, out)
    dks, dtaus = np.full(1, np.float64(dk)), np.full(1, np.float64(dtemperature))
    direction, target = np.expand_dims(dx, 0), np.expand_dims(dout, 0)
    with_infinities = np.zeros(1, np.bool_)
    jvp(0, 1, batch, tau, curve, solution, direction, target, dks, dtaus, with_infinities)
    if with_infinities[0]:
        scratch = scratch_for_packed(batch, solution)
        xs, vs, dp, answers, numbers, _ = scratch
        pack_rows(0, 1, batch, tau, solution, direction, dks, dtaus, scratch)
        given = curve, answers, vs, dp, numbers[1], numbers[2], with_infinities
        jvp(0, 1, xs, numbers[0], *given)
        unpack(x, dp[0], x.dtype.type(0), dout)


@kernel
def thretopk_vjp(x, k, temperature, curve, g, out, gx):
    """Write p to `out` and the gradient in x of <g, p> to `gx`; return the other gradients.

    Parameters
    ----------
    x, g : 1-D arrays of float32 or float64
        The row of scores, and the cotangent of p.
    k, temperature : float
        The sum of p, and the temperature.
    curve : curve value
        A curve of this module, as `laplace`, or that of a `Curve`.
    out, gx : 1-D arrays like x
        Where p and the gradient in x go.

    Returns
    -------
    gk, gtemperature : float
        The gradients in k and in the temperature.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> g, gx = np.array([1.0, 0.0, 0.0, 0.0]), np.empty(4)
    >>> gk, gtemperature = stkn.thretopk_vjp(x, 2.0, 0.5, stkn.laplace, g, out, gx)
    >>> gx.round(3), round(gk, 3), round(gtemperature, 3)
    (array([ 0.206, -0.162, -0.022, -0.022]), 0.44, -0.368)
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        gx[:] = np.nan
        return np.nan, np.nan
    batch, tau, solution = _solve(x, k, temperature, curve, out)
    gk, gtau = np.empty(1), np.empty(1)
    cotangent, target = np.expand_dims(g, 0), np.expand_dims(gx, 0)
    with_infinities = np.zeros(1, np.bool_)
    vjp(0, 1, batch, tau, curve, solution, cotangent, target, gk, gtau, with_infinities)
    if with_infinities[0]:
        scratch = scratch_for_packed(batch, solution)
        xs, gs, gradient, answers, numbers, _ = scratch
        pack_rows(0, 1, batch, tau, solution, cotangent, gk, gtau, scratch)
        given = curve, answers, gs, gradient, gk, gtau, with_infinities
        vjp(0, 1, xs, numbers[0], *given)
        unpack(x, gradient[0], x.dtype.type(0), gx)
    return gk[0], gtau[0]


@scalar
def _linearize(x, k, temperature, out):
    """Write GradTopK's p of this one row to `out`; returns the batch as (x, tau, solution)."""
    batch, tau = np.expand_dims(x, 0), np.full(1, np.float64(temperature))
    shares, sizes = np.full(1, k - 0.5), np.full(1, np.int64(k))
    tilt, nothing = np.full((1, SOLUTION), UNSOLVED), np.empty((1, 0), x.dtype)
    newton = Newton(_subsets.step_of_tilt(x.shape[0]), True, True, 0.0)
    solve(0, 1, batch, shares, tau, _SIGMOID, newton, nothing, tilt)
    solution = np.empty((1, SUBSET))
    target, flags = np.expand_dims(out, 0), np.zeros(FLAGS, np.bool_)
    _subsets.solve(0, 1, batch, sizes, tau, tilt, NONE_SHORT, target, solution, flags)
    if flags[SOME_WITH_CORE]:
        _with_core.solve(0, 1, batch, sizes, tau, tilt, target, solution)
    return batch, tau, solution


@scalar
def _move(batch, tau, solution, v, dtau, out, gtau):
    """Write the derivative of GradTopK along (v, dtau), as `gradtopk.cpu.rows.jvp`."""
    flags = np.zeros(FLAGS, np.bool_)
    _subsets.jvp(0, 1, batch, tau, solution, v, dtau, out, gtau, flags)
    if flags[SOME_WITH_CORE]:
        _with_core.jvp(0, 1, batch, tau, solution, v, dtau, out, gtau)


@kernel
def gradtopk(x, k, temperature, out):
    """Write the marginals of the k-subset distribution to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
        The row of scores.
    k : int
        How many, 0 <= k <= n.
    temperature : float
        Positive and finite, in the units of x.
    out : 1-D array like x
        Where the result goes.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> stkn.gradtopk(x, 2, 0.5, out)
    >>> out.round(3)
    array([0.869, 0.131, 0.018, 0.982])
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
        The row of scores, and the direction in it.
    k : int
        How many, 0 <= k <= n.
    temperature, dtemperature : float
        The temperature, and the direction in it.
    out, dout : 1-D arrays like x
        Where p and its derivative go.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> dx, dout = np.array([0.0, 1.0, 0.0, 0.0]), np.empty(4)
    >>> stkn.gradtopk_jvp(x, 2, 0.5, dx, 0.0, out, dout)
    >>> dout.round(3)
    array([-0.197,  0.228, -0.004, -0.027])
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        dout[:] = np.nan
        return
    batch, tau, solution = _linearize(x, k, temperature, out)
    moves, target = np.full(1, np.float64(dtemperature)), np.expand_dims(dout, 0)
    _move(batch, tau, solution, np.expand_dims(dx, 0), moves, target, np.empty((1, 0)))


@kernel
def gradtopk_vjp(x, k, temperature, g, out, gx):
    """Write p to `out` and the gradient in x of <g, p> to `gx`; return that in the temperature.

    Parameters
    ----------
    x, g : 1-D arrays of float32 or float64
        The row of scores, and the cotangent of p.
    k : int
        How many, 0 <= k <= n.
    temperature : float
        Positive and finite, in the units of x.
    out, gx : 1-D arrays like x
        Where p and the gradient in x go.

    Returns
    -------
    gtemperature : float
        The gradient in the temperature.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> g, gx = np.array([1.0, 0.0, 0.0, 0.0]), np.empty(4)
    >>> gtemperature = stkn.gradtopk_vjp(x, 2, 0.5, g, out, gx)
    >>> gx.round(3), round(gtemperature, 3)
    (array([ 0.228, -0.197, -0.027, -0.004]), -0.493)
    """
    if _invalid(x, k, temperature):
        out[:] = np.nan
        gx[:] = np.nan
        return np.nan
    batch, tau, solution = _linearize(x, k, temperature, out)
    target, gtau = np.expand_dims(gx, 0), np.empty((1, 1))
    _move(batch, tau, solution, np.expand_dims(g, 0), np.zeros(1), target, gtau)
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
        The row of scores.
    k : int
        How many, 0 <= k <= n.
    temperature : float
        Positive and finite, in the units of x.
    out : 1-D array like x
        Where the result goes.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> stkn.itertopk(x, 2, 0.5, out)
    >>> out.round(3)
    array([0.884, 0.176, 0.025, 0.915])
    """
    _iterate(x, k, temperature, _PLAIN, out)


@kernel
def wsoftmaxtopk(x, k, temperature, out):
    """Write k steps of the weighted softmax of x/temperature, weights 1 - p, to `out`.

    Parameters
    ----------
    x : 1-D array of float32 or float64
        The row of scores.
    k : int
        How many, 0 <= k <= n.
    temperature : float
        Positive and finite, in the units of x.
    out : 1-D array like x
        Where the result goes.

    Examples
    --------
    >>> import numpy as np
    >>> from softtopk_nb import nopython as stkn
    >>> x, out = np.array([3.0, 2.0, 1.0, 4.0]), np.empty(4)
    >>> stkn.wsoftmaxtopk(x, 2, 0.5, out)
    >>> out.round(3)
    array([0.552, 0.081, 0.011, 1.356])
    """
    _iterate(x, k, temperature, _WEIGHTED, out)
