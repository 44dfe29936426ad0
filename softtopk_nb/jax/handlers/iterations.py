"""HardTopK and the iterations, of which nothing is kept for derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._api.scaling import MODERATE
from ..._compile.decorators import scalar
from ...hardtopk.cpu import rows as hard_rows
from ...iterative.cpu import rows as iterated_rows
from ..frame import direction_of, leave, moved_of, value_of, whole_problem
from .verbs import Setting, Verb

TINY, HUGE = 5e-324, 1.7e308


def _mark(setting: Setting) -> Any:
    _, dtype, run = setting

    @scalar
    def mark(frame, slots):
        rows, n, k, _, right = whole_problem(frame, dtype, TINY, HUGE)
        if not right:
            return False
        x, p = value_of(frame, rows, n, dtype)
        return run(frame, slots, rows, 4 * rows * n, (x, k, p))

    return mark


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


HARDTOPK = {"constant": Verb(_mark, lambda _, a: [(hard_rows.solve, (a.x, a.whole, a.x))])}
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
