"""The k chosen entries of each row of a JAX array with their weights, under its transforms."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._api import arguments as common
from .._api.base import TopK
from .._api.front import Choice
from .._api.operator import chosen
from ..selection import Options
from .arguments import KNOWN
from .operators import OPERATORS


def topk(
    x: ArrayLike,
    k: int,
    *,
    op: Choice = "thretopk",
    axis: int = -1,
    sorted: bool = True,
    largest: bool = True,
    where: ArrayLike | None = None,
    clamp_k: bool = False,
    **options: Unpack[Options],
) -> TopK[jax.Array]:
    """Return the k largest entries of each row: `softtopk_nb.topk` of JAX arrays.

    Parameters
    ----------
    x : array, shape (..., n, ...)
        Scores.
    k : int
        How many to choose, one number for all rows, known while JAX traces.
    op : operator or str, default="thretopk"
        The operator that gives the weights, or its name.
    axis : int, default=-1
        The axis of the scores.
    sorted : bool, default=True
        Whether the chosen stand in the order of their scores, the first choice first; else in the
        order of their indices.
    largest, where, **options
        As in a call of the operator; `hard=True` makes the values 1, with the soft derivatives.
    clamp_k : bool, default=False
        True fills rows that have fewer entries with others, in the order of their indices, of
        weight 0; with k above n, n are chosen.

    Returns
    -------
    values : array
        The weights: of x's shape but for k along the axis; differentiable as the operator is.
    indices : array of int32, or int64 where JAX is set to it
        The indices along the axis, of the same shape. Ties go to the lowest index.

    Raises
    ------
    TypeError, ValueError
        As `softtopk_nb.topk`, and as the operator.

    Notes
    -----
    See `softtopk_nb.topk` for rows with NaN.

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> values, indices = stj.topk(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2)
    >>> indices.tolist()
    [3, 0]
    """
    k = common.whole(k, expected=KNOWN)
    common.check_bool(sorted, "sorted")
    given: dict[str, Any] = {"axis": axis, "largest": largest, "where": where, "clamp_k": clamp_k}
    operator: Any = OPERATORS[chosen(op).__name__]
    p = operator(x, k, **given, **options)
    mask = jnp.moveaxis(OPERATORS["hardtopk"](x, k, **given), axis, -1)
    k = min(k, mask.shape[-1])
    # Of equal entries JAX takes the first: the k ones, in their order; in a row of NaN the first k.
    unknown = jnp.isnan(mask)
    _, indices = jax.lax.top_k(jnp.where(unknown, 1.0, mask), k)
    if clamp_k:
        indices = jnp.sort(indices, axis=-1)  # entries that only fill a row stand behind the others
    if sorted:
        scores = jnp.moveaxis(jax.lax.stop_gradient(jnp.asarray(x)), axis, -1)
        found = jnp.where(unknown[..., :k], 0, jnp.take_along_axis(scores, indices, -1))
        found = -found if largest else found
        if clamp_k:
            found = jnp.where(jnp.take_along_axis(mask, indices, -1) == 0, jnp.inf, found)
        order = jnp.argsort(found, axis=-1, stable=True)
        indices = jnp.take_along_axis(indices, order, -1)
    indices = jnp.moveaxis(indices, -1, axis)
    return TopK(jnp.take_along_axis(p, indices, axis), indices)
