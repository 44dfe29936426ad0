"""What softmax, its logarithm and logsumexp have in common: one solution, three functions of it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _arguments, _arrays
from .._operator import Array, Gradients
from . import calls
from .calls import Call

__all__ = ["State", "TopOne", "device_side", "mean", "solve", "total"]


@functools.cache
def device_side() -> Any:
    """The functions of this room for arrays on a device: imported when the first of them comes."""
    return importlib.import_module(".device", __package__)


class State(NamedTuple):
    """What value and derivatives are made of. All arrays are rows, or one column."""

    m: Array  # the largest entry of each row
    z: Array  # (x - m)/tau
    p: Array  # softmax
    log_s: Array  # log sum exp z, float64
    still: Array  # entries that no direction moves: absent, or in a row with +inf
    tau: Array  # in x's type


def solve(call: Call) -> State:
    """Softmax of checked rows, and what its derivatives need."""
    m, z = calls.shifted(call.x, call.tau)
    limits = np.finfo(z.dtype)
    with np.errstate(all="ignore"):
        e = np.exp(z)
        # sum exp z is 1 from the largest entry and `excess` from the rest. The 1 is left out of
        # the sum, so that log p keeps its relative accuracy where p is close to 1.
        parts = e.copy()
        parts[np.arange(len(e)), e.argmax(axis=1)] -= 1
        excess = parts.sum(axis=1, keepdims=True, dtype=np.float64)
        p = e / (1 + excess).astype(e.dtype)
        still = ((z == -np.inf) | (m == np.inf)) & ~np.isnan(p)
        tau = np.clip(call.tau, 1 / limits.max, limits.max).astype(z.dtype)
        return State(m, z, p, np.log1p(excess), still, tau)


def total(v: Array) -> Array:
    """Sums of rows, added in float64, as a column of the rows' type."""
    sums: Array = v.sum(axis=1, keepdims=True, dtype=np.float64).astype(v.dtype)
    return sums


def mean(p: Array, v: Array) -> Array:
    """<p, v> of each row; where p is 0, v may be anything."""
    return total(np.where(p == 0, p, p * v))


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
        if _arrays.on_device(x):
            return device_side().value(self.__name__, x, temperature, axis, where)
        call = calls.check(x, temperature, axis, where)
        return self._give_back(call, self._value(call, solve(call)))

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
        if _arrays.on_device(x):
            pair: tuple[Any, Any] = device_side().jvp(
                self.__name__, x, dx, dtemperature, temperature, axis, where
            )
            return pair
        call = calls.check(x, temperature, axis, where)
        direction = calls.tangent(call, dx, "dx")
        dtau = _arguments.direction(dtemperature, call.batch, "dtemperature")
        state = solve(call)
        with np.errstate(all="ignore"):
            pushed = self._push(state, direction, dtau.reshape(-1, 1).astype(direction.dtype))
        return self._give_back(call, self._value(call, state)), self._give_back(call, pushed)

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
            of times and computes no exponentials again.

        Raises
        ------
        TypeError, ValueError
            As in a call; the pullback for a cotangent of a wrong type or shape.

        Notes
        -----
        O(n). Absent entries, and all entries of a row with +inf, have the derivative 0. On a device
        the exponentials are computed again, which is cheaper there than to keep them: do not change
        x in place before the last call.
        """
        if _arrays.on_device(x):
            both: tuple[Any, Callable[[Any], Gradients]] = device_side().vjp(
                self.__name__, x, temperature, axis, where
            )
            return both
        call = calls.check(x, temperature, axis, where)
        state = solve(call)

        def pullback(g: Any, /) -> Gradients:
            cotangent = self._cotangent(call, g)
            with np.errstate(all="ignore"):
                gx, gtau = self._pull(state, cotangent)
            per_row = gtau.astype(np.float64).reshape(call.batch)
            in_tau = _arrays.sum_to(per_row, call.temperature, call.dtype)
            return Gradients(calls.give_back(call, gx), None, in_tau)

        return self._give_back(call, self._value(call, state)), pullback

    # Values of x's shape; logsumexp, which drops the axis, has its own.

    def _give_back(self, call: Call, rows: Array) -> Any:
        return calls.give_back(call, rows)

    def _cotangent(self, call: Call, g: Any) -> Array:
        return calls.tangent(call, g, "the cotangent")

    # What a function provides, on rows.

    def _value(self, call: Call, s: State) -> Array:
        raise TypeError(f"{self.__name__} cannot be evaluated")

    def _push(self, s: State, dx: Array, dtau: Array) -> Array:
        raise TypeError(f"{self.__name__} has no derivatives")

    def _pull(self, s: State, g: Array) -> tuple[Array, Array]:
        raise TypeError(f"{self.__name__} has no derivatives")
