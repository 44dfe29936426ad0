"""Smooth (differentiable) top-k, on Numba.

Maps from R^n to {p in [0, 1]^n, sum p = k} that turn into the hard top-k as the temperature goes
to 0, each with its derivatives, in O(n).
"""

from ._api.base import Gradients
from ._versions import show_versions
from .gradtopk import KSubset, gradtopk
from .hardtopk.operator import hardtopk
from .iterative.operator import itertopk, wsoftmaxtopk
from .losses import fenchel_young
from .softmax import (
    ConvergenceError,
    PowerGradients,
    energy_score,
    gradual,
    gumbel_max,
    gumbel_softmax,
    gumbel_topk,
    log_softmax,
    logsumexp,
    sample_categorical,
    sinkhorn,
    softmax,
)
from .thretopk.operator import Curve, thretopk

__version__ = "0.1.0"

__all__ = [
    "ConvergenceError",
    "Curve",
    "Gradients",
    "KSubset",
    "PowerGradients",
    "__version__",
    "energy_score",
    "fenchel_young",
    "gradtopk",
    "gradual",
    "gumbel_max",
    "gumbel_softmax",
    "gumbel_topk",
    "hardtopk",
    "itertopk",
    "log_softmax",
    "logsumexp",
    "sample_categorical",
    "show_versions",
    "sinkhorn",
    "softmax",
    "thretopk",
    "wsoftmaxtopk",
]
