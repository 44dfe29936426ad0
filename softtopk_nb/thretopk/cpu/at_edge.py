"""ThreTopK with a curve whose slope is infinite at an edge: `entmax` with alpha above 2.

One entry there can weigh more than all others: p is found in float64, and derivatives from how much
the others move more than that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.operator import Rows
from ..._threshold.records import C, D

Array = Any


def widened(rows: Rows) -> Rows:
    """The same rows in float64."""
    return rows._replace(x=rows.x.astype(np.float64, copy=False))


def beside(rows: Rows, curve: Any, solution: Array, v: Array) -> tuple[Array, Array]:
    """(v - u, u): u, for each row, is v of the entry with the largest weight, 0 if none has any.

    A p of sum k does not change where all entries move alike, and what the others do to this one
    is lost in the rounding of its own motion, times its weight, if that is not 0.
    """
    with np.errstate(all="ignore"):  # infinite entries and thresholds: no weight
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

    Those between equal entries at the edge may be too large for it, and are its largest number.
    """
    most = np.finfo(out.dtype).max
    out[...] = np.clip(wide, -most, most)
