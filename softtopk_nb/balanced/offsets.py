"""Offsets of rows and columns, which are taken off the scores before a search.

Thresholds absorb what is added to a whole row, and to a whole column whose load must be met. But
x - b is rounded to the type of x: where such offsets are far larger than what they leave, the
sums of the columns would be those of the rounding errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import linalg

from .._api.base import Array

FAR = 4.0  # means this many times as large as what they leave are taken off
ROUNDS = 40  # at most; a mask, which makes the means depend on each other, takes more than two
SAMPLE = 2048  # rows from which the size of what means leave is found


@np.errstate(over="ignore", invalid="ignore")
def centred(passes: Any, bounded: bool) -> tuple[Any, Array, Array]:
    """(passes over the scores less offsets, those of the rows, of the columns).

    Where the loads are bounds, which want b >= 0, only rows have one.
    """
    offsets, axes = tuple(map(np.zeros, passes.shape)), (0,) if bounded else (0, 1)
    for _ in range(ROUNDS):
        means = [passes.means(axis) for axis in axes]
        sizes = [max(-each.min(), each.max()) for each in means]
        axis = sizes.index(max(sizes))
        if not sizes[axis] > FAR * _left(passes, means, axis):
            break
        # In units of the last place of the largest score, so that the differences are exact.
        low, high, _ = passes.extent
        unit = float(np.spacing(passes.dtype(max(-low, high))))
        taken = (means[axis] / unit).round() * unit
        passes = passes.less_means(taken, axis)
        offsets[axis][...] += taken
    return passes, *offsets


def _left(passes: Any, means: list[Array], axis: int) -> float:
    """The size of the scores less the means along this axis and then along the other, if any."""
    every, axes = passes.shape[0] // SAMPLE, (axis, 1 - axis)[: len(means)]
    some = passes.sample(every) if every > 1 else passes
    if passes.extent[2]:
        if some is not passes:
            means = [some.means(each) for each in range(len(means))]
        size = some.size()
        # In units of the size, as squares of the scores may overflow.
        parts = [each / size for each in means] if size > 0.0 else means
        left = 1.0 - sum(each @ each / len(each) for each in parts)
        left += (len(parts) - 1) * parts[0].mean() ** 2
        return float(size * math.sqrt(max(left, 0.0)))
    # With a mask the means of one axis depend on those of the other.
    for each in 2 * axes:
        some = some.less_means(some.means(each), each)
    found: float = some.size()
    return found


def root_mean_square(values: Array) -> float:
    """Of any number of values, whose squares may overflow."""
    length: float = linalg.norm(values.ravel(), check_finite=False)
    return float(length) / math.sqrt(values.size)
