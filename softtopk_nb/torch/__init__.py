"""The operators on PyTorch tensors, with autograd: ``import softtopk_nb.torch``.

Each takes a tensor and returns one of its shape, type and device, differentiable in the scores, in
the temperature and, where the operator has a derivative in it, in k.
"""

from .._versions import require as _require

_require("torch", "PyTorch")

from .assignment import sinkhorn
from .balanced import balancedtopk
from .distribution import KSubset
from .gate import TopKGate
from .gumbel import gumbel_softmax, gumbel_topk
from .modules import FenchelYoungLoss, SoftTopK
from .operators import (
    fenchel_young,
    gradtopk,
    hardtopk,
    itertopk,
    thretopk,
    wsoftmaxtopk,
)
from .selection import topk
from .without_k import log_softmax, logsumexp, softmax

__all__ = [
    "FenchelYoungLoss",
    "KSubset",
    "SoftTopK",
    "TopKGate",
    "balancedtopk",
    "fenchel_young",
    "gradtopk",
    "gumbel_softmax",
    "gumbel_topk",
    "hardtopk",
    "itertopk",
    "log_softmax",
    "logsumexp",
    "sinkhorn",
    "softmax",
    "thretopk",
    "topk",
    "wsoftmaxtopk",
]


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
