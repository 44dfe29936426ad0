"""Draws by Gumbel noise: a relaxed one-hot vector, k indices, or a relaxed mask, of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .._api import arguments as common
from .._api import without_k
from .._api.front import relaxation
from .._api.operator import Name
from ..softmax.sampling import check_size
from . import arguments
from .layout import Layout
from .operators import OPERATORS
from .without_k import WITHOUT_K

Tensor = torch.Tensor


def _rows(x: Tensor, layout: Layout) -> Tensor:
    """x as rows along the last dimension, -inf where masked."""
    without_k.registry["softmax"].check_length(tuple(x.shape), layout.dim)
    return layout.rows(x)


def _from_largest(rows: Tensor) -> Tensor:
    """Rows less their largest finite entry, so that noise is not rounded away."""
    finite = torch.where(rows.isfinite(), rows, -math.inf).amax(-1, keepdim=True).detach()
    return rows - torch.where(finite.isfinite(), finite, 0.0)


def _perturbed(rows: Tensor, generator: torch.Generator | None) -> Tensor:
    """The rows plus Gumbel noise."""
    noise = torch.empty_like(rows.detach(), memory_format=torch.contiguous_format)
    return rows - noise.exponential_(generator=generator).log()


def gumbel_softmax(
    x: Tensor,
    *,
    generator: torch.Generator | None = None,
    temperature: float | Tensor = 1.0,
    dim: int | None = None,
    axis: int | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Draw a relaxed one-hot vector: `softtopk_nb.gumbel_softmax` of tensors, with autograd.

    It is softmax((x + G) / temperature) with Gumbel noise G.

    Parameters
    ----------
    x : Tensor, shape (..., n, ...)
        Scores, n >= 1.
    generator : torch.Generator, default=None
        Where the noise comes from; PyTorch's own generator by default.
    temperature, dim, axis, where
        As in `softmax`.

    Returns
    -------
    p : Tensor of x's shape, type and device
        One draw for each row, differentiable in x and the temperature.

    Raises
    ------
    TypeError, ValueError, IndexError, RuntimeError
        As `softmax`.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> x = torch.tensor([0.7, 0.2, 0.1]).log().requires_grad_()
    >>> p = stt.gumbel_softmax(x, temperature=0.5, generator=torch.Generator().manual_seed(0))
    >>> abs(p.sum().item() - 1.0) < 1e-6
    True
    """
    x, layout = arguments.laid_out(x, dim, axis, True, where)
    noisy = _perturbed(_from_largest(_rows(x, layout)), generator)
    p: Tensor = WITHOUT_K["softmax"](noisy, temperature=temperature)
    return layout.back(p).to(layout.dtype)


def gumbel_topk(
    x: Tensor,
    k: float | Tensor,
    size: int | tuple[int, ...] | None = None,
    *,
    generator: torch.Generator | None = None,
    relax: Callable[..., Any] | Name | None = None,
    temperature: float | Tensor = 1.0,
    dim: int | None = None,
    axis: int | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Draw k indices in order, or a relaxed mask: `softtopk_nb.gumbel_topk` of tensors.

    Without `relax` the positions of the k largest x / temperature + G, G Gumbel noise, the largest
    first. With it the mask ``relax(x + G, k, temperature=temperature)``, with its derivatives.

    Parameters
    ----------
    x : Tensor, shape (..., n, ...)
        Scores, n >= 1.
    k : int
        How many, 0 <= k <= n. With `relax`, whatever it takes.
    size : int or tuple of int, default=None
        How many draws from each row. By default one, without a dimension for it.
    generator : torch.Generator, default=None
        Where the noise comes from; PyTorch's own generator by default.
    relax : operator, callable or str, default=None
        An operator of this package, its name, or any callable of that signature. It is called with
        rows of scores along the last dimension.
    temperature, dim, axis, where
        As in `softmax`.

    Returns
    -------
    index : Tensor of int64, of shape batch + size + (k,)
        Positions along `dim`; batch is x's shape without it. -1 in a row with a NaN, and in place
        of entries where fewer than k are above -inf.
    p : Tensor of x's type, with `relax`
        Of x's shape; if size is given, of shape batch + size + (n,).

    Raises
    ------
    TypeError, ValueError, IndexError, RuntimeError
        As an operator with this k.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> x = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    >>> stt.gumbel_topk(x, 2, size=3).shape
    torch.Size([3, 2])
    >>> stt.gumbel_topk(x, 2, relax="thretopk", temperature=0.1).sum().round()
    tensor(2.)
    """
    x, layout = arguments.laid_out(x, dim, axis, True, where)
    k, temperature = arguments.numbers(k, temperature, x, layout, relax is not None)
    shape = check_size(size)
    rows = _rows(x, layout)
    if relax is None:
        with torch.no_grad():
            rows = WITHOUT_K["log_softmax"](rows, temperature=temperature)
            return _largest(_perturbed(_repeated(rows, shape, 1), generator), common.whole(k))
    noisy = _perturbed(_repeated(_from_largest(rows), shape, 1), generator)
    k, temperature = (_repeated(each, shape, 0) for each in (k, temperature))
    p: Tensor = relaxation(relax, OPERATORS)(noisy, k, temperature=temperature)
    return (layout.back(p) if size is None else p).to(layout.dtype)


def _repeated(value: Any, shape: tuple[int, ...], own: int) -> Any:
    """A tensor of rows, with `own` dimensions of each, repeated for draws of this shape."""
    if not isinstance(value, Tensor) or not shape:
        return value
    batch, rest = value.shape[: value.ndim - own], value.shape[value.ndim - own :]
    ones = (1,) * len(shape)
    return value.reshape(*batch, *ones, *rest).expand(*batch, *shape, *rest)


def _largest(noisy: Tensor, k: int) -> Tensor:
    """The positions of the k largest of each row, the largest first; -1 where there is none."""
    n = noisy.shape[-1]
    if not 0 <= k <= n:
        raise ValueError(f"k is {k}; expected 0 <= k <= n = {n}")
    values, index = noisy.detach().topk(k)
    there = (values > -math.inf) & ~noisy.isnan().any(-1, keepdim=True)
    return torch.where(there, index, -1)
