"""How a handler is made, and what it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..._compile.decorators import scalar
from ..._threads.jobs import WORD
from ..sharing import SLOTS

SECOND = SLOTS * WORD  # where the slots of a second kernel are, behind those of the first


class Setting(NamedTuple):
    """What a handler is made for."""

    plan: Any  # the operator's own options, checked
    dtype: Any  # np.float32 or np.float64
    run: Any  # `sharing.alone` or `sharing.together`


class Sample(NamedTuple):
    """Arrays as a handler has them: their types are what kernels are compiled for."""

    x: Any
    reals: Any  # one for each row
    whole: Any
    state: Any  # float64
    flags: Any
    columns: Any  # float64 in two dimensions


# The kernels that a handler runs, each with arguments of the types that it gets.
Kernels = list[tuple[Any, tuple[Any, ...]]]


class Verb(NamedTuple):
    """How the handler of a verb is made, and what it runs."""

    make: Callable[[Setting], Any]
    kernels: Callable[[Any, Sample], Kernels]  # of the plan and the types
    further: Callable[[Any, Sample], Kernels] = lambda *_: []  # those that few rows want


@scalar
def move_all(run, frame, slots, work, given):
    """A kernel on all rows, and a second on those with infinities; whether all has been done."""
    x, mixed = given[0], given[-1]
    if not run(frame, slots, x.shape[0], work, given):
        return False
    return not mixed[0] or run(frame, slots + SECOND, x.shape[0], work, given)
