"""Softmax and its relatives: k = 1, as a soft, random or balanced choice."""

from typing import TYPE_CHECKING

from .._lazy import attach

if TYPE_CHECKING:
    from .assignment import ConvergenceError, sinkhorn
    from .gumbel import gumbel_max, gumbel_softmax, gumbel_topk
    from .operator import energy_score, log_softmax, logsumexp, softmax
    from .powers import PowerGradients, gradual
    from .sampling import sample_categorical
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            ".assignment": ("ConvergenceError", "sinkhorn"),
            ".gumbel": ("gumbel_max", "gumbel_softmax", "gumbel_topk"),
            ".operator": ("energy_score", "log_softmax", "logsumexp", "softmax"),
            ".powers": ("PowerGradients", "gradual"),
            ".sampling": ("sample_categorical",),
        },
    )

__all__ = [
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
]
