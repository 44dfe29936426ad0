"""Verbs for a long row in chunks: the parts that all operators share.

They do what `call` does for rows in memory: the rules for NaN and infinities, temperatures near the
ends of their range, and rows with few finite entries. The mathematics between are the generators of
`_threads.long_rows` that each operator has in its `chunks`.

A verb for one row is a generator too. It yields a request to the chunks, and gets a list with the
answer of each; `pieces.answer` computes that of one chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._compile.decorators import kernel
from .._math.elementary import from_ordinal
from .._nonfinite import ALL, UNDEFINED
from .._threads.long_rows import LONG, PART, Pass, Passes, RowScan, part_count
from . import scaling
from .arguments import Clamped
from .pieces import (
    Ask,
    Blank,
    ByPart,
    Call,
    ChunkScan,
    Entries,
    Labelled,
    Selection,
    V,
    Writing,
    X,
    span,
)

Array = npt.NDArray[Any]


class Solved(NamedTuple):
    """A solved row: its state for derivatives, and the problem it belongs to."""

    numbers: tuple[float, ...]  # the numbers it was solved for
    dtype: Any
    selection: Selection
    lengths: tuple[int, ...]
    state: Any
    few: Any  # the selected entries, if there are few
    constant: int  # the kind of a row that needs no solving (`_nonfinite`), or -1
    seen: ChunkScan


Requests = Generator[Ask, list[Any], Any]


def _merged(seen: list[ChunkScan]) -> ChunkScan:
    """The scans of all chunks merged to that of the row."""
    looks = [each.look for each in seen if each.size]
    if not looks:
        return seen[0]
    few = np.concatenate([each.few for each in looks])
    found = RowScan(few, min(each.lowest for each in looks), max(each.highest for each in looks))
    counts = [sum(column) for column in zip(*(each[1:] for each in seen), strict=True)]
    return ChunkScan(found, *counts)


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
    """The calls that write the arrays which a pass reads."""
    fresh = {id(a) for a in one.written}
    calls: dict[int, Call] = {}
    for a in one.arguments:
        if isinstance(a, Entries) and id(a) not in fresh:
            calls.update((id(call), call) for call in a.calls)
    return tuple(calls.values())


def passes(steps: Passes[Any], selection: Selection, lengths: tuple[int, ...]) -> Requests:
    """Request the passes of a generator, which `long_rows.here` makes for a row in memory."""
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
    """Write the answers of the chunks to the arrays that have a row for each part."""
    arrays = [a for a in one.arguments if any(a is each for each in (*one.sums, *one.lists))]
    for i, of_piece in enumerate(found):
        first, stop = span(lengths, i)
        for a, values in zip(arrays, of_piece, strict=True):
            if a.ndim == 1:
                a[first:stop] = values
            else:  # a blank array is filled as far as it was written
                a[first:stop, : values.shape[1]] = values


def solve(
    op: Any,
    options: Any,
    dtype: Any,
    lengths: tuple[int, ...],
    numbers: tuple[Any, ...],
    wanted: bool,
) -> Requests:
    """(the solved row, and how to write its value if it is wanted)."""
    n, selection = sum(lengths), Selection()
    seen = _merged((yield Ask("look", selection, lengths)))
    if type(numbers[0]) is Clamped:
        numbers = min(numbers[0].k, n - seen.excluded), *numbers[1:]
    kind, only, numbers = op.chunks.kind(n, seen, *numbers)
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
        finite, *ends = op.chunks.constant(kind, seen, *numbers)
        return solved, Writing(Selection(True), tuple(ends), lengths, values=finite)
    ends = op.chunks.ends(options)
    if sum(lengths) < LONG:
        few = np.concatenate((yield Ask("gather", selection, lengths)))
        rows, p = _row(op, few, numbers), _room_for_value(op, few)
        solved = solved._replace(few=few, state=op.cpu.linearize(rows, options, p))
        return solved, Writing(selection, ends, lengths, values=p[0])
    x = Entries(dtype, lengths, X)
    out: Any = x.scratch() if wanted else np.empty(0, dtype)
    state = yield from passes(
        op.chunks.value(x, numbers, options, seen.look, out), selection, lengths
    )
    writing = Writing(selection, ends, lengths, *((out.label, out.calls) if wanted else ()))
    return solved._replace(state=state), writing


def _room_for_value(op: Any, few: Array) -> Array:
    """Uninitialised memory for the value of one row of few entries."""
    return np.empty(1) if op.reduces else np.empty_like(few[None])


def _row(op: Any, x: Array, numbers: tuple[Any, ...]) -> Any:
    return op.rows_type(x[None], *(np.array([each]) for each in numbers))


def _shift_of(seen: ChunkScan, dtype: Any, tau: float) -> int:
    """The exponent of the power of two that brings the temperature near 1 (`scaling.rescaled`)."""
    ends = [from_ordinal(seen.look.lowest), from_ordinal(seen.look.highest)]
    finite = np.array([[each for each in ends if abs(each) < np.inf] or [0.0]], dtype)
    return int(scaling.rescaled(finite, np.array([tau]))[2][0])


def number(op: Any, options: Any, solved: Solved, verb: str) -> Requests:
    """A number of a solved row in the units of x: its potential, threshold or value."""
    x, (k, *_), above = Entries(solved.dtype, solved.lengths, X), solved.numbers, solved.seen.above
    whole = solved.selection, solved.lengths
    if solved.constant == UNDEFINED:
        return np.nan
    if verb == "potential" and above and k + above > 0:
        return np.inf
    if solved.constant >= 0:
        wanted = verb == "potential" and solved.constant == ALL
        total = (yield from passes(_total(x), *whole)) if wanted else 0.0
        return op.chunks.number_of_constant(verb, options, solved, total)
    if solved.few is not None:
        rows = _row(op, solved.few, solved.numbers)
        number = op.chunks.number_of_few(verb, options, rows, solved)
    else:
        number = yield from passes(op.chunks.number(verb, x, options, solved), *whole)
    return float(np.ldexp(number, -solved.selection.shift))


@kernel
def _total_parts(lo: int, hi: int, x: Any, sums: Any) -> None:
    """Write the sum of the finite entries of each part."""
    for j in range(lo, hi):
        sums[j] = 0.0
        for value in x[j * PART : (j + 1) * PART]:
            sums[j] += np.float64(value) if np.isfinite(value) else 0.0


def _total(x: Entries) -> Passes[float]:
    sums = np.empty(part_count(x))
    yield Pass(_total_parts, x.size, (x, sums), (sums,))
    return float(sums.sum())


def jvp(op: Any, options: Any, solved: Solved, moves: tuple[float, ...]) -> Requests:
    """The derivative along v and `moves` in the numbers: how to write it, or a single number."""
    still = _still(op, options, solved)
    if still is not None:
        return float(still.values) if op.reduces else still
    units, size = 0 if op.reduces else solved.selection.shift, 0
    if units:
        largest = max((yield Ask("measure", solved.selection, solved.lengths, V)))
        solved, moves, size = _near_one(solved, largest, moves)
    if solved.few is not None:
        beside = np.concatenate((yield Ask("gather", solved.selection, solved.lengths, V)))
        dp, directions = (
            _room_for_value(op, solved.few),
            [np.array([each], float) for each in moves],
        )
        rows = _row(op, solved.few, solved.numbers)
        op.cpu.jvp(rows, options, solved.state, beside[None], *directions, dp)
        return float(dp[0]) if op.reduces else _of_few(solved, dp[0], size)
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.scratch()
    steps = op.chunks.jvp(x, options, solved, v, moves, out)
    found = yield from passes(steps, solved.selection, solved.lengths)
    return found if op.reduces else _of_calls(solved, out, size)


def _near_one(
    solved: Solved, largest: float, moves: tuple[float, ...]
) -> tuple[Solved, tuple[float, ...], int]:
    """(the row, directions in its numbers, s): all directions scaled by 2^-s, to be near 1.

    They are in the units of the row as solved, where the direction in x has entries up to
    `largest`; see `scaling.along`.
    """
    units, (*in_k, dtau) = solved.selection.shift, moves
    alike = [(largest, units), (dtau, units), *((dk, 0) for dk in in_k)]
    exponents = [int(np.frexp(each)[1]) + up for each, up in alike if 0.0 < abs(each) < np.inf]
    size = max(exponents, default=0)
    selection = solved.selection._replace(shift_of_direction=units - size)
    moves = (*(float(np.ldexp(dk, -size)) for dk in in_k), float(np.ldexp(dtau, units - size)))
    return solved._replace(selection=selection), moves, size


def vjp(op: Any, options: Any, solved: Solved, g: float) -> Requests:
    """(how to write the gradient in x, the gradients in the numbers).

    They are of the cotangent v, or of the number g if the value is a single number.
    """
    still = _still(op, options, solved)
    if still is not None:
        return still, (float(still.values),) * len(solved.numbers)
    units = 0 if op.reduces else solved.selection.shift
    if solved.few is not None:
        beside = np.array([g])
        if not op.reduces:
            beside = np.concatenate((yield Ask("gather", solved.selection, solved.lengths, V)))[
                None
            ]
        gx, rows = np.empty_like(solved.few[None]), _row(op, solved.few, solved.numbers)
        sums = [np.zeros(1) for _ in solved.numbers]
        op.cpu.vjp(rows, options, solved.state, beside, gx, *sums)
        numbers = tuple(float(each[0]) for each in sums)
        return _of_few(solved, gx[0], units), _in_units(numbers, units)
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.scratch()
    steps = op.chunks.vjp(x, options, solved, g if op.reduces else v, out)
    sums = yield from passes(steps, solved.selection, solved.lengths)
    return _of_calls(solved, out, units), _in_units(tuple(sums), units)


def _still(op: Any, options: Any, solved: Solved) -> Writing | None:
    """How to write the derivative of a row that is constant; None for any other row."""
    value = op.chunks.unmoved(options, solved)
    if value is None:
        return None
    return Writing(Selection(finite_only=True), (value, value), solved.lengths, values=value)


def _of_few(solved: Solved, values: Array, shift: int) -> Writing:
    return Writing(solved.selection, (0.0, 0.0), solved.lengths, values=values, shift=shift)


def _of_calls(solved: Solved, out: Entries, shift: int) -> Writing:
    of_row = solved.selection, (0.0, 0.0), solved.lengths
    return Writing(*of_row, out.label, out.calls, shift=shift)


def _in_units(gradients: tuple[float, ...], shift: int) -> tuple[float, ...]:
    """Gradients in the numbers; the last, in the temperature, is scaled by 2^shift."""
    with np.errstate(over="ignore", under="ignore"):
        return (*gradients[:-1], float(np.ldexp(gradients[-1], shift)))
