"""The power map on the CPU: its engine, as in `_api.engine`, with a power for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._api.base import Array
from ..._threads.parts import parts


def value(rows: Any, options: None, out: Array) -> None:
    """Write y."""
    for some, x, power, top in _in_parts(rows):
        with np.errstate(all="ignore"):
            # 1 - (1 - x)^power without the difference, which would lose the digits of small x.
            out[some] = np.where(top, -np.expm1(power * np.log1p(-x)), _power(x, power))


def linearize(rows: Any, options: None, out: Array) -> tuple[Array, Array]:
    """Write y; returns the derivatives of each entry in itself and in the power (thm-gradual)."""
    value(rows, options, out)
    in_x, in_power = np.empty_like(rows.x), np.empty_like(rows.x)
    for some, x, power, top in _in_parts(rows):
        base = np.where(top, 1 - x, x)
        with np.errstate(all="ignore"):
            in_x[some] = power * _power(base, power - 1)
            log = np.where(top, np.log1p(-x), np.log(x))
            moved = np.where(base == 0, base, _power(base, power) * log)
        in_power[some] = np.where(top, -moved, moved)
    return in_x, in_power


def jvp(rows: Any, options: None, state: Any, dx: Array, dpower: Array, out: Array) -> None:
    """Write dy along (dx, dpower)."""
    in_x, in_power = state
    with np.errstate(all="ignore"):
        for some in parts(dx.shape):
            # An entry with direction 0 has the derivative 0, also where the slope is infinite.
            moved = np.where(dx[some] == 0, dx[some], in_x[some] * dx[some])
            moved += in_power[some] * dpower[some[0], None].astype(dx.dtype)
            out[some] = np.where(np.isnan(in_power[some]), np.nan, moved)


def vjp(rows: Any, options: None, state: Any, g: Array, gx: Array, gpower: Array) -> None:
    """Write the gradients of <g, y>."""
    in_x, in_power = state
    with np.errstate(all="ignore"):
        for some in parts(g.shape):
            moved = np.where(g[some] == 0, g[some], g[some] * in_x[some])
            gx[some] = np.where(np.isnan(in_power[some]), np.nan, moved)
        for some in parts(gpower.shape, g.shape[1]):
            gpower[some] = (g[some] * in_power[some]).sum(axis=1, dtype=np.float64)


def _in_parts(rows: Any) -> Iterator[tuple[tuple[slice, ...], Array, Array, Array]]:
    """Yield parts: (slices, x, the power in its type, where an entry is the largest of its row)."""
    x, limits = rows.x, np.finfo(rows.x.dtype)
    power = np.clip(rows.power, limits.tiny, limits.max).astype(x.dtype)[:, None]
    largest = x.max(axis=1, keepdims=True)
    for some in parts(x.shape):
        yield some, x[some], power[some[0]], x[some] == largest[some[0]]


def _power(base: Array, power: Array) -> Array:
    """base^power, with a power for each row.

    NumPy uses another algorithm for an exponent that is the same for all entries, with other last
    bits; here every entry has its own, so that a row does not depend on the others.
    """
    each = np.ascontiguousarray(np.broadcast_to(power, base.shape))
    result: Array = np.power(base.reshape(-1), each.reshape(-1)).reshape(base.shape)
    return result
