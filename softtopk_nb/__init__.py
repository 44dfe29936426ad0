"""Smooth (differentiable) top-k, on Numba.

Maps from R^n to {p in [0, 1]^n, sum p = k} that turn into the hard top-k as the temperature goes
to 0, each with its derivatives, in O(n). The functions take arrays of NumPy, PyTorch, JAX and Dask.

`softtopk_nb.torch` has modules and distributions as well (`SoftTopK`, `TopKGate`,
`FenchelYoungLoss`, `KSubset`), `softtopk_nb.jax` and `softtopk_nb.dask` the functions of these
libraries, `softtopk_nb.sklearn` a selector of features (`SoftSelectKBest`), and
`softtopk_nb.nopython` functions for compiled code of your own.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _lazy

# Imported at once, although unused here: importing it later, inside a first call, would give that
# call the time that every operator needs.
from ._api import operator as _operator  # noqa: F401

if _TYPE_CHECKING:
    from ._api.base import Gradients, GradientsWithCost, TopK
    from ._versions import show_versions
    from .balanced import Balanced, BalancedGradients, balancedtopk
    from .gradtopk import KSubset, gradtopk
    from .hardtopk import hardtopk
    from .iterative import itertopk, wsoftmaxtopk
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
    from .thretopk import Curve, thretopk

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
    _get, __dir__ = _lazy.attach(
        __name__,
        {
            "._api.base": ("Gradients", "GradientsWithCost", "TopK"),
            "._versions": ("show_versions",),
            ".balanced": ("Balanced", "BalancedGradients", "balancedtopk"),
            ".gradtopk": ("KSubset", "gradtopk"),
            ".hardtopk": ("hardtopk",),
            ".iterative": ("itertopk", "wsoftmaxtopk"),
            ".losses": ("fenchel_young",),
            ".selection": ("topk",),
            ".softmax": (
                "ConvergenceError",
                "PowerGradients",
                "energy_score",
                "gradual",
                "gumbel_max",
                "gumbel_softmax",
                "gumbel_topk",
                "log_softmax",
                "logsumexp",
                "sample_categorical",
                "sinkhorn",
                "softmax",
            ),
            ".thretopk": ("Curve", "thretopk"),
        },
    )

    def __getattr__(name: str) -> object:
        """Import what is used for the first time; say where a name is that is looked for here."""
        if where := _ELSEWHERE.get(name):
            raise AttributeError(
                f"module 'softtopk_nb' has no attribute {name!r}; import it from "
                f"softtopk_nb.{where}"
            )
        return _get(name)
