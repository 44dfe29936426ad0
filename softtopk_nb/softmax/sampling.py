"""Drawing from softmax by the inverse of its CDF, and the checks that all draws share.

Everything random is drawn and compared in float64, whatever the type of the scores. Scores enter
as `from_largest` gives them, so that noise of the size of 1 is not lost beside a large offset.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from .._api import arguments, fronts, host_arrays, typed
from .._api.call import Array, Call
from .._api.call import check as checked
from .._threads.parts import AT_A_TIME
from .operator import from_largest, softmax


@typed.indices
def sample_categorical(
    x: typed.Numbers,
    /,
    size: typed.Size = None,
    *,
    rng: typed.Rng = None,
    temperature: typed.Numbers = 1.0,
    axis: int = -1,
    where: typed.Numbers | None = None,
) -> Any:
    """Draw indices with the probabilities softmax(x / temperature), by inverse CDF.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1, of any type that `softmax` takes. Computed in float64.
    size : int or tuple of int, default=None
        How many draws from each row. By default one, without an axis for it.
    rng : numpy.random.Generator, int or None, default=None
        Where the randomness comes from: whatever ``numpy.random.default_rng`` takes. A generator is
        advanced; an int is a seed; None draws a new seed from the operating system.
    temperature : float or array_like, default=1.0
        In the units of x; broadcast against x's shape without the axis.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that can be drawn.

    Returns
    -------
    index : array of int, of shape batch + size
        Positions along the axis; batch is x's shape without the axis. A scalar if that is empty.

    Raises
    ------
    TypeError
        x, size, rng, temperature, axis or where of a wrong type.
    ValueError
        A row with a NaN or without an entry above -inf, a negative size, a temperature that is
        not positive and finite, an axis without entries or out of range, a shape that does not
        fit.

    See Also
    --------
    gumbel_max : the same distribution, without cumulative sums.

    Notes
    -----
    *Holds*: an entry whose probability is 0 (-inf, masked, or underflown) is never drawn; entries
    at +inf are drawn with equal probability. *Does not hold*: probabilities below 2^-53 are not
    resolved, as the uniform numbers are multiples of 2^-53. A row's draws depend on how many rows
    and draws there are, since they share one stream. *Cost*: O(n + size log n) for each row.

    Source: "Softmax demystified".

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> draws = stk.sample_categorical(np.log([0.7, 0.2, 0.1]), 10_000, rng=0)
    >>> (np.bincount(draws) / 10_000).round(2)
    array([0.7, 0.2, 0.1])
    """
    call = check(fronts.values(x), temperature, axis, where)
    shape = check_size(size)
    generator = check_rng(rng)
    with np.errstate(under="ignore"):
        weights = np.exp(scores(call))
        cumulative = np.cumsum(weights, axis=1)
    index = np.empty((len(weights), math.prod(shape)), np.int64)
    for c, found in zip(cumulative, index, strict=True):
        for first in range(0, len(found), AT_A_TIME):
            some = found[first : first + AT_A_TIME]
            # prop-inverse-cdf: side="right" finds the first c_i > v c_n, which is an entry of
            # positive weight; there is one, since for v <= 1 - 2^-53 the rounded product is less
            # than c_n too.
            v = generator.random(len(some))
            some[:] = np.searchsorted(c, v * c[-1], side="right")
    return give_back(call, index, shape)


def check(x: Any, temperature: Any, axis: Any, where: Any) -> Call:
    """Check the arguments of `softmax` that every draw has, as `softmax` does."""
    return checked(softmax, x, temperature, axis, True, where, None, {}, as_given=True)


def scores(call: Call) -> Array:
    """(x - max x)/temperature in float64, for rows that an index can be drawn from."""
    m, z = from_largest(call.rows.x.astype(np.float64), call.rows.temperature)
    if np.isnan(m).any():
        raise ValueError("x holds a NaN; expected numbers, to draw an index from")
    if np.any(m == -np.inf):
        raise ValueError("x has a row of which every entry is -inf or masked; expected one above")
    return z


def give_back(call: Call, index: Array, shape: tuple[int, ...]) -> Any:
    """Indices as an array of shape batch + shape, of x's kind of array."""
    result = np.asarray(index, np.int64).reshape((*call.batch, *shape))
    return host_arrays.like(call.given, result) if result.ndim else result[()]


def check_size(size: Any) -> tuple[int, ...]:
    """The shape of the draws from one row; None is one draw without an axis."""
    if size is None:
        return ()
    wanted = size if isinstance(size, tuple | list) else (size,)
    try:
        shape = tuple(operator.index(s) for s in wanted)
    except TypeError:
        shape = None
    if shape is None or any(isinstance(s, bool | np.bool_) for s in wanted):
        raise TypeError(f"size is {arguments.show(size)}; expected integers, or None")
    if any(s < 0 for s in shape):
        raise ValueError(f"size is {arguments.show(size)}; expected integers >= 0, or None")
    return shape


def check_rng(rng: Any) -> np.random.Generator:
    """A generator, from whatever numpy.random.default_rng takes; a bool is no seed."""
    expected = "expected a numpy.random.Generator, a seed >= 0, or None"
    if isinstance(rng, bool | np.bool_):
        raise TypeError(f"rng is {rng!r}; {expected}")
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(f"rng is {arguments.show(rng)}; {expected}") from error
