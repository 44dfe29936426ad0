"""The operators on JAX arrays, under its transforms: ``import softtopk_nb.jax``.

Each takes an array and gives one of its shape and type; jit, grad, vmap and what is made of them
work, to the scores, to the temperature and, where the operator has a derivative there, to k.
"""

from .._versions import require as _require

_require("jax", "JAX")

from . import derivatives as _derivatives
from .operators import (
    fenchel_young,
    gradtopk,
    hardtopk,
    itertopk,
    thretopk,
    wsoftmaxtopk,
)

_derivatives.register()

__all__ = [
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
