"""Copies of device arrays to rows and back, with casts; sums over rows, and counts along them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64, types

from .arrays import Argument, Buffer, Rows
from .interop import Kind, View, buffer_of, dense, nothing, view_of
from .launch import Kernel, pointer_to
from .target import cuda, device
from .thread_groups import SHARED_SUMS, ThreadGroup, made_once, tools

DIMS = 8  # axes that a copy can have, after contiguous ones are merged
_THREADS = 256
_GROUP = ThreadGroup(_THREADS, 2)  # for a sum


def new_buffer(kind: Kind, entries: int, dtype: Any) -> Buffer:
    """Uninitialised memory for `entries` entries, from the library of the caller's array."""
    if entries == 0:
        return nothing(dtype)
    return buffer_of(view_of(kind.empty((entries,), dtype), "scratch memory"))


def _eight(values: list[int], missing: int) -> tuple[int, ...]:
    return (*values, *(missing,) * (DIMS - len(values)))


def _joined(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[list[int]]:
    """Axes from the last to the first as [size, stride, ...], merged where one stride will do."""
    axes: list[list[int]] = []
    for size, *steps in reversed(list(zip(shape, *strides, strict=True))):
        if size == 1:
            continue
        if axes and all(s == a * axes[-1][0] for s, a in zip(steps, axes[-1][1:], strict=True)):
            axes[-1][0] *= size
        else:
            axes.append([size, *steps])
    if len(axes) > DIMS:
        raise ValueError(f"shape {shape} has more than {DIMS} axes of unrelated strides")
    return axes


class _Walk(NamedTuple):
    """Memory, the position of the first entry, and a stride for each axis."""

    memory: Any
    first: Any
    steps: Any


_EIGHT = types.UniTuple(int64, DIMS)


def _walk_of(T: Any) -> Any:
    return types.NamedTuple((pointer_to(T), int64, _EIGHT), _Walk)


@device
def _place(walk, axes, i):
    """The position in memory of entry i in C order."""
    at = walk.first
    for j in range(DIMS):
        at += i % axes[j] * walk.steps[j]
        i //= axes[j]
    return at


@made_once
def make_copy(S: Any, D: Any) -> Kernel:
    """A kernel that copies S to D, times `sign`, and writes `fill` where `mask` is 0."""
    W = np.float32 if D is np.float16 else D  # no arithmetic in float16

    def kernel(total, axes, source, target, mask, masked, sign, fill):
        i = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if i >= total:
            return
        first, at, seen = source.first, target.first, mask.first
        for j in range(DIMS):
            place = i % axes[j]
            i //= axes[j]
            first += place * source.steps[j]
            at += place * target.steps[j]
            seen += place * mask.steps[j]
        if masked and mask.memory[seen] == 0:
            target.memory[at] = D(W(fill))
        else:
            v = W(source.memory[first])
            target.memory[at] = D(-v if sign < 0 else v)

    walks = _walk_of(S), _walk_of(D), _walk_of(np.uint8)
    return Kernel(kernel, (int64, _EIGHT, *walks, int32, int32, float64), _THREADS)


def copy(
    stream: Any,
    source: View,
    target: View,
    *,
    sign: int = 1,
    where: View | None = None,
    fill: float = 0.0,
) -> None:
    """Write source, of target's shape, times `sign` to target; `fill` where `where` is False."""
    mask = where if where is not None else source
    axes = _joined(target.shape, source.strides, target.strides, mask.strides)
    S: Any = np.uint8 if source.dtype == np.bool_ else source.dtype.type
    D: Any = target.dtype.type
    sizes, reads, writes, sees = ([axis[j] for axis in axes] for j in range(4))
    masking = buffer_of(where) if where is not None else nothing(np.uint8)
    make_copy(S, D)(
        -(-target.size // _THREADS),
        stream,
        target.size,
        _eight(sizes, 1),
        _Walk(buffer_of(source).pointer, source.span[0], _eight(reads, 0)),
        _Walk(buffer_of(target).pointer, target.span[0], _eight(writes, 0)),
        _Walk(masking.pointer, mask.span[0], _eight(sees, 0)),
        int(where is not None),
        sign,
        fill,
    )


def copy_of_mask(kind: Kind, mask: View) -> View:
    """A contiguous copy of a mask, as uint8."""
    made, shape, byte = new_buffer(kind, mask.size, np.uint8), mask.shape, np.dtype(np.uint8)
    target = View(made.address, shape, dense(shape), byte, True, made.owner)
    copy(kind.stream, mask, target)
    return target


@made_once
def make_sum(D: Any) -> Kernel:
    """A kernel that sums float64 over some axes: one block for each result, for a fixed order."""
    t = tools(np.float64, _GROUP)

    def kernel(values, kept, kept_steps, summed, summed_steps, count, out):
        shared = cuda.shared.array(SHARED_SUMS, float64)
        first = _place(_Walk(values, int64(0), kept_steps), kept, int64(cuda.blockIdx.x))
        along, total = _Walk(values, first, summed_steps), 0.0
        for r in range(cuda.threadIdx.x, count, _THREADS):
            total += values[_place(along, summed, int64(r))]
        total = t.total(total, shared)
        if cuda.threadIdx.x == 0:
            out[int64(cuda.blockIdx.x)] = D(total)

    numbers = pointer_to(np.float64)
    return Kernel(kernel, (numbers, *(_EIGHT,) * 4, int64, pointer_to(D)), _THREADS)


def sum_to(
    stream: Any, per_row: Buffer, batch: tuple[int, ...], shape: tuple[int, ...], out: View
) -> None:
    """Sum a number per row over the axes along which an argument of shape `shape` was broadcast."""
    ones = (1,) * (len(batch) - len(shape)) + shape
    steps = []
    step = 1
    for n in reversed(batch):
        steps.append(step)
        step *= n
    walked = list(zip(batch, ones, reversed(steps), strict=True))
    kept = [(n, s) for n, size, s in reversed(walked) if size == n]
    summed = [(n, s) for n, size, s in reversed(walked) if size != n]
    count = int(np.prod([n for n, _ in summed], dtype=np.int64))
    D: Any = out.dtype.type
    make_sum(D)(
        out.size,
        stream,
        per_row.pointer,
        _eight([n for n, _ in kept], 1),
        _eight([s for _, s in kept], 0),
        _eight([n for n, _ in summed], 1),
        _eight([s for _, s in summed], 0),
        count,
        buffer_of(out).pointer,
    )


@made_once
def make_clamped(T: Any) -> Kernel:
    """A kernel that lowers k to the number of entries above -inf: one block for each row."""
    t, excluded = tools(np.float64, _GROUP), -np.inf

    def kernel(x, n, k, of_all, per_row, out):
        shared = cuda.shared.array(SHARED_SUMS, float64)
        row, count = int64(cuda.blockIdx.x), 0.0
        for i in range(cuda.threadIdx.x, n, _THREADS):
            count += 1.0 if x[row * n + i] != excluded else 0.0
        count = t.total(count, shared)
        if cuda.threadIdx.x == 0:
            given = k[row] if per_row != 0 else of_all
            out[row] = count if given > count else given

    numbers = pointer_to(np.float64)
    return Kernel(kernel, (pointer_to(T), int64, numbers, float64, int32, numbers), _THREADS)


def clamped(rows: Rows) -> Rows:
    """The rows with a k of at most the number of entries that take part in each."""
    made = rows.empty(rows.rows, np.float64)
    of_rows = rows.x.pointer, rows.n, *rows.k, made.pointer
    make_clamped(rows.dtype)(rows.rows, rows.stream, *of_rows)
    k = Argument(made.pointer, 0.0, 1)
    return rows._replace(k=k, owners=(*rows.owners, made.owner))
