"""Smooth (differentiable) top-k, on Numba.

Maps from R^n to {p in [0, 1]^n, sum p = k} that turn into the hard top-k as the temperature goes
to 0, each with its derivatives, in O(n). The functions take arrays of NumPy, PyTorch, JAX and Dask.

`softtopk_nb.torch` has modules and distributions as well (`SoftTopK`, `TopKGate`,
`FenchelYoungLoss`, `KSubset`), `softtopk_nb.jax` and `softtopk_nb.dask` the functions of these
libraries, `softtopk_nb.sklearn` a selector of features (`SoftSelectKBest`), and
`softtopk_nb.nopython` functions for compiled code of your own.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._api.base import Gradients, GradientsWithCost, TopK
from ._versions import show_versions
from .balanced import Balanced, BalancedGradients, balancedtopk
from .gradtopk import KSubset, gradtopk
from .hardtopk.operator import hardtopk
from .iterative.operator import itertopk, wsoftmaxtopk
from .losses import fenchel_young
from .selection import topk
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
    "Balanced",
    "BalancedGradients",
    "ConvergenceError",
    "Curve",
    "Gradients",
    "GradientsWithCost",
    "KSubset",
    "PowerGradients",
    "TopK",
    "__version__",
    "balancedtopk",
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
    "topk",
    "wsoftmaxtopk",
]

_ELSEWHERE = {
    **dict.fromkeys(("FenchelYoungLoss", "SoftTopK", "TopKGate"), "torch"),
    "SoftSelectKBest": "sklearn",
}


if not _TYPE_CHECKING:  # to which every name would be there

    def __getattr__(name: str) -> None:
        """Say where a name is that is looked for here."""
        where = _ELSEWHERE.get(name)
        hint = f"; import it from softtopk_nb.{where}" if where else ""
        raise AttributeError(f"module 'softtopk_nb' has no attribute {name!r}{hint}")
