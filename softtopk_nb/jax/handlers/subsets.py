"""GradTopK: rows that are all short, by the count's distribution, and others, by nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ..._curves.registry import CURVES
from ..._nonfinite import FINITE, MIXED, NONE
from ..._threshold.cpu import order
from ..._threshold.records import BY_DISTRIBUTION, CODE, FLAGS, OPEN, SOME_MISLED, SOME_OPEN
from ..._threshold.records import SOLUTION as TILT
from ...gradtopk.cpu import poisson_binomial, poisson_binomial_tangent, short
from ...gradtopk.cpu import rows as subset_rows
from ...gradtopk.cpu.poisson_binomial import sizes_of
from ...gradtopk.records import FLAGS as SUBSET_FLAGS
from ...gradtopk.records import SHORT, SHORT_32, SOLUTION, SOME_SHORT, USED, WEIGHTS
from ..frame import (
    ARGUMENTS,
    RESULTS,
    direction_of,
    leave,
    moved_of,
    read,
    shape_of,
    table,
    value_of,
    whole_problem,
)
from .thresholds import find_thresholds, searching, searching_again
from .verbs import SECOND, Kernels, Sample, Setting, Verb, move_all

# Where slots are, behind those of the search: of kernels that some rows want.
COUNT_MIXED, FILL_OTHERS = range(3 * SECOND, 5 * SECOND, SECOND)


class Searched(NamedTuple):
    """How tilts are searched for."""

    curve: Any
    method: Any


SEARCHED = Searched(CURVES["sigmoid"], subset_rows.TILT)


def limits_of(dtype: Any) -> Any:
    """Which rows are short, by the method that is chosen if none is named."""
    return SHORT_32 if dtype == np.float32 else SHORT


@scalar
def _are_short(n, k, limits):
    return n <= limits.always or (k * (n - k)).max() <= limits.variance * n


@scalar
def _count_others(run, frame, further, problem):
    """Solve the rows that `poisson_binomial.solve` leaves out, as `short.solve` does."""
    x, k, _, tilt, _, p, _, _ = problem
    rows, n = x.shape
    work = 3 * rows * n
    if (tilt[:, CODE] == MIXED).any() and not run(
        frame, further + COUNT_MIXED, rows, work, problem
    ):
        return False
    # Those that need no solving: what infinities leave of a row may be one, and its kind tells now.
    these = np.flatnonzero((tilt[:, CODE] != FINITE) & (tilt[:, CODE] != MIXED))
    count, given = these.shape[0], (x, k, these, tilt, p)
    return count == 0 or run(frame, further + FILL_OTHERS, count, count * n, given)


def _count(setting: Setting) -> Any:
    _, dtype, run = setting
    (least, most), limits = MODERATE[dtype], limits_of(dtype)
    (curve, method), narrow = SEARCHED, SHORT_32.always

    @scalar
    def count(frame, slots):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        if not _are_short(n, k, limits):
            return False
        x, p = value_of(frame, rows, n, dtype)
        tilt, flags, further = np.empty((rows, TILT)), np.zeros(FLAGS, np.bool_), slots + 2 * SECOND
        given = x, k - 0.5, tau, curve, method, np.empty((rows, 0), dtype), tilt, flags
        if not find_thresholds(run, frame, slots, further, given):
            return False
        left_out = np.zeros(1, np.bool_)
        problem = x, k, tau, tilt, sizes_of(n, dtype(1)), p, np.empty(0), left_out
        if not run(frame, slots + SECOND, rows, 3 * rows * n, problem):
            return False
        if left_out[0] and not _count_others(run, frame, further, problem):
            return False
        if n <= narrow:
            table(frame, RESULTS, 1, rows, TILT, np.float64)[:] = tilt
        else:
            state = table(frame, RESULTS, 1, rows, SOLUTION, np.float64)
            state[:] = 0.0
            state[:, CODE], state[:, USED], state[:, WEIGHTS : WEIGHTS + TILT] = NONE, -1.0, tilt
        return True

    return count


@scalar
def _tilts(frame, rows, n, narrow):
    """(the tilts in a state of rows, whether all are there)."""
    if n <= narrow:
        return table(frame, ARGUMENTS, 3, rows, TILT, np.float64).copy(), True
    state = table(frame, ARGUMENTS, 3, rows, SOLUTION, np.float64)
    return state[:, WEIGHTS : WEIGHTS + TILT].copy(), (state[:, USED] < 0.0).all()


def _move_counted(pulls: bool) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> Any:
        _, dtype, run = setting
        (least, most), narrow, columns = MODERATE[dtype], SHORT_32.always, int(pulls)

        @scalar
        def move(frame, slots):
            rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
            dtau, moderate = np.zeros(rows), True
            if not pulls:
                dtau, moderate = direction_of(frame, 6, rows, dtype)
            tilt, found = _tilts(frame, rows, n, narrow)
            if not (right and moderate and found):
                return False
            x, v, out = moved_of(frame, rows, n, dtype)
            mixed = np.zeros(1, np.bool_)
            gtau, sizes = np.empty((rows, columns)), sizes_of(n, dtype(1))
            given = x, k, tau, tilt, sizes, v, dtau, out, gtau, mixed
            if not move_all(run, frame, slots, 2 * rows * n, given):
                return False
            if pulls:
                leave(frame, np.zeros(rows), gtau[:, 0], rows, dtype)
            return True

        return move

    return make


def _sum_over_nodes(setting: Setting) -> Any:
    _, dtype, run = setting
    (least, most), limits = MODERATE[dtype], limits_of(dtype)

    @scalar
    def sum_over_nodes(frame, slots):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        solution = table(frame, RESULTS, 1, rows, SOLUTION, np.float64)
        tilt, flags = np.full((rows, TILT), OPEN), np.zeros(SUBSET_FLAGS, np.bool_)
        solution[:] = 0.0
        given = x, k, tau, tilt, limits, p, solution, flags
        if not run(frame, slots, rows, 2 * rows * n, given):
            return False
        if flags[SOME_MISLED]:
            if not run(frame, slots + SECOND, rows, rows * n, (x, k - 0.5, tau, tilt)):
                return False
            flags[BY_DISTRIBUTION] = True
            if not run(frame, slots, rows, 2 * rows * n, given):
                return False
        if flags[SOME_OPEN] or flags[SOME_SHORT]:
            return False
        for i in range(rows):
            if solution[i, CODE] > MIXED:
                solution[i, USED] = 0.0
        return True

    return sum_over_nodes


def _move_nodes(pulls: bool) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> Any:
        _, dtype, run = setting
        (least, most), columns = MODERATE[dtype], int(pulls)

        @scalar
        def move(frame, slots):
            rows, n = shape_of(frame)
            tau, dtau, moderate = np.empty(rows), np.zeros(rows), True
            right = read(frame, 2, rows, dtype, least, most, tau)
            if not pulls:
                dtau, moderate = direction_of(frame, 6, rows, dtype)
            solution = table(frame, ARGUMENTS, 3, rows, SOLUTION, np.float64)
            if not (right and moderate) or (solution[:, USED] < 0.0).any():
                return False
            x, v, out = moved_of(frame, rows, n, dtype)
            gtau = np.empty((rows, columns))
            given = x, tau, solution, v, dtau, out, gtau
            if not run(frame, slots, rows, 2 * rows * n, given):
                return False
            if pulls:
                leave(frame, np.zeros(rows), gtau[:, 0], rows, dtype)
            return True

        return move

    return make


def _of_count(like: Sample) -> tuple[Any, ...]:
    """What the kernels of `poisson_binomial` that solve rows are given."""
    x, reals, whole, _, flags, _ = like
    sizes = poisson_binomial.scratch_sizes(x.shape[1], x.dtype)
    return x, whole, reals, np.empty((1, TILT)), sizes, x, reals, flags


def _counting(_: Any, like: Sample) -> Kernels:
    (search,) = searching(SEARCHED, like)
    return [search, (poisson_binomial.solve, _of_count(like))]


def _counting_others(_: Any, like: Sample) -> Kernels:
    x, _, whole, _, _, _ = like
    others = x, whole, whole, np.empty((1, TILT)), x
    return [
        *searching_again(SEARCHED, like),
        (poisson_binomial.solve_mixed, _of_count(like)),
        (short.fill_others, others),
    ]


def _counted(kernel: Any) -> Callable[[Any, Sample], Kernels]:
    def kernels(_: Any, like: Sample) -> Kernels:
        x, reals, whole, _, flags, columns = like
        sizes = poisson_binomial.scratch_sizes(x.shape[1], x.dtype)
        given = x, whole, reals, np.empty((1, TILT)), sizes, x, reals, x, columns, flags
        return [(kernel, given)]

    return kernels


def _by_nodes(_: Any, like: Sample) -> Kernels:
    x, reals, whole, state, flags, _ = like
    limits = limits_of(x.dtype.type)
    return [(subset_rows.solve, (x, whole, reals, np.empty((1, TILT)), limits, x, state, flags))]


def _by_order(_: Any, like: Sample) -> Kernels:
    return [(order.distributions, (like.x, like.reals, like.reals, np.empty((1, TILT))))]


def _of_nodes(_: Any, like: Sample) -> Kernels:
    x, reals, _, state, _, columns = like
    return [(subset_rows.push, (x, reals, state, x, reals, x, columns))]


COUNTED = _counted(poisson_binomial_tangent.push), _counted(poisson_binomial_tangent.push_mixed)
SHORT_SUBSETS = {
    "solve": Verb(_count, _counting, _counting_others),
    "push": Verb(_move_counted(False), *COUNTED),
    "pull": Verb(_move_counted(True), *COUNTED),
}
SUBSETS = {
    "solve": Verb(_sum_over_nodes, _by_nodes, _by_order),
    "push": Verb(_move_nodes(False), _of_nodes),
    "pull": Verb(_move_nodes(True), _of_nodes),
}
