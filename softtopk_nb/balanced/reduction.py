"""What is decided before a search: entries and budgets that leave no choice.

-inf and entries that are masked are as if they were not there. +inf is 1 and uses up one of both
budgets. A row whose budget is 0, or the number of its entries, is all 0 or all 1, and so is a
column; what that leaves to the others may decide more of them. The rest is a smaller matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._api.base import Array


class Infeasible(ValueError):
    """Budgets that no matrix with these entries has."""


class Decided(NamedTuple):
    """The rest of a matrix and what was decided; None for all rows and columns if nothing was."""

    x: Array  # (rows left, columns left), contiguous
    k: Array
    load: Array
    rows: Array | None  # (m,) bool, the rows that are left
    columns: Array | None
    ones: Array | None  # (m, n) bool, entries that are 1
    full: tuple[Array, Array] | None  # rows and columns that are all 1


def reduce(x: Array, k: Array, load: Array, bounded: bool) -> Decided:
    """Decide what can be; raises `Infeasible` where budgets ask for more than there is."""
    m, n = x.shape
    finite = np.isfinite(x.min(initial=0.0)) and np.isfinite(x.max(initial=0.0))
    rows_open = k.min() > 0.0 and k.max() < n
    columns_open = load.min() > 0.0 and (bounded or load.max() < m)
    if finite and rows_open and columns_open:
        return Decided(x, k, _to_total(load, k, bounded), None, None, None, None)
    ones = x == np.inf
    left = np.isfinite(x)
    k, load = k - ones.sum(axis=1), load - ones.sum(axis=0)
    full = np.zeros(m, np.bool_), np.zeros(n, np.bool_)
    changed = True
    while changed:
        changed = False
        for axis, budget, other, name in ((0, k, load, "row"), (1, load, k, "column")):
            limited = not (bounded and axis == 1)
            there = left if axis == 0 else left.T
            counts = there.sum(axis=1)
            _check(budget, counts, name, limited)
            taken = (budget == counts) & (counts > 0) if limited else np.zeros(len(counts), bool)
            none = (budget == 0.0) & (counts > 0)
            if taken.any():
                (ones if axis == 0 else ones.T)[taken] |= there[taken]
                other -= there[taken].sum(axis=0)
                budget[taken] = 0.0
                full[axis][taken] = True
            if (taken | none).any():
                there[taken | none] = False
                changed = True
    rows, columns = np.asarray(left.any(axis=1)), np.asarray(left.any(axis=0))
    rest = np.ascontiguousarray(np.where(left, x, x.dtype.type(-np.inf))[np.ix_(rows, columns)])
    load = _to_total(load[columns], k[rows], bounded)
    return Decided(rest, k[rows], load, rows, columns, ones, full)


def _check(budget: Array, counts: Array, name: str, limited: bool) -> None:
    """Raise `Infeasible` if a budget is negative, or above the entries that are left for it."""
    short = -budget
    if limited:
        short = np.maximum(short, budget - counts)
    worst = int(short.argmax()) if len(short) else 0
    if len(short) and short[worst] > 0.0:
        if budget[worst] < 0.0:
            said = f"other budgets put {-budget[worst]:.6g} too much into {name} {worst}"
        else:
            said = f"{name} {worst} has {counts[worst]} entries left, {short[worst]:.6g} too few"
        raise Infeasible(said)


def _to_total(load: Array, k: Array, bounded: bool) -> Array:
    """The loads, scaled to the sum of k unless they are bounds."""
    if bounded or not len(load):
        return load
    scaled: Array = load * (k.sum() / load.sum())
    return scaled


def expand(decided: Decided, solved: Any) -> tuple[Array, Array, Array]:
    """(p, thresholds of rows, of columns) of the whole matrix; None for a rest without entries."""
    if decided.rows is None or decided.columns is None or decided.full is None:
        return solved.p, solved.rows, solved.columns
    whole = decided.ones.astype(decided.x.dtype) if decided.ones is not None else decided.x
    a, b = (np.where(full, -np.inf, np.inf) for full in decided.full)
    if solved is not None:
        whole[np.ix_(decided.rows, decided.columns)] += solved.p
        a[decided.rows], b[decided.columns] = solved.rows, solved.columns
    return whole, a, b


def of_rest(decided: Decided, values: Array) -> Array:
    """The entries of a matrix that belong to the rest."""
    if decided.rows is None or decided.columns is None:
        return np.ascontiguousarray(values)
    return np.ascontiguousarray(values[np.ix_(decided.rows, decided.columns)])


def to_whole(decided: Decided, values: Array, shape: tuple[int, int]) -> Array:
    """A matrix that is 0 outside the rest."""
    if decided.rows is None or decided.columns is None:
        return values
    whole = np.zeros(shape, values.dtype)
    whole[np.ix_(decided.rows, decided.columns)] = values
    return whole
