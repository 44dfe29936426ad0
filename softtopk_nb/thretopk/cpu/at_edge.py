"""ThreTopK with a curve whose slope is infinite at an edge: `entmax` with alpha above 2.

One entry there can have more weight than all others: p is computed in float64, and derivatives from
the direction less its value at that entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.operator import Rows
from ..._threshold.records import C, D

Array = Any


def widened(rows: Rows) -> Rows:
    """The rows in float64."""
    return rows._replace(x=rows.x.astype(np.float64, copy=False))


def beside(rows: Rows, curve: Any, solution: Array, v: Array) -> tuple[Array, Array]:
    """(v - u, u): u is, for each row, v at the entry with the largest weight, or 0 without weights.

    p does not change where all entries move equally. Without the shift, the effect of the others on
    this entry would be lost in the rounding of its own motion times its weight.
    """
    with np.errstate(all="ignore"):  # infinite entries and thresholds have no weight
        t = (rows.x - solution[:, C, None]) / rows.temperature[:, None] - solution[:, D, None]
        weighs = (t > 0) & ((curve.alpha - 1) * t < 1)
    t[~weighs] = np.inf
    edge = t.argmin(axis=1) if t.shape[1] else np.zeros(len(t), np.int64)
    each = np.arange(len(t))
    u = np.where(weighs[each, edge], v[each, edge], 0.0) if t.size else np.zeros(len(t))
    u[~np.isfinite(u)] = 0.0
    return v.astype(np.float64) - u[:, None], u


def narrow(wide: Array, out: Array) -> None:
    """Copy derivatives to the type of the rows.

    Those between equal entries at the edge may overflow it, and are clipped to its largest number.
    """
    most = np.finfo(out.dtype).max
    out[...] = np.clip(wide, -most, most)
