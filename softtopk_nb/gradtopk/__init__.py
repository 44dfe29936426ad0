"""GradTopK: the gradient of log Z_k, the marginals of the k-subset distribution, in O(n)."""

from .ksubset import KSubset
from .operator import gradtopk

__all__ = ["KSubset", "gradtopk"]
