"""The Fenchel-Young loss of ThreTopK on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._cuda.launch import MANY
from ..._cuda.row_kernels import Staged
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once
from ..._curves.base import origin
from ..._threshold.cuda.loss import GIVEN, is_share, passes
from ..._threshold.cuda.rows import on_device
from ..._threshold.records import CODE, REST, SOLUTION, C, D


@made_once
def make_losses(T: Any, group: ThreadGroup, curve: Any, constant: bool) -> Staged:
    """A kernel for the loss of every row, from its solution and the target."""
    curve = on_device(curve, np.float64)

    @device
    def solution_of(solution, row):
        base = row * SOLUTION
        return solution[base + CODE], solution[base + C], solution[base + D] + solution[base + REST]

    @device
    def whole(total, solution, row, k):
        return total if constant else total - k * origin(curve)

    stages = passes(T, group, curve, constant, is_share, solution_of, whole)
    return Staged(T, group, GIVEN, stages, MANY)
