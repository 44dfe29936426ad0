"""The power map: the largest entry rises to 1 and the others fall to 0, from where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, host_arrays
from .._api.operator import Array
from . import calls


class PowerGradients(NamedTuple):
    """What the pullback of `gradual` returns: gradients of <cotangent, value>.

    Each has the shape of the argument it belongs to.
    """

    x: Any
    power: Any


class _State(NamedTuple):
    call: calls.Call
    given: Array  # power as it came
    power: Array  # (rows, 1), in the type of the rows
    top: Array  # where an entry is the largest of its row


class Gradual:
    """Power map for values in [0, 1]: 1 - (1 - x)^power at the largest entry, x^power elsewhere.

    At power 1 it is the identity. As the power grows the largest entry of a row rises to 1 and
    the others fall to 0: from the values themselves to their one-hot vector.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Values between 0 and 1, n >= 1. float16, float32 and float64 keep their type (float16 is
        computed in float32); integers and bools give float64.
    power : float or array_like
        Positive and finite; broadcast against x's shape without the axis.
    axis : int, optional
        The axis along which the largest entry is sought, the last by default.

    Returns
    -------
    y : array of x's shape and type
        Between 0 and 1.

    Raises
    ------
    TypeError
        x, power or axis of a wrong type.
    ValueError
        An entry of x outside [0, 1], a power that is not positive and finite, an axis without
        entries or out of range, a shape that does not fit.

    See Also
    --------
    softmax : a probability vector, for scores of any size.

    Notes
    -----
    *Holds*: range; convergence to the one-hot vector if one entry is the largest and it is above
    0; for power >= 1, x_i >= x_j implies y_i >= y_j. *Does not hold*: the sum is not 1; it is not
    invariant under shifts; of several equal largest entries *all* rise to 1, so that the limit is
    not one-hot; a row of zeros stays so; for power < 1 the largest entry may fall below others.

    *Derivatives* (`jvp`, `vjp`): where the largest entry is unique the map is differentiable, as
    nearby rows have theirs in the same place, and each entry depends on itself alone. At ties it
    has no derivative, except at power 1, and jumps, unless the tie is at 0 or 1; the methods then
    return the derivative of the branch that each entry is in. For power < 1 that is infinite at
    x = 0, unless 0 is the largest entry, and at a largest x = 1.

    *Cost*: O(n). A NaN makes its row NaN.

    Source: the forum thread "Gradual softmax?"; the map is K. Frank's.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([0.1, 0.5, 0.7, 0.6])
    >>> stk.gradual(x, 1)
    array([0.1, 0.5, 0.7, 0.6])
    >>> stk.gradual(x, 5).round(3)
    array([0.   , 0.031, 0.998, 0.078])
    >>> y, pullback = stk.gradual.vjp(x, 5)
    >>> pullback(np.ones(4)).x.round(3)
    array([0.001, 0.312, 0.041, 0.648])
    """

    __name__ = "gradual"

    def __init__(self) -> None:
        self.__doc__ = type(self).__doc__

    def __repr__(self) -> str:
        return f"<function {self.__name__!r} of softtopk_nb>"

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(self, x: Any, /, power: Any, *, axis: int = -1) -> Any:
        """Apply the map."""
        s = _check(x, power, axis)
        return calls.give_back(s.call, _value(s))

    def jvp(
        self, x: Any, /, power: Any, dx: Any, *, dpower: Any = None, axis: int = -1
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, power, axis
            As in a call of the function.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dpower : array_like, optional
            The direction in the power, broadcastable to the batch shape; 0 by default.

        Returns
        -------
        y, dy : arrays of x's shape and type
            The value, and its derivative along the direction.

        Raises
        ------
        TypeError, ValueError
            As in a call, and for directions of a wrong type or shape.
        """
        s = _check(x, power, axis)
        direction = calls.tangent(s.call, dx, "dx")
        along = arguments.direction(dpower, s.call.batch, "dpower").reshape(-1, 1)
        in_x, in_power = _slopes(s)
        with np.errstate(all="ignore"):
            # An entry that does not move does not, also where the slope is infinite.
            moved = np.where(direction == 0, direction, in_x * direction)
            dy = moved + in_power * along.astype(direction.dtype)
        dy[np.isnan(in_power)] = np.nan
        return calls.give_back(s.call, _value(s)), calls.give_back(s.call, dy)

    def vjp(
        self, x: Any, /, power: Any, *, axis: int = -1
    ) -> tuple[Any, Callable[[Any], PowerGradients]]:
        """Value and pullback (reverse mode).

        Parameters
        ----------
        x, power, axis
            As in a call of the function.

        Returns
        -------
        y : array of x's shape and type
            The value.
        pullback : callable
            ``pullback(g)``, g broadcastable to y's shape, returns `PowerGradients` of sum(g * y)
            in x and in the power.

        Raises
        ------
        TypeError, ValueError
            As in a call; the pullback for a cotangent of a wrong type or shape.
        """
        s = _check(x, power, axis)
        in_x, in_power = _slopes(s)

        def pullback(g: Any, /) -> PowerGradients:
            cotangent = calls.tangent(s.call, g, "the cotangent")
            with np.errstate(all="ignore"):
                gx = np.where(cotangent == 0, cotangent, cotangent * in_x)
                per_row = (cotangent * in_power).sum(axis=1, dtype=np.float64)
            gx[np.isnan(in_power)] = np.nan
            return PowerGradients(
                calls.give_back(s.call, gx),
                host_arrays.sum_to(per_row.reshape(s.call.batch), s.given, s.call.dtype),
            )

        return calls.give_back(s.call, _value(s)), pullback


def _check(x: Any, power: Any, axis: Any) -> _State:
    call = calls.check(x, 1.0, axis)
    given = arguments.real_array(power, "power").astype(np.float64)
    ok = (given > 0) & (given < np.inf)
    if not np.all(ok):
        raise ValueError(f"power is {given[~ok].flat[0]}; expected a positive finite number")
    arguments.check_broadcast(given, call.batch, "power")
    outside = (call.x < 0) | (call.x > 1)
    if outside.any():
        raise ValueError(f"x holds {call.x[outside][0]}; expected values between 0 and 1")
    rows = np.broadcast_to(given, call.batch).reshape(-1, 1)
    limits = np.finfo(call.x.dtype)
    width = np.clip(rows, limits.tiny, limits.max).astype(call.x.dtype)
    m = call.x.max(axis=1, keepdims=True)
    # A NaN reaches every entry of its row and no other row.
    return _State(call._replace(x=np.where(np.isnan(m), m, call.x)), given, width, call.x == m)


def _value(s: _State) -> Array:
    x = s.call.x
    with np.errstate(all="ignore"):
        # 1 - (1 - x)^power without the difference, which would lose small x.
        return np.where(s.top, -np.expm1(s.power * np.log1p(-x)), _power(x, s.power))


def _power(base: Array, power: Array) -> Array:
    """base^power, one power for each row.

    NumPy takes another road for an exponent that it sees to be the same for all entries, and with
    it other last bits; here every entry has its own, so that a row does not depend on the others.
    """
    each = np.ascontiguousarray(np.broadcast_to(power, base.shape))
    result: Array = np.power(base.reshape(-1), each.reshape(-1)).reshape(base.shape)
    return result


def _slopes(s: _State) -> tuple[Array, Array]:
    """Derivatives of each entry in itself and in the power (thm-gradual)."""
    x = s.call.x
    base = np.where(s.top, 1 - x, x)
    with np.errstate(all="ignore"):
        in_x = s.power * _power(base, s.power - 1)
        log = np.where(s.top, np.log1p(-x), np.log(x))
        in_power = np.where(base == 0, base, _power(base, s.power) * log)
    return in_x, np.where(s.top, -in_power, in_power)


gradual = Gradual()
