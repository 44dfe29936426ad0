"""A selector of features for scikit-learn's pipelines: ``import softtopk_nb.sklearn``."""

from .._versions import require as _require

_require("sklearn", "scikit-learn")

from .selection import SoftSelectKBest

__all__ = ["SoftSelectKBest"]


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__]
