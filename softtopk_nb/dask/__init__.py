"""The operators on Dask arrays, lazy in and lazy out: ``import softtopk_nb.dask``.

Rows may be in chunks, and so may the axis of the scores itself, for all operators but the two
iterations.
"""

from .._versions import require as _require

_require("dask", "Dask")

from .._threads.long_rows import PART as PART
from .operators import (
    gradtopk,
    hardtopk,
    itertopk,
    log_softmax,
    logsumexp,
    softmax,
    thretopk,
    wsoftmaxtopk,
)
from .warming import warm

__all__ = [
    "PART",
    "gradtopk",
    "hardtopk",
    "itertopk",
    "log_softmax",
    "logsumexp",
    "softmax",
    "thretopk",
    "warm",
    "wsoftmaxtopk",
]


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
