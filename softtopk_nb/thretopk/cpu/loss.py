"""The Fenchel-Young loss of ThreTopK on rows, entry by entry (Theorem thm-fenchel-young)."""

from __future__ import annotations

import numpy as np

from ..._compile.decorators import kernel
from ..._curves.base import origin
from ..._nonfinite import UNDEFINED, WITH_INFINITIES
from ..._threshold.loss import surplus, surplus_at_infinity
from ..._threshold.records import CODE, REST, C, D


@kernel
def losses(lo, hi, x, k, tau, curve, solution, y, constant, out):
    """Write the losses of rows lo .. hi: potential + conjugate of y (if `constant`) - <x, y>."""
    for i in range(lo, hi):
        code, total = solution[i, CODE], 0.0
        c, d = solution[i, C], solution[i, D] + solution[i, REST]
        if code == UNDEFINED:
            out[i] = np.nan
            continue
        for j in range(x.shape[1]):
            value = np.float64(x[i, j])
            if code <= WITH_INFINITIES and np.isfinite(value):
                total += surplus(curve, (value - c) / tau[i] - d, y[i, j], constant)
            else:
                total += surplus_at_infinity(curve, value, c, y[i, j], constant)
        out[i] = tau[i] * (total if constant else total - k[i] * origin(curve))
