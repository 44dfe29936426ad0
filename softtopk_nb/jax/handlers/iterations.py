"""Handlers of masks and of the iterations, which have no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ...hardtopk.cpu import rows as hard_rows
from ...iterative.cpu import rows as iterated_rows
from ..frame import leave, moved_problem, read, shape_of, value_of, whole_problem
from .verbs import Kernels, Sample, Setting, Verb

TINY, HUGE = 5e-324, 1.7e308


@scalar
def _are_there(x, k):
    """Whether x has k or more entries above -inf."""
    count = 0
    for value in x:
        count += value > -np.inf
        if count >= k:
            return True
    return False


def _mark(real_k: bool) -> Callable[[Setting], Any]:
    def make(setting: Setting) -> Any:
        _, dtype, run = setting
        type_of_k = dtype if real_k else np.int32

        @scalar
        def mark(frame, handler_data):
            rows, n = shape_of(frame)
            k, tau = np.empty(rows), np.empty(rows)
            right = read(frame, 1, rows, type_of_k, 0.0, float(n), k)
            if not read(frame, 2, rows, dtype, TINY, HUGE, tau) or not right:
                return False
            x, p = value_of(frame, rows, n, dtype)
            whole = np.rint(k).astype(np.int64)
            for i in range(rows):
                if whole[i] < k[i] and not _are_there(x[i], k[i]):
                    whole[i] = n + 1  # to make the row NaN
            return run(frame, handler_data, rows, 4 * rows * n, (x, whole, p))

        return mark

    return make


def _marking(_: Any, like: Sample) -> Kernels:
    return [(hard_rows.solve, (like.x, like.whole, like.x))]


def _iterate(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def iterate(frame, handler_data):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        return run(frame, handler_data, rows, 2 * rows * n * max(1, k.max()), (x, k, tau, kind, p))

    return iterate


def _make_jvp(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def jvp(frame, handler_data):
        x, k, tau, v, dtau, dp, right = moved_problem(frame, False, dtype, least, most)
        if not right:
            return False
        work = 2 * x.size * max(1, k.max())
        return run(frame, handler_data, x.shape[0], work, (x, k, tau, kind, v, dtau, dp))

    return jvp


def _make_vjp(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def vjp(frame, handler_data):
        x, k, tau, g, _, gx, right = moved_problem(frame, True, dtype, least, most)
        if not right:
            return False
        rows, work = x.shape[0], 2 * x.size * max(1, k.max())
        gtau = np.empty(rows)
        if not run(frame, handler_data, rows, work, (x, k, tau, kind, g, gx, gtau)):
            return False
        leave(frame, np.zeros(rows), gtau, rows, dtype)
        return True

    return vjp


MARK, MARK_REAL = Verb(_mark(False), _marking), Verb(_mark(True), _marking)
ITERATIONS = {
    "solve": Verb(
        _iterate,
        lambda kind, a: [(iterated_rows.solve, (a.x, a.whole, a.reals, kind, a.x))],
    ),
    "jvp": Verb(
        _make_jvp,
        lambda kind, a: [(iterated_rows.jvp, (a.x, a.whole, a.reals, kind, a.x, a.reals, a.x))],
    ),
    "vjp": Verb(
        _make_vjp,
        lambda kind, a: [(iterated_rows.vjp, (a.x, a.whole, a.reals, kind, a.x, a.x, a.reals))],
    ),
}
