"""Smooth (differentiable) top-k, on Numba.

Maps from R^n to {p in [0, 1]^n, sum p = k} that turn into the hard top-k as the temperature goes
to 0, each with its derivatives, in O(n).
"""

from ._operator import Gradients
from ._versions import show_versions
from .gradtopk import gradtopk
from .hardtopk import hardtopk
from .thretopk import Curve, thretopk

__version__ = "0.1.0"

__all__ = ["Curve", "Gradients", "__version__", "gradtopk", "hardtopk", "show_versions", "thretopk"]
