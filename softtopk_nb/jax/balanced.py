"""Balanced top-k of JAX arrays, by a callback, with first derivatives in reverse mode."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..balanced import Balanced, call
from ..balanced.checks import check_axes
from . import arguments


def balancedtopk(
    x: Any,
    k: Any,
    load: Any = None,
    *,
    temperature: Any = 1.0,
    curve: Any = "laplace",
    alpha: float | None = None,
    axis: tuple[int, int] = (-2, -1),
    at_most: bool = False,
    where: Any = None,
    tol: float = 1e-10,
    max_iter: int = 100,
) -> Balanced:
    """Smooth top-k of rows whose columns have a load: `softtopk_nb.balancedtopk` of JAX arrays.

    Parameters
    ----------
    x : array, shape (..., m, n)
        Scores.
    k : float or array
        The sum of each row, broadcast to the shape (..., m).
    load : float or array, default=None
        The sum of each column, or with `at_most` a bound on it; broadcast to the shape (..., n).
        None gives each column an equal part of the sum of k.
    temperature : float or array, default=1.0
        The smoothing, in the units of the scores; broadcast over the batch.
    curve : str or Curve, default="laplace"
        As for `thretopk`.
    alpha : float, default=None
        As for `thretopk`.
    axis : tuple of two int, default=(-2, -1)
        The axes of rows and of columns.
    at_most : bool, default=False
        Whether the load is a bound.
    where : array of bool, default=None
        Entries that take part, all if None; broadcast to x's shape.
    tol : float, default=1e-10
        As in `softtopk_nb.balancedtopk`; known while JAX traces.
    max_iter : int, default=100
        As in `softtopk_nb.balancedtopk`; known while JAX traces.

    Returns
    -------
    Balanced
        `p`, of x's shape and type, differentiable in x, k, the load and the temperature in reverse
        mode; and the thresholds of the rows and of the columns, without a gradient.

    Raises
    ------
    TypeError, ValueError
        While JAX traces, for types and shapes that do not fit.
    jax.errors.JaxRuntimeError
        From the compiled program, what else `softtopk_nb.balancedtopk` raises.

    Notes
    -----
    The gradient is that of the solution, by one system of n equations for each matrix. Both are
    computed by `jax.pure_callback`, on the host for an array on a device too. There is no second
    derivative.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> scores = jax.numpy.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> p = stj.balancedtopk(scores, 1, temperature=0.5).p
    >>> p.sum(0).round(4).tolist()
    [1.0, 1.0, 1.0]
    >>> g = jax.grad(lambda scores: stj.balancedtopk(scores, 1).p[0, 0])(scores)
    """
    x = arguments.check_array(x, "x")
    at = check_axes(axis, x)
    dtype = arguments.computed_in(x.dtype)
    matrices = jnp.moveaxis(x.astype(dtype), at, (-2, -1))
    *leading, m, n = matrices.shape
    batch = tuple(leading)
    of_k = arguments.broadcast(k, "k", (*batch, m), dtype)
    width = arguments.broadcast(temperature, "temperature", batch, dtype)
    of_load = None if load is None else arguments.broadcast(load, "load", (*batch, n), dtype)
    mask = None
    if where is not None:
        arguments.check_where(where, x.shape)
        mask = jnp.moveaxis(jnp.broadcast_to(where, x.shape), at, (-2, -1))
    options = {"curve": curve, "alpha": alpha, "at_most": at_most, "tol": tol}
    options["max_iter"] = max_iter
    problem = matrices, of_k, width, of_load
    p, rows, columns = _solve(problem, mask, tuple(options.items()))
    rows, columns = (jax.lax.stop_gradient(each).astype(x.dtype) for each in (rows, columns))
    return Balanced(jnp.moveaxis(p, (-2, -1), at).astype(x.dtype), rows, columns)


def _checked(problem: Any, mask: Any, options: Any, *start: Any) -> call.Call:
    """The checked call of arrays of NumPy."""
    x, k, temperature, load = (None if each is None else np.asarray(each) for each in problem)
    where = None if mask is None else np.asarray(mask)
    known = {**dict(options), "axis": (-2, -1), "where": where}
    return call.check(x, k, load, temperature, known, *map(np.asarray, start))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _solve(problem: Any, mask: Any, options: Any) -> Any:
    """p and both thresholds."""
    x = problem[0]
    shapes = x.shape, x.shape[:-1], (*x.shape[:-2], x.shape[-1])
    kinds = tuple(jax.ShapeDtypeStruct(shape, x.dtype) for shape in shapes)

    def compute(problem: Any, mask: Any) -> Any:
        return _checked(problem, mask, options).value()

    return jax.pure_callback(compute, kinds, problem, mask, vmap_method="broadcast_all")


def _forward(problem: Any, mask: Any, options: Any) -> Any:
    p, rows, columns = _solve(problem, mask, options)
    return (p, rows, columns), (problem, mask, columns)


def _backward(options: Any, kept: Any, cotangents: Any) -> Any:
    problem, mask, columns = kept
    nothing = None if mask is None else np.zeros(mask.shape, jax.dtypes.float0)
    return _gradients(problem, mask, columns, cotangents[0], options), nothing


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _gradients(problem: Any, mask: Any, columns: Any, g: Any, options: Any) -> Any:
    """The gradients of <g, p> in x, k, the temperature and the load, if there is one."""
    kinds = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), problem)

    def compute(problem: Any, mask: Any, columns: Any, g: Any) -> Any:
        _, gradients = _checked(problem, mask, options, columns).vjp()
        gx, gk, gload, gtau = gradients(np.asarray(g))
        found = gx, gk, gtau, gload
        return jax.tree.map(lambda kind, each: each.astype(kind.dtype), kinds, found)

    given = problem, mask, columns, g
    return jax.pure_callback(compute, kinds, *given, vmap_method="broadcast_all")


@_gradients.defjvp
def _no_second(options: Any, given: Any, moves: Any) -> Any:
    raise NotImplementedError("balancedtopk has no second derivative here")


_solve.defvjp(_forward, _backward)
