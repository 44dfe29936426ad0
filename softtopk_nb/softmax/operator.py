"""softmax, its logarithm, and the smoothed maximum whose gradient it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._api import fronts, host_arrays, typed, verbs
from .._api.base import Array
from .._api.without_k import WithoutK
from .._threads import pool
from . import cpu
from .cpu import chunks, rows


class _OfRows(WithoutK):
    """The base of the three operators."""

    cpu = cpu
    chunks = chunks


class Softmax(_OfRows):
    """Softmax: p_i = exp(x_i / temperature) / sum_j exp(x_j / temperature).

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1. float16, float32 and float64 keep their type (float16 is computed in
        float32); integers and bools give float64.
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast against x's shape without the axis,
        or with 1 along it.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that take part; the others get 0, as if they were not there.
    out : array, default=None
        Where to write the result: of its shape and type, where x is; it may be x itself. It is
        returned.

    Returns
    -------
    p : array of x's shape and type
        Between 0 and 1, summing to 1 along the axis.

    Raises
    ------
    TypeError
        x, temperature, axis, where or out of a wrong type.
    ValueError
        A temperature that is not positive and finite, an axis without entries or out of range, a
        shape that does not fit.

    See Also
    --------
    log_softmax : its logarithm.
    logsumexp : the smoothed maximum whose gradient it is.

    Notes
    -----
    *Holds*: range, sum, x_i >= x_j if and only if p_i >= p_j (before rounding), invariance under
    shifts and permutations, a symmetric positive semidefinite Jacobian, convergence to the one-hot
    vector of the largest entry if there is one. *Does not hold*: no entry is exactly 0 before
    rounding (``thretopk(x, 1, curve="clip")`` has that).

    The largest entry is subtracted before anything is divided, so that no offset and no
    temperature overflows; a difference beyond the largest number of the type counts as that
    number. *Cost*: O(n), one exponential for each entry.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; entries at +inf share 1
    equally; a row in which every entry is excluded is NaN. On a device temperatures
    below 1/max of the type, or above max, act as these.

    Source: "Softmax demystified"; the formula is Boltzmann's.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> stk.softmax([3.0, 2.0, 1.0, 4.0]).round(3)
    array([0.237, 0.087, 0.032, 0.644])
    >>> stk.softmax([1e300, 1e300, -1e300], temperature=1e-3)
    array([0.5, 0.5, 0. ])
    >>> p, vjp = stk.softmax.vjp([3.0, 2.0, 1.0, 4.0])
    >>> vjp(np.array([1.0, 0.0, 0.0, 0.0])).x.round(3)
    array([ 0.181, -0.021, -0.008, -0.153])
    """

    __name__ = "softmax"


class LogSoftmax(_OfRows):
    """Logarithm of softmax: log p_i = x_i/temperature - log sum_j exp(x_j/temperature).

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1. float16, float32 and float64 keep their type (float16 is computed in
        float32); integers and bools give float64.
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast against x's shape without the axis,
        or with 1 along it.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that take part; the others get -inf.
    out : array, default=None
        Where to write the result: of its shape and type, where x is; it may be x itself. It is
        returned.

    Returns
    -------
    log_p : array of x's shape and type
        At most 0; the exponentials sum to 1 along the axis.

    Raises
    ------
    TypeError
        x, temperature, axis, where or out of a wrong type.
    ValueError
        A temperature that is not positive and finite, an axis without entries or out of range, a
        shape that does not fit.

    See Also
    --------
    softmax : its exponential.

    Notes
    -----
    Accurate where ``log(softmax(x))`` is not: where p underflows, and, relatively to log p, where
    p rounds to 1. *Holds*: invariance under shifts and permutations. *Does not hold*: the
    Jacobian is not symmetric. *Cost*: O(n), one exponential for each entry.

    *Limits*: a NaN makes its row NaN; -inf and only -inf gives -inf (in float16 underflow does
    too); r entries at +inf have -log r each; a row in which every entry is excluded is NaN. A value
    below the lowest finite number of the computation is that number.

    Source: "Softmax demystified".

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> stk.log_softmax([0.0, 1000.0, -50.0])
    array([-1000.,     0., -1050.])
    >>> print(f"{stk.log_softmax([0.0, 50.0])[1]:.6e}")
    -1.928750e-22
    """

    __name__ = "log_softmax"


class LogSumExp(_OfRows):
    """The smoothed maximum: temperature * log sum_i exp(x_i / temperature).

    Its gradient in x is softmax, its derivative in the temperature the entropy of softmax.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1. float16, float32 and float64 keep their type (float16 is computed in
        float32); integers and bools give float64.
    temperature : float or array_like, default=1.0
        The smoothing, in the units of x; broadcast against x's shape without the axis,
        or with 1 along it.
    axis : int, default=-1
        The axis of the scores; the result does not have it.
    where : array_like of bool, default=None
        Entries that take part.
    out : array, default=None
        Where to write the result: of its shape and type, where x is. It is returned.

    Returns
    -------
    value : array of the batch shape, or a scalar
        In the units of x, between max x and max x + temperature * log n.

    Raises
    ------
    TypeError
        x, temperature, axis, where or out of a wrong type.
    ValueError
        A temperature that is not positive and finite, an axis without entries or out of range, a
        shape that does not fit.

    See Also
    --------
    softmax : its gradient.
    energy_score : its negative.

    Notes
    -----
    At temperature 1 it is the function of this name everywhere; at other temperatures it is
    *not* log sum exp(x/temperature), but temperature times that, so that it stays in the units of
    x and tends to max x.

    *Holds*: max x < value <= max x + temperature log n (before rounding, n >= 2), convexity,
    value(x + c) = value(x) + c, monotonicity in each entry and in the temperature. *Does not
    hold*: it is never equal to max x for n >= 2. *Cost*: O(n), one exponential for each entry.

    *Limits*: a NaN makes its row NaN; -inf is excluded; +inf gives +inf; a row in which every
    entry is excluded gives -inf, the value of an empty sum. In the last two the derivative is 0.

    Source: "Softmax demystified".

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> print(stk.logsumexp([3.0, 2.0, 1.0, 4.0]).round(4))
    4.4402
    >>> print(stk.logsumexp([3.0, 2.0, 1.0, 4.0], temperature=0.1).round(7))
    4.0000045
    >>> value, vjp = stk.logsumexp.vjp([3.0, 2.0, 1.0, 4.0])
    >>> vjp(1.0).x.round(3)
    array([0.237, 0.087, 0.032, 0.644])
    """

    __name__ = "logsumexp"
    reduces = True


softmax = Softmax()
log_softmax = LogSoftmax()
logsumexp = LogSumExp()


def from_largest(x: Array, tau: Array) -> tuple[Array, Array]:
    """(largest entry m of each row, z = (x - m)/tau, which is 0 at the largest entry).

    The rules are those of `formulas.z_of`. A row with a NaN has m NaN, and z NaN at every
    entry above -inf.
    """
    m, z = np.empty((len(x), 1), x.dtype), np.empty_like(x)
    pool.over(len(x), x.size, rows.shift, x, tau, m[:, 0], z)
    return m, z


@typed.function
def energy_score(
    x: typed.Scores,
    /,
    *,
    temperature: typed.Numbers = 1.0,
    axis: int = -1,
    where: typed.Numbers | None = None,
    out: typed.Arrays | None = None,
) -> Any:
    """Energy of a row of logits, ``-logsumexp(x)``: large where no class fits.

    Softmax forgets a common offset of the logits; the energy is that offset. A row whose logits
    are all low has a high energy, however clearly one of them stands out, and this is used to
    recognise inputs that belong to none of the classes.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Logits of a classifier, n >= 1; types as in `logsumexp`.
    temperature : float or array_like, default=1.0
        As in `logsumexp`.
    axis : int, default=-1
        The axis of the classes; the result does not have it.
    where : array_like of bool, default=None
        Classes that take part.
    out : array, default=None
        As in `logsumexp`.

    Returns
    -------
    energy : array of the batch shape, or a scalar
        Between -max x - temperature * log n and -max x.

    Raises
    ------
    TypeError, ValueError
        As in `logsumexp`.

    See Also
    --------
    logsumexp : its negative, with derivatives.

    Notes
    -----
    *Holds*: energy(x + c) = energy(x) - c, and log p_i = (x_i + energy)/temperature. *Does not
    hold*: that it always detects better than the largest probability; ``examples/energy_score.py``
    has a table. *Cost*: O(n).

    Source: "Softmax demystified"; Liu, Wang, Owens and Li (2020).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([[9.0, 2.0, 1.0], [2.0, -5.0, -6.0]])
    >>> stk.softmax(x).max(axis=1).round(4)
    array([0.9988, 0.9988])
    >>> stk.energy_score(x).round(4)
    array([-9.0012, -2.0012])
    """
    value: Any = logsumexp(x, temperature=temperature, axis=axis, where=where, out=out)
    if out is None and fronts.name_of(value):
        return -value
    if host_arrays.on_device(value):
        return verbs.device_call().negate(value)
    return -value if out is None else np.negative(value, out=value)
