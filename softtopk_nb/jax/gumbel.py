"""Draws by Gumbel noise: a relaxed one-hot vector, k indices, or a relaxed mask, of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._api import arguments as common
from .._api import without_k
from .._api.front import relaxation
from .._api.operator import Name
from ..softmax.sampling import check_size
from . import arguments
from .arguments import KNOWN
from .operators import OPERATORS, checked
from .without_k import WITHOUT_K

_SOFTMAX = without_k.registry["softmax"]


def _rows(x: Any, temperature: Any, axis: Any, where: Any) -> tuple[Any, Any, arguments.Layout]:
    """(x, its rows along the last axis in the type to compute in, its layout), checked."""
    x, layout = checked(_SOFTMAX, "x", x, 0, temperature, axis, True, where)
    _SOFTMAX.check_length(x.shape, layout.axis)
    return x, layout.rows(x, where, arguments.computed_in(x.dtype)), layout


def _from_largest(rows: Any) -> Any:
    """Rows less their largest finite entry, so that noise is not rounded away."""
    top = jnp.where(jnp.isfinite(rows), rows, -jnp.inf).max(-1, keepdims=True)
    return rows - jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))


def _perturbed(key: Any, rows: Any) -> Any:
    """The rows plus Gumbel noise."""
    return rows + jax.random.gumbel(key, rows.shape, rows.dtype)


def gumbel_softmax(
    key: jax.Array,
    x: ArrayLike,
    *,
    temperature: ArrayLike = 1.0,
    axis: int = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Draw a relaxed one-hot vector: `softtopk_nb.gumbel_softmax` of JAX arrays.

    It is softmax((x + G) / temperature) with Gumbel noise G.

    Parameters
    ----------
    key : jax.Array
        A key of `jax.random`.
    x : array, shape (..., n, ...)
        Scores, n >= 1.
    temperature, axis, where
        As in `softmax`.

    Returns
    -------
    p : array of x's shape and type
        One draw for each row, differentiable in x and the temperature.

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As `softmax`.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> x = jax.numpy.log(jax.numpy.array([0.7, 0.2, 0.1]))
    >>> p = stj.gumbel_softmax(jax.random.key(0), x, temperature=0.5)
    >>> abs(float(p.sum()) - 1.0) < 1e-6
    True
    """
    array, rows, layout = _rows(x, temperature, axis, where)
    noisy = _perturbed(key, _from_largest(rows))
    p = layout.back(WITHOUT_K["softmax"](noisy, temperature=temperature), array.dtype)
    return jnp.asarray(p)


def gumbel_topk(
    key: jax.Array,
    x: ArrayLike,
    k: ArrayLike,
    size: int | tuple[int, ...] | None = None,
    *,
    relax: Callable[..., Any] | Name | None = None,
    temperature: ArrayLike = 1.0,
    axis: int = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Draw k indices in order, or a relaxed mask: `softtopk_nb.gumbel_topk` of JAX arrays.

    Without `relax` the positions of the k largest x / temperature + G, G Gumbel noise, the largest
    first. With it the mask ``relax(x + G, k, temperature=temperature)``, with its derivatives.

    Parameters
    ----------
    key : jax.Array
        A key of `jax.random`.
    x : array, shape (..., n, ...)
        Scores, n >= 1.
    k : int
        How many, 0 <= k <= n, known while JAX traces. With `relax`, whatever it takes.
    size : int or tuple of int, default=None
        How many draws from each row. By default one, without an axis for it.
    relax : operator, callable or str, default=None
        An operator of this package, its name, or any callable of that signature. It is called with
        rows of scores along the last axis.
    temperature, axis, where
        As in `softmax`.

    Returns
    -------
    index : array of int32, of shape batch + size + (k,)
        Positions along the axis; batch is x's shape without it. -1 in a row with a NaN, and in
        place of entries where fewer than k are above -inf.
    p : array of x's type, with `relax`
        Of x's shape; if size is given, of shape batch + size + (n,).

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As an operator with this k.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> x = jax.numpy.log(jax.numpy.array([0.4, 0.3, 0.2, 0.1]))
    >>> stj.gumbel_topk(jax.random.key(0), x, 2, size=3).shape
    (3, 2)
    >>> p = stj.gumbel_topk(jax.random.key(0), x, 2, relax="thretopk", temperature=0.1)
    >>> round(float(p.sum()), 3)
    2.0
    """
    array, rows, layout = _rows(x, temperature, axis, where)
    shape, batch = check_size(size), rows.shape[:-1]
    if relax is None:
        fixed = jax.lax.stop_gradient(temperature)
        rows = WITHOUT_K["log_softmax"](jax.lax.stop_gradient(rows), temperature=fixed)
        return _largest(
            _perturbed(key, _repeated(rows, batch, shape)), common.whole(k, expected=KNOWN)
        )
    noisy = _perturbed(key, _repeated(_from_largest(rows), batch, shape))
    k, temperature = (
        _repeated(jnp.broadcast_to(each, batch), batch, shape) if jnp.ndim(each) else each
        for each in (k, temperature)
    )
    p = relaxation(relax, OPERATORS)(noisy, k, temperature=temperature)
    return jnp.asarray(layout.back(p, array.dtype) if size is None else p.astype(array.dtype))


def _repeated(value: Any, batch: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Numbers or entries of rows, repeated for draws of this shape."""
    rest = value.shape[len(batch) :]
    ones = (1,) * len(shape)
    return jnp.broadcast_to(value.reshape(*batch, *ones, *rest), (*batch, *shape, *rest))


def _largest(noisy: Any, k: int) -> Any:
    """The positions of the k largest of each row, the largest first; -1 where there is none."""
    n = noisy.shape[-1]
    if not 0 <= k <= n:
        raise ValueError(f"k is {k}; expected 0 <= k <= n = {n}")
    values, index = jax.lax.top_k(noisy, k)
    there = (values > -jnp.inf) & ~jnp.isnan(noisy).any(-1, keepdims=True)
    return jnp.where(there, index, -1)
