"""The operators on JAX arrays: one object for each, called like `jax.nn.softmax`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Generic, Never, Unpack

import jax
import numpy as np
from jax.typing import ArrayLike

from .._api import typed
from .._api.front import Choice, FrontOperator, check_potential, check_threshold, refuse_cost
from .._api.operator import Differentiable, chosen, registry
from .._api.typed import C, E, K, M, X
from ..gradtopk.operator import Method as OfGradTopK
from ..selection import Own
from ..thretopk.operator import CurveChoice, Method
from . import arguments, calls, potentials, prices, primitives
from .arguments import Layout

_COMMON = "temperature", "axis", "largest", "where", "hard", "clamp_k"


Array = jax.Array | np.ndarray[Any, Any]

_DOC = """`softtopk_nb.{name}` of JAX arrays, under every transform of JAX.

Parameters
----------
x : array, shape (..., n, ...)
    Scores: float32, or float64 where JAX is set to it; float16 and bfloat16 are computed in
    float32, integers and bools in JAX's default type, which the result has then.
k : {k_type} or array
    As in `softtopk_nb.{name}`: a number, or an array that broadcasts to x's shape without
    `axis`, or with 1 along it.
temperature : float or array, default=1.0
    Likewise, positive. Both have the type that x is computed in.
axis : int, default=-1
    The axis of the scores.
largest : bool, default=True
    False takes the k smallest instead.
where : array of bool, default=None
    Entries that take part, broadcastable to x's shape; the others get 0.
hard : bool, default=False
    Straight-through: the value is the 0/1 mask of the k largest entries (of round(k), where k is
    real), the derivatives are those of the soft operator.
clamp_k : bool, default=False
    True takes min(k, entries that take part) in each row, with the gradient 0 in k where that is
    less than k; a row with fewer entries is NaN otherwise.
**options
    The operator's own: see `softtopk_nb.{name}`.

Returns
-------
p : array of x's shape and type
    It sums to k along `axis`.

Raises
------
TypeError, ValueError
    As `softtopk_nb.{name}`, while JAX traces; for integer and complex x too.
jax.errors.JaxRuntimeError, ValueError
    INVALID_ARGUMENT, from the compiled program, where a k or a temperature that was not known
    before is out of range in any row: the second where JAX had handed the result on. One that is
    NaN is no error: it makes its row NaN, as on CUDA devices every wrong one does.

Notes
-----
{derivatives} It costs what `softtopk_nb.{name}` does; on the CPU scores are not copied. See the
page "JAX" for what holds under which transform.

Examples
--------
>>> import jax
>>> import softtopk_nb.jax as stj
>>> x = jax.numpy.array([3.0, 2.0, 1.0, 4.0])
>>> p = jax.jit(lambda x: stj.{name}(x, 2))(x)
>>> abs(float(p.sum()) - 2.0) < 1e-5
True
"""


class Operator(FrontOperator, Generic[K, C, E, M, X]):
    """An operator of the registry, on arrays of JAX."""

    documentation = _DOC
    without_derivatives = "All derivatives are 0."

    def __call__(
        self,
        x: ArrayLike,
        k: K | Array,
        *,
        temperature: ArrayLike = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: ArrayLike | None = None,
        hard: bool = False,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> jax.Array:
        """The value: see the class."""
        if (cost := options.get("cost")) is not None:
            if hard or clamp_k:
                refuse_cost(options, "a call of JAX arrays with hard or clamp_k")
            order = axis, largest, where
            return prices.value(self._op, options, x, k, temperature, cost, *order)
        x, layout = checked(self._op, "x", x, k, temperature, axis, largest, where, clamp_k)
        call = call_of(self._op, options)
        result: jax.Array = _values(
            x, k, temperature, where, call=call, layout=layout, hard=bool(hard)
        )
        return result

    def potential(
        self,
        x: ArrayLike,
        k: K | Array,
        *,
        temperature: ArrayLike = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: ArrayLike | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> jax.Array:
        """The smoothed sum of the k largest entries, whose gradient in x is the operator itself.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call.

        Returns
        -------
        phi : array of x's shape without `axis`
            In the units of x.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> round(float(stj.thretopk.potential(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2)), 3)
        7.83
        """
        check_potential(self._op)
        refuse_cost(options, "a potential or threshold of JAX arrays")
        x, layout = checked(self._op, "x", x, k, temperature, axis, largest, where, clamp_k)
        call = call_of(self._op, options)
        result: jax.Array = _numbers(
            x, k, temperature, where, of_rows=potentials.potential, call=call, layout=layout
        )
        return result

    def threshold(
        self,
        x: ArrayLike,
        k: K | Array,
        *,
        temperature: ArrayLike = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: ArrayLike | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> jax.Array:
        """The threshold lambda of p = f((x - lambda)/temperature), which `thretopk` has.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call.

        Returns
        -------
        lam : array of x's shape without `axis`
            In the units of x; differentiable in x and the temperature.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> float(stj.thretopk.threshold(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2))
        2.5
        """
        check_threshold(self._op)
        refuse_cost(options, "a potential or threshold of JAX arrays")
        x, layout = checked(self._op, "x", x, k, temperature, axis, largest, where, clamp_k)
        call = call_of(self._op, options)
        result: jax.Array = _numbers(
            x, k, temperature, where, of_rows=potentials.threshold, call=call, layout=layout
        )
        return result


def checked(
    op: Any, name: str, x: Any, k: Any, temperature: Any, *order: Any
) -> tuple[Any, Layout]:
    """(x as an array, its layout), with everything checked that is known while tracing.

    order: axis, largest, where and, if it has a k, clamp_k.
    """
    x = arguments.check_array(x, name)
    layout = arguments.laid_out(x, *order)
    arguments.check_numbers(op, x, layout, k, temperature)
    return x, layout


def call_of(op: Any, options: Mapping[str, Any]) -> calls.Call:
    """The call of the operator with its own options, which are checked."""
    if options:
        op.check_names(options, _COMMON)
    op.check_options(options)
    return calls.call(op.__name__, tuple(sorted(options.items())))


@functools.partial(jax.jit, static_argnames=("call", "layout", "hard"), inline=True)
def _values(
    x: Any, k: Any, temperature: Any, where: Any, *, call: calls.Call, layout: Layout, hard: bool
) -> Any:
    rows = layout.rows(x, where, arguments.kept_in(x.dtype))
    problem = rows, *arguments.numbers(call.op, rows, layout, k, temperature)
    soft = isinstance(call.op, Differentiable)
    if soft:
        p, _ = primitives.solve.bind(*problem, call=call)
    if hard or not soft:
        (mask,) = primitives.mark.bind(*map(jax.lax.stop_gradient, problem), call=call)
        p = _straight_through(mask, p) if soft else mask
    return layout.back(p, x.dtype)


@jax.custom_jvp
def _straight_through(mask: Any, p: Any) -> Any:
    """The mask with the derivatives of p; the compiler does not compute p's value otherwise."""
    return mask


@_straight_through.defjvp
def _straight_through_jvp(given: Any, moves: Any) -> Any:
    return _straight_through(*given), moves[1]


@functools.partial(jax.jit, static_argnames=("of_rows", "call", "layout"), inline=True)
def _numbers(
    x: Any, k: Any, temperature: Any, where: Any, *, of_rows: Any, call: calls.Call, layout: Layout
) -> Any:
    rows = layout.rows(x, where, arguments.computed_in(x.dtype))
    number = of_rows(rows, *arguments.numbers(call.op, rows, layout, k, temperature), call)
    return (number if layout.largest else -number).astype(x.dtype)


def fenchel_young(
    op: Choice,
    theta: ArrayLike,
    target: ArrayLike,
    k: ArrayLike,
    *,
    constant: bool = True,
    temperature: ArrayLike = 1.0,
    axis: int = -1,
    largest: bool = True,
    where: ArrayLike | None = None,
    clamp_k: bool = False,
    **options: Unpack[Own],
) -> jax.Array:
    """The Fenchel-Young loss of scores: `softtopk_nb.fenchel_young` of JAX arrays.

    Parameters
    ----------
    op : operator or str
        `softtopk_nb.jax.thretopk` or `gradtopk`, whose potential it is, or its name.
    theta : array, shape (..., n, ...)
        Scores.
    target : array
        Of theta's shape: 0/1 vectors with k ones or, for `thretopk` or without the constant,
        numbers in [0, 1] that sum to k. Or integer labels, k of each row along `axis`, where -1
        fills up rows with fewer; with k = 1 the axis may be left out. It is not differentiated.
    k, temperature, axis, largest, where, clamp_k, **options
        As in a call of the operator.
    constant : bool, default=True
        False leaves out the conjugate of the target, which does not depend on theta.

    Returns
    -------
    loss : array of theta's shape without `axis`
        One for each row; differentiable in theta and the temperature.

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As `softtopk_nb.fenchel_young`: while JAX traces, as far as shapes and types tell; the
        numbers of a target by the compiled program, INVALID_ARGUMENT, as an operator's.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> theta = jax.numpy.array([[3.0, 2.0, 1.0, 4.0], [0.0, 0.0, 1.0, 0.5]])
    >>> labels = jax.numpy.array([[0, 3], [2, -1]])
    >>> k = jax.numpy.array([2, 1])
    >>> [f"{each:.3f}" for each in stj.fenchel_young(stj.gradtopk, theta, labels, k)]
    ['0.535', '0.851']
    """
    inner = chosen(op, with_potential=True)
    order = axis, largest, where, clamp_k
    theta, layout = checked(inner, "theta", theta, k, temperature, *order)
    target = potentials.check_target(target, theta, layout)
    call = call_of(inner, options)
    result: jax.Array = _losses(
        theta, target, k, temperature, where, call=call, layout=layout, constant=bool(constant)
    )
    return result


@functools.partial(jax.jit, static_argnames=("call", "layout", "constant"), inline=True)
def _losses(
    theta: Any,
    target: Any,
    k: Any,
    temperature: Any,
    where: Any,
    *,
    call: calls.Call,
    layout: Layout,
    constant: bool,
) -> Any:
    rows = layout.rows(theta, where, arguments.computed_in(theta.dtype))
    of_rows = arguments.numbers(call.op, rows, layout, k, temperature)
    y = jax.lax.stop_gradient(potentials.vectors(target, rows, layout))
    return potentials.loss(rows, *of_rows, y, call, constant).astype(theta.dtype)


OPERATORS: dict[str, Operator[Any, Any, Any, Any, Any]] = {
    name: Operator(op) for name, op in registry.items()
}
hardtopk: Operator[int, Never, Never, Never, Never] = OPERATORS["hardtopk"]
thretopk: Operator[float, CurveChoice, float, Method, typed.Numbers] = OPERATORS["thretopk"]
gradtopk: Operator[int, Never, Never, OfGradTopK, Never] = OPERATORS["gradtopk"]
itertopk: Operator[int, Never, Never, Never, Never] = OPERATORS["itertopk"]
wsoftmaxtopk: Operator[int, Never, Never, Never, Never] = OPERATORS["wsoftmaxtopk"]
