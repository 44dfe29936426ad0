"""The operators on Dask arrays, lazy in and lazy out: ``import softtopk_nb.dask``.

Rows may be in chunks, and so may the axis of the scores itself, for all operators but the two
iterations.
"""

from .._versions import require as _require

_require("dask", "Dask")

from .._api.front import named as _named
from .._threads.long_rows import PART as PART
from .operators import Differentiable as _Differentiable
from .operators import Operator as _Operator
from .operators import WithPotential as _WithPotential
from .operators import WithThreshold as _WithThreshold
from .warming import warm

hardtopk = _Operator(_named("hardtopk"), "array([[1., 0., 0., 1.]])")
thretopk = _WithThreshold(_named("thretopk"), "array([[0.697, 0.303, 0.112, 0.888]])")
gradtopk = _WithPotential(_named("gradtopk"), "array([[0.694, 0.306, 0.119, 0.881]])")
itertopk = _Differentiable(_named("itertopk"), "array([[0.655, 0.314, 0.123, 0.908]])")
wsoftmaxtopk = _Differentiable(_named("wsoftmaxtopk"), "array([[0.584, 0.24 , 0.092, 1.084]])")
softmax = _Differentiable(_named("softmax"), "array([[0.237, 0.087, 0.032, 0.644]])")
log_softmax = _Differentiable(_named("log_softmax"), "array([[-1.44, -2.44, -3.44, -0.44]])")
logsumexp = _Differentiable(_named("logsumexp"), "array([4.44])")

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
