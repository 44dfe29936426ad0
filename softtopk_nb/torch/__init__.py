"""The operators on PyTorch tensors, with autograd: ``import softtopk_nb.torch``.

Each takes a tensor and gives one of its shape, type and device, differentiable to the scores, to
the temperature and, where the operator has a derivative there, to k.
"""

from .._versions import require as _require

_require("torch", "PyTorch")

from .distribution import KSubset
from .modules import SoftTopK
from .operators import (
    fenchel_young,
    gradtopk,
    hardtopk,
    itertopk,
    thretopk,
    wsoftmaxtopk,
)

__all__ = [
    "KSubset",
    "SoftTopK",
    "fenchel_young",
    "gradtopk",
    "hardtopk",
    "itertopk",
    "thretopk",
    "wsoftmaxtopk",
]


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
