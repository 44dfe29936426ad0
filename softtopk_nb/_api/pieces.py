"""A long row whose pieces are in different places: what every operator does before and after.

As `base` does for rows in memory: the rules for what is not finite, temperatures near the ends of
their range, and rows of which infinities leave few entries. The mathematics between are the
generators of `_threads.long_rows` that each operator names in its `_long_...` methods.

A verb for one row is a generator too. It yields what it asks of the pieces, and gets a list with
the answer of each; `answer` says how, for one piece.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._compile.decorators import in_memory, kernel
from .._math.elementary import from_ordinal
from .._nonfinite import ALL, UNDEFINED
from .._threads.long_rows import LONG, PART, Apart, Look, Pass, Passes, look, part_count
from .._threads.pool import over
from . import scaling

Array = npt.NDArray[Any]

X, V = 0, 1  # labels of what a piece has: scores, and a direction or a cotangent
_labels = itertools.count(2)
_ROOMY = 2.0**64  # the square of a float32 up to here has room in sums


class Selection(NamedTuple):
    """Which entries of a row take part, and by which power of two they are multiplied."""

    finite_only: bool = False
    shift: int = 0


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
    """What is asked of the pieces of a row: to "look", "count", "gather" or "call"."""

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
    absent: int  # at -inf


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


class Solved(NamedTuple):
    """A solved row: what derivatives need."""

    numbers: tuple[float, ...]  # as they were solved for
    dtype: Any
    selection: Selection
    lengths: tuple[int, ...]
    state: Any
    few: Any  # the selected entries, if they are few
    constant: int  # the kind of a row that needs no solving (`_nonfinite`), or -1
    seen: Seen


Requests = Generator[Ask, list[Any], Any]


def span(lengths: tuple[int, ...], i: int) -> tuple[int, int]:
    """(the first part of the piece i, the first of the next one)."""
    parts = [-(-length // PART) for length in lengths[: i + 1]]
    return sum(parts[:-1]), sum(parts)


# Where a piece is.


def selected(x: Array, v: Any, selection: Selection) -> tuple[Array, Any]:
    """The entries that take part, and what belongs to them."""
    if selection.finite_only:
        finite = np.isfinite(x)
        x, v = x[finite], None if v is None else v[finite]
    return np.ldexp(x, selection.shift) if selection.shift else x, v


def answer(ask: Ask, i: int, x: Array, v: Any = None) -> Any:
    """What is asked of a row's piece i, which is x, and has v beside it."""
    x, v = selected(x, v, ask.selection)
    if ask.verb == "count":
        return len(x)
    if ask.verb == "gather":
        return x if ask.label == X else v
    if ask.verb == "call":
        entries = {X: x, V: v}
        return [_make(call, entries) for call in ask.calls][-1]
    if not len(x):  # no range
        return Seen(Look(x, *_ends(np.nan, np.nan, x.dtype)), 0, 0, 0, 0)
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


# Where the search is.


def _ends(lowest: float, highest: float, dtype: Any) -> tuple[Any, Any]:
    zero = np.zeros(1, dtype).view(np.int32 if dtype == np.float32 else np.int64)
    return zero[0], zero[0]


def _merged(seen: list[Seen]) -> Seen:
    """What the pieces have found, as of one row."""
    looks = [each.look for each in seen if each.size]
    if not looks:
        return seen[0]
    few = np.concatenate([each.few for each in looks])
    found = Look(few, min(each.lowest for each in looks), max(each.highest for each in looks))
    counts = [sum(column) for column in zip(*(each[1:] for each in seen), strict=True)]
    return Seen(found, *counts)


def _call(one: Pass, arguments: tuple[Any, ...]) -> Call:
    function = one.kernel.py_func
    known = getattr(sys.modules[function.__module__], function.__name__)

    def as_sent(a: Any) -> Any:
        if isinstance(a, Entries):
            return Labelled(a.label)
        if any(a is each for each in one.lists):
            return Blank(a.shape[1])
        if any(a is each for each in one.sums):
            return ByPart(a.copy())
        return a.copy() if isinstance(a, np.ndarray) else a

    given = tuple(map(as_sent, arguments))
    return Call(function.__module__, function.__name__, one.kernel is known, one.work, given)


def _before(one: Pass) -> tuple[Call, ...]:
    """The calls that write what a pass reads."""
    fresh = {id(a) for a in one.written}
    calls: dict[int, Call] = {}
    for a in one.arguments:
        if isinstance(a, Entries) and id(a) not in fresh:
            calls.update((id(call), call) for call in a.calls)
    return tuple(calls.values())


def passes(steps: Passes[Any], selection: Selection, lengths: tuple[int, ...]) -> Requests:
    """Ask for the passes of a generator, as `long_rows.here` makes them."""
    while True:
        try:
            one = next(steps)
        except StopIteration as end:
            return end.value
        before, call = _before(one), _call(one, one.arguments)
        if one.sums:
            found = yield Ask("call", selection, lengths, calls=(*before, call))
            _put(one, found, lengths)
        again = (*before, _call(one, one.again) if one.again else call)
        for a in (*one.written, *one.changed):
            if isinstance(a, Entries):
                a.calls = again


def _put(one: Pass, found: list[Any], lengths: tuple[int, ...]) -> None:
    """Write what the pieces have answered to the arrays that have a row for each part."""
    arrays = [a for a in one.arguments if any(a is each for each in (*one.sums, *one.lists))]
    for i, of_piece in enumerate(found):
        first, stop = span(lengths, i)
        for a, values in zip(arrays, of_piece, strict=True):
            if a.ndim == 1:
                a[first:stop] = values
            else:  # of a blank one, as far as it has been written
                a[first:stop, : values.shape[1]] = values


def solve(
    op: Any, plan: Any, dtype: Any, lengths: tuple[int, ...], numbers: tuple[Any, ...], wanted: bool
) -> Requests:
    """(the solved row, how its value is written, if it is wanted)."""
    n, selection = sum(lengths), Selection()
    seen = _merged((yield Ask("look", selection, lengths)))
    kind, only, numbers = op._long_kind(n, seen, *numbers)
    if only:
        selection = Selection(finite_only=True)
        lengths = tuple((yield Ask("count", selection, lengths)))
        if sum(lengths) >= LONG:
            seen = seen._replace(look=_merged((yield Ask("look", selection, lengths))).look)
    if op.is_soft and not scaling.is_moderate(float(numbers[-1]), np.dtype(dtype).type):
        shift = _shift_of(seen, dtype, numbers[-1])
        selection = selection._replace(shift=shift)
        numbers = (*numbers[:-1], float(np.ldexp(numbers[-1], shift)))
        seen = seen._replace(look=_merged((yield Ask("look", selection, lengths))).look)
    solved = Solved(numbers, dtype, selection, lengths, None, None, kind, seen)
    if kind >= 0:
        finite, *ends = op._long_constant(kind, seen, *numbers)
        return solved, Writing(Selection(True), tuple(ends), lengths, values=finite)
    ends = op._long_ends
    if sum(lengths) < LONG:
        few = np.concatenate((yield Ask("gather", selection, lengths)))
        rows, p = _row(op, few, numbers), op._long_room(few)
        solved = solved._replace(few=few, state=op._linearize(rows, plan, p))
        return solved, Writing(selection, ends, lengths, values=p[0])
    x = Entries(dtype, lengths, X)
    out: Any = x.room() if wanted else np.empty(0, dtype)
    state = yield from passes(op._long_value(x, numbers, plan, seen.look, out), selection, lengths)
    writing = Writing(selection, ends, lengths, *((out.label, out.calls) if wanted else ()))
    return solved._replace(state=state), writing


def _row(op: Any, x: Array, numbers: tuple[Any, ...]) -> Any:
    return op.rows_type(x[None], *(np.array([each]) for each in numbers))


def _shift_of(seen: Seen, dtype: Any, tau: float) -> int:
    """The power of two that brings the temperature near 1 (`scaling.rescaled`)."""
    ends = [from_ordinal(seen.look.lowest), from_ordinal(seen.look.highest)]
    finite = np.array([[each for each in ends if abs(each) < np.inf] or [0.0]], dtype)
    return int(scaling.rescaled(finite, np.array([tau]))[2][0])


def height(op: Any, plan: Any, solved: Solved, verb: str) -> Requests:
    """A number of a solved row in the units of x: its potential, its threshold or its value."""
    x, (k, *_), above = Entries(solved.dtype, solved.lengths, X), solved.numbers, solved.seen.above
    whole = solved.selection, solved.lengths
    if solved.constant == UNDEFINED:
        return np.nan
    if verb == "potential" and above and k + above > 0:
        return np.inf
    if solved.constant >= 0:
        wanted = verb == "potential" and solved.constant == ALL
        total = (yield from passes(_total(x), *whole)) if wanted else 0.0
        return op._long_height_of_constant(verb, plan, solved, total)
    if solved.few is not None:
        rows = _row(op, solved.few, solved.numbers)
        number = op._long_height_of_few(verb, plan, rows, solved)
    else:
        number = yield from passes(op._long_height(verb, x, plan, solved), *whole)
    return float(np.ldexp(number, -solved.selection.shift))


@kernel
def _total_parts(lo: int, hi: int, x: Any, sums: Any) -> None:
    """The sum of the finite entries of each part."""
    for j in range(lo, hi):
        sums[j] = 0.0
        for value in x[j * PART : (j + 1) * PART]:
            sums[j] += np.float64(value) if np.isfinite(value) else 0.0


def _total(x: Entries) -> Passes[float]:
    sums = np.empty(part_count(x))
    yield Pass(_total_parts, x.size, (x, sums), (sums,))
    return float(sums.sum())


def push(op: Any, plan: Any, solved: Solved, moves: tuple[float, ...]) -> Requests:
    """How the derivative along v and `moves` in the numbers is written; or it, as a number."""
    still = _still(op, solved)
    if still is not None:
        return float(still.values) if op.reduces else still
    if solved.few is not None:
        beside = np.concatenate((yield Ask("gather", solved.selection, solved.lengths, V)))
        dp, directions = op._long_room(solved.few), [np.array([float(each)]) for each in moves]
        rows = _row(op, solved.few, solved.numbers)
        op._push(rows, plan, solved.state, beside[None], *directions, dp)
        return float(dp[0]) if op.reduces else _of_few(solved, dp[0])
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.room()
    steps = op._long_push(x, plan, solved, v, moves, out)
    found = yield from passes(steps, solved.selection, solved.lengths)
    return found if op.reduces else _of_calls(solved, out)


def pull(op: Any, plan: Any, solved: Solved, g: float) -> Requests:
    """(how the gradient in x is written, the gradients in the numbers).

    Of the cotangent v, or of the number g if the value is one.
    """
    still = _still(op, solved)
    if still is not None:
        return still, (float(still.values),) * len(solved.numbers)
    if solved.few is not None:
        beside = np.array([g])
        if not op.reduces:
            beside = np.concatenate((yield Ask("gather", solved.selection, solved.lengths, V)))[
                None
            ]
        gx, rows = np.empty_like(solved.few[None]), _row(op, solved.few, solved.numbers)
        sums = [np.zeros(1) for _ in solved.numbers]
        op._pull(rows, plan, solved.state, beside, gx, *sums)
        return _of_few(solved, gx[0]), tuple(float(each[0]) for each in sums)
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.room()
    steps = op._long_pull(x, plan, solved, g if op.reduces else v, out)
    sums = yield from passes(steps, solved.selection, solved.lengths)
    return _of_calls(solved, out), tuple(sums)


def _still(op: Any, solved: Solved) -> Writing | None:
    """How the derivative of a row is written that nothing moves."""
    value = op._long_still(solved)
    if value is None:
        return None
    return Writing(Selection(finite_only=True), (value, value), solved.lengths, values=value)


def _of_few(solved: Solved, values: Array) -> Writing:
    return Writing(solved.selection, (0.0, 0.0), solved.lengths, values=values)


def _of_calls(solved: Solved, out: Entries) -> Writing:
    return Writing(solved.selection, (0.0, 0.0), solved.lengths, out.label, out.calls)
