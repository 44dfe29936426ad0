"""The types of curves, by which compiled code chooses; what each can do is in `curves`."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "FARTHEST",
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


FARTHEST = 1e150  # what a user's functions are asked about at most: its square is a number


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
    """f(t) = ((alpha - 1) t)^(1/(alpha - 1)) clipped to [0, 1].

    Where it is `pieces.lifted`, t is less by 1/(alpha - 1), where f reaches 1: as alpha goes to 1
    that goes to infinity, and would take all digits of t.
    """

    alpha: float


class UserCurve(NamedTuple):
    """A CDF, its density and its antiderivative (or None), each compiled by Numba.

    `mean` is that of the law, where the antiderivative is given; NaN if it has none.
    """

    cdf: Any
    pdf: Any
    integral: Any
    mean: float = 0.0
