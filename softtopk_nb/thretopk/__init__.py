"""ThreTopK: p_i = f((x_i - lambda)/tau), with the threshold lambda that makes p sum to k."""

from .curve import Curve
from .operator import thretopk

__all__ = ["Curve", "thretopk"]
