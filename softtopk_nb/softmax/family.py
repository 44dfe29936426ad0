"""What softmax, its logarithm and logsumexp have in common: calls, and what comes of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from .._api import arguments, host_arrays
from .._api.operator import Array, Gradients
from . import calls
from .calls import Call


@functools.cache
def device_side() -> Any:
    """The functions of this room for arrays on a device: imported when the first of them comes."""
    return importlib.import_module(".device", __package__)


class TopOne:
    """A differentiable function of rows of scores that has a temperature and no k."""

    __name__: str

    def __init__(self) -> None:
        self.__doc__ = type(self).__doc__

    def __repr__(self) -> str:
        return f"<function {self.__name__!r} of softtopk_nb>"

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(
        self, x: Any, /, *, temperature: Any = 1.0, axis: int = -1, where: Any = None
    ) -> Any:
        """The value."""
        if host_arrays.on_device(x):
            return device_side().value(self.__name__, x, temperature, axis, where)
        call = calls.at_moderate_temperature(calls.check(x, temperature, axis, where))
        return self._give_back(call, self._value(call)[0])

    def jvp(
        self,
        x: Any,
        /,
        dx: Any,
        *,
        dtemperature: Any = None,
        temperature: Any = 1.0,
        axis: int = -1,
        where: Any = None,
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, temperature, axis, where
            As in a call of the function.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dtemperature : array_like, optional
            The direction in the temperature, broadcastable to the batch shape; 0 by default.

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
        O(n). Absent entries, and all entries of a row with +inf, have the derivative 0.
        """
        if host_arrays.on_device(x):
            pair: tuple[Any, Any] = device_side().jvp(
                self.__name__, x, dx, dtemperature, temperature, axis, where
            )
            return pair
        call = calls.at_moderate_temperature(calls.check(x, temperature, axis, where))
        rows = calls.tangent(call, dx, "dx")
        dtau = arguments.direction(dtemperature, call.batch, "dtemperature")
        direction = arguments.Direction(call.x, rows, dtau)
        value, record = self._value(call)
        pushed = self._push(call, record, direction.rows, *direction.numbers)
        return self._give_back(call, value), self._give_back(call, direction.back(pushed))

    def vjp(
        self, x: Any, /, *, temperature: Any = 1.0, axis: int = -1, where: Any = None
    ) -> tuple[Any, Callable[[Any], Gradients]]:
        """Value and pullback (reverse mode).

        Parameters
        ----------
        x, temperature, axis, where
            As in a call of the function.

        Returns
        -------
        value : array
            The value.
        pullback : callable
            ``pullback(g)``, g broadcastable to the value's shape, returns `Gradients` of
            sum(g * value) in x and in the temperature; its k is None. It may be called any number
            of times. It reads x: do not change x in place before the last call.

        Raises
        ------
        TypeError, ValueError
            As in a call; the pullback for a cotangent of a wrong type or shape.

        Notes
        -----
        O(n). Absent entries, and all entries of a row with +inf, have the derivative 0. The
        exponentials are computed again, which is cheaper than to keep them.
        """
        if host_arrays.on_device(x):
            both: tuple[Any, Callable[[Any], Gradients]] = device_side().vjp(
                self.__name__, x, temperature, axis, where
            )
            return both
        call = calls.at_moderate_temperature(calls.check(x, temperature, axis, where))
        value, record = self._value(call)

        def pullback(g: Any, /) -> Gradients:
            cotangent = arguments.Direction(call.x, self._cotangent(call, g))
            gx, gtau = map(cotangent.back, self._pull(call, record, cotangent.rows))
            in_tau = host_arrays.sum_to(gtau.reshape(call.batch), call.temperature, call.dtype)
            return Gradients(calls.give_back(call, gx), None, in_tau)

        return self._give_back(call, value), pullback

    # Values of x's shape; logsumexp, which drops the axis, has its own.

    def _give_back(self, call: Call, rows: Array) -> Any:
        return calls.give_back(call, rows)

    def _cotangent(self, call: Call, g: Any) -> Array:
        return calls.tangent(call, g, "the cotangent")

    # What a function provides, on rows.

    def _value(self, call: Call) -> tuple[Array, Array]:
        """The value, and the rows' records."""
        raise TypeError(f"{self.__name__} cannot be evaluated")

    def _push(self, call: Call, record: Array, dx: Array, dtau: Array) -> Array:
        raise TypeError(f"{self.__name__} has no derivatives")

    def _pull(self, call: Call, record: Array, g: Array) -> tuple[Array, Array]:
        """The gradients in x and in the temperature, one of these for each row."""
        raise TypeError(f"{self.__name__} has no derivatives")
