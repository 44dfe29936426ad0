"""The operators on Dask arrays: one object for each, named as in `softtopk_nb`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Never, Unpack

import dask.array as da
import numpy as np

from .._api import typed
from .._api.base import Gradients
from .._api.front import named
from .._api.typed import C, E, K, M, X
from ..gradtopk.operator import Method as OfGradTopK
from ..thretopk.operator import CurveChoice, Method
from . import rows
from .arguments import Problem, check, direction, per_row
from .axis import Axis, is_in_chunks

Array = da.Array
Numbers = da.Array | np.ndarray[Any, Any]


class Options(typed.Own[C, E, M, X], total=False):
    """The options of an operator on Dask arrays."""

    clamp_k: bool


_DOC = """`softtopk_nb.{name}` of Dask arrays: lazy in, lazy out.

Parameters
----------
x : dask.array.Array, shape (..., n, ...)
    Scores, float32 or float64, in chunks of known sizes{along}; best of 2^22 to 2^23 entries.
    Integers and bools are computed in float64.
{numbers}axis : int, default=-1
    The axis of the scores.
largest : bool, default=True
    False takes the k smallest instead.
where : dask.array.Array or array of bool, default=None
    Entries that take part, broadcastable to x's shape.
**options
    The operator's own: see `softtopk_nb.{name}`.{clamp}

Returns
-------
{returns}

Raises
------
TypeError, ValueError
    At once for what the arguments tell; when it is computed for what only the data tell: a k or a
    temperature out of range, with the row that has it.

Notes
-----
Rows in chunks are solved chunk by chunk, each task by one thread. {chunked} See the page "Dask" for
passes, memory and cost; `softtopk_nb.{name}` for the mathematics and its source.

Examples
--------
>>> import dask.array as da
>>> import softtopk_nb.dask as std
>>> x = da.from_array([[3.0, 2.0, 1.0, 4.0]], chunks=(1, 4))
>>> p = std.{name}(x{k})
>>> p.compute(scheduler="synchronous").round(3)
{shown}
"""

_CLAMP = """ And `clamp_k`: True takes min(k, entries that take
    part) in each row; a row with fewer is NaN otherwise."""
_CHUNKED = (
    "Where the axis is in chunks, rows of a million entries and more are searched where their "
    "chunks are, in a few passes, with the bits of one process if chunk edges are multiples of "
    "`PART` and all entries are finite, and to rounding else; shorter rows are brought together."
)


class Operator(Generic[K, C, E, M, X]):
    """An operator of `softtopk_nb`, on Dask arrays."""

    def __init__(self, op: Any, shown: str) -> None:
        self._op, self.__name__ = op, op.__name__
        chunked, with_k = op.chunks is not None, op.names[0] == "k"
        kind = "float" if op.real_k else "int"
        fits = "Broadcastable to x's shape without the axis, or with 1 along it."
        numbers = f"*k : {kind} or array\n    {fits}\n"
        numbers = (numbers if with_k else "") + (
            "temperature : float or array, default=1.0\n    Likewise, positive.\n"
        )
        batch = "value : dask.array.Array of x's shape without the axis, and its type"
        self.__doc__ = _DOC.format(
            name=op.__name__,
            along="" if chunked else ", one along the axis",
            numbers=numbers,
            clamp=_CLAMP if with_k else "",
            returns=batch if op.reduces else "p : dask.array.Array of x's shape, type and chunks",
            chunked=_CHUNKED if chunked else "The axis itself must be in one chunk.",
            k=", 2" if with_k else "",
            shown=shown,
        )

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb.dask>"

    def __call__(  # noqa: D102
        self,
        x: Array,
        /,
        *k: K | Numbers,
        temperature: float | Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Numbers | None = None,
        **options: Unpack[Options[C, E, M, X]],
    ) -> Array:
        return self._verb("value", x, k, temperature, axis, largest, where, options)

    def _check(self, x: Any, k: Any, temperature: Any, *given: Any) -> Problem:
        wanted = len(self._op.names) - 1
        if len(k) != wanted:
            raise TypeError(f"{self.__name__} takes {wanted} positional k, got {len(k)}")
        return check(self._op, x, (*k, temperature), *given)

    def _verb(self, verb: str, x: Any, k: Any, *given: Any) -> Array:
        problem = self._check(x, k, *given)
        if is_in_chunks(self._op, problem):
            at = Axis(self._op, problem)
            value: Array = at.value() if verb == "value" else at.number(verb)
            return value
        found: Array = rows.run(self._op, _together(problem), verb)
        if self._op.reduces or verb != "value":
            return found
        return _back(found, problem)


class Differentiable(Operator[K, C, E, M, X]):
    """An operator with derivatives."""

    def jvp(
        self,
        x: Array,
        /,
        *k_and_dx: K | Numbers,
        dk: float | Numbers | None = None,
        dtemperature: float | Numbers | None = None,
        temperature: float | Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Numbers | None = None,
        **options: Unpack[Options[C, E, M, X]],
    ) -> tuple[Array, Array]:
        """Value and derivative along a direction, as `softtopk_nb`'s `jvp`.

        Parameters
        ----------
        x, temperature, axis, largest, where, **options
            As in a call.
        *k_and_dx : number or array, and array
            k, where the operator has one, and the direction in x, of its shape.
        dk, dtemperature : float or array, default=None
            The directions in k and in the temperature; None is 0.

        Returns
        -------
        value, tangent : dask.array.Array
            The value, and its derivative along the direction.

        Examples
        --------
        >>> import dask.array as da
        >>> import softtopk_nb.dask as std
        >>> x = da.from_array([[3.0, 2.0, 1.0, 4.0]], chunks=(1, 4))
        >>> p, dp = std.thretopk.jvp(x, 2, da.ones_like(x), dk=1.0)
        >>> dp.compute(scheduler="synchronous").round(3)
        array([[0.366, 0.366, 0.134, 0.134]])
        """
        *k, dx = k_and_dx
        op = self._op
        problem = self._check(x, k, temperature, axis, largest, where, options)
        if dk is not None and not op.real_k:
            raise TypeError(f"dk was given, but {self.__name__} takes an integer k")
        v = direction(dx, problem, "dx")
        moves = tuple(
            per_row(each, problem, f"d{name}")
            for name, each in zip(op.names, (dk, dtemperature)[-len(op.names) :], strict=True)
        )
        if is_in_chunks(op, problem):
            at = Axis(op, problem)
            return at.value(), at.jvp(v, moves)
        whole, v = _together(problem), v.rechunk({-1: -1})
        part = rows.run(op, whole, "jvp", v, *moves[op.fixed :])
        value, tangent = part(0, op.reduces), part(1, op.reduces)
        return (value, tangent) if op.reduces else (_back(value, problem), _back(tangent, problem))

    def vjp(
        self,
        x: Array,
        /,
        *k: K | Numbers,
        temperature: float | Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Numbers | None = None,
        **options: Unpack[Options[C, E, M, X]],
    ) -> tuple[Array, Callable[[float | Numbers], Gradients[Array]]]:
        """Value and VJP function, as `softtopk_nb`'s `vjp`; the gradients are lazy too.

        Of rows in chunks the VJP function solves again: nothing is kept from one graph to the next.

        Parameters
        ----------
        x, *k, temperature, axis, largest, where, **options
            As in a call.

        Returns
        -------
        value : dask.array.Array
            As in a call.
        vjp_function : callable
            Maps a cotangent to `softtopk_nb.Gradients`, lazy too.

        Examples
        --------
        >>> import dask.array as da
        >>> import softtopk_nb.dask as std
        >>> x = da.from_array([[3.0, 2.0, 1.0, 4.0]], chunks=(1, 4))
        >>> p, vjp = std.thretopk.vjp(x, 2)
        >>> vjp(p).x.compute(scheduler="synchronous").round(3)
        array([[ 0.06 , -0.06 , -0.043,  0.043]])
        """
        op = self._op
        problem = self._check(x, k, temperature, axis, largest, where, options)
        reads = per_row if op.reduces else direction
        if is_in_chunks(op, problem):
            at = Axis(op, problem)

            def gradients(g: Any) -> tuple[Any, ...]:
                return at.vjp(reads(g, problem, "the cotangent"))

            value = at.value()
        else:
            whole = _together(problem)

            def gradients(g: Any) -> tuple[Any, ...]:
                v = reads(g, problem, "the cotangent")
                v = v if op.reduces else v.rechunk({-1: -1})
                part = rows.run(op, whole, "vjp", v)
                places = (1, 2)[-len(op.names) :]
                return _back(part(0, False), problem), *(part(i, True) for i in places)

            value = rows.run(op, whole, "value")
            value = value if op.reduces else _back(value, problem)

        def vjp_function(g: float | Numbers, /) -> Gradients[Array]:
            gx, *numbers = gradients(g)
            sums: list[Any] = [
                None if i < op.fixed else _sum_to(each, given, problem.axis)
                for i, (each, given) in enumerate(zip(numbers, problem.given, strict=True))
            ]
            return Gradients(gx, *((None,) * (2 - len(sums))), *sums)

        return value, vjp_function


class WithPotential(Differentiable[K, C, E, M, X]):
    """An operator whose value is the gradient of a potential."""

    def potential(
        self,
        x: Array,
        /,
        *k: K | Numbers,
        temperature: float | Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Numbers | None = None,
        **options: Unpack[Options[C, E, M, X]],
    ) -> Array:
        """The potential of each row, as `softtopk_nb`'s.

        Parameters
        ----------
        x, *k, temperature, axis, largest, where, **options
            As in a call.

        Returns
        -------
        phi : dask.array.Array of x's shape without `axis`
            In the units of x.

        Examples
        --------
        >>> import dask.array as da
        >>> import softtopk_nb.dask as std
        >>> x = da.from_array([[3.0, 2.0, 1.0, 4.0]], chunks=(1, 4))
        >>> std.thretopk.potential(x, 2).compute(scheduler="synchronous").round(3)
        array([7.83])
        """
        return self._verb("potential", x, k, temperature, axis, largest, where, options)


class WithThreshold(WithPotential[K, C, E, M, X]):
    """An operator whose rows have a threshold."""

    def threshold(
        self,
        x: Array,
        /,
        *k: K | Numbers,
        temperature: float | Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Numbers | None = None,
        **options: Unpack[Options[C, E, M, X]],
    ) -> Array:
        """The threshold of each row, as `softtopk_nb`'s.

        Parameters
        ----------
        x, *k, temperature, axis, largest, where, **options
            As in a call.

        Returns
        -------
        lam : dask.array.Array of x's shape without `axis`
            In the units of x.

        Examples
        --------
        >>> import dask.array as da
        >>> import softtopk_nb.dask as std
        >>> x = da.from_array([[3.0, 2.0, 1.0, 4.0]], chunks=(1, 4))
        >>> std.thretopk.threshold(x, 2).compute(scheduler="synchronous").round(3)
        array([2.5])
        """
        return self._verb("threshold", x, k, temperature, axis, largest, where, options)


def _together(problem: Problem) -> Problem:
    """The problem with the axis rechunked to one chunk."""
    last = {-1: -1}
    where = None if problem.where is None else problem.where.rechunk(last)
    return problem._replace(x=problem.x.rechunk(last), where=where)


def _back(p: Any, problem: Problem) -> Array:
    """A result in the chunks and the shape of x."""
    back: Array = problem.back(p.rechunk(problem.x.chunks))
    return back


def _sum_to(numbers: Any, given: Any, axis: int) -> Any:
    """A number per row, summed over the axes along which an argument was broadcast."""
    shape = getattr(given, "shape", None)
    shape = np.shape(given) if shape is None else shape
    if len(shape) > numbers.ndim:
        numbers = da.expand_dims(numbers, axis)
    extra = numbers.ndim - len(shape)
    stretched = tuple(extra + i for i, n in enumerate(shape) if n == 1 != numbers.shape[extra + i])
    total = numbers.sum(axis=(*range(extra), *stretched)) if extra or stretched else numbers
    return da.reshape(total, shape) if total.shape != tuple(shape) else total


hardtopk: Operator[int, Never, Never, Never, Never] = Operator(
    named("hardtopk"), "array([[1., 0., 0., 1.]])"
)
thretopk: WithThreshold[float, CurveChoice, float, Method, typed.Numbers] = WithThreshold(
    named("thretopk"), "array([[0.697, 0.303, 0.112, 0.888]])"
)
gradtopk: WithPotential[int, Never, Never, OfGradTopK, Never] = WithPotential(
    named("gradtopk"), "array([[0.694, 0.306, 0.119, 0.881]])"
)
itertopk: Differentiable[int, Never, Never, Never, Never] = Differentiable(
    named("itertopk"), "array([[0.655, 0.314, 0.123, 0.908]])"
)
wsoftmaxtopk: Differentiable[int, Never, Never, Never, Never] = Differentiable(
    named("wsoftmaxtopk"), "array([[0.584, 0.24 , 0.092, 1.084]])"
)
softmax: Differentiable[Never, Never, Never, Never, Never] = Differentiable(
    named("softmax"), "array([[0.237, 0.087, 0.032, 0.644]])"
)
log_softmax: Differentiable[Never, Never, Never, Never, Never] = Differentiable(
    named("log_softmax"), "array([[-1.44, -2.44, -3.44, -0.44]])"
)
logsumexp: Differentiable[Never, Never, Never, Never, Never] = Differentiable(
    named("logsumexp"), "array([4.44])"
)
