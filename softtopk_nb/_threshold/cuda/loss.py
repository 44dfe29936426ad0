"""Fenchel-Young losses on a device: a pass over rows, or over parts of them, from their solutions.

A target that is none, which only the device knows, makes its row's loss NaN: its entries are not
all in [0, 1], or do not sum to k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64

from ..._cuda.row_kernels import ENTRIES, NUMBERS, Stage
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, of_row, tools
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES
from ..loss import NEAR, in_temperatures, surplus, surplus_at_infinity

#: The arguments of the kernel: solutions, targets, and the losses.
GIVEN = NUMBERS, ENTRIES, NUMBERS


def passes(
    T: Any,
    group: ThreadGroup,
    curve: Any,
    constant: bool,
    fits: Any,
    solution_of: Any,
    whole: Any,
) -> tuple[Stage, Stage]:
    """The passes; `constant` as in `surplus`.

    fits(y) -> whether y may be in a target; solution_of(solution, row) -> (kind of the row, c, d);
    whole(total, solution, row, k) -> the loss by the temperature, from the sum over the entries.
    """
    t = tools(T, group)

    @device
    def terms(here, s, batch, given, found):
        """(the sum of the terms, that of the target, the number of its entries that do not fit)."""
        (solution, y, _), span = given, here.span
        tau, (code, c, d) = of_row(batch.temperature, here.row), solution_of(solution, here.row)
        end = -np.inf if code == ALL else np.inf
        total, target, wrong = 0.0, 0.0, 0.0
        for i in range(t.rank(), span.n, group.lanes):  # a term is too long to be unrolled
            v, each = float64(span.x[span.start + i]), float64(y[span.start + i])
            target += each
            wrong += 0.0 if fits(each) else 1.0
            if code <= WITH_INFINITIES and abs(v) < np.inf:
                total += surplus(curve, in_temperatures(v, tau, c, d), each, constant)
            else:
                total += surplus_at_infinity(curve, v, end, each, constant)
        total, target, wrong, _ = t.totals(total, target, wrong, 0.0, s.shared)
        return total, target, wrong, 0.0, 0.0, 0.0

    @device
    def loss(here, s, batch, given, found):
        solution, _, out = given
        if t.rank() == 0:
            k, tau = float64(of_row(batch.k, here.row)), of_row(batch.temperature, here.row)
            code, _, _ = solution_of(solution, here.row)
            is_target = found[2] == 0.0 and abs(found[1] - k) <= NEAR * max(1.0, k)
            if code == UNDEFINED or not is_target:
                out[here.row] = np.nan
            else:
                out[here.row] = tau * whole(found[0], solution, here.row, k)

    return Stage(terms), Stage(loss, once=True)


@device
def is_share(y):
    """Whether y is in [0, 1]."""
    return y >= 0.0 and y <= 1.0


@device
def is_hard(y):
    """Whether y is 0 or 1."""
    return y == 0.0 or y == 1.0
