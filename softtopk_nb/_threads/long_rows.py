"""One long row in parts of a fixed length, shared among the threads.

Sums of parts are added in their order, so that the bits do not depend on the number of threads. The
mathematics of a long row is a generator: it yields the passes that it needs, and its caller makes
them. Here that is `here`, for a row in this process; in `softtopk_nb.dask` chunks of the row may be
elsewhere, and the generator holds placeholders for them (`Apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._compile.decorators import kernel
from .._nonfinite import UNDEFINED, WITH_INFINITIES, survey
from .pool import over
from .sampling import sample, sample_places, sample_size

#: Rows of at least this length are shared among the threads in parts.
LONG = 1_000_000
#: Entries of a part. Public as `softtopk_nb.dask.PART`.
PART = 1 << 16

Result = TypeVar("Result")


class Pass(NamedTuple):
    """A kernel to call on the parts of a row, as ``kernel(lo, hi, *arguments)``.

    The fields after `arguments` say which of the arguments are what.
    """

    kernel: Any
    work: int  # nanoseconds that all of it takes, roughly
    arguments: tuple[Any, ...]  # the first are the row's entries
    sums: tuple[Any, ...] = ()  # arrays with a row for each part, read and written
    lists: tuple[Any, ...] = ()  # likewise, only written; the last of `sums` has their lengths
    written: tuple[Any, ...] = ()  # arrays with an entry for each of the row's, written
    changed: tuple[Any, ...] = ()  # likewise, and read before that
    again: tuple[Any, ...] = ()  # the arguments that write the same entries without any sums


Passes = Generator[Pass, None, Result]


class Apart:
    """A placeholder for an array with an entry for each of the row's, not held in this process."""

    def __init__(self, dtype: Any, lengths: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.lengths = lengths  # of its chunks
        self.size = sum(lengths)
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def scratch(self) -> Apart:
        """A placeholder for an uninitialised array of the same size, in the same place."""
        raise NotImplementedError


def part_count(x: Any) -> int:
    """Number of parts of a row; every chunk of an `Apart` begins with a new part."""
    lengths = x.lengths if isinstance(x, Apart) else (len(x),)
    return sum(-(-length // PART) for length in lengths)


def nothing(x: Any) -> Any:
    """An empty array of x's type."""
    return np.empty(0, x.dtype)


def scratch(x: Any) -> Any:
    """An uninitialised array like the row x, in the same place."""
    return x.scratch() if isinstance(x, Apart) else np.empty_like(x)


def here(passes: Passes[Result]) -> Result:
    """Make the passes over a row that is in this process, and return the generator's result."""
    while True:
        try:
            one = next(passes)
        except StopIteration as end:
            result: Result = end.value
            return result
        over(part_count(one.arguments[0]), one.work, one.kernel, *one.arguments)


def solve_finite_part(x: Any, finite: Any, out: Any, solve: Callable[[Any, Any], Result]) -> Result:
    """Solve the `finite` entries of a row with infinities; p is 1 at +inf and 0 at -inf.

    `solve` takes these entries and an array for their p, which is empty as `out` is.
    """
    present = x[finite]
    values = np.empty(len(present) if len(out) else 0, x.dtype)
    result = solve(present, values)
    if len(out):
        out[...] = x > 0
        out[finite] = values
    return result


def derivative_of_row(
    code: float, x: Any, v: Any, out: Any, numbers: Any, along: Callable[[Any, Any, Any], None]
) -> None:
    """Write the derivative of a solved row along v, and to `numbers` what belongs to its numbers.

    `along` does so for a row of finite entries. Other entries do not move, nor does a row that
    needed no solving.
    """
    if code > WITH_INFINITIES:
        out[...] = numbers[...] = np.nan if code == UNDEFINED else 0.0
    elif code == WITH_INFINITIES:
        finite = np.isfinite(x)
        values = np.empty(np.count_nonzero(finite), x.dtype)
        along(x[finite], v[finite], values)
        out[...] = 0
        out[finite] = values
    else:
        along(x, v, out)


@kernel
def _survey_parts(lo: int, hi: int, x: Any, ordinals: Any) -> None:
    for j in range(lo, hi):
        ordinals[j, 0], ordinals[j, 1] = survey(x[j * PART : (j + 1) * PART])


def ordinals_of(x: Any) -> Any:
    """An uninitialised array for the smallest and largest ordinal of each part."""
    return np.empty((part_count(x), 2), np.int32 if x.dtype == np.float32 else np.int64)


@kernel
def look_parts(
    lo: int, hi: int, x: Any, first: int, n: int, size: int, few: Any, ordinals: Any
) -> None:
    """Write the range of each part, and the entries of the row's sample that lie in it.

    x holds the row's entries from position `first` on.
    """
    begun, _ = sample_places(first, first + x.shape[0], n, size)
    for j in range(lo, hi):
        start, end = j * PART, min((j + 1) * PART, x.shape[0])
        ordinals[j, 0], ordinals[j, 1] = survey(x[start:end])
        at, _ = sample_places(first + start, first + end, n, size)
        sample(x[start:end], first + start, n, size, few[at - begun :])


class RowScan(NamedTuple):
    """The result of a first look at a row, or at a chunk of it."""

    few: Any  # the entries of the row's sample that lie there
    lowest: Any  # ordinals of its smallest and its largest entry
    highest: Any


def look(x: Any, first: int = 0, n: int | None = None) -> RowScan:
    """Scan a row of n entries, or its chunk x that begins at position `first`: see `RowScan`."""
    n = len(x) if n is None else n
    size, ordinals = sample_size(n), ordinals_of(x)
    begun, stop = sample_places(first, first + len(x), n, size)
    few = np.empty(stop - begun, x.dtype)
    # Every stage by the same threads: a core that reads what another one has written waits for it.
    over(len(ordinals), x.size // 4, look_parts, x, first, n, size, few, ordinals)
    return RowScan(few, ordinals[:, 0].min(), ordinals[:, 1].max())


def range_of(x: Any) -> tuple[Any, Any]:
    """Ordinals of the smallest and the largest entry of a long row, as `_nonfinite.survey`."""
    ordinals = ordinals_of(x)
    # By the same threads as the passes that follow: what one core has read, another one waits for.
    over(len(ordinals), x.size // 4, _survey_parts, x, ordinals)
    return ordinals[:, 0].min(), ordinals[:, 1].max()
