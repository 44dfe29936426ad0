"""Fenchel-Young losses on rows, entry by entry (Theorem thm-fenchel-young)."""

from __future__ import annotations

import numpy as np

from ..._compile.decorators import kernel
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES
from ..loss import apart, in_temperatures, own_surplus, surplus, surplus_at_infinity
from ..records import CODE, C, D


@kernel
def losses(lo, hi, x, tau, curve, level, y, constant, smooth, out):
    """Write the losses of rows lo .. hi, divided by the temperature: sums of `surplus`.

    `level` has the kind of each row and its threshold c + tau d, in the columns of a solution. A y
    without columns stands for each row's own value f(t); the terms are then `own_surplus`. In rows
    that are not `smooth`, they are `apart`.
    """
    for i in range(lo, hi):
        code, total = level[i, CODE], 0.0
        if code == UNDEFINED:
            out[i] = np.nan
            continue
        c, d = level[i, C], level[i, D]
        end = -np.inf if code == ALL else np.inf
        for j in range(x.shape[1]):
            value = np.float64(x[i, j])
            if y.shape[1] == 0:
                if code <= WITH_INFINITIES and np.isfinite(value):
                    total += own_surplus(curve, in_temperatures(value, tau[i], c, d))
            elif code <= WITH_INFINITIES and np.isfinite(value):
                t = in_temperatures(value, tau[i], c, d)
                total += surplus(curve, t, y[i, j], constant) if smooth[i] else apart(t, y[i, j])
            else:
                total += surplus_at_infinity(curve, value, end, y[i, j], constant)
        out[i] = total
