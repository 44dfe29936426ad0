"""The thresholds of one matrix: Newton's method on those of the columns, with each row solved.

For thresholds b of the columns, each row of x - b is a problem of `thretopk`. What is left is the
minimum of a smooth convex function of b, whose gradient is the load less the sums of the columns.
A step of Newton is taken if it reduces the total excess; else the columns are solved as the rows
are, which never raises it (thm-balanced-convergence).

What is done to entries is done by the matrix's passes, in memory or on a device (`memory`); here
are the numbers of rows and of columns, and the systems of the columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._api.base import Array
from .offsets import root_mean_square
from .schur import Schur, schur

COOLING = 4.0  # from each temperature to the next
FALL = 0.9  # the largest part of the total excess that a step of Newton may leave
CHORD = 0.05  # the largest part that a chord step may leave, for another by the same matrix
REACH = 32.0  # the longest step, in temperatures
DAMPINGS = 0.0, 1e-2  # of the diagonal, one after the other
TRIES = 6  # points of a line
LONGER = 4.0  # a step to a point where the function still falls as fast
NEAR = 1e-2  # of the mean load: the excess at which the next temperature begins
PATIENCE = 8  # steps at each of the temperatures that lead to the matrix's own
STAGES = 40  # temperatures at most
SAMPLE = 2048  # rows that find the first thresholds of a matrix with several times as many
LOOSEST = 0.1  # the most that rounding excuses, of max(1, load)
FINEST = {np.float32: 1e-6, np.float64: 1e-13}  # the error of p, and of its sums, by type


class Matrix(NamedTuple):
    """A problem without what is decided beforehand (`reduction`): every budget leaves a choice."""

    passes: Any  # over its entries, finite, or -inf for those that are excluded
    k: Array  # (m,), float64, between 0 and the number of entries of each row
    load: Array  # (n,), float64, between 0 and those of each column; bounds may be larger
    temperature: float
    bounded: bool  # whether the load is a bound, and not used up


class Solved(NamedTuple):
    """A matrix that was solved as far as it could be; its passes have p."""

    rows: Array  # (m,), the thresholds of the rows
    columns: Array  # (n,)
    solution: Any  # of the rows
    error: float  # the largest excess, of max(1, load)
    limit: float  # what it may be
    steps: int

    def moved_by(self, rows: Array, columns: Array) -> Solved:
        """The same for scores to which these numbers were added; the columns keep their mean."""
        mean = columns.mean()
        a, b = self.rows + (rows + mean), self.columns + (columns - mean)
        return self._replace(rows=a, columns=b)


class _Point(NamedTuple):
    """Thresholds of the columns, and what they give."""

    b: Array
    solution: Any  # of the rows
    over: Array  # (n,), sums of the columns less the load: what the function falls by
    excess: Array  # (n,), the same as far as it breaks a condition

    @property
    def total(self) -> float:
        """The total excess."""
        return float(abs(self.excess).sum())


class _Known(NamedTuple):
    """Newton's matrix at an earlier point, and how the excess has moved since then."""

    system: Schur
    share: float  # of the rows, that the matrix is of
    steps: list[Array]  # changes of the thresholds
    falls: list[Array]  # and of the excess by them


class _Search:
    """A matrix, and how the search for its thresholds goes."""

    def __init__(self, matrix: Matrix, known: _Known | None = None) -> None:
        self.matrix, self.passes = matrix, matrix.passes
        self.known, self.large = known, known is not None
        self.steps, self.record = 0, np.inf

    def at(self, b: Array, temperature: float) -> _Point:
        """Solve the rows for these thresholds of the columns."""
        matrix = self.matrix
        solution, sums = self.passes.at(b, temperature)
        over = sums - matrix.load
        excess = np.where(b > 0.0, over, np.maximum(over, 0.0)) if matrix.bounded else over
        return _Point(b, solution, over, excess)

    def schur(self, point: _Point, temperature: float) -> Schur:
        """The matrix of Newton's step from the point, at which y and p are."""
        w = self.passes.weigh(point.solution, temperature)
        free = np.ones(len(point.b), np.bool_)
        if self.matrix.bounded:
            free = (point.b > 0.0) | (point.excess > 0.0)
        return schur(w, free)

    def newton(self, point: _Point, temperature: float) -> tuple[_Point, bool] | None:
        """A better point on a line along Newton's direction, and whether it has much less excess.

        None if there is none. On a line the function falls as long as `over` has a part along it.
        """
        system, fallen = self.schur(point, temperature), None
        self.known = _Known(system, 1.0, [], []) if self.large else None
        for damping in DAMPINGS:
            d = system.solve(point.excess, damping)
            step = d * min(1.0, REACH * temperature / max(abs(d).max(), temperature))
            step += temperature * system.shares(point.excess)
            along = self.moved(point.b + step) - point.b
            if not point.over @ along > 0.0:
                continue
            most = self.length(point.b, along)
            low, high, s = (0.0, float(point.over @ along)), (np.inf, 0.0), 1.0
            for _ in range(TRIES):
                found = self.at(self.moved(point.b + s * along), temperature)
                if found.total <= FALL * self.record:
                    return found, True
                slope = float(found.over @ along)
                if slope >= 0.0:
                    low, fallen = (s, slope), found
                else:
                    high = s, slope
                if high[0] < np.inf:
                    part = low[1] / (low[1] - high[1])
                    s = low[0] + (high[0] - low[0]) * min(max(part, 0.1), 0.9)
                elif s < most:
                    s = min(LONGER * s, most)
                else:
                    break
            if fallen is not None:
                return fallen, False
        return None

    def chord(self, point: _Point, temperature: float, known: _Known) -> _Point:
        """The point that Newton's matrix of an earlier point leads to, with Anderson acceleration.

        Of 16384 x 64 float32 it saves 46 % of a call at temperature 1 and 12 % at 0.1.
        """
        step, left = np.zeros(len(point.b)), point.excess
        if known.steps:
            steps, falls = np.array(known.steps).T, np.array(known.falls).T
            part = np.linalg.lstsq(falls, left)[0]
            step, left = steps @ part, left - falls @ part
        b = self.moved(point.b + step + known.share * known.system.solve(left))
        found = self.at(b, temperature)
        known.steps.append(b - point.b)
        known.falls.append(point.excess - found.excess)
        return found

    def length(self, b: Array, along: Array) -> float:
        """How far a line from b goes before a threshold of a bound would be negative."""
        falls = along < 0.0
        if not self.matrix.bounded or not falls.any():
            return np.inf
        return float((b[falls] / -along[falls]).min())

    def moved(self, b: Array) -> Array:
        """The thresholds as they may be: of bounds at least 0 and one of them 0, else of mean 0.

        A constant is free to go to the rows; bounds that are not all used up want as little of it
        as there can be.
        """
        if not self.matrix.bounded:
            centred: Array = b - b.mean()
            return centred
        found: Array = np.maximum(b, 0.0)
        found -= found.min()
        return found

    def run(self, b: Array, temperature: float, goal: Array, limit: Array, most: int) -> _Point:
        """Search from b until the excess is at most the goal, or the limit where rounding ends."""
        point = self.at(b, temperature)
        self.record = point.total
        while self.steps < most and not (abs(point.excess) <= goal).all():
            self.steps += 1
            if self.known is not None:
                near = self.chord(point, temperature, self.known)
                if near.total > CHORD * self.record:
                    self.known = None
                if near.total <= FALL * self.record:
                    point, self.record = near, near.total
                    continue
                point = self.at(point.b, temperature)
            found = self.newton(point, temperature)
            if found is None and (abs(point.excess) <= limit).all():
                return self.at(point.b, temperature)
            point, much = found or (point, False)
            if not much:
                given = point.solution, temperature, self.matrix.load, self.matrix.bounded
                point = self.at(self.moved(self.passes.columns_solved(*given)), temperature)
            self.record = min(self.record, point.total)
        return point


def solve(matrix: Matrix, tol: float, max_iter: int, start: Array | None = None) -> Solved:
    """Solve a matrix; the caller looks whether the error is within the limit.

    `start`: thresholds of the columns near the solution, if they are known.
    """
    passes, tau = matrix.passes, matrix.temperature
    finest = FINEST[passes.dtype]
    low, high, _ = passes.extent
    scale = np.maximum(1.0, matrix.load)
    goal = max(tol, finest)
    rounding = finest + 4.0 * float(np.finfo(passes.dtype).eps) * ((high - low) / tau)
    limit = max(tol, min(rounding, LOOSEST))
    b, known = (start, None) if start is not None else _start(matrix)
    search = _Search(matrix, known)
    b = search.moved(b)
    point = search.run(b, tau, goal * scale, limit * scale, max_iter)
    error = float((abs(point.excess) / scale).max())
    a = passes.thresholds(point.solution, tau)
    return Solved(a, point.b, point.solution, error, limit, search.steps)


def _start(matrix: Matrix) -> tuple[Array, _Known | None]:
    """Thresholds of the columns near the solution: by higher temperatures, of a sample if large.

    With them Newton's matrix of the sample, if there is one.
    """
    some = _sample(matrix)
    tau = some.temperature
    mean, spread = some.passes.moments()
    b = np.zeros(len(mean)) if some.bounded else mean - mean.mean()
    if some.bounded:
        spread = np.hypot(spread, root_mean_square(mean - mean.mean()))
    top = max(tau, 2.0 * spread)
    search = _Search(some)
    near, width, solved = np.full(len(b), NEAR * some.load.mean()), top, np.inf
    for _ in range(STAGES):
        point = search.run(b, width, near, near, search.steps + PATIENCE)
        if (abs(point.excess) <= near).all():
            b, solved = point.b, width
            if width == tau:
                if some is not matrix:
                    share = len(some.k) / len(matrix.k)
                    return b, _Known(search.schur(point, tau), share, [], [])
                break
            width = max(tau, width / COOLING)
        elif solved == np.inf:
            b, width = point.b, COOLING * width
        else:
            width = np.sqrt(width) * np.sqrt(solved)  # the product may overflow
    return b, None


def _sample(matrix: Matrix) -> Matrix:
    """Every so many of the rows, with their part of the load; the matrix itself if it is small."""
    every = len(matrix.k) // SAMPLE
    if every < 4:
        return matrix
    passes, k = matrix.passes.sample(every), np.ascontiguousarray(matrix.k[::every])
    load = matrix.load * (k.sum() / matrix.k.sum())
    if not matrix.bounded and not (load < passes.present()).all():
        return matrix
    return matrix._replace(passes=passes, k=k, load=load)
