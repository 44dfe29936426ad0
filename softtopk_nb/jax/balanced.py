"""Balanced top-k of JAX arrays, on the host, with first derivatives."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._api.arguments import check_positive, clamped
from ..balanced import Balanced, call, checks
from . import arguments, on_host
from .derivatives import is_zero, unmoved
from .primitives import batched, of_rows


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
    clamp_k: bool = False,
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
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row, with the gradient 0 in k where that
        is less than k.
    tol : float, default=1e-10
        As in `softtopk_nb.balancedtopk`; known while JAX traces.
    max_iter : int, default=100
        As in `softtopk_nb.balancedtopk`; known while JAX traces.

    Returns
    -------
    Balanced
        `p`, of x's shape and type, differentiable in x, k, the load and the temperature; and the
        thresholds of the rows and of the columns, without a gradient.

    Raises
    ------
    TypeError, ValueError, ConvergenceError
        As `softtopk_nb.balancedtopk`: of a call that is not traced, and while JAX traces, of
        everything that is known then.
    jax.errors.JaxRuntimeError, ValueError
        INVALID_ARGUMENT, from the compiled program, where budgets that were not known before cannot
        be met, and ABORTED in place of `ConvergenceError`, with the same words.

    Notes
    -----
    The derivatives, in forward and in reverse mode, are those of the solution, by one system of n
    equations for each matrix; there is no second derivative. All is computed on the host, for an
    array on a device by `jax.pure_callback`, whose errors show a traceback before the words.

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
    at = checks.check_axes(axis, x)
    options: Any = {"curve": curve, "alpha": alpha, "at_most": at_most}
    options |= {"clamp_k": clamp_k, "tol": tol, "max_iter": max_iter}
    dtype = arguments.computed_in(x.dtype)
    matrices = jnp.moveaxis(x.astype(dtype), at, (-2, -1))
    *leading, m, n = matrices.shape
    batch, mask = tuple(leading), where
    if where is not None:
        arguments.check_where(where, x.shape)
        if not isinstance(where, jax.core.Tracer):
            mask = np.moveaxis(np.broadcast_to(np.asarray(where), x.shape), at, (-2, -1))
        where = jnp.moveaxis(jnp.broadcast_to(where, x.shape), at, (-2, -1))
    options = _checked_options(
        options, (math.prod(batch), m, n), batch, (k, load, temperature), mask
    )
    given = ("k", k, (*batch, m)), ("temperature", temperature, batch), ("load", load, (*batch, n))
    numbers = [arguments.broadcast(v, name, to, dtype) for name, v, to in given if v is not None]
    masks = [] if where is None else [where]
    form = _Form(load is not None, where is not None, tuple(options.items()))
    p, rows, columns = _solve.bind(matrices, *numbers, *masks, form=form)
    rows, columns = (jax.lax.stop_gradient(each).astype(x.dtype) for each in (rows, columns))
    return Balanced(jnp.moveaxis(p, (-2, -1), at).astype(x.dtype), rows, columns)


def _checked_options(
    options: dict[str, Any], table: Any, batch: tuple[int, ...], numbers: Any, mask: Any
) -> dict[str, Any]:
    """The options, made hashable; refuses what is wrong with numbers that are known already.

    A mask is an array of NumPy in this table's layout if it is known.
    """
    _, bounded, tol, most = call.check_options(options)
    k, load, width = (
        None if value is None else arguments.known(value, name)
        for name, value in zip(("k", "load", "temperature"), numbers, strict=True)
    )
    number = clamped(k, options["clamp_k"])
    if width is not None:
        check_positive(width, batch, "temperature")
    if load is not None:
        checks.check_load(load, table[1], bounded)
    if options["clamp_k"]:
        if k is not None:  # what it is in a row depends on the scores
            checks.check_k(number, table[2])
    elif k is not None:
        counts: Any = None
        if mask is not None:
            is_known = isinstance(mask, np.ndarray)
            counts = checks.counts_of(mask.reshape(table)) if is_known else lambda i: None
        # A load that is not known yet is taken for one that bounds nothing.
        limits = bounded or (load is None and numbers[1] is not None)
        checks.check_budgets(k, load, batch, table, counts, limits)
    known = {"at_most": bounded, "clamp_k": bool(options["clamp_k"]), "tol": tol, "max_iter": most}
    return options | known


class _Form(NamedTuple):
    """What a compiled program knows of a call: which arguments there are, and the options."""

    has_load: bool
    has_mask: bool
    options: tuple[tuple[str, Any], ...]

    @property
    def moving(self) -> int:
        """The number of operands that have derivatives, which are the first."""
        return 3 + self.has_load

    @property
    def solved(self) -> int:
        """The number of operands of a problem and the thresholds of its columns."""
        return self.moving + self.has_mask + 1

    def parts(self, operands: Any) -> tuple[Any, ...]:
        """((x, k, temperature, load or None, mask or None), what else there is)."""
        numbers, others = [*operands[: self.moving]], [*operands[self.moving :]]
        numbers += [] if self.has_load else [None]
        mask = others.pop(0) if self.has_mask else None
        return (*numbers, mask), *others


# What is computed, of arrays of NumPy.


def _checked(options: dict[str, Any], problem: Any, *start: Any) -> call.Call:
    x, k, temperature, load, where = problem
    return call.check(
        x, k, load, temperature, {**options, "axis": (-2, -1), "where": where}, *start
    )


def _value(options: dict[str, Any], problem: Any) -> Any:
    """p and both thresholds."""
    return _checked(options, problem).value()


def _moved(options: dict[str, Any], problem: Any, columns: Any, *direction: Any) -> Any:
    """The derivative of p along a direction in x, k, the temperature and the load."""
    dx, dk, dtau, *dload = direction
    in_load = dload[0] if dload else None
    return [_checked(options, problem, columns).jvp(dx, dk, in_load, dtau)[1]]


def _pulled(options: dict[str, Any], problem: Any, columns: Any, g: Any) -> Any:
    """The gradients of <g, p> in x, k, the temperature and the load, if there is one."""
    gx, gk, gload, gtau = _checked(options, problem, columns).vjp()[1](g)
    return [gx, gk, gtau, *([] if gload is None else [gload])]


# The primitives, of the problem's arrays (`_Form.parts`), its columns' thresholds, and a direction
# or cotangent.


def _like_values(x: Any, k: Any, *_: Any, form: _Form) -> Any:
    n = x.shape[-1]
    return [of_rows(x, n), of_rows(x), of_rows(k, n)]


def _like_x(x: Any, *_: Any, form: _Form) -> Any:
    return [of_rows(x, x.shape[-1])]


def _like_numbers(*operands: Any, form: _Form) -> Any:
    return [each.update(weak_type=False) for each in operands[: form.moving]]


def _called(compute: Any, shapes: Any, *operands: Any, form: _Form) -> Any:
    avals = shapes(*map(jax.typeof, operands), form=form)
    kinds = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in avals]
    return on_host.call(compute, form.options, kinds, *form.parts(operands))


def _primitive(name: str, compute: Any, shapes: Any) -> Primitive:
    primitive = Primitive(f"softtopk_nb_balanced_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(shapes)
    batching.primitive_batchers[primitive] = functools.partial(batched, primitive)
    called = functools.partial(_called, compute, shapes)
    primitive.def_impl(called)
    mlir.register_lowering(primitive, mlir.lower_fun(called, multiple_results=True))
    return primitive


_solve = _primitive("solve", _value, _like_values)
_along = _primitive("along", _moved, _like_x)
_gradients = _primitive("gradients", _pulled, _like_numbers)


def _solve_jvp(operands: Any, moves: Any, *, form: _Form) -> Any:
    p, rows, columns = _solve.bind(*operands, form=form)
    moving = moves[: form.moving]
    dp = unmoved(p)
    if not all(map(is_zero, moving)):
        direction = map(ad.instantiate_zeros, moving)
        (dp,) = _along.bind(*operands, columns, *direction, form=form)
    return [p, rows, columns], [dp, unmoved(rows), unmoved(columns)]


def _linear_jvp(primitive: Primitive, operands: Any, moves: Any, *, form: _Form) -> Any:
    """The derivative of what is linear in all operands after the solution."""
    at = form.solved
    if not all(map(is_zero, moves[:at])):
        raise NotImplementedError("balancedtopk has no second derivative here")
    found = primitive.bind(*operands, form=form)
    if all(map(is_zero, moves)):
        return found, list(map(unmoved, found))
    direction = map(ad.instantiate_zeros, moves[at:])
    return found, primitive.bind(*operands[:at], *direction, form=form)


def _transposed(transpose: Primitive, cotangents: Any, *operands: Any, form: _Form) -> Any:
    at, given = form.solved, map(ad.instantiate_zeros, cotangents)
    found = transpose.bind(*operands[:at], *given, form=form)
    wanted = map(ad.is_undefined_primal, operands[at:])
    return [None] * at + [f if each else None for f, each in zip(found, wanted, strict=True)]


ad.primitive_jvps[_solve] = _solve_jvp
for _linear, _transpose in ((_along, _gradients), (_gradients, _along)):
    ad.primitive_jvps[_linear] = functools.partial(_linear_jvp, _linear)
    ad.primitive_transposes[_linear] = functools.partial(_transposed, _transpose)
