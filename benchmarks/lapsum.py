"""LapSum (arXiv 2503.06242) in PyTorch, as a baseline: sort, then a closed form.

Written from the description of the algorithm: the sum of Laplace distribution functions is known at
every sorted score from running sums of exponentials, which gives the interval of the threshold;
within it e^lambda solves a quadratic equation. O(n log n) for each row. The running sums are kept
as logarithms, so that no spread of the scores overflows.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["soft_topk", "spread", "threshold"]


def threshold(z: torch.Tensor, k: float) -> torch.Tensor:
    """lambda of each row of z, with sum f(z - lambda) = k and 0 < k < n."""
    n = z.shape[-1]
    down = torch.sort(z, -1, descending=True).values
    upper = torch.logcumsumexp(-down, -1)  # log of the sum of e^-z over the first m
    lower = torch.logcumsumexp(down.flip(-1), -1).flip(-1)  # of e^z from the m-th on
    after = torch.cat([lower[..., 1:], torch.full_like(lower[..., :1], -torch.inf)], -1)
    count = torch.arange(1, n + 1, dtype=z.dtype, device=z.device)
    mass = count - 0.5 * torch.exp(upper + down) + 0.5 * torch.exp(after - down)
    m = (mass <= k).sum(-1, keepdim=True)  # entries above the threshold: mass increases along a row
    at = (m - 1).clamp(min=0)
    center = down.gather(-1, at)
    none = torch.full_like(center, -torch.inf)
    above = torch.where(m > 0, upper.gather(-1, at) + center, none)
    below = torch.where(m < n, lower.gather(-1, m.clamp(max=n - 1)) - center, none)
    # log of |k - m| + sqrt((k - m)^2 + A B): no cancellation, and A B may underflow.
    rest = k - m.to(z.dtype)
    size = torch.log(rest.abs())
    root = torch.logaddexp(0.5 * torch.logaddexp(2 * size, above + below), size)
    shift = torch.where(rest >= 0, below - root, root - above)
    return center + shift


def spread(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The pullback of g, the slopes of the curve being w: what moves the sum is taken off."""
    return w * (g - (w * g).sum(-1, keepdim=True) / w.sum(-1, keepdim=True))


class _SoftTopK(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float, temperature: float) -> torch.Tensor:
        z = x / temperature
        t = z - threshold(z, k)
        tail = 0.5 * torch.exp(-t.abs())
        ctx.save_for_backward(tail)
        ctx.temperature = temperature
        return torch.where(t > 0, 1 - tail, tail)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (w,) = ctx.saved_tensors
        return spread(w, g) / ctx.temperature, None, None


def soft_topk(x: torch.Tensor, k: float, temperature: float = 1.0) -> torch.Tensor:
    """Weights of each row that sum to k, with their gradient in x."""
    return _SoftTopK.apply(x, k, temperature)
