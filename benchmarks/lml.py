"""The LML projection (arXiv 1906.08707) in PyTorch, as a baseline: parallel bracketing.

Written from the description of the algorithm. sigmoid(x + nu) sums to k; the sum increases with
nu, so it is evaluated at a hundred points of a bracket at once, and the two neighbours that
enclose k are the next bracket. The first bracket is one that holds for every row, where the paper
takes it from two sorted entries: no sort, and no row that falls outside. Where the paper stops at
1e-4 this goes on to the type's precision, since a threshold that is off by so much moves the sum by
more than the other operators are allowed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from lapsum import spread

__all__ = ["shift", "soft_topk"]

POINTS = 100
AT_ONCE = 1 << 24  # sigmoids held in memory


def masses(x: torch.Tensor, nu: torch.Tensor) -> torch.Tensor:
    """The sum over each row of sigmoid(x + nu), for each of the row's nu."""
    size = max(1, AT_ONCE // nu.numel())
    parts = x.split(size, -1)
    return torch.stack([torch.sigmoid(p[:, None] + nu[..., None]).sum(-1) for p in parts]).sum(0)


def shift(x: torch.Tensor, k: float) -> torch.Tensor:
    """nu of each row of the matrix x, with sum sigmoid(x + nu) = k and 0 < k < n."""
    n = x.shape[-1]
    middle = math.log(k / (n - k))
    low = middle - x.amax(-1, keepdim=True)
    high = middle - x.amin(-1, keepdim=True)
    steps = torch.linspace(0, 1, POINTS, dtype=x.dtype, device=x.device)
    enough = 4 * torch.finfo(x.dtype).eps * (1 + low.abs().maximum(high.abs()))
    while bool((high - low > enough).any()):
        nu = torch.lerp(low, high, steps)
        at = (masses(x, nu) < k).sum(-1, keepdim=True).clamp(1, POINTS - 1)
        closer, width = (nu.gather(-1, at - 1), nu.gather(-1, at)), high - low
        low, high = closer
        if not bool((high - low < width).any()):
            break
    return 0.5 * (low + high)


class _SoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        p = torch.sigmoid(x + shift(x, k))
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        (p,) = ctx.saved_tensors
        return spread(p * (1 - p), g), None


def soft_topk(x: torch.Tensor, k: float) -> torch.Tensor:
    """Weights of each row that sum to k, with their gradient in x."""
    return _SoftTopK.apply(x, k)
