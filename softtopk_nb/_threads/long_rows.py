"""One long row in parts of a fixed length, shared out among the threads.

What is summed over parts is added in their order, so that the bits do not depend on how many
threads there are. The mathematics of a long row is a generator: it yields the passes that it needs,
and whoever has the row makes them. Here that is this process, which has all of it; in
`softtopk_nb.dask` its pieces may be anywhere, and a generator holds what stands for them (`Apart`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._compile.decorators import kernel
from .._nonfinite import survey
from .pool import over
from .sampling import sample, sample_places, sample_size

#: Rows from this length on are shared out among the threads in parts.
LONG = 1_000_000
#: Entries of a part. Public as `softtopk_nb.dask.PART`.
PART = 1 << 16

Result = TypeVar("Result")


class Pass(NamedTuple):
    """A kernel to call on the parts of a row, as ``kernel(lo, hi, *arguments)``.

    The last five say which of the arguments are what.
    """

    kernel: Any
    work: int  # nanoseconds that all of it takes, about
    arguments: tuple[Any, ...]  # the row's entries are the first
    sums: tuple[Any, ...] = ()  # have a row for each part, and are read and written
    lists: tuple[Any, ...] = ()  # likewise, but written alone: as many places as the last of `sums`
    written: tuple[Any, ...] = ()  # have an entry for each of the row's, and are written
    changed: tuple[Any, ...] = ()  # likewise, but read before
    again: tuple[Any, ...] = ()  # the arguments to write the same entries without any sums


Passes = Generator[Pass, None, Result]


class Apart:
    """What stands for an array with an entry for each of a row's that is not in this process."""

    def __init__(self, dtype: Any, lengths: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.lengths = lengths  # of its pieces
        self.size = sum(lengths)
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def room(self) -> Apart:
        """What stands for as many entries more, where these are."""
        raise NotImplementedError


def part_count(x: Any) -> int:
    """How many parts a row has; a piece of it that is apart begins with a new one."""
    lengths = x.lengths if isinstance(x, Apart) else (len(x),)
    return sum(-(-length // PART) for length in lengths)


def nothing(x: Any) -> Any:
    """An array of a row's type without entries."""
    return np.empty(0, x.dtype)


def room(x: Any) -> Any:
    """Room for as many entries as a row has, where it is."""
    return x.room() if isinstance(x, Apart) else np.empty_like(x)


def here(passes: Passes[Result]) -> Result:
    """Make the passes over a row that is in this process, and return what they end with."""
    while True:
        try:
            one = next(passes)
        except StopIteration as end:
            result: Result = end.value
            return result
        over(part_count(one.arguments[0]), one.work, one.kernel, *one.arguments)


@kernel
def _survey_parts(lo: int, hi: int, x: Any, ordinals: Any) -> None:
    for j in range(lo, hi):
        ordinals[j, 0], ordinals[j, 1] = survey(x[j * PART : (j + 1) * PART])


def ordinals_of(x: Any) -> Any:
    """Room for the range of each part, as ordinals."""
    return np.empty((part_count(x), 2), np.int32 if x.dtype == np.float32 else np.int64)


@kernel
def look_parts(
    lo: int, hi: int, x: Any, first: int, n: int, size: int, few: Any, ordinals: Any
) -> None:
    """The range of each part, and what of the row's sample lies in it and is at hand now.

    x are a row's entries from its place `first` on.
    """
    begun, _ = sample_places(first, first + x.shape[0], n, size)
    for j in range(lo, hi):
        start, end = j * PART, min((j + 1) * PART, x.shape[0])
        ordinals[j, 0], ordinals[j, 1] = survey(x[start:end])
        at, _ = sample_places(first + start, first + end, n, size)
        sample(x[start:end], first + start, n, size, few[at - begun :])


class Look(NamedTuple):
    """What a first look at a row, or at a piece of it, finds."""

    few: Any  # of its sample, what lies there
    lowest: Any  # ordinals of its smallest and its largest entry
    highest: Any


def look(x: Any, first: int = 0, n: int | None = None) -> Look:
    """At a row of n entries, or at the piece x of it that begins at its place `first`."""
    n = len(x) if n is None else n
    size, ordinals = sample_size(n), ordinals_of(x)
    begun, stop = sample_places(first, first + len(x), n, size)
    few = np.empty(stop - begun, x.dtype)
    # Every stage by as many threads: a core that reads what another one has written waits for it.
    over(len(ordinals), x.size // 4, look_parts, x, first, n, size, few, ordinals)
    return Look(few, ordinals[:, 0].min(), ordinals[:, 1].max())


def range_of(x: Any) -> tuple[Any, Any]:
    """`_nonfinite.survey` of a long row."""
    ordinals = ordinals_of(x)
    # By as many threads as the passes that follow: what one core has read, another one waits for.
    over(len(ordinals), x.size // 4, _survey_parts, x, ordinals)
    return ordinals[:, 0].min(), ordinals[:, 1].max()
