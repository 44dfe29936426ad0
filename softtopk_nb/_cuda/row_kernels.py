"""Kernels over rows, each row by a thread group or a long one in parts, and their launches.

The body of a kernel is one device function, visit(here, scratch, batch, given). `here` is the
`Part` that its thread group works on, `given` the kernel's arguments beside x, k and the
temperature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64, types

from .arrays import Argument, Buffer, Rows
from .launch import ENOUGH, Kernel, pointer_to
from .long_rows import SUMS, is_long, make_place, parts_of
from .target import cuda, device
from .thread_groups import SHARED_SUMS, Span, ThreadGroup, tools

# Kinds of arguments of a kernel, beside Numba's own types:
ROWS = "rows"  # rows of x's type, read or written as wide as x
ENTRIES = "entries"  # memory of x's type, read or written entry by entry
NUMBERS = "numbers"  # float64 in memory
PER_ROW: Any = "per row"  # an `Argument`


class Batch(NamedTuple):
    """The problem, as arguments of a kernel."""

    x: Any
    rows: Any
    n: Any
    wide: Any
    k: Argument
    temperature: Argument


class Cut(NamedTuple):
    """How rows are cut, as arguments of a kernel."""

    blocks: Any  # of a row: one for each part, or one for all of it
    parts: Any
    length: Any


class Part(NamedTuple):
    """The row, or the part of one, that a thread group works on."""

    row: Any
    part: Any
    parts: Any
    span: Span


class Scratch(NamedTuple):
    """The scratch memory of a thread group."""

    regs: Any  # entries of x that each thread holds
    more: Any  # as many entries of another row
    shared: Any  # SHARED_SUMS float64, for sums over the group
    record: Any  # float64 that the group shares; the kernel sets their number


def _type_of(T: Any, kind: Any) -> Any:
    """The Numba type of a kernel's argument; that of a named tuple keeps its names."""
    if isinstance(kind, tuple):
        members = [_type_of(T, each) for each in kind]
        names = type(kind) if hasattr(kind, "_fields") else None
        return types.NamedTuple(members, names) if names else types.BaseTuple.from_types(members)
    if kind == PER_ROW:
        return _type_of(T, Argument(NUMBERS, float64, int32))
    return {ROWS: pointer_to(T), ENTRIES: pointer_to(T), NUMBERS: pointer_to(np.float64)}.get(
        kind, kind
    )


def _passed(value: Any) -> Any:
    """The value to pass to a kernel: of a buffer its pointer, of a tuple one of such values."""
    if isinstance(value, Buffer):
        return value.pointer
    if isinstance(value, tuple):
        members = map(_passed, value)
        return value._make(members) if hasattr(value, "_make") else tuple(members)
    return value


#: The type of an `Argument`.
argument_type = _type_of(np.float64, PER_ROW)

_BATCH = Batch(ROWS, int64, int64, int32, PER_ROW, PER_ROW)
_CUT = Cut(int64, int64, int64)


class RowKernel(Kernel):
    """A kernel over rows of type T; `given` are the kinds of visit's further arguments."""

    def __init__(
        self,
        T: Any,
        group: ThreadGroup,
        visit: Any,
        given: tuple[Any, ...],
        registers: int = ENOUGH,
        record: int = 1,
    ):
        self.group, self.given = group, given
        arguments = tuple(_type_of(T, kind) for kind in (_BATCH, _CUT, given))
        kernel = self._kernel(T, group, visit, record)
        super().__init__(kernel, arguments, group.threads, registers)

    @staticmethod
    def _kernel(T: Any, group: ThreadGroup, visit: Any, record: int) -> Callable[..., None]:
        """The kernel that gives each row a thread group."""
        t, rows_of_block, held = tools(T, group), group.rows, group.held

        def kernel(batch, cut, given):
            regs, more = cuda.local.array(held, T), cuda.local.array(held, T)
            shared = cuda.shared.array(SHARED_SUMS, float64)
            records = cuda.shared.array((rows_of_block, record), float64)
            slot = t.slot()
            row = int64(cuda.blockIdx.x) * rows_of_block + slot
            if row < batch.rows:
                here = Part(row, 0, 1, Span(batch.x, row * batch.n, batch.n, batch.wide))
                visit(here, Scratch(regs, more, shared, records[slot]), batch, given)

        return kernel

    def run(self, rows: Rows, *given: Any, units: int = 0) -> None:
        """Launch the kernel over all rows, or over `units` units in their place."""
        count = units or rows.rows
        self._launch(self.group.blocks(count), rows, Cut(1, 1, rows.n), given, count)

    def _launch(self, blocks: int, rows: Rows, cut: Cut, given: Any, count: int) -> None:
        each = zip(self.given, given, strict=True)
        wide = rows.wide(*(buffer for kind, buffer in each if kind is ROWS))
        batch = Batch(rows.x.pointer, count, rows.n, wide, rows.k, rows.temperature)
        kind: Any = type(self.given)
        named = kind._make if hasattr(kind, "_fields") else tuple
        self(blocks, rows.stream, batch, cut, named(map(_passed, given)))


class PartKernel(RowKernel):
    """A kernel over long rows, with a block for each part, or one for each row."""

    @staticmethod
    def _kernel(T: Any, group: ThreadGroup, visit: Any, record: int) -> Callable[..., None]:
        held = group.held

        def kernel(batch, cut, given):
            regs, more = cuda.local.array(held, T), cuda.local.array(held, T)
            shared = cuda.shared.array(SHARED_SUMS, float64)
            own = cuda.shared.array(record, float64)
            row = int64(cuda.blockIdx.x) // cut.blocks
            part = int64(cuda.blockIdx.x) % cut.blocks
            before = part * cut.length
            span = Span(
                batch.x, row * batch.n + before, min(cut.length, batch.n - before), batch.wide
            )
            visit(Part(row, part, cut.parts, span), Scratch(regs, more, shared, own), batch, given)

        return kernel

    def run(self, rows: Rows, *given: Any, units: int = 0, whole: bool = False) -> None:
        """Launch the kernel over all parts; if `whole`, over rows that know their part count."""
        count, (_, parts, length) = units or rows.rows, parts_of(rows)
        cut = Cut(1, parts, rows.n) if whole else Cut(parts, parts, length)
        self._launch(count * cut.blocks, rows, cut, given, count)


# Passes each of which needs the sums of the one before.


class Stage(NamedTuple):
    """A pass over rows, and which of its results the next one needs."""

    #: visit(here, scratch, batch, given, found) -> its results: four sums and two extremes.
    #: `found` are the results of the pass before; those of the last one are not used
    visit: Any
    sums: bool = True
    extremes: bool = False
    once: bool = False  # one thread writes the results: a row needs one block


class Staged:
    """Passes over rows: all in one launch if a thread group holds a row, else a launch for each."""

    def __init__(
        self,
        T: Any,
        group: ThreadGroup,
        given: tuple[Any, ...],
        stages: tuple[Stage, ...],
        registers: int = ENOUGH,
    ):
        self._common = T, group
        self._given, self.stages, self._registers = given, stages, registers

    def run(self, rows: Rows, *given: Any) -> None:
        """Launch the passes."""
        if not is_long(rows):
            self.in_one_launch.run(rows, *given)
            return
        size, sums = rows.rows * parts_of(rows).parts * SUMS, rows.nothing
        for stage, kernel in zip(self.stages, self.in_parts, strict=True):
            last = stage is self.stages[-1]
            found = rows.nothing if last else rows.empty(size, np.float64)
            kernel.run(rows, *given, sums, found, whole=stage.once)
            sums = found

    @functools.cached_property
    def in_one_launch(self) -> RowKernel:
        """The kernel that makes all passes over a row, one after the other."""

        def after(first: Any, second: Any) -> Any:
            @device
            def both(here, s, batch, given, found):
                return second(here, s, batch, given, first(here, s, batch, given, found))

            return both

        every = functools.reduce(after, (stage.visit for stage in self.stages))

        @device
        def visit(here, s, batch, given):
            every(here, s, batch, given, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0))

        return RowKernel(*self._common, visit, self._given, self._registers)

    @functools.cached_property
    def in_parts(self) -> tuple[PartKernel, ...]:
        """A kernel for each pass over parts of rows; results for the next one lie in memory."""
        before = Stage(None, sums=False), *self.stages[:-1]
        return tuple(map(self._in_parts, before, self.stages))

    def _in_parts(self, before: Stage, now: Stage) -> PartKernel:
        T, group = self._common
        place, pass_over, last = make_place(T, group), now.visit, now is self.stages[-1]
        sums_before, extremes_before = before.sums, before.extremes

        @device
        def take(sums, here, shared):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            if sums_before:
                a, b, c, d = place.gather(sums, here, shared)
            lo, hi = T(0), T(0)
            if extremes_before:
                lo, hi = place.extremes(sums, here, shared)
            return a, b, c, d, lo, hi

        @device
        def visit(here, s, batch, given):
            found = pass_over(here, s, batch, given[:-2], take(given[-2], here, s.shared))
            if not last:
                place.leave(given[-1], here, found)

        return PartKernel(T, group, visit, (*self._given, NUMBERS, NUMBERS), self._registers)


def staged(
    rows: Rows,
    choose: Callable[[int, Any], ThreadGroup],
    make: Callable[..., Staged],
    *options: Any,
) -> Callable[..., None]:
    """A function that launches the passes made by `make`, for the group that fits the rows."""
    group = parts_of(rows).group if is_long(rows) else choose(rows.n, rows.dtype)
    made: Staged = make(rows.dtype, group, *options)
    return functools.partial(made.run, rows)
