"""A long row whose pieces are in different places: what every operator does before and after.

As `base` does for rows in memory: the rules for what is not finite, temperatures near the ends of
their range, and rows of which infinities leave few entries. The mathematics between are the
generators of `_threads.long_rows` that each operator has in its `chunks`.

A verb for one row is a generator too. It yields what it asks of the pieces, and gets a list with
the answer of each; `pieces.answer` says how, for one piece.
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
from .._threads.long_rows import LONG, PART, Look, Pass, Passes, part_count
from . import scaling
from .pieces import (
    Ask,
    Blank,
    ByPart,
    Call,
    Entries,
    Labelled,
    Seen,
    Selection,
    V,
    Writing,
    X,
    span,
)

Array = npt.NDArray[Any]


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
    ends = op.chunks.ends(plan)
    if sum(lengths) < LONG:
        few = np.concatenate((yield Ask("gather", selection, lengths)))
        rows, p = _row(op, few, numbers), _room_for_value(op, few)
        solved = solved._replace(few=few, state=op.cpu.linearize(rows, plan, p))
        return solved, Writing(selection, ends, lengths, values=p[0])
    x = Entries(dtype, lengths, X)
    out: Any = x.room() if wanted else np.empty(0, dtype)
    state = yield from passes(op.chunks.value(x, numbers, plan, seen.look, out), selection, lengths)
    writing = Writing(selection, ends, lengths, *((out.label, out.calls) if wanted else ()))
    return solved._replace(state=state), writing


def _room_for_value(op: Any, few: Array) -> Array:
    """Memory for the value of one row of few entries."""
    return np.empty(1) if op.reduces else np.empty_like(few[None])


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
        return op.chunks.number_of_constant(verb, plan, solved, total)
    if solved.few is not None:
        rows = _row(op, solved.few, solved.numbers)
        number = op.chunks.number_of_few(verb, plan, rows, solved)
    else:
        number = yield from passes(op.chunks.number(verb, x, plan, solved), *whole)
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
    still = _still(op, plan, solved)
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
        op.cpu.jvp(rows, plan, solved.state, beside[None], *directions, dp)
        return float(dp[0]) if op.reduces else _of_few(solved, dp[0], size)
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.room()
    steps = op.chunks.jvp(x, plan, solved, v, moves, out)
    found = yield from passes(steps, solved.selection, solved.lengths)
    return found if op.reduces else _of_calls(solved, out, size)


def _near_one(
    solved: Solved, largest: float, moves: tuple[float, ...]
) -> tuple[Solved, tuple[float, ...], int]:
    """(the row, directions in its numbers, s): all directions times 2^-s, which brings them near 1.

    In the units of the row as it was solved, where the one in x has entries up to `largest`; as
    `scaling.along`.
    """
    units, (*in_k, dtau) = solved.selection.shift, moves
    alike = [(largest, units), (dtau, units), *((dk, 0) for dk in in_k)]
    exponents = [int(np.frexp(each)[1]) + up for each, up in alike if 0.0 < abs(each) < np.inf]
    size = max(exponents, default=0)
    selection = solved.selection._replace(shift_of_direction=units - size)
    moves = (*(float(np.ldexp(dk, -size)) for dk in in_k), float(np.ldexp(dtau, units - size)))
    return solved._replace(selection=selection), moves, size


def pull(op: Any, plan: Any, solved: Solved, g: float) -> Requests:
    """(how the gradient in x is written, the gradients in the numbers).

    Of the cotangent v, or of the number g if the value is one.
    """
    still = _still(op, plan, solved)
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
        op.cpu.vjp(rows, plan, solved.state, beside, gx, *sums)
        numbers = tuple(float(each[0]) for each in sums)
        return _of_few(solved, gx[0], units), _in_units(numbers, units)
    x, v = (Entries(solved.dtype, solved.lengths, label) for label in (X, V))
    out = x.room()
    steps = op.chunks.vjp(x, plan, solved, g if op.reduces else v, out)
    sums = yield from passes(steps, solved.selection, solved.lengths)
    return _of_calls(solved, out, units), _in_units(tuple(sums), units)


def _still(op: Any, plan: Any, solved: Solved) -> Writing | None:
    """How the derivative of a row is written that nothing moves."""
    value = op.chunks.unmoved(plan, solved)
    if value is None:
        return None
    return Writing(Selection(finite_only=True), (value, value), solved.lengths, values=value)


def _of_few(solved: Solved, values: Array, shift: int) -> Writing:
    return Writing(solved.selection, (0.0, 0.0), solved.lengths, values=values, shift=shift)


def _of_calls(solved: Solved, out: Entries, shift: int) -> Writing:
    of_row = solved.selection, (0.0, 0.0), solved.lengths
    return Writing(*of_row, out.label, out.calls, shift=shift)


def _in_units(gradients: tuple[float, ...], shift: int) -> tuple[float, ...]:
    """Those in the numbers, of which the last, the temperature, has the units of x."""
    with np.errstate(over="ignore", under="ignore"):
        return (*gradients[:-1], float(np.ldexp(gradients[-1], shift)))
