"""Handlers of ThreTopK, and the search for thresholds, which GradTopK's short rows need too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ..._threads.jobs import get
from ..._threshold.cpu import batch, order_statistics, with_infinities
from ..._threshold.cpu import rows as robust_rows
from ..._threshold.records import (
    BY_DISTRIBUTION,
    CODE,
    FLAGS,
    SOME_BAD_MOMENTS,
    SOME_UNSOLVED,
    UNSOLVED,
)
from ..._threshold.records import SOLUTION as TILT
from ...thretopk.cpu import rows
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
)
from ..sharing import KERNEL
from .verbs import AN_ADDRESS, SECOND, Kernels, Sample, Setting, Verb, move_all

# Offsets of the data of kernels that search some rows again, after those of other kernels.
BY_ORDER, WITH_INFINITIES, ROBUST = range(0, 3 * SECOND, SECOND)


@scalar
def _have_infinities(x, solution):
    """Whether a row whose CODE is UNSOLVED has an infinity."""
    for i in range(x.shape[0]):
        if solution[i, CODE] == UNSOLVED:
            for value in x[i]:
                if abs(value) == np.inf:
                    return True
    return False


@scalar
def _search(run, frame, search, by_order, given, further):
    """Run a search as `batch.search` does; returns whether all is done.

    `further`: arguments of the kernel besides those of the fast search.
    """
    x, k, tau, _, _, _, solution, flags = given
    count, work = x.shape[0], x.size
    if not run(frame, search, count, work, (*given, *further)):
        return False
    if flags[SOME_BAD_MOMENTS]:
        if not run(frame, by_order, count, work, (x, k, tau, solution)):
            return False
        flags[BY_DISTRIBUTION] = True
        if not run(frame, search, count, work, (*given, *further)):
            return False
        flags[SOME_BAD_MOMENTS] = flags[BY_DISTRIBUTION] = False
    return True


@scalar
def find_thresholds(run, frame, handler_data, further, given):
    """Solve every row by as many kernels as `batch.solve` calls; returns whether all are done.

    `further`: the address of the data of the kernels that few rows need.
    """
    x, k, tau, curve, method, out, solution, flags = given
    by_order = further + BY_ORDER
    if not _search(run, frame, handler_data, by_order, given, ()):
        return False
    if flags[SOME_UNSOLVED] and _have_infinities(x, solution):
        fast = (get(handler_data + KERNEL),)
        if not _search(run, frame, further + WITH_INFINITIES, by_order, given, fast):
            return False
    if not flags[SOME_UNSOLVED]:
        return True
    count, still = x.shape[0], 0
    for i in range(count):
        still += solution[i, CODE] == UNSOLVED
    problem, work = (x, k, tau, curve, method, out, solution), batch.EXPENSIVE * still * x.shape[1]
    return still == 0 or run(frame, further + ROBUST, count, work, problem)


def _solve(setting: Setting) -> Any:
    (curve, method, _), dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def solve(frame, handler_data):
        rows, n = shape_of(frame)
        k, tau, flags = np.empty(rows), np.empty(rows), np.zeros(FLAGS, np.bool_)
        right = read(frame, 1, rows, dtype, 0.0, float(n), k)
        if not read(frame, 2, rows, dtype, least, most, tau) or not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        solution = table(frame, RESULTS, 1, rows, TILT, np.float64)
        given = x, k, tau, curve, method, p, solution, flags
        return find_thresholds(run, frame, handler_data, handler_data + SECOND, given)

    return solve


def _make_jvp(setting: Setting) -> Any:
    curve, dtype, run = setting.options.curve, setting.dtype, setting.run
    least, most = MODERATE[dtype]

    @scalar
    def jvp(frame, handler_data):
        rows, n = shape_of(frame)
        tau, with_infinities = np.empty(rows), np.zeros(1, np.bool_)
        right = read(frame, 2, rows, dtype, least, most, tau)
        dk, near = direction_of(frame, 5, rows, dtype)
        dtau, moderate = direction_of(frame, 6, rows, dtype)
        if not (right and near and moderate):
            return False
        x, v, dp = moved_of(frame, rows, n, dtype)
        solution = table(frame, ARGUMENTS, 3, rows, TILT, np.float64)
        given = x, tau, curve, solution, v, dp, dk, dtau, with_infinities
        return move_all(run, frame, handler_data, rows * n, given)

    return jvp


def _make_vjp(setting: Setting) -> Any:
    curve, dtype, run = setting.options.curve, setting.dtype, setting.run
    least, most = MODERATE[dtype]

    @scalar
    def vjp(frame, handler_data):
        rows, n = shape_of(frame)
        tau, gk, gtau = np.empty(rows), np.empty(rows), np.empty(rows)
        if not read(frame, 2, rows, dtype, least, most, tau):
            return False
        x, g, gx = moved_of(frame, rows, n, dtype)
        solution = table(frame, ARGUMENTS, 3, rows, TILT, np.float64)
        with_infinities = np.zeros(1, np.bool_)
        given = x, tau, curve, solution, g, gx, gk, gtau, with_infinities
        if not move_all(run, frame, handler_data, rows * n, given):
            return False
        leave(frame, gk, gtau, rows, dtype)
        return True

    return vjp


def searching(options: Any, like: Sample) -> Kernels:
    """The kernel of the first search of `find_thresholds`, with sample arguments."""
    x, reals, _, state, flags, _ = like
    solution = state[:, :TILT].copy()
    given = x, reals, reals, options.curve, options.method, x, solution, flags
    return [(batch.fast_search(x), given)]


def searching_again(options: Any, like: Sample) -> Kernels:
    """The kernels that `find_thresholds` runs for few rows, with sample arguments."""
    x, reals, _, state, flags, _ = like
    solution = state[:, :TILT].copy()
    given = x, reals, reals, options.curve, options.method, x, solution
    return [
        (order_statistics.distributions, (x, reals, reals, solution)),
        (with_infinities.solve, (*given, flags, AN_ADDRESS)),
        (robust_rows.solve, given),
    ]


def _along(kernel: Any, *more: int) -> Callable[[Any, Sample], Kernels]:
    def kernels(options: Any, like: Sample) -> Kernels:
        x, reals, _, state, flags, _ = like
        solution = state[:, :TILT].copy()
        return [(kernel, (x, reals, options.curve, solution, x, x, reals, reals, flags, *more))]

    return kernels


THRETOPK = {
    "solve": Verb(_solve, searching, searching_again),
    "jvp": Verb(_make_jvp, _along(rows.jvp), _along(rows.jvp_with_infinities, AN_ADDRESS)),
    "vjp": Verb(_make_vjp, _along(rows.vjp), _along(rows.vjp_with_infinities, AN_ADDRESS)),
}
