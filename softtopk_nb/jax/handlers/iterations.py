"""Masks, and the iterations: nothing is kept for derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ...hardtopk.cpu import rows as hard_rows
from ...iterative.cpu import rows as iterated_rows
from ..frame import direction_of, leave, moved_of, read, shape_of, value_of, whole_problem
from .verbs import Kernels, Sample, Setting, Verb

TINY, HUGE = 5e-324, 1.7e308


@scalar
def _are_there(x, k):
    """Whether k or more entries take part."""
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
        def mark(frame, slots):
            rows, n = shape_of(frame)
            k, tau = np.empty(rows), np.empty(rows)
            right = read(frame, 1, rows, type_of_k, 0.0, float(n), k)
            if not read(frame, 2, rows, dtype, TINY, HUGE, tau) or not right:
                return False
            x, p = value_of(frame, rows, n, dtype)
            whole = np.rint(k).astype(np.int64)
            for i in range(rows):
                if whole[i] < k[i] and not _are_there(x[i], k[i]):
                    whole[i] = n + 1  # a row that is not defined
            return run(frame, slots, rows, 4 * rows * n, (x, whole, p))

        return mark

    return make


def _marking(_: Any, like: Sample) -> Kernels:
    return [(hard_rows.solve, (like.x, like.whole, like.x))]


def _iterate(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def iterate(frame, slots):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        return run(frame, slots, rows, 2 * rows * n * max(1, k.max()), (x, k, tau, kind, p))

    return iterate


def _push_iterated(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def push(frame, slots):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        dtau, moderate = direction_of(frame, 6, rows, dtype)
        if not right or not moderate:
            return False
        x, v, dp = moved_of(frame, rows, n, dtype)
        work = 2 * rows * n * max(1, k.max())
        return run(frame, slots, rows, work, (x, k, tau, kind, v, dtau, dp))

    return push


def _pull_iterated(setting: Setting) -> Any:
    kind, dtype, run = setting
    least, most = MODERATE[dtype]

    @scalar
    def pull(frame, slots):
        rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
        if not right:
            return False
        x, g, gx = moved_of(frame, rows, n, dtype)
        gtau, work = np.empty(rows), 2 * rows * n * max(1, k.max())
        if not run(frame, slots, rows, work, (x, k, tau, kind, g, gx, gtau)):
            return False
        leave(frame, np.zeros(rows), gtau, rows, dtype)
        return True

    return pull


MARK, MARK_REAL = Verb(_mark(False), _marking), Verb(_mark(True), _marking)
ITERATIONS = {
    "solve": Verb(
        _iterate,
        lambda kind, a: [(iterated_rows.solve, (a.x, a.whole, a.reals, kind, a.x))],
    ),
    "push": Verb(
        _push_iterated,
        lambda kind, a: [(iterated_rows.push, (a.x, a.whole, a.reals, kind, a.x, a.reals, a.x))],
    ),
    "pull": Verb(
        _pull_iterated,
        lambda kind, a: [(iterated_rows.pull, (a.x, a.whole, a.reals, kind, a.x, a.x, a.reals))],
    ),
}
