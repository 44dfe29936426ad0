"""The operators: one object for each of the registry, called like `jax.nn.softmax`."""

from __future__ import annotations

import functools
from typing import Any

import jax

from .._api.operator import Differentiable, chosen, registry
from . import arguments, calls, heights, primitives
from .arguments import Layout

_DOC = """`softtopk_nb.{name}` of JAX arrays, under every transform of JAX.

Parameters
----------
x : array, shape (..., n, ...)
    Scores: float32, or float64 where JAX is set to it; float16 and bfloat16 are computed in
    float32.
k : {k_type} or array
    As in `softtopk_nb.{name}`: a number, or an array that broadcasts to x's shape without `axis`.
temperature : float or array, optional
    Likewise, positive; 1 by default. Both have the type that x is computed in.
axis : int, optional
    The axis of the scores, the last by default.
largest : bool, optional
    False takes the k smallest instead.
where : array of bool, optional
    Entries that take part, broadcastable to x's shape; the others get 0.
hard : bool, optional
    Straight-through: the value is the 0/1 mask of the k largest entries (of round(k), where k is
    real), the derivatives are those of the soft operator.
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
    NaN is no error: it makes its row NaN.

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


class Operator:
    """An operator of the registry, on arrays of JAX."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._known = tuple(op._known)
        self.__name__ = op.__name__
        second = "first and second" if op.has_second else "first"
        to = "x, k and the temperature" if op.real_k else "x and the temperature"
        soft = isinstance(op, Differentiable)
        self.__doc__ = _DOC.format(
            name=op.__name__,
            k_type="float" if op.real_k else "int",
            derivatives=f"Derivatives: {second}, in {to}." if soft else "All derivatives are 0.",
        )

    @property
    def real_k(self) -> bool:
        """Whether k may be any real number, and has a derivative."""
        return bool(self._op.real_k)

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb.jax>"

    def __reduce__(self) -> str:
        return str(self.__name__)

    def __call__(
        self,
        x: Any,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        hard: bool = False,
        **options: Any,
    ) -> jax.Array:
        """The value: see the class."""
        x, layout = checked(self._op, "x", x, k, temperature, axis, largest, where)
        call = call_of(self._op, options)
        result: jax.Array = _values(
            x, k, temperature, where, call=call, layout=layout, hard=bool(hard)
        )
        return result

    def potential(
        self,
        x: Any,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        **options: Any,
    ) -> jax.Array:
        """The smoothed sum of the k largest entries, whose gradient in x is the operator itself.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, **options
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
        x, layout = checked(self._op, "x", x, k, temperature, axis, largest, where)
        call = call_of(self._op, options)
        result: jax.Array = _potentials(x, k, temperature, where, call=call, layout=layout)
        return result


def checked(
    op: Any, name: str, x: Any, k: Any, temperature: Any, axis: Any, largest: Any, where: Any
) -> tuple[Any, Layout]:
    """x as an array, and how its rows lie: everything that can be told now has been checked."""
    x = arguments.check_array(x, name)
    layout = arguments.laid_out(x, axis, largest, where)
    arguments.check_numbers(op, x, layout.axis, k, temperature)
    return x, layout


def call_of(op: Any, options: dict[str, Any]) -> calls.Call:
    """The operator with its own options, which are checked."""
    op._plan(options)
    return calls.call(op.__name__, tuple(sorted(options.items())))


@functools.partial(jax.jit, static_argnames=("call", "layout", "hard"), inline=True)
def _values(
    x: Any, k: Any, temperature: Any, where: Any, *, call: calls.Call, layout: Layout, hard: bool
) -> Any:
    rows = layout.rows(x, where, arguments.kept_in(x.dtype))
    problem = rows, *arguments.numbers(call.op, rows, k, temperature)
    soft = isinstance(call.op, Differentiable)
    if soft:
        p, _ = primitives.solve.bind(*problem, call=call)
    if hard or not soft:
        (mask,) = primitives.mark.bind(*map(jax.lax.stop_gradient, problem), call=call)
        p = _straight_through(mask, p) if soft else mask
    return layout.back(p, x.dtype)


@jax.custom_jvp
def _straight_through(mask: Any, p: Any) -> Any:
    """The mask, whose derivatives are those of p: what else p is the compiler does not compute."""
    return mask


@_straight_through.defjvp
def _straight_through_jvp(given: Any, moves: Any) -> Any:
    return _straight_through(*given), moves[1]


@functools.partial(jax.jit, static_argnames=("call", "layout"), inline=True)
def _potentials(
    x: Any, k: Any, temperature: Any, where: Any, *, call: calls.Call, layout: Layout
) -> Any:
    rows = layout.rows(x, where, arguments.computed_in(x.dtype))
    phi = heights.potential(rows, *arguments.numbers(call.op, rows, k, temperature), call)
    return (phi if layout.largest else -phi).astype(x.dtype)


def check_potential(op: Any) -> None:
    """Refuse an operator without a potential."""
    if not op.has_potential:
        raise TypeError(f"{op.__name__} is the gradient of no potential")


def fenchel_young(
    op: Any,
    theta: Any,
    target: Any,
    k: Any,
    *,
    constant: bool = True,
    temperature: Any = 1.0,
    axis: int = -1,
    largest: bool = True,
    where: Any = None,
    **options: Any,
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
    k, temperature, axis, largest, where, **options
        As in a call of the operator.
    constant : bool, optional
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
    theta, layout = checked(inner, "theta", theta, k, temperature, axis, largest, where)
    target = heights.check_target(target, theta, layout)
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
    of_rows = arguments.numbers(call.op, rows, k, temperature)
    y = jax.lax.stop_gradient(heights.vectors(target, rows, layout))
    return heights.loss(rows, *of_rows, y, call, constant).astype(theta.dtype)


OPERATORS = {name: Operator(op) for name, op in registry.items()}
hardtopk, thretopk, gradtopk = (OPERATORS[name] for name in ("hardtopk", "thretopk", "gradtopk"))
itertopk, wsoftmaxtopk = OPERATORS["itertopk"], OPERATORS["wsoftmaxtopk"]
