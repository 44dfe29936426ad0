"""Compiling ahead of time for PyTorch: the calls of a training step, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from .operators import OPERATORS, fenchel_young, hardtopk
from .without_k import WITHOUT_K


def gradients(op: Any, x: Any, v: Any, there: Any, k: tuple[int, ...], options: Any) -> None:
    """Call the operator with this name, of arrays, on tensors as in training."""
    on_tensors: Any = OPERATORS.get(op.__name__) or WITHOUT_K[op.__name__]
    scores, other, mask = map(torch.from_numpy, (x, v, there))
    scores.requires_grad_()
    for given in (scores, scores.bfloat16()) if scores.dtype == torch.float32 else (scores,):
        for where in (None, mask):
            value = on_tensors(given, *k, where=where, **options)
            if value.requires_grad:
                value.backward(torch.ones_like(value))
    if getattr(op, "has_potential", False):
        losses = fenchel_young(op, scores, hardtopk(other, *k), *k, **options)
        losses.backward(torch.ones_like(losses))
