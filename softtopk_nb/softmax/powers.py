"""The power map: the largest entry rises to 1 and the others fall to 0, from where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._api import typed, verbs
from .._api.base import Array, RowOperator
from .cpu import powers

if TYPE_CHECKING:
    from .._api.typed import PowerGradients as PowerGradients
else:

    class PowerGradients(NamedTuple):
        """The result of the VJP function of `gradual`: gradients of <cotangent, value>.

        Parameters
        ----------
        x : array
            The gradient in the values, of their shape.
        power : array or scalar
            The gradient in the power, of its shape.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> y, vjp = stk.gradual.vjp([0.5, 0.2], 2)
        >>> vjp([1.0, 0.0]).power.round(3)
        np.float64(0.173)
        """

        x: Any
        power: Any


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each `power`."""

    x: Array  # (rows, n), contiguous, float32 or float64
    power: Array  # (rows,), float64


class Gradual(RowOperator):
    """Power map for values in [0, 1]: 1 - (1 - x)^power at the largest entry, x^power elsewhere.

    At power 1 it is the identity. As the power grows the largest entry of a row rises to 1 and
    the others fall to 0: from the values themselves to their one-hot vector.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Values between 0 and 1, n >= 1. float16, float32 and float64 keep their type (float16 is
        computed in float32); integers and bools give float64.
    power : float or array_like
        Positive and finite; broadcast against x's shape without the axis,
        or with 1 along it.
    axis : int, default=-1
        The axis along which the largest entry is sought.
    where : array_like of bool, default=None
        Entries that take part; the others get 0, as if they were not there.
    out : array, default=None
        Where to write the result: of its shape and type; it may be x itself. It is returned.

    Returns
    -------
    y : array of x's shape and type
        Between 0 and 1.

    Raises
    ------
    TypeError
        x, power, axis, where or out of a wrong type.
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
    >>> y, vjp = stk.gradual.vjp(x, 5)
    >>> vjp(np.ones(4)).x.round(3)
    array([0.001, 0.312, 0.041, 0.648])
    """

    __name__ = "gradual"

    rows_type = Rows
    is_soft = False
    has_device_side = False
    excluded = 0.0
    cpu = powers

    @typed.value
    def __call__(
        self,
        x: typed.Numbers,
        /,
        power: typed.Numbers,
        *,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> Any:
        """Apply the map."""
        return verbs.value(self, x, power, axis, True, where, out, {})

    @typed.jvp
    def jvp(
        self,
        x: typed.Numbers,
        /,
        power: typed.Numbers,
        dx: typed.Numbers,
        *,
        dpower: typed.Numbers | None = None,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, power, axis, where, out
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dpower : array_like, default=None
            The direction in the power, broadcastable to the batch shape; None is 0.

        Returns
        -------
        y, dy : arrays of x's shape and type
            The value, and its derivative along the direction.

        Raises
        ------
        TypeError, ValueError
            As in a call, and for directions of a wrong type or shape.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> stk.gradual.jvp([0.5, 0.2], 2, [1.0, 0.0])
        (array([0.75, 0.04]), array([1., 0.]))
        """
        return verbs.jvp(self, dx, (dpower,), x, power, axis, True, where, out, {})

    @typed.power_vjp
    def vjp(
        self,
        x: typed.Numbers,
        /,
        power: typed.Numbers,
        *,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> tuple[Any, Callable[[typed.Numbers], PowerGradients[Any]]]:
        """Value and VJP function (reverse mode).

        Parameters
        ----------
        x, power, axis, where, out
            As in a call of the operator; `out` receives the value.

        Returns
        -------
        y : array of x's shape and type
            The value.
        vjp : callable
            ``vjp(g)``, g broadcastable to y's shape, returns `PowerGradients` of sum(g * y)
            in x and in the power.

        Raises
        ------
        TypeError, ValueError
            As in a call; the VJP function for a cotangent of a wrong type or shape.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> y, vjp = stk.gradual.vjp([0.5, 0.2], 2)
        >>> vjp([1.0, 0.0]).x
        array([1., 0.])
        """
        return verbs.vjp(self, x, power, axis, True, where, out, {})

    @staticmethod
    def check_rows(rows: Array) -> Array:
        """Refuse numbers that are not between 0 and 1; a row with a NaN becomes a row of NaN."""
        outside = (rows < 0) | (rows > 1)
        if outside.any():
            raise ValueError(f"x holds {rows[outside][0]}; expected values between 0 and 1")
        m = rows.max(axis=1, keepdims=True)
        # A NaN reaches every entry of its row and no other row.
        return np.where(np.isnan(m), m, rows)

    def gradients(self, x: Any, *numbers: Any) -> PowerGradients[Any]:
        """The gradients in x and the power, as a VJP function returns them."""
        return PowerGradients(x, *numbers)


gradual = Gradual()
