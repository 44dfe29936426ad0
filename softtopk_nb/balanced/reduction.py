"""What is decided before a search: entries and budgets that leave no choice.

-inf and entries that are masked are as if they were not there. +inf is 1 and uses up one of both
budgets. A row whose budget is 0, or the number of its entries, is all 0 or all 1, and so is a
column; what that leaves to the others may decide more of them. The rest is a smaller matrix.

Entries are not looked at here: how many there are is asked for, of whatever memory they lie in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._api.base import Array


class Infeasible(ValueError):
    """Budgets that no matrix with these entries has."""


class Decided(NamedTuple):
    """The rest of a matrix and what was decided; `rows` and `columns` are None if nothing was.

    `turns` say when each row and each column was decided, the first at 1 or -1: positive if it is
    all 1, negative if it is all 0, and 0 if it was not. An entry was decided by the earlier one.
    """

    k: Array  # of the rows left
    load: Array  # of the columns left
    rows: Array | None  # (m,) bool, the rows that are left
    columns: Array | None
    turns: tuple[Array, Array]  # (m,), (n,)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not (len(self.k) and len(self.load))


def reduce(entries: Any, k: Array, load: Array, bounded: bool) -> Decided:
    """Decide what can be; raises `Infeasible` where budgets ask for more than there is.

    `entries` say how many of them are finite, and how many +inf (`memory.Entries`).
    """
    m, n = len(k), len(load)
    rows_open = k.min() > 0.0 and k.max() < n
    columns_open = load.min() > 0.0 and (bounded or load.max() < m)
    turns = np.zeros(m, np.int64), np.zeros(n, np.int64)
    if entries.are_finite and rows_open and columns_open:
        return Decided(k, _to_total(load, k, bounded), None, None, turns)
    above = entries.above()
    k, load = k - above[0], load - above[1]
    left = np.ones(m, np.bool_), np.ones(n, np.bool_)
    turn, changed = 0, True
    while changed:
        changed = False
        for axis, budget, other, name in ((0, k, load, "row"), (1, load, k, "column")):
            turn, limited = turn + 1, not (bounded and axis == 1)
            counts = entries.counts(axis, *left)
            _check(budget, counts, name, limited)
            taken = (budget == counts) & (counts > 0) if limited else np.zeros(len(counts), bool)
            none = (budget == 0.0) & (counts > 0)
            if taken.any():
                part = (taken, left[1]) if axis == 0 else (left[0], taken)
                other -= entries.counts(1 - axis, *part)
                budget[taken] = 0.0
            if (taken | none).any():
                turns[axis][taken | none] = -turn
                turns[axis][taken] = turn
                left[axis][taken | none] = False
                changed = True
    rows, columns = (entries.counts(axis, *left) > 0 for axis in (0, 1))
    load = _to_total(load[columns], k[rows], bounded)
    return Decided(k[rows], load, rows, columns, turns)


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


def thresholds(decided: Decided, solved: Any) -> tuple[Array, Array]:
    """Those of the rows and the columns of a whole matrix; `solved` is None if nothing is left."""
    if decided.rows is None or decided.columns is None:
        return solved.rows, solved.columns
    a, b = (np.where(turn > 0, -np.inf, np.inf) for turn in decided.turns)
    if solved is not None:
        a[decided.rows], b[decided.columns] = solved.rows, solved.columns
    return a, b
