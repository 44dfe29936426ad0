"""ThreTopK: p_i = f((x_i - lambda)/tau), with the threshold lambda that makes p sum to k."""

from typing import TYPE_CHECKING

from .._lazy import attach

if TYPE_CHECKING:
    from .curve import Curve
    from .operator import thretopk
else:
    __getattr__, __dir__ = attach(__name__, {".curve": ("Curve",), ".operator": ("thretopk",)})

__all__ = ["Curve", "thretopk"]
