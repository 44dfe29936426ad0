"""The operators on JAX arrays, under its transforms: ``import softtopk_nb.jax``.

Each takes an array and returns one of its shape and type; jit, grad, vmap and their compositions
work, in the scores, in the temperature and, where the operator has a derivative in it, in k.
"""

from .._versions import require as _require

_require("jax", "JAX")

from . import derivatives as _derivatives
from .assignment import sinkhorn
from .balanced import balancedtopk
from .distribution import KSubset
from .gumbel import gumbel_softmax, gumbel_topk
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

_derivatives.register()

__all__ = [
    "KSubset",
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
