"""The iterative constructions: k shares that each sum to 1, every one aware of those before."""

from .operator import itertopk, wsoftmaxtopk

__all__ = ["itertopk", "wsoftmaxtopk"]
