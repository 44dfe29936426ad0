"""The Fenchel-Young loss of GradTopK on a device: -log P(S), less the conjugate of the target.

P(S) is that of the tilted Bernoulli variables given their count: entries add their -log P, and the
log-probability of the count is taken off. Every sum is of numbers of one sign.
"""

from __future__ import annotations

from typing import Any

from ..._cuda.launch import MANY
from ..._cuda.row_kernels import Staged
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once
from ..._curves.registry import CURVES
from ..._nonfinite import WITH_INFINITIES
from ..._threshold.cuda.loss import GIVEN, is_hard, is_share, passes
from ..records import CODE, LOG_P, SOLUTION, C, D


@made_once
def make_losses(T: Any, group: ThreadGroup, constant: bool) -> Staged:
    """A kernel for the loss of every row, from its solution and the target."""

    @device
    def solution_of(solution, row):
        base = row * SOLUTION
        return solution[base + CODE], solution[base + C], solution[base + D]

    @device
    def whole(total, solution, row, k):
        base = row * SOLUTION
        if solution[base + CODE] <= WITH_INFINITIES:
            total += solution[base + LOG_P]
        return max(total, 0.0) if constant else total

    # The conjugate is 0 for 0/1 vectors, and has no formula for others.
    fits = is_hard if constant else is_share
    stages = passes(T, group, CURVES["sigmoid"], False, fits, solution_of, whole)
    return Staged(T, group, GIVEN, stages, MANY)
