"""GradTopK: the gradient of log Z_k, the marginals of the k-subset distribution, in O(n)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _operator, _schedule, _threshold
from .._threshold.curves import CURVES
from .._threshold.rows import Newton
from . import rows as _rows

__all__ = ["gradtopk"]

_SHORTEST = {"auto": _rows.SHORT, "contour": -1, "dp": _rows.ANY_LENGTH}


class GradTopK(_operator.Differentiable):
    """x"""

    __name__ = "gradtopk"

    def potential(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        **options: Any,
    ) -> Any:
        call = self._check(x, k, temperature, axis, largest, where, None, options)
        rows = call.rows
        solution = self._solve(rows, call.plan, _nothing(rows), _operator_wide(rows))
        phi = np.empty(len(rows.x))
        _schedule.over(len(phi), 16 * rows.x.size, _rows.potential, *rows, solution, phi)
        return self._give_back_batch(call, call.sign * phi)

    def _options(self, *, method: str = "auto") -> str:
        if method not in ("auto", "contour", "dp", "recursion"):
            raise ValueError("method")
        return method

    def _solve(self, rows: Any, method: str, out: Any, solution: Any) -> Any:
        x, k, tau = rows
        enough = min(0.02, max(x.shape[1], 1) ** -0.25)
        tilt = _threshold.solve(x, k - 0.5, tau, CURVES["sigmoid"], Newton(enough), _nothing(rows))
        short = _SHORTEST[method]
        _schedule.over(len(x), 2 * x.size, _rows.solve, x, k, tau, tilt, short, out, solution)
        return solution

    def _value(self, rows: Any, plan: Any, out: Any) -> None:
        if plan == "recursion":
            _schedule.over(len(rows.x), 2 * rows.x.size, _rows.recur, *rows, out)
        else:
            self._solve(rows, plan, out, np.empty((len(rows.x), 0)))

    def _linearize(self, rows: Any, plan: Any, out: Any) -> Any:
        return self._solve(rows, plan, out, _operator_wide(rows))

    def _push(self, rows: Any, plan: Any, state: Any, dx: Any, dk: Any, dtau: Any, dp: Any) -> None:
        _schedule.over(
            len(rows.x), 2 * rows.x.size, _rows.push, rows.x, rows.temperature, state, dx, dtau, dp
        )

    def _pull(self, rows: Any, plan: Any, state: Any, g: Any, gx: Any, gk: Any, gtau: Any) -> None:
        self._push(rows, plan, state, g, gk, np.zeros(len(rows.x)), gx)
        _schedule.over(
            len(rows.x), rows.x.size, _rows.pull, rows.x, rows.temperature, state, gx, gtau
        )


def _nothing(rows: Any) -> Any:
    return np.empty((len(rows.x), 0), rows.x.dtype)


def _operator_wide(rows: Any) -> Any:
    return np.empty((len(rows.x), _rows.SOLUTION))


gradtopk = GradTopK()
