"""The types of curves, by which compiled code chooses; what each can do is in `curves`."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "Clip",
    "Entmax",
    "Exp",
    "Laplace",
    "Normal",
    "NormalInBrief",
    "Sigmoid",
    "SigmoidInBrief",
    "UserCurve",
]


class Exp(NamedTuple):
    """f(t) = min(1, e^t)."""


class Sigmoid(NamedTuple):
    """f(t) = 1/(1 + e^-t)."""


class Laplace(NamedTuple):
    """f(t) = e^t/2 below 0, 1 - e^-t/2 above."""


class Clip(NamedTuple):
    """f(t) = t clipped to [0, 1]."""


class Normal(NamedTuple):
    """f = Phi, the normal CDF."""


class SigmoidInBrief(NamedTuple):
    """The same without its higher derivatives: for passes over float32 rows that only lead on."""


class NormalInBrief(NamedTuple):
    """Phi with relative errors up to 2e-4, and without its higher derivatives: likewise."""


class Entmax(NamedTuple):
    """f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1]."""

    alpha: float


class UserCurve(NamedTuple):
    """A CDF, its density and its antiderivative (or None), each compiled by Numba."""

    cdf: Any
    pdf: Any
    integral: Any
