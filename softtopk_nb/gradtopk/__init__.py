"""GradTopK: the gradient of log Z_k, the marginals of the k-subset distribution, in O(n)."""

from typing import TYPE_CHECKING

from .._lazy import attach

if TYPE_CHECKING:
    from .ksubset import KSubset
    from .operator import gradtopk
else:
    __getattr__, __dir__ = attach(__name__, {".ksubset": ("KSubset",), ".operator": ("gradtopk",)})

__all__ = ["KSubset", "gradtopk"]
