"""The k chosen entries of each row of arrays on a device: checked arguments, and results."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._api import arguments
from .._api.device_call import Target, check, rows_of
from .._cuda.interop import view_of
from .cuda import selection
from .operator import hardtopk


def select(
    x: Any, p: Any, k: int, sorts: bool, *, axis: Any, largest: Any, where: Any, clamp_k: Any
) -> tuple[Any, Any]:
    """(the entries of p at the k largest scores of each row, their indices along the axis)."""
    number = arguments.clamped(k, clamp_k)
    c = check(hardtopk, x, number, 1.0, axis, largest, where, None, {})
    given, rows = c.given, c.rows
    k = min(k, rows.n)
    shape = *given.shape[: given.axis], k, *given.shape[given.axis + 1 :]
    chosen, index = given._replace(shape=shape, where=None), np.dtype(np.int64)
    with given.kind.device:
        weights = Target(chosen)
        indices = Target(chosen._replace(compute=index.type, dtype=index))
        if k:
            mask = rows.empty(rows.rows * rows.n, rows.dtype)
            c.engine.value(rows, c.options, mask)
            of_p = rows_of(given._replace(where=None), view_of(p, "p"))
            selection.select(rows, k, sorts, mask, of_p, (weights.rows, indices.rows))
        return weights.finish(), indices.finish()
