"""The curves that have a name."""

from __future__ import annotations

from typing import Any

from .clip import Clip
from .exp import Exp
from .laplace import Laplace
from .normal import Normal
from .sigmoid import Sigmoid

#: Curves without a parameter; `entmax.Entmax` has one.
CURVES: dict[str, Any] = {
    "exp": Exp(),
    "sigmoid": Sigmoid(),
    "laplace": Laplace(),
    "clip": Clip(),
    "normal": Normal(),
}
