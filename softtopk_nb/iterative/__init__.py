"""The iterative constructions: k steps add shares that sum to 1 and depend on the steps before."""

from .operator import itertopk, wsoftmaxtopk

__all__ = ["itertopk", "wsoftmaxtopk"]
