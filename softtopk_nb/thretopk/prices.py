"""ThreTopK with costs: sum c p = k, p_i = f((x_i - lambda c_i)/tau)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._api.base import RowOperator
from .._api.prices import Rows
from .._curves.base import is_steep
from .._curves.user import UserCurve
from .._threshold.methods import METHODS
from .cpu import priced

STEEPEST = 2.0  # the largest alpha of entmax: for a larger one t has too few digits near its edge


class Priced(RowOperator):
    """`thretopk` of rows with costs, as `_api.prices` asks for it; in no registry."""

    __name__ = "thretopk"
    rows_type = Rows
    real_k = True
    has_device_side = False
    takes_empty_rows = True
    cpu = priced

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self._plain = plain

    def check_options(self, options: dict[str, Any]) -> Any:
        """Check the options, those of a call without costs."""
        found = self._plain.check_options(options)
        if found.method == METHODS["scan"]:
            raise ValueError(
                "method is 'scan', which has no cost; expected 'auto', 'newton' or 'bisect'"
            )
        if is_steep(found.curve):
            raise ValueError(
                f"alpha is {found.curve.alpha:g}; expected at most {STEEPEST:g} with a cost"
            )
        return found

    def computed_in(self, options: Any, given: type) -> type:
        """The type of the rows: float64 for a user's curve."""
        return np.float64 if isinstance(options.curve, UserCurve) else given

    def check_second(self) -> None:
        """Raise: second derivatives are not known."""
        raise NotImplementedError("thretopk has no second derivative where a cost is given")
