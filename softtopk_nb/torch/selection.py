"""The k chosen entries of each row of a tensor with their weights, with autograd."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch

from .._api import arguments as common
from .._api.base import TopK
from .._api.front import Choice
from .._api.operator import chosen
from ..selection import Options
from . import arguments
from .operators import OPERATORS

Tensor = torch.Tensor


def topk(
    x: Tensor,
    k: int,
    *,
    op: Choice = "thretopk",
    dim: int | None = None,
    axis: int | None = None,
    sorted: bool = True,
    largest: bool = True,
    where: Tensor | None = None,
    clamp_k: bool = False,
    **options: Unpack[Options],
) -> TopK[Tensor]:
    """Return the k largest entries of each row: `softtopk_nb.topk` of tensors, with autograd.

    Parameters
    ----------
    x : Tensor, shape (..., n, ...)
        Scores.
    k : int
        How many to choose, one number for all rows.
    op : operator or str, default="thretopk"
        The operator that gives the weights, or its name.
    dim, axis : int, default=None
        The dimension of the scores: None is the last. Both names say the same.
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
    values : Tensor
        The weights: of x's shape but for k along `dim`; differentiable as the operator is.
    indices : Tensor of int64
        The indices along `dim`, of the same shape. Ties go to the lowest index.

    Raises
    ------
    TypeError, ValueError, IndexError
        As `softtopk_nb.topk`, and as the operator.

    Notes
    -----
    Under `torch.compile` there is no graph break. See `softtopk_nb.topk` for rows with NaN.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> scores = torch.tensor([3.0, 2.0, 1.0, 4.0], requires_grad=True)
    >>> values, indices = stt.topk(scores, 2)
    >>> indices
    tensor([3, 0])
    >>> values.sum().backward()
    """
    k = common.whole(k)
    common.check_bool(sorted, "sorted")
    given: dict[str, Any] = {"dim": dim, "axis": axis, "largest": largest, "where": where}
    given["clamp_k"] = clamp_k
    operator: Any = OPERATORS[chosen(op).__name__]
    p = operator(x, k, **given, **options)
    at = arguments.check_dim(x.ndim, dim, axis)
    k = min(k, x.shape[at])
    with torch.no_grad():
        scores, mask = x.movedim(at, -1), OPERATORS["hardtopk"](x, k, **given).movedim(at, -1)
        count = torch.arange(mask.shape[-1], device=x.device)
        unknown = mask.isnan()  # all or none of a row
        taken = torch.where(unknown, count < k, mask == 1.0)
        if clamp_k:
            spare = (~taken).cumsum(-1)
            scores = scores.masked_fill(mask == 0.0, -math.inf if largest else math.inf)
            taken = taken | (~taken & (spare <= k - taken.sum(-1, keepdim=True)))
        # The chosen go to their places 0 to k - 1, all others to one that is then left out.
        places = torch.where(taken, taken.cumsum(-1) - 1, k)
        empty = count.new_zeros((*mask.shape[:-1], k + 1))
        indices = empty.scatter(-1, places, count.expand(mask.shape))[..., :k]
        if sorted:
            found = scores.gather(-1, indices).masked_fill(unknown[..., :k], 0.0)
            order = found.argsort(dim=-1, descending=largest, stable=True)
            indices = indices.gather(-1, order)
        indices = indices.movedim(-1, at)
    return TopK(p.gather(at, indices), indices)
