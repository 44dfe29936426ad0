"""Requests to the chunks of a long row that are in different places, and their answers.

Requests and answers can be sent to another process; `long_row` makes the requests.
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
from .._threads.long_rows import PART, Apart, RowScan, look
from .._threads.pool import over

Array = npt.NDArray[Any]

X, V = 0, 1  # labels of a chunk's arrays: scores, and a direction or a cotangent
_labels = itertools.count(2)


class Selection(NamedTuple):
    """The entries of a row that are used, and the powers of two that multiply them."""

    finite_only: bool = False
    shift: int = 0
    shift_of_direction: int = 0  # for the direction or cotangent that belongs to the entries


class Labelled(NamedTuple):
    """A placeholder for an array of entries, among the arguments of a call."""

    label: int


class ByPart(NamedTuple):
    """An array with a row for each part, among the arguments of a call."""

    values: Any


class Blank(NamedTuple):
    """A placeholder for an array with a row for each part that is only written."""

    columns: int


class Call(NamedTuple):
    """A kernel to call on the parts of each chunk, in a form to send to another process."""

    module: str
    kernel: str
    kept: bool  # whether its machine code is cached on disk
    work: int  # nanoseconds for the whole row, roughly
    arguments: tuple[Any, ...]

    def of_parts(self, first: int, stop: int) -> Call:
        """The call for parts first .. stop alone."""
        arguments = tuple(
            ByPart(a.values[first:stop]) if isinstance(a, ByPart) else a for a in self.arguments
        )
        return self._replace(arguments=arguments)


class Entries(Apart):
    """Entries in chunks: given, or written by calls."""

    def __init__(self, dtype: Any, lengths: tuple[int, ...], label: int | None = None) -> None:
        super().__init__(dtype, lengths)
        self.label = next(_labels) if label is None else label
        self.calls: tuple[Call, ...] = ()  # in order; the last one writes the entries

    def scratch(self) -> Entries:
        """New entries of the same number and type, not yet written."""
        return Entries(self.dtype, self.lengths)


class Ask(NamedTuple):
    """A request to the chunks of a row: to "look", "count", "measure", "gather" or "call"."""

    verb: str
    selection: Selection
    lengths: tuple[int, ...]  # numbers of selected entries in the chunks
    label: int = X  # the array to gather
    calls: tuple[Call, ...] = ()  # the last is wanted, those before write what it reads
    work: int = 0

    def of_piece(self, i: int) -> Ask:
        """The request to chunk i alone."""
        if self.verb != "call":
            return self
        first, stop = span(self.lengths, i)
        return self._replace(calls=tuple(call.of_parts(first, stop) for call in self.calls))


class ChunkScan(NamedTuple):
    """The result of a scan of a chunk."""

    look: RowScan
    size: int  # number of selected entries
    nans: int
    above: int  # at +inf
    excluded: int  # at -inf


class Writing(NamedTuple):
    """How to write the result for a row where its chunks are."""

    selection: Selection
    ends: tuple[float, float]  # the values at entries of +inf and of -inf
    lengths: tuple[int, ...] = ()  # numbers of selected entries in the chunks
    label: int = X
    calls: tuple[Call, ...] = ()  # write the selected entries to the array of this label
    values: Any = None  # if not None: the selected entries, or a number for all of them
    shift: int = 0  # the exponent of a power of two that multiplies them

    def of_piece(self, i: int) -> Writing:
        """The part of it that chunk i needs."""
        first, stop = span(self.lengths, i)
        values, begun = self.values, sum(self.lengths[:i])
        if np.ndim(values):
            values = values[begun : begun + self.lengths[i]]
        calls = tuple(call.of_parts(first, stop) for call in self.calls)
        return self._replace(calls=calls, values=values)


def span(lengths: tuple[int, ...], i: int) -> tuple[int, int]:
    """(the first part of chunk i, the first part of the next one)."""
    parts = [-(-length // PART) for length in lengths[: i + 1]]
    return sum(parts[:-1]), sum(parts)


def selected(x: Array, v: Any, selection: Selection) -> tuple[Array, Any]:
    """The selected entries, scaled, and what belongs to them in v."""
    if selection.finite_only:
        finite = np.isfinite(x)
        x, v = x[finite], None if v is None else v[finite]
    with np.errstate(over="ignore", under="ignore"):
        x = np.ldexp(x, selection.shift) if selection.shift else x
        if v is not None and selection.shift_of_direction:
            v = np.ldexp(v, selection.shift_of_direction)
    return x, v


def answer(ask: Ask, i: int, x: Array, v: Any = None) -> Any:
    """The answer of chunk i of a row, with entries x and v."""
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
        return ChunkScan(RowScan(x, zero, zero), 0, 0, 0, 0)
    found = look(x, sum(ask.lengths[:i]), sum(ask.lengths))
    if np.isfinite([from_ordinal(found.lowest), from_ordinal(found.highest)]).all():
        return ChunkScan(found, len(x), 0, 0, 0)
    kinds = np.isnan(x), x == np.inf, x == -np.inf
    return ChunkScan(found, len(x), *(int(np.count_nonzero(kind)) for kind in kinds))


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
    # The last array says how many columns of the blank ones are used.
    taken = int(by_part[-1].max(initial=0)) if any(blank) else 0
    return [a[:, :taken] if b else a for a, b in zip(by_part, blank, strict=True)]


def write(writing: Writing, x: Array, v: Any, dtype: Any) -> Array:
    """The result for one chunk of a row, as an array of this type."""
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
