"""The list of the curves that have a name.

It determines what `thretopk` and `nopython` accept, what the tests and benchmarks cover, and what
the tables of the documentation must name.
"""

from __future__ import annotations

from typing import Any, Literal

from .cauchy import Cauchy
from .clip import Clip
from .entmax import Entmax
from .exp import Exp
from .laplace import Laplace
from .normal import Normal
from .sigmoid import Sigmoid

#: The names of all curves, for type checkers and editors.
Name = Literal["exp", "sigmoid", "laplace", "clip", "normal", "cauchy", "entmax"]
#: Curves without a parameter.
CURVES: dict[str, Any] = {
    "exp": Exp(),
    "sigmoid": Sigmoid(),
    "laplace": Laplace(),
    "clip": Clip(),
    "normal": Normal(),
    "cauchy": Cauchy(),
}
#: Types of curves with one parameter, which is an argument of `thretopk`.
FAMILIES: dict[str, Any] = {"entmax": Entmax}
NAMES = (*CURVES, *FAMILIES)
