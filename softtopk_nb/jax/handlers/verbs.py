"""The definition of a handler: the function that makes it, and its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..._compile.decorators import scalar
from ..._threads.jobs import WORD, get
from ..sharing import HANDLER_DATA, KERNEL

SECOND = HANDLER_DATA * WORD  # offset of a second kernel's data, after that of the first


class Setting(NamedTuple):
    """The options, type and runner that a handler is made for."""

    options: Any  # the operator's own options, checked
    dtype: Any  # np.float32 or np.float64
    run: Any  # `sharing.alone` or `sharing.together`


class Sample(NamedTuple):
    """Sample arrays of a handler, whose types are those that kernels are compiled for."""

    x: Any
    reals: Any  # a number for each row
    whole: Any
    state: Any  # float64
    flags: Any
    columns: Any  # float64 in two dimensions


# The kernels that a handler runs, each with arguments of the types that it gets.
Kernels = list[tuple[Any, tuple[Any, ...]]]


AN_ADDRESS = 0  # a sample of the last argument of kernels that call another


class Verb(NamedTuple):
    """The function that makes a verb's handler, and the kernels that this runs."""

    make: Callable[[Setting], Any]
    kernels: Callable[[Any, Sample], Kernels]  # by the options and the types
    further: Callable[[Any, Sample], Kernels] = lambda *_: []  # those that few rows need


@scalar
def move_all(run, frame, handler_data, work, given):
    """Run a kernel on all rows, and a second on those with infinities; returns whether all done.

    The second gets the address of the first.
    """
    x, with_infinities = given[0], given[-1]
    if not run(frame, handler_data, x.shape[0], work, given):
        return False
    given_both = (*given, get(handler_data + KERNEL))
    return not with_infinities[0] or run(frame, handler_data + SECOND, x.shape[0], work, given_both)
