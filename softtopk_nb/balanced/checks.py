"""Checks of the arguments: axes, tolerance, and budgets that can be met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._api import arguments
from .._api.base import Array

_SAME = 1e-9  # the part by which two totals may differ
_DIGITS = 16  # or so many units in the last place of the type that they came in


def check_axes(axis: Any, values: Any, name: str = "axis") -> tuple[int, int]:
    """The axes of rows and of columns as non-negative integers."""
    if not isinstance(axis, (tuple, list)) or len(axis) != 2:
        raise TypeError(f"{name} is {arguments.show(axis)}; expected two axes, of rows and columns")
    ndim = len(values.shape)
    if ndim < 2:
        raise ValueError(f"x has shape {tuple(values.shape)}; expected at least two axes")
    first, second = (arguments.check_axis(each, ndim) for each in axis)
    if first == second:
        raise ValueError(f"{name} is {axis}, the same axis twice; expected two axes")
    if not (values.shape[first] and values.shape[second]):
        raise ValueError(f"x has shape {tuple(values.shape)}; expected at least one row and column")
    return first, second


def check_tolerance(tol: Any) -> float:
    """The tolerance as a number."""
    given = arguments.real_array(tol, "tol")
    if given.ndim != 0 or not 0 < given < np.inf:
        raise ValueError(f"tol is {arguments.show(tol)}; expected a positive finite number")
    return float(given)


def check_count(most: Any) -> int:
    """The number of steps as an integer."""
    given = arguments.real_array(most, "max_iter")
    if given.ndim != 0 or given.dtype.kind not in "iu":
        raise TypeError(f"max_iter is {arguments.show(most)}; expected an integer")
    if given < 1:
        raise ValueError(f"max_iter is {most}; expected at least 1")
    return int(given)


def broadcast(value: Any, shape: tuple[int, ...], name: str) -> Array:
    """Real numbers broadcast to this shape, as float64 in new memory."""
    given = arguments.real_array(value, name).astype(np.float64)
    arguments.check_broadcast(given, shape, name)
    return np.array(np.broadcast_to(given, shape), order="C")


def check_k(k: Any, n: int) -> Array:
    """k in its own type, in the range for n columns; at most n if it is `Clamped`."""
    clamps = isinstance(k, arguments.Clamped)
    raw = arguments.real_array(k.k if clamps else k, "k")
    if clamps:
        raw = np.minimum(raw, raw.dtype.type(n) if raw.dtype.kind == "f" else np.int64(n))
    _check_range(raw, 0, n, "k", "n", "columns")
    return raw


def check_load(load: Any, m: int, bounded: bool) -> Array:
    """The load in its own type, in the range for m rows; a bound may be any."""
    raw = arguments.real_array(load, "load")
    _check_range(raw, 0, np.inf if bounded else m, "load", "m", "rows")
    return raw


def counts_of(mask: Array) -> Callable[[int], tuple[Array, Array]]:
    """A function of the number of a matrix: how many entries of its rows and columns are there."""
    return lambda i: (mask[i].sum(axis=1), mask[i].sum(axis=0))


def check_budgets(
    k: Any,
    load: Any,
    batch: tuple[int, ...],
    table: tuple[int, int, int],
    mask: Any,
    bounded: bool,
    present: Callable[[], Array] | None = None,
) -> tuple[Array, Array]:
    """k and the load of each matrix; raises where no matrix of numbers in [0, 1] has these sums.

    mask: None, or a function of the number of a matrix that returns how many entries the mask
    leaves in each row and column, or None where they are not known. present: the number of entries
    that take part in each row, which is asked for where k is `Clamped`.
    """
    count, m, n = table
    raw = check_k(k, n)
    rows = broadcast(raw, (*batch, m), "k").reshape(count, m)
    if present is not None and isinstance(k, arguments.Clamped):
        rows = np.minimum(rows, present())
    total, same = rows.sum(axis=1), max(_SAME, _rounding(raw))
    if load is None:
        columns = np.repeat(total / n, n).reshape(count, n)
    else:
        raw = check_load(load, m, bounded)
        columns = broadcast(load, (*batch, n), "load").reshape(count, n)
        if bounded:  # a column holds no more than m
            columns = np.minimum(columns, m)
        same = max(same, _rounding(raw))
    for i in range(count):
        which = f" of matrix {i}" if count > 1 else ""
        if load is not None:
            _check_total(total[i], columns[i].sum(), same, which, bounded)
        if mask is None:
            _check_together(rows[i], columns[i], same, which)
        elif counts := mask(i):
            _check_mask(rows[i], counts[0], "k", f"row {{}}{which}")
            if not bounded:
                _check_mask(columns[i], counts[1], "load", f"column {{}}{which}")
    return rows, columns


def _check_range(given: Array, least: float, most: float, name: str, limit: str, what: str) -> None:
    ok = (given >= least) & (given <= most)
    if not ok.all():
        bad, end = given[~ok].flat[0], f" <= {limit} = {most}, the number of {what}"
        raise ValueError(f"{name} is {bad}; expected 0 <= {name}{end if most < np.inf else ''}")


def _rounding(given: Array) -> float:
    return _DIGITS * float(np.finfo(given.dtype).eps) if given.dtype.kind == "f" else 0.0


def _check_total(total: float, loads: float, same: float, which: str, bounded: bool) -> None:
    if bounded:
        if loads < total * (1.0 - same):
            raise ValueError(
                f"load sums to {loads:.12g}{which}, {total - loads:.6g} less than k, which sums to "
                f"{total:.12g}; expected at least as much"
            )
    elif abs(loads - total) > same * total:
        raise ValueError(
            f"load sums to {loads:.12g}{which} and k to {total:.12g}, which differs by "
            f"{abs(loads - total):.6g}; expected the same total, or at_most=True"
        )


def _check_mask(budget: Array, counts: Array, name: str, which: str) -> None:
    short = budget - counts
    worst = int(short.argmax())
    if short[worst] > 0.0:
        raise ValueError(
            f"`where` leaves {counts[worst]} entries in {which.format(worst)}, "
            f"{short[worst]:.6g} fewer than its {name} of {budget[worst]:.6g}; expected as many"
            + (", or clamp_k=True" if name == "k" else "")
        )


def _check_together(k: Array, load: Array, same: float, which: str) -> None:
    """Whether the q largest k fit into q of each column, for each q (thm-balanced-feasible)."""
    if k.min() == k.max() or load.min() == load.max():
        return
    largest, loads = np.sort(k)[::-1], np.sort(load)
    q = np.arange(1, len(k) + 1)
    below = np.searchsorted(loads, q)
    room = np.concatenate([[0.0], np.cumsum(loads)])[below] + q * (len(loads) - below)
    short = np.cumsum(largest) - room
    worst = int(short.argmax())
    if short[worst] > same * k.sum():
        raise ValueError(
            f"the {worst + 1} largest k sum to {largest[: worst + 1].sum():.6g}{which}, "
            f"{short[worst]:.6g} more than the columns can take from so many rows: at most 1 from "
            "each, and their load; expected budgets that can both be met"
        )
