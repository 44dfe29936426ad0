"""Operators with a temperature and no k, with their public methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._lazy import Registry
from . import fronts, typed, verbs
from .base import Array, Gradients, RowOperator

#: All operators without a k, by name; the contract tests cover each.
registry: Registry[WithoutK] = Registry(("softmax", "log_softmax", "logsumexp"))


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each `temperature`."""

    x: Array  # (rows, n), contiguous, float32 or float64
    temperature: Array  # (rows,), float64


class WithoutK(RowOperator):
    """A differentiable operator with a temperature and no k."""

    rows_type = Rows

    @typed.value
    def __call__(
        self,
        x: typed.Scores,
        /,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> Any:
        if type(x) is not np.ndarray and (front := fronts.function(self.__name__, x, out)):
            return front(x, temperature=temperature, axis=axis, where=where)
        return verbs.value(self, x, temperature, axis, True, where, out, {})

    @typed.jvp
    def jvp(
        self,
        x: typed.Numbers,
        /,
        dx: typed.Numbers,
        *,
        dtemperature: typed.Numbers | None = None,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, temperature, axis, where, out
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dtemperature : array_like, default=None
            The direction in the temperature, broadcastable to the batch shape; None is 0.

        Returns
        -------
        value, tangent : arrays
            The value, and its derivative along the direction, of the value's shape and type.

        Raises
        ------
        TypeError, ValueError
            As in a call, and for directions of a wrong type or shape.

        Notes
        -----
        O(n). Excluded entries, and all entries of a row with +inf, have the derivative 0.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, dp = stk.softmax.jvp([3.0, 2.0, 1.0, 4.0], [1.0, 0.0, 0.0, 0.0])
        >>> dp.round(3)
        array([ 0.181, -0.021, -0.008, -0.153])
        """
        return verbs.jvp(self, dx, (dtemperature,), x, temperature, axis, True, where, out, {})

    @typed.vjp
    def vjp(
        self,
        x: typed.Numbers,
        /,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
    ) -> tuple[Any, Callable[[typed.Numbers], Gradients[Any]]]:
        """Value and VJP function (reverse mode).

        Parameters
        ----------
        x, temperature, axis, where, out
            As in a call of the operator; `out` receives the value.

        Returns
        -------
        value : array
            The value.
        vjp : callable
            ``vjp(g)``, g broadcastable to the value's shape, returns `Gradients` of
            sum(g * value) in x and in the temperature; its k is None. It may be called any number
            of times. It reads x: do not change x in place before the last call.

        Raises
        ------
        TypeError, ValueError
            As in a call; the VJP function for a cotangent of a wrong type or shape.

        Notes
        -----
        O(n). Excluded entries, and all entries of a row with +inf, have the derivative 0. The
        exponentials are computed again, which is cheaper than to keep them.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, vjp = stk.softmax.vjp([3.0, 2.0, 1.0, 4.0])
        >>> vjp([1.0, 0.0, 0.0, 0.0]).x.round(3)
        array([ 0.181, -0.021, -0.008, -0.153])
        """
        return verbs.vjp(self, x, temperature, axis, True, where, out, {})

    def check_options(self, options: dict[str, Any]) -> str:
        return self.__name__

    def gradients(self, x: Any, *numbers: Any) -> Gradients[Any]:
        return Gradients(x, None, *numbers)
