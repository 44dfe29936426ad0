"""Sinkhorn's assignment of JAX arrays, on the host, with first derivatives in reverse mode."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._api.arguments import check_positive
from ..softmax import assignment
from . import arguments, on_host


def sinkhorn(
    scores: ArrayLike,
    rows: ArrayLike | None = None,
    columns: ArrayLike | None = None,
    *,
    temperature: ArrayLike = 1.0,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> jax.Array:
    """Soft assignment with given marginals: `softtopk_nb.sinkhorn` of JAX arrays.

    Parameters
    ----------
    scores : array, shape (..., n, m)
        How well row i and column j go together; -inf forbids a pair. Computed in float64.
    rows, columns : array, default=None
        Sums of the rows, shape (..., n), and of the columns, shape (..., m), broadcast over the
        batch, as in `softtopk_nb.sinkhorn`. They are not differentiated: their gradient is 0.
    temperature : float or array, default=1.0
        The smoothing, in the units of the scores; broadcast over the batch.
    tol : float, default=1e-9
        As in `softtopk_nb.sinkhorn`; known while JAX traces.
    max_iter : int, default=1000
        Likewise.

    Returns
    -------
    P : array of the scores' shape and type
        The assignment, differentiable in the scores and the temperature in reverse mode.

    Raises
    ------
    TypeError, ValueError, ConvergenceError
        As `softtopk_nb.sinkhorn`: of a call that is not traced, and while JAX traces, of everything
        that is known then.
    jax.errors.JaxRuntimeError, ValueError
        INVALID_ARGUMENT and ABORTED, from the compiled program, of the rest, with the same words.

    Notes
    -----
    The gradient is that of the assignment at which the sweeps end: a system of min(n, m) equations
    for each matrix, whatever the number of sweeps. Both are computed on the host, for an array on a
    device by `jax.pure_callback`. There is no second derivative.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> scores = jax.numpy.array([[2.0, 1.0], [1.0, 0.0]])
    >>> g = jax.grad(lambda scores: stj.sinkhorn(scores, temperature=0.5)[0, 0])(scores)
    >>> g.round(3).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    x = arguments.check_array(scores, "scores")
    if x.ndim < 2:
        raise ValueError(f"scores has shape {x.shape}; expected at least two axes")
    *leading, n, m = x.shape
    batch, dtype = tuple(leading), arguments.computed_in(x.dtype)
    given = ("rows", rows, (*batch, n)), ("columns", columns, (*batch, m))
    masses = tuple(
        None if v is None else arguments.broadcast(v, name, to, dtype) for name, v, to in given
    )
    width = arguments.broadcast(temperature, "temperature", batch, dtype)
    fixed = tuple(None if each is None else jax.lax.stop_gradient(each) for each in masses)
    options = assignment.check_options(tol, max_iter)
    tau, of_rows, of_columns = (
        None if v is None else arguments.known(v, name)
        for name, v in (("temperature", temperature), ("rows", rows), ("columns", columns))
    )
    if tau is not None:
        check_positive(tau, batch, "temperature")
    assignment.marginals(of_rows, of_columns, batch, n, m)  # one that is not known yet fits
    p = _plan(x.astype(dtype), width, fixed, *options)
    return jnp.asarray(p.astype(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _plan(scores: Any, temperature: Any, masses: Any, tol: float, max_iter: int) -> Any:
    """The assignment."""
    kind = jax.ShapeDtypeStruct(scores.shape, scores.dtype)
    options = ("tol", tol), ("max_iter", max_iter)
    return on_host.call(_solved, options, kind, scores, temperature, masses)


def _solved(options: Any, scores: Any, temperature: Any, masses: Any) -> Any:
    """The assignment, of arrays of NumPy."""
    return assignment.sinkhorn(scores, *masses, temperature=temperature, **options)


def _forward(scores: Any, temperature: Any, masses: Any, tol: float, max_iter: int) -> Any:
    plan = _plan(scores, temperature, masses, tol, max_iter)
    return plan, (plan, scores, temperature, masses)


def _backward(tol: float, max_iter: int, kept: Any, g: Any) -> Any:
    *problem, masses = kept
    in_scores, in_temperature = _gradients(*problem, g)
    return in_scores, in_temperature, jax.tree.map(jnp.zeros_like, masses)


@jax.custom_jvp
def _gradients(plan: Any, scores: Any, temperature: Any, g: Any) -> Any:
    """The gradients of <g, assignment> in the scores and the temperature."""
    kinds = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (scores, temperature)]
    return on_host.call(_pulled, (), kinds, plan, scores, temperature, g)


def _pulled(_: Any, *arrays: Any) -> Any:
    """The gradients, of arrays of NumPy."""
    return assignment.gradients(*arrays)


@_gradients.defjvp
def _no_second(given: Any, moves: Any) -> Any:
    raise NotImplementedError("sinkhorn has no second derivative here")


_plan.defvjp(_forward, _backward)
