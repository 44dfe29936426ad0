"""Short rows without their infinities: their finite entries one after the other, and back."""

from __future__ import annotations

import numpy as np

from ..._compile.decorators import kernel
from ..._nonfinite import MIXED, UNDEFINED, classify, compress, expand, fill_constant, survey
from ..records import ENTRIES, KIND, LEFT


@kernel
def survey_rows(lo, hi, x, k, rows):
    """Write what kind of row each is, how many entries are to be solved and what of k is left."""
    for i in range(lo, hi):
        code, n, _, left, _, _ = classify(x[i], k[i], *survey(x[i]))
        rows[i, KIND], rows[i, ENTRIES], rows[i, LEFT] = code, n if code <= MIXED else 0, left


@kernel
def pack(lo, hi, x, rows, values, packed):
    """Write the values at the finite entries of each row, one after the other."""
    for i in range(lo, hi):
        if rows[i, ENTRIES] > 0:
            compress(x[i], values[i], packed[i])


@kernel
def unpack(lo, hi, x, rows, k, packed, out):
    """Write p of whole rows from that of their finite entries."""
    for i in range(lo, hi):
        n = rows[i, ENTRIES]
        if n > 0:
            expand(x[i], packed[i, :n], 1.0, out[i])
        else:
            fill_constant(x[i], k[i], rows[i, KIND], k[i] - rows[i, LEFT], out[i])


@kernel
def unpack_tangent(lo, hi, x, rows, packed, out):
    """Write the tangent of whole rows from that of their finite entries."""
    T = out.dtype.type
    for i in range(lo, hi):
        n = rows[i, ENTRIES]
        if n > 0:
            expand(x[i], packed[i, :n], 0.0, out[i])
        else:
            out[i, :] = T(np.nan) if rows[i, KIND] == UNDEFINED else T(0)
