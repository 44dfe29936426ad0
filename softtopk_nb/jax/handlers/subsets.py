"""Handlers of GradTopK: short rows by the count's distribution, and other rows by nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ..._curves.registry import CURVES
from ..._nonfinite import FINITE, NONE, WITH_INFINITIES
from ..._threshold.records import (
    BY_DISTRIBUTION,
    CODE,
    FLAGS,
    SOME_BAD_MOMENTS,
    SOME_UNSOLVED,
    UNSOLVED,
)
from ..._threshold.records import SOLUTION as TILT
from ...gradtopk.cpu import poisson_binomial, poisson_binomial_tangent, short, with_core
from ...gradtopk.cpu import rows as subset_rows
from ...gradtopk.cpu.poisson_binomial import sizes_of
from ...gradtopk.records import FLAGS as SUBSET_FLAGS
from ...gradtopk.records import (
    NONE_SHORT,
    SHORT,
    SHORT_32,
    SHORT_LEFT,
    SOLUTION,
    SOME_SHORT,
    SOME_WITH_CORE,
    USED,
    WEIGHTS,
)
from ..frame import ARGUMENTS, RESULTS, leave, moved_problem, table, value_of, whole_problem
from .thresholds import BY_ORDER, find_thresholds, searching, searching_again
from .verbs import AN_ADDRESS, SECOND, Kernels, Sample, Setting, Verb, move_all

# Offsets of the data of kernels: of those that some rows need, after those of the search and of the
# count's distribution, and among them after those of `thresholds`.
AGAIN = 2 * SECOND
COUNT_MIXED, FILL_OTHERS = range(3 * SECOND, 5 * SECOND, SECOND)
# Offsets of the data for rows with a core and for the count, in a handler by nodes.
CORE, COUNT = SECOND, 2 * SECOND


class Searched(NamedTuple):
    """The curve and method by which tilts are searched for."""

    curve: Any
    method: Any


SEARCHED = Searched(CURVES["sigmoid"], subset_rows.TILT)
CURVE, METHOD = SEARCHED


def limits_of(dtype: Any) -> Any:
    """The limits for short rows, of method "auto"."""
    return SHORT_32 if dtype == np.float32 else SHORT


@scalar
def _count_others(run, frame, further, problem):
    """Solve the rows that `poisson_binomial.solve` leaves out, as `short.solve` does."""
    x, k, _, tilt, _, p, _, _ = problem
    rows, n = x.shape
    work = 3 * rows * n
    if (tilt[:, CODE] == WITH_INFINITIES).any() and not run(
        frame, further + COUNT_MIXED, rows, work, problem
    ):
        return False
    # Rows that need no solving: for one, or its finite entries alone, the kind is known by now.
    these = np.flatnonzero((tilt[:, CODE] != FINITE) & (tilt[:, CODE] != WITH_INFINITIES))
    count, given = these.shape[0], (x, k, these, tilt, p)
    return count == 0 or run(frame, further + FILL_OTHERS, count, count * n, given)


@scalar
def _find_tilts(run, frame, handler_data, x, k, tau, tilt):
    """Write the tilts of all rows; returns whether all were found."""
    flags, none = np.zeros(FLAGS, np.bool_), np.empty((x.shape[0], 0), x.dtype)
    given = x, k - 0.5, tau, CURVE, METHOD, none, tilt, flags
    return find_thresholds(run, frame, handler_data, handler_data + AGAIN, given)


@scalar
def _count_rows(run, frame, handler_data, x, k, tau, tilt, p):
    """Write p of rows with these tilts by the count's distribution; returns whether all done."""
    (rows, n), left_out = x.shape, np.zeros(1, np.bool_)
    problem = x, k, tau, tilt, sizes_of(n, x.dtype.type(1)), p, np.empty(0), left_out
    if not run(frame, handler_data + SECOND, rows, 3 * rows * n, problem):
        return False
    return not left_out[0] or _count_others(run, frame, handler_data + AGAIN, problem)


def _count(setting: Setting) -> Any:
    _, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def count(frame, handler_data):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        tilt = table(frame, RESULTS, 1, rows, TILT, np.float64)
        if not _find_tilts(run, frame, handler_data, x, k, tau, tilt):
            return False
        return _count_rows(run, frame, handler_data, x, k, tau, tilt, p)

    return count


def _move_counted(is_vjp: bool) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> Any:
        _, dtype, run = setting
        (least, most), columns = MODERATE[dtype], int(is_vjp)

        @scalar
        def move(frame, handler_data):
            x, k, tau, v, dtau, out, right = moved_problem(frame, is_vjp, dtype, least, most)
            if not right:
                return False
            (rows, n), with_infinities = x.shape, np.zeros(1, np.bool_)
            tilt = table(frame, ARGUMENTS, 3, rows, TILT, np.float64)
            gtau, sizes = np.empty((rows, columns)), sizes_of(n, dtype(1))
            given = x, k, tau, tilt, sizes, v, dtau, out, gtau, with_infinities
            if not move_all(run, frame, handler_data, 2 * rows * n, given):
                return False
            if is_vjp:
                leave(frame, np.zeros(rows), gtau[:, 0], rows, dtype)
            return True

        return move

    return make


# Loops over entries: indexing by slices and by arrays would take seconds to compile.
@scalar
def _places(column, code):
    """(positions of this code in a column, their number)."""
    these, count = np.empty(column.shape[0], np.int64), 0
    for i in range(column.shape[0]):
        if column[i] == code:
            these[count] = i
            count += 1
    return these, count


@scalar
def _copy(rows, these, some, back):
    """Copy these rows to `some`, or back from there."""
    for j in range(some.shape[0]):
        for i in range(some.shape[1]):
            if back:
                rows[these[j], i] = some[j, i]
            else:
                some[j, i] = rows[these[j], i]


@scalar
def _taken(rows, these, count):
    """The rows with these indices: a copy, or the array itself if they are all."""
    if count == rows.shape[0]:
        return rows
    some = np.empty((count, rows.shape[1]), rows.dtype)
    _copy(rows, these, some, False)
    return some


@scalar
def _numbers(values, these, count):
    """The numbers with these indices, `count` of them."""
    some = np.empty(count, values.dtype)
    for j in range(count):
        some[j] = values[these[j]]
    return some


@scalar
def _put_back(rows, these, some):
    """Write rows back to where `_taken` has copied them from."""
    if some.shape[0] < rows.shape[0]:
        _copy(rows, these, some, True)


@scalar
def _solve_cores(run, frame, handler_data, problem):
    """Solve the rows that have a core; returns whether all are done."""
    x, k, tau, tilt, _, p, solution, flags = problem
    given = x, k, tau, tilt, p, solution
    return not flags[SOME_WITH_CORE] or run(
        frame, handler_data + CORE, x.shape[0], 2 * x.size, given
    )


@scalar
def _solve_apart(run, frame, handler_data, code, problem):
    """Solve rows whose tilt has this code, UNSOLVED by nodes, others as short; whether all done."""
    x, k, tau, tilt, _, p, solution, flags = problem
    these, count = _places(tilt[:, CODE], code)
    xs, ps, answers = (
        _taken(x, these, count),
        _taken(p, these, count),
        _taken(solution, these, count),
    )
    ks, taus = _numbers(k, these, count), _numbers(tau, these, count)
    tilts = np.empty((count, TILT))
    if not _find_tilts(run, frame, handler_data + COUNT, xs, ks, taus, tilts):
        return False
    if code == UNSOLVED:
        given = xs, ks, taus, tilts, NONE_SHORT, ps, answers, flags
        if not run(frame, handler_data, count, 2 * xs.size, given):
            return False
        if not _solve_cores(run, frame, handler_data, given):
            return False
    else:
        if not _count_rows(run, frame, handler_data + COUNT, xs, ks, taus, tilts, ps):
            return False
        for j in range(count):
            answers[j, CODE], answers[j, USED] = NONE, -1.0
            for i in range(TILT):
                answers[j, WEIGHTS + i] = tilts[j, i]
    _put_back(p, these, ps)
    _put_back(solution, these, answers)
    return True


def _sum_over_nodes(setting: Setting) -> Any:
    _, dtype, run = setting
    (least, most), limits = MODERATE[dtype], limits_of(dtype)

    @scalar
    def sum_over_nodes(frame, handler_data):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        solution = table(frame, RESULTS, 1, rows, SOLUTION, np.float64)
        tilt, flags = np.full((rows, TILT), UNSOLVED), np.zeros(SUBSET_FLAGS, np.bool_)
        solution[:] = 0.0
        given = x, k, tau, tilt, limits, p, solution, flags
        if n <= limits.most and (k * (n - k)).max() <= limits.variance * n:
            tilt[:, CODE] = SHORT_LEFT
            flags[SOME_SHORT] = True
        elif not run(frame, handler_data, rows, 2 * rows * n, given):
            return False
        if flags[SOME_BAD_MOMENTS]:
            by_order = handler_data + COUNT + AGAIN + BY_ORDER
            if not run(frame, by_order, rows, rows * n, (x, k - 0.5, tau, tilt)):
                return False
            flags[BY_DISTRIBUTION] = True
            if not run(frame, handler_data, rows, 2 * rows * n, given):
                return False
            flags[BY_DISTRIBUTION] = False
        if not _solve_cores(run, frame, handler_data, given):
            return False
        for flag, code in ((SOME_UNSOLVED, UNSOLVED), (SOME_SHORT, SHORT_LEFT)):
            if flags[flag] and not _solve_apart(run, frame, handler_data, code, given):
                return False
        return True

    return sum_over_nodes


@scalar
def _move_apart(run, frame, handler_data, k, state, given):
    """Write derivatives of rows that were solved as short; returns whether all are done."""
    x, tau, _, v, dtau, out, gtau = given
    these, count = _places(state[:, USED], -1.0)
    if count == 0:
        return True
    tilt, sizes = np.empty((count, TILT)), sizes_of(x.shape[1], x.dtype.type(1))
    for j in range(count):
        for i in range(TILT):
            tilt[j, i] = state[these[j], WEIGHTS + i]
    xs, vs = _taken(x, these, count), _taken(v, these, count)
    outs, gtaus = _taken(out, these, count), _taken(gtau, these, count)
    ks, taus = _numbers(k, these, count), _numbers(tau, these, count)
    moves, with_infinities = _numbers(dtau, these, count), np.zeros(1, np.bool_)
    problem = xs, ks, taus, tilt, sizes, vs, moves, outs, gtaus, with_infinities
    if not move_all(run, frame, handler_data, 2 * xs.size, problem):
        return False
    _put_back(out, these, outs)
    _put_back(gtau, these, gtaus)
    return True


def _move_nodes(is_vjp: bool) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> Any:
        _, dtype, run = setting
        (least, most), columns = MODERATE[dtype], int(is_vjp)

        @scalar
        def move(frame, handler_data):
            x, k, tau, v, dtau, out, right = moved_problem(frame, is_vjp, dtype, least, most)
            if not right:
                return False
            rows, n = x.shape
            solution = table(frame, ARGUMENTS, 3, rows, SOLUTION, np.float64)
            gtau, flags = np.empty((rows, columns)), np.zeros(SUBSET_FLAGS, np.bool_)
            given = x, tau, solution, v, dtau, out, gtau
            by_nodes, work = (solution[:, USED] >= 0.0).any(), 2 * rows * n
            if by_nodes and not run(frame, handler_data, rows, work, (*given, flags)):
                return False
            if flags[SOME_WITH_CORE] and not run(frame, handler_data + CORE, rows, work, given):
                return False
            if not _move_apart(run, frame, handler_data + COUNT, k, solution, given):
                return False
            if is_vjp:
                leave(frame, np.zeros(rows), gtau[:, 0], rows, dtype)
            return True

        return move

    return make


def _of_count(like: Sample) -> tuple[Any, ...]:
    """Sample arguments for the kernels of `poisson_binomial` that solve rows."""
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


def _counted(kernel: Any, *more: int) -> Callable[[Any, Sample], Kernels]:
    def kernels(_: Any, like: Sample) -> Kernels:
        x, reals, whole, _, flags, columns = like
        sizes = poisson_binomial.scratch_sizes(x.shape[1], x.dtype)
        given = x, whole, reals, np.empty((1, TILT)), sizes, x, reals, x, columns, flags, *more
        return [(kernel, given)]

    return kernels


def _by_nodes(_: Any, like: Sample) -> Kernels:
    x, reals, whole, state, flags, _ = like
    limits = limits_of(x.dtype.type)
    return [(subset_rows.solve, (x, whole, reals, np.empty((1, TILT)), limits, x, state, flags))]


def _by_cores(_: Any, like: Sample) -> Kernels:
    x, reals, whole, state, _, _ = like
    return [(with_core.solve, (x, whole, reals, np.empty((1, TILT)), x, state))]


def _of_nodes(_: Any, like: Sample) -> Kernels:
    x, reals, _, state, flags, columns = like
    return [(subset_rows.jvp, (x, reals, state, x, reals, x, columns, flags))]


def _of_cores(_: Any, like: Sample) -> Kernels:
    x, reals, _, state, _, columns = like
    return [(with_core.jvp, (x, reals, state, x, reals, x, columns))]


COUNTED = (
    _counted(poisson_binomial_tangent.jvp),
    _counted(poisson_binomial_tangent.jvp_with_infinities, AN_ADDRESS),
)
SHORT_SUBSETS = {
    "solve": Verb(_count, _counting, _counting_others),
    "jvp": Verb(_move_counted(False), *COUNTED),
    "vjp": Verb(_move_counted(True), *COUNTED),
}


def _all_of(*kinds: Callable[[Any, Sample], Kernels]) -> Callable[[Any, Sample], Kernels]:
    def kernels(options: Any, like: Sample) -> Kernels:
        return [each for kind in kinds for each in kind(options, like)]

    return kernels


SUBSETS = {
    "solve": Verb(
        _sum_over_nodes, _all_of(_by_nodes, _by_cores), _all_of(_counting, _counting_others)
    ),
    "jvp": Verb(_move_nodes(False), _all_of(_of_nodes, _of_cores), _all_of(*COUNTED)),
    "vjp": Verb(_move_nodes(True), _all_of(_of_nodes, _of_cores), _all_of(*COUNTED)),
}
# Whether these rows are short depends on k: the first call tells which kernels they need.
MIDDLING_SUBSETS = {
    name: Verb(make, _all_of(), _all_of(first, further))
    for name, (make, first, further) in SUBSETS.items()
}
