"""The k chosen entries of each row with their weights, as sparse code takes them."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Never, Unpack

import numpy as np

from ._api import arguments, fronts, host_arrays, typed
from ._api.base import TopK
from ._api.front import Choice
from ._api.operator import chosen
from .gradtopk.operator import Method as OfGradTopK
from .hardtopk.operator import hardtopk
from .thretopk.operator import CurveChoice, Method


@functools.cache
def _device() -> Any:
    """The module for arrays on a device, imported with the first of them."""
    return importlib.import_module(".hardtopk.device_selection", __package__)


class Own(typed.Own[CurveChoice, float, Method | OfGradTopK, Never]):
    """The options that one operator or another has of its own."""


class Options(Own, total=False):
    """Those, and what all have but `topk` doesn't name; `hard` in PyTorch and JAX alone."""

    temperature: typed.Numbers
    hard: bool


class OfRows(Own, total=False):
    """The options of an operator, and what PyTorch calls the axis of a tensor."""

    dim: int


class _Options(Options, OfRows, total=False):
    """All of these."""


@typed.chosen
def topk(
    x: typed.Numbers,
    /,
    k: int,
    *,
    op: Choice = "thretopk",
    axis: int = -1,
    sorted: bool = True,
    largest: bool = True,
    where: typed.Numbers | None = None,
    clamp_k: bool = False,
    **options: Unpack[_Options],
) -> TopK[Any]:
    """Return the k largest entries of each row: their weights by a smooth top-k, and their indices.

    What `torch.topk` does, with soft weights in place of the scores. All of p sums to k, so that
    these sum to less; the rest lies on the entries that are not chosen.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, as the operator takes them.
    k : int
        How many to choose, one number for all rows, from 0 to n.
    op : operator or str, default="thretopk"
        The operator that gives the weights, or its name.
    axis : int, default=-1
        The axis of the scores.
    sorted : bool, default=True
        Whether the chosen stand in the order of their scores, the first choice first; else in the
        order of their indices.
    largest, where, **options
        As in a call of the operator.
    clamp_k : bool, default=False
        True fills rows that have fewer entries with others, in the order of their indices, of
        weight 0; with k above n, n are chosen.

    Returns
    -------
    values : array
        The weights: of x's shape but for k along the axis, of the operator's type.
    indices : array of int64
        The indices along the axis, of the same shape. Ties go to the lowest index.

    Raises
    ------
    TypeError, ValueError
        k is not one whole number in [0, n], or what the operator refuses.

    See Also
    --------
    hardtopk : The choice as a 0/1 mask.

    Notes
    -----
    O(n) for each row, and O(k log k) for the order; for arrays of CuPy and Numba on a device
    O(k^2), which `sorted=False` saves. In a row with NaN, or with fewer than k entries
    that take part, the values are NaN and the indices are the first k.

    In PyTorch and JAX, `softtopk_nb.torch.topk` and `softtopk_nb.jax.topk` are differentiable in
    the values: through these alone a sparse dispatch has the gradient of a dense one with the
    weights of the entries that are not chosen set to 0.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> values, indices = stk.topk([3.0, 2.0, 1.0, 4.0], 2, temperature=0.5)
    >>> values.round(3), indices
    (array([0.975, 0.816]), array([3, 0]))
    """
    inner: Any = chosen(op)
    k = arguments.whole(k)
    arguments.check_bool(sorted, "sorted")
    if "out" in options:
        raise TypeError("out was given, but topk returns new arrays")
    if options.get("cost") is not None:
        raise TypeError("cost was given, but topk chooses k entries; expected it in thretopk alone")
    if front := fronts.function("topk", x):
        given = {"op": inner, "sorted": sorted, "largest": largest, "where": where}
        given["clamp_k"] = clamp_k
        return front(x, k, **fronts.named(options, axis, **given))  # type: ignore[no-any-return]
    common: dict[str, Any] = {"axis": axis, "largest": largest, "where": where, "clamp_k": clamp_k}
    if host_arrays.on_device(x):
        return TopK(*_device().select(x, inner(x, k, **common, **options), k, sorted, **common))
    scores = host_arrays.as_numpy(x, "x")
    p = inner(scores, k, **common, **options)
    mask = np.moveaxis(hardtopk(scores, k, **common), axis, -1)
    n = mask.shape[-1]
    k = min(k, n)
    shape = *mask.shape[:-1], k
    unknown = np.isnan(mask)  # all or none of a row
    taken = np.where(unknown, np.arange(n) < k, mask == 1.0)
    if clamp_k:
        spare = np.cumsum(~taken, axis=-1)
        taken |= ~taken & (spare <= k - taken.sum(axis=-1, keepdims=True))
    indices = np.nonzero(taken)[-1].reshape(shape)
    if sorted:
        found = np.take_along_axis(np.moveaxis(scores, axis, -1), indices, -1).astype(np.float64)
        found[unknown[..., :k]] = 0.0  # stays in its order
        found = -found if largest else found
        if clamp_k:
            found[np.take_along_axis(mask, indices, -1) == 0.0] = np.inf
        order = np.argsort(found, axis=-1, kind="stable")
        indices = np.take_along_axis(indices, order, -1)
    indices = np.moveaxis(indices, -1, axis)
    values = np.take_along_axis(p, indices, axis)
    return TopK(host_arrays.like(x, values), host_arrays.like(x, indices))
