"""A long row whose pieces are in different places: what a piece is asked, and how it answers.

What is asked can be sent, and an answer too; `row_in_pieces` has who asks.
"""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._compile.decorators import in_memory
from .._math.elementary import from_ordinal, to_ordinal
from .._threads.long_rows import PART, Apart, Look, look
from .._threads.pool import over

Array = npt.NDArray[Any]

X, V = 0, 1  # labels of what a piece has: scores, and a direction or a cotangent
_labels = itertools.count(2)


class Selection(NamedTuple):
    """Which entries of a row take part, and by which powers of two they are multiplied."""

    finite_only: bool = False
    shift: int = 0
    shift_of_direction: int = 0  # of what belongs to the entries: a direction or a cotangent


class Labelled(NamedTuple):
    """In place of entries among the arguments of a call."""

    label: int


class ByPart(NamedTuple):
    """In place of an array with a row for each part among the arguments of a call."""

    values: Any


class Blank(NamedTuple):
    """Likewise, of one that is written alone: so many columns."""

    columns: int


class Call(NamedTuple):
    """A kernel to call on the parts of each piece, as it can be sent to where they are."""

    module: str
    kernel: str
    kept: bool  # whether its machine code is kept on the disk
    work: int  # nanoseconds for the whole row, about
    arguments: tuple[Any, ...]

    def of_parts(self, first: int, stop: int) -> Call:
        """The same, with what belongs to these parts."""
        arguments = tuple(
            ByPart(a.values[first:stop]) if isinstance(a, ByPart) else a for a in self.arguments
        )
        return self._replace(arguments=arguments)


class Entries(Apart):
    """Entries in pieces: given ones, or what calls write to them."""

    def __init__(self, dtype: Any, lengths: tuple[int, ...], label: int | None = None) -> None:
        super().__init__(dtype, lengths)
        self.label = next(_labels) if label is None else label
        self.calls: tuple[Call, ...] = ()  # in their order, the last of which has written it

    def room(self) -> Entries:
        """Entries of the same number and type."""
        return Entries(self.dtype, self.lengths)


class Ask(NamedTuple):
    """What is asked of the pieces of a row: to "look", "count", "measure", "gather" or "call"."""

    verb: str
    selection: Selection
    lengths: tuple[int, ...]  # of the pieces, of the entries that are selected
    label: int = X  # what to gather
    calls: tuple[Call, ...] = ()  # the last is asked for, those before write what it reads
    work: int = 0

    def of_piece(self, i: int) -> Ask:
        """What is asked of the piece i."""
        if self.verb != "call":
            return self
        first, stop = span(self.lengths, i)
        return self._replace(calls=tuple(call.of_parts(first, stop) for call in self.calls))


class Seen(NamedTuple):
    """What a look at a piece finds."""

    look: Look
    size: int  # entries that are selected
    nans: int
    above: int  # at +inf
    excluded: int  # at -inf


class Writing(NamedTuple):
    """How the result for a row is written where its pieces are."""

    selection: Selection
    ends: tuple[float, float]  # what entries at +inf and at -inf get
    lengths: tuple[int, ...] = ()  # of the pieces, of the entries that are selected
    label: int = X
    calls: tuple[Call, ...] = ()  # write the selected entries to what has this label
    values: Any = None  # or these are all of them, or a number for each
    shift: int = 0  # a power of two to multiply them with

    def of_piece(self, i: int) -> Writing:
        """What of it the piece i needs."""
        first, stop = span(self.lengths, i)
        values, begun = self.values, sum(self.lengths[:i])
        if np.ndim(values):
            values = values[begun : begun + self.lengths[i]]
        calls = tuple(call.of_parts(first, stop) for call in self.calls)
        return self._replace(calls=calls, values=values)


def span(lengths: tuple[int, ...], i: int) -> tuple[int, int]:
    """(the first part of the piece i, the first of the next one)."""
    parts = [-(-length // PART) for length in lengths[: i + 1]]
    return sum(parts[:-1]), sum(parts)


def selected(x: Array, v: Any, selection: Selection) -> tuple[Array, Any]:
    """The entries that take part, and what belongs to them."""
    if selection.finite_only:
        finite = np.isfinite(x)
        x, v = x[finite], None if v is None else v[finite]
    with np.errstate(over="ignore", under="ignore"):
        x = np.ldexp(x, selection.shift) if selection.shift else x
        if v is not None and selection.shift_of_direction:
            v = np.ldexp(v, selection.shift_of_direction)
    return x, v


def answer(ask: Ask, i: int, x: Array, v: Any = None) -> Any:
    """What is asked of a row's piece i, which is x, and has v beside it."""
    x, v = selected(x, v, ask.selection)
    if ask.verb == "count":
        return len(x)
    if ask.verb == "measure":
        return float(np.max(np.abs(v), where=np.isfinite(v), initial=0.0))
    if ask.verb == "gather":
        return x if ask.label == X else v
    if ask.verb == "call":
        entries = {X: x, V: v}
        return [_make(call, entries) for call in ask.calls][-1]
    if not len(x):  # no range
        zero = to_ordinal(x.dtype.type(0))
        return Seen(Look(x, zero, zero), 0, 0, 0, 0)
    found = look(x, sum(ask.lengths[:i]), sum(ask.lengths))
    if np.isfinite([from_ordinal(found.lowest), from_ordinal(found.highest)]).all():
        return Seen(found, len(x), 0, 0, 0)
    kinds = np.isnan(x), x == np.inf, x == -np.inf
    return Seen(found, len(x), *(int(np.count_nonzero(kind)) for kind in kinds))


def _make(call: Call, entries: dict[int, Any]) -> list[Any]:
    """Make a call; returns its arrays with a row for each part, blank ones as far as written."""
    kernel = getattr(importlib.import_module(call.module), call.kernel)
    kernel, n = kernel if call.kept else in_memory(kernel), len(entries[X])
    parts, arguments, by_part, blank = -(-n // PART), [], [], []
    for a in call.arguments:
        if isinstance(a, Labelled):
            if a.label not in entries:
                entries[a.label] = np.empty(n, entries[X].dtype)
            a = entries[a.label]
        elif isinstance(a, (ByPart, Blank)):
            blank.append(isinstance(a, Blank))
            a = np.empty((parts, a.columns)) if isinstance(a, Blank) else a.values.copy()
            by_part.append(a)
        arguments.append(a)
    over(parts, call.work, kernel, *arguments)
    # The last of them says how many places of a blank one are taken.
    taken = int(by_part[-1].max(initial=0)) if any(blank) else 0
    return [a[:, :taken] if b else a for a, b in zip(by_part, blank, strict=True)]


def write(writing: Writing, x: Array, v: Any, dtype: Any) -> Array:
    """The result for one piece of a row."""
    part, beside = selected(x, v, writing.selection)
    values = writing.values
    if values is None:
        entries = {X: part, V: beside}
        for call in writing.calls:
            _make(call, entries)
        values = entries[writing.label]
    if writing.shift:
        with np.errstate(over="ignore", under="ignore"):
            values = np.ldexp(values, writing.shift)
    most = np.finfo(dtype).max
    if x.dtype != dtype and np.ndim(values):
        values = np.clip(values, -most, most, out=values)  # NaNs stay
    if not writing.selection.finite_only and np.ndim(values):
        return np.asarray(values).astype(dtype, copy=False)
    out = np.empty(len(x), dtype)
    above, below = writing.ends
    finite = np.isfinite(x)
    out[finite], out[x == np.inf], out[x == -np.inf] = values, above, below
    if not np.ndim(values) and math.isnan(values):
        out[...] = values
    return out
