"""Operators with a k: their additions to `base`, and their public methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, Unpack, get_args

import numpy as np

from .._lazy import Registry
from . import arguments, base, fronts, typed, verbs
from .arguments import clamped
from .base import Array as Array
from .base import Gradients
from .typed import C, E, K, M, X

_COMMON = "temperature", "axis", "largest", "where", "out", "clamp_k"

#: Their names.
Name = Literal["hardtopk", "thretopk", "gradtopk", "itertopk", "wsoftmaxtopk"]
#: All operators with a k, by name; the contract tests cover each.
registry: Registry[Operator[Any, Any, Any, Any, Any]] = Registry(get_args(Name))


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each entry of `k` and `temperature`."""

    x: Array  # (rows, n), contiguous, float32 or float64
    k: Array  # (rows,), float64 or int64
    temperature: Array  # (rows,), float64


class Operator(base.RowOperator, Generic[K, C, E, M, X]):
    """A map from rows of scores to rows p that sum to k; into [0, 1]^n if it is `bounded`."""

    __name__: Name
    rows_type = Rows
    #: Whether p lies in [0, 1], so that k = n gives ones.
    bounded = True
    takes_empty_rows = True
    #: Whether p is the gradient of a potential.
    has_potential = False
    #: Whether the potential's conjugate has a formula; without one it is known at 0/1 vectors, 0.
    has_conjugate = False

    def __init__(self) -> None:
        super().__init__()
        #: The operator's own keyword arguments; reading a signature takes longer than a row.
        self.known_options = tuple(inspect.signature(self._options).parameters)

    @property
    def __signature__(self) -> inspect.Signature:
        """The common arguments and the operator's own, for `help` and `inspect`."""
        common = list(inspect.signature(Operator.__call__).parameters.values())[1:-1]
        own = inspect.signature(self._options).parameters.values()
        # What their types are called within the package says nothing to a reader.
        untyped = [each.replace(annotation=inspect.Parameter.empty) for each in (*common, *own)]
        return inspect.Signature(untyped)

    @typed.value
    def __call__(
        self,
        x: typed.Scores,
        /,
        k: K | typed.Arrays,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.OfValue[C, E, M, X]],
    ) -> Any:
        if type(x) is not np.ndarray and (front := fronts.function(self.__name__, x, out)):
            given = {"temperature": temperature, "largest": largest, "where": where}
            return front(x, k, clamp_k=clamp_k, **fronts.named(options, axis, **given))
        k = k if clamp_k is False else clamped(k, clamp_k)
        return verbs.value(self, x, k, temperature, axis, largest, where, out, options)

    def _number(self, name: str, x: Any, k: Any, options: Any, clamp_k: Any, **named: Any) -> Any:
        """A number for each row, by the method of this name of x's front, or of the engine."""
        if front := fronts.function(f"{self.__name__}.{name}", x):
            return front(x, k, clamp_k=clamp_k, **fronts.named(options, **named))
        k, (temperature, axis, largest, where) = clamped(k, clamp_k), named.values()
        return verbs.number(self, name, x, k, temperature, axis, largest, where, None, options)

    def _options(self) -> Any:
        """Check the operator's own keyword arguments and return what its kernels need."""
        return None

    def check_options(self, options: dict[str, Any]) -> Any:
        """Check the operator's own options and return what its engines need."""
        self.check_names(options, _COMMON)
        return self._options(**options)

    def check_names(self, options: Mapping[str, Any], common: tuple[str, ...]) -> None:
        """Refuse an option that is not the operator's own; `common` names its other arguments."""
        for name in options:
            if name not in self.known_options:
                raise arguments.unexpected(self.__name__, name, (*common, *self.known_options))


def chosen(
    op: Any, name: str = "op", *, with_potential: bool = False
) -> Operator[Any, Any, Any, Any, Any]:
    """The operator given as the argument `name`: by its name, as an object or as a front's object.

    If `with_potential`, it must be the gradient of a potential.
    """
    inner = registry.get(op) if isinstance(op, str) else getattr(op, "_op", op)
    if isinstance(inner, Operator) and (inner.has_potential or not with_potential):
        return inner
    known = [key for key, each in registry.items() if each.has_potential or not with_potential]
    what = "an operator with a potential" if with_potential else "an operator"
    kind = ValueError if isinstance(op, str) else TypeError
    raise kind(
        f"{name} is {arguments.show(op)}; expected {what} or its name: {', '.join(sorted(known))}"
    )


class Differentiable(Operator[K, C, E, M, X]):
    """An operator with derivatives."""

    @typed.jvp
    def jvp(
        self,
        x: typed.Numbers,
        /,
        k: K | typed.Arrays,
        dx: typed.Numbers,
        *,
        dk: typed.Numbers | None = None,
        dtemperature: typed.Numbers | None = None,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, clamp_k, **options
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dk, dtemperature : array_like, default=None
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
        k, directions = clamped(k, clamp_k), (dk, dtemperature)
        return verbs.jvp(
            self, dx, directions, x, k, temperature, axis, largest, where, out, options
        )

    @typed.hvp
    def hvp(
        self,
        x: typed.Numbers,
        /,
        k: K | typed.Arrays,
        v: typed.Numbers,
        g: typed.Numbers,
        *,
        dk: typed.Numbers | None = None,
        dtemperature: typed.Numbers | None = None,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> Gradients[Any]:
        """Gradients of <g, dp>, dp the derivative along v: a second derivative.

        dp is what `jvp` gives along (v, dk, dtemperature); along v alone it is J v, J the Jacobian.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call of the operator.
        v : array_like
            The direction in x, broadcastable to its shape.
        g : array_like
            The cotangent of dp, likewise.
        dk, dtemperature : array_like, default=None
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
        self.check_second()
        if dk is not None and not self.real_k:
            raise TypeError(f"dk was given, but {self.__name__} takes an integer k")
        arguments = x, clamped(k, clamp_k), temperature, axis, largest, where, None, options
        gradients: Gradients[Any] = verbs.hvp(self, v, (dk, dtemperature), g, *arguments)
        return gradients

    @typed.vjp
    def vjp(
        self,
        x: typed.Numbers,
        /,
        k: K | typed.Arrays,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> tuple[Any, Callable[[typed.Numbers], Gradients[Any]]]:
        """Value and VJP function (reverse mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, clamp_k, **options
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
        k = clamped(k, clamp_k)
        return verbs.vjp(self, x, k, temperature, axis, largest, where, out, options)
