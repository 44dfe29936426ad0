"""Operators with a k: what they add to `base`, and their public methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import arguments, base, host_arrays
from .base import Array as Array
from .base import Gradients

#: Every operator with a k by name: what the contract tests go through.
registry: dict[str, Operator] = {}


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each entry of `k` and `temperature`."""

    x: Array  # (rows, n), contiguous, float32 or float64
    k: Array  # (rows,), float64 or int64
    temperature: Array  # (rows,), float64


class Operator(base.RowOperator):
    """A map from rows of scores to rows p that sum to k; into [0, 1]^n if it is `bounded`."""

    rows_type = Rows
    #: Whether p lies in [0, 1], so that k = n gives ones.
    bounded = True
    takes_empty_rows = True
    #: Whether p is the gradient of a potential.
    has_potential = False

    def __init__(self) -> None:
        super().__init__()
        registry[self.__name__] = self

    @property
    def __signature__(self) -> inspect.Signature:
        """The common arguments and the operator's own, for `help` and `inspect`."""
        common = list(inspect.signature(Operator.__call__).parameters.values())[1:-1]
        own = inspect.signature(self._options).parameters.values()
        return inspect.Signature([*common, *own])

    def __call__(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> Any:
        return self._evaluate(x, k, temperature, axis, largest, where, out, options)

    def _options(self) -> Any:
        """Check the operator's own keyword arguments and return what its kernels need."""
        return None

    def _plan(self, options: dict[str, Any]) -> Any:
        for name in options:
            if name not in self._known:
                raise TypeError(
                    f"{self.__name__} got an unexpected keyword argument {name!r}"
                    + (f"; it knows {', '.join(self._known)}" if self._known else "")
                )
        return self._options(**options)

    @functools.cached_property
    def _known(self) -> tuple[str, ...]:
        """The operator's own keyword arguments; reading a signature takes longer than a row."""
        return tuple(inspect.signature(self._options).parameters)

    def _of_each_row(self, name: str, x: Any, *arguments: Any) -> Any:
        """One number of each row in the units of x: the engine's function of this name."""
        if host_arrays.on_device(x):
            return self._device().batch(self, name, x, *arguments)
        call = self._check(x, *arguments)
        found = np.empty(len(call.rows.x))
        getattr(self.cpu, name)(call.rows, call.plan, found)
        return self._give_back_batch(call, call.sign * found)

    def _check_numbers(self, n: int, batch: tuple[int, ...], *numbers: Any) -> list[Any]:
        k, temperature = numbers
        return [
            self._check_k(k, n, batch),
            arguments.check_positive(temperature, batch, "temperature"),
        ]

    def _check_k(self, k: Any, n: int, batch: tuple[int, ...]) -> Any:
        if type(k) is int and 0 <= k <= n:
            return float(k) if self.real_k else k  # the usual case, in a hurry
        given = arguments.real_array(k, "k")
        if not self.real_k and given.dtype.kind not in "iu":
            raise TypeError(f"k is {arguments.show(k)} of dtype {given.dtype}; expected integers")
        arguments.check_k(given, n, batch)
        return given.astype(np.float64 if self.real_k else np.int64)


def chosen(op: Any, name: str = "op", *, with_potential: bool = False) -> Operator:
    """The operator that the argument `name` says, by its name, as an object or as that of a front.

    Only one that is the gradient of a potential, if it must be `with_potential`.
    """
    known = {
        key: each for key, each in registry.items() if each.has_potential or not with_potential
    }
    inner = known.get(op) if isinstance(op, str) else getattr(op, "_op", op)
    if isinstance(inner, Operator) and (inner.has_potential or not with_potential):
        return inner
    what = "an operator with a potential" if with_potential else "an operator"
    kind = ValueError if isinstance(op, str) else TypeError
    raise kind(
        f"{name} is {arguments.show(op)}; expected {what} or its name: {', '.join(sorted(known))}"
    )


class Differentiable(Operator):
    """An operator with derivatives."""

    def jvp(
        self,
        x: Any,
        /,
        k: Any,
        dx: Any,
        *,
        dk: Any = None,
        dtemperature: Any = None,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, **options
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dk, dtemperature : array_like, optional
            Directions in k and in the temperature, broadcastable to the batch shape; not moved
            by default. `dk` only where k may be real.

        Returns
        -------
        p, dp : arrays of x's shape and type
            The value, and the derivative of p along the direction.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, dp = stk.thretopk.jvp([3.0, 2.0, 1.0, 4.0], 2, [0.0, 1.0, 0.0, 0.0], temperature=0.5)
        >>> dp.round(3)
        array([-0.162,  0.206, -0.022, -0.022])
        """
        if dk is not None and not self.real_k:
            raise TypeError(f"dk was given, but {self.__name__} takes an integer k")
        directions = dk, dtemperature
        return self._jvp(dx, directions, x, k, temperature, axis, largest, where, out, options)

    def hvp(
        self,
        x: Any,
        /,
        k: Any,
        v: Any,
        g: Any,
        *,
        dk: Any = None,
        dtemperature: Any = None,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        **options: Any,
    ) -> Gradients:
        """Gradients of <g, dp>, dp the derivative along v: a second derivative.

        dp is what `jvp` gives along (v, dk, dtemperature); along v alone it is J v, J the Jacobian.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, **options
            As in a call of the operator.
        v : array_like
            The direction in x, broadcastable to its shape.
        g : array_like
            The cotangent of dp, likewise.
        dk, dtemperature : array_like, optional
            As in `jvp`.

        Returns
        -------
        gradients : Gradients
            x, k and temperature, each of the shape of the argument that it belongs to; k is None
            where k must be an integer.

        Raises
        ------
        NotImplementedError
            The operator's second derivative is not known: those of the iterations.
        TypeError, ValueError
            As in a call, for a v or g of a wrong type or shape, and for a curve without its f''.

        Notes
        -----
        One solve, as for `jvp`, and O(n) after it. The derivatives of dp in v and of <g, dp> in g
        are `vjp` and `jvp`. What kinks of f' add is left out.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> x, v, g = [3.0, 2.0, 1.0, 4.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
        >>> stk.thretopk.hvp(x, 2, v, g, curve="sigmoid").x.round(3)
        array([ 0.012, -0.012,  0.009, -0.009])
        """
        self._check_second()
        if dk is not None and not self.real_k:
            raise TypeError(f"dk was given, but {self.__name__} takes an integer k")
        moves, still = (dk, dtemperature), (None, None)
        arguments = x, k, temperature, axis, largest, where, None, options
        if host_arrays.on_device(x):
            result: Gradients = self._device().hvp(self, v, moves, g, *arguments)
            return result
        call = self._check(*arguments)
        state = self.cpu.linearize(call.rows, call.plan, self._empty(call))
        second: Gradients = self._second(call, state, v, moves, g, still, "g")
        return second

    def _check_second(self) -> None:
        """Raise unless second derivatives are known."""
        if not self.has_second:
            raise NotImplementedError(
                f"{self.__name__} has no second derivative here; thretopk and gradtopk have one"
            )

    def vjp(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> tuple[Any, Callable[[Any], Gradients]]:
        """Value and VJP function (reverse mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, **options
            As in a call of the operator; `out` receives the value.

        Returns
        -------
        p : array of x's shape and type
            The value.
        vjp : callable
            ``vjp(g)``, g broadcastable to p's shape, returns `Gradients` (x, k, temperature)
            of sum(g * p). It may be called any number of times and does not solve again. It reads
            x: do not change x in place before the last call.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, vjp = stk.thretopk.vjp([3.0, 2.0, 1.0, 4.0], 2)
        >>> vjp([1.0, 0.0, 0.0, 0.0]).x.round(3)
        array([ 0.192, -0.111, -0.041, -0.041])
        """
        return self._vjp(x, k, temperature, axis, largest, where, out, options)
