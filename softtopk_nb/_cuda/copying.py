"""Any device array as rows and back, on the device: copies with casts, and sums over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int32, int64, types

from .arrays import Buffer
from .interop import Kind, View, buffer_of, dense, nothing, view_of
from .launch import Kernel, pointer_to
from .target import cuda
from .thread_groups import Team, made_once, tools

DIMS = 8  # axes that a copy can have, once those that belong together are joined
_THREADS = 256
_TEAM = Team(_THREADS, 2)  # of a sum


def new_buffer(kind: Kind, entries: int, dtype: Any) -> Buffer:
    """Scratch memory from the library of the caller's array."""
    if entries == 0:
        return nothing(dtype)
    return buffer_of(view_of(kind.empty((entries,), dtype), "scratch memory"))


def _eight(values: list[int], missing: int) -> tuple[int, ...]:
    return (*values, *(missing,) * (DIMS - len(values)))


def _joined(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[list[int]]:
    """Axes from the last on as [size, stride, ...], those joined that can be walked as one."""
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


@made_once
def make_copy(S: Any, D: Any) -> Kernel:
    """Copy entries of type S to entries of type D, times `sign`, and `fill` where not `mask`."""
    W = np.float32 if D is np.float16 else D  # no arithmetic in float16

    def kernel(
        total, shape, source, first, steps, mask, masked, seen, mask_steps, sign, fill, out, at, to
    ):
        i = int64(cuda.blockIdx.x) * _THREADS + cuda.threadIdx.x
        if i >= total:
            return
        for j in range(DIMS):
            place = i % shape[j]
            i //= shape[j]
            first += place * steps[j]
            at += place * to[j]
            seen += place * mask_steps[j]
        if masked and mask[seen] == 0:
            out[at] = D(W(fill))
        else:
            v = W(source[first])
            out[at] = D(-v if sign < 0 else v)

    steps = types.UniTuple(int64, DIMS)
    read = (pointer_to(S), int64, steps)
    mask = (pointer_to(np.uint8), int32, int64, steps)
    write = (pointer_to(D), int64, steps)
    return Kernel(kernel, (int64, steps, *read, *mask, int32, float64, *write), _THREADS)


def copy(
    stream: Any,
    source: View,
    target: View,
    *,
    sign: int = 1,
    where: View | None = None,
    fill: float = 0.0,
) -> None:
    """Write source, broadcast to target's shape already, to target; `fill` where masked out."""
    mask = where if where is not None else source
    axes = _joined(target.shape, source.strides, target.strides, mask.strides)
    S: Any = np.uint8 if source.dtype == np.bool_ else source.dtype.type
    D: Any = target.dtype.type
    sizes, reads, writes, sees = ([axis[j] for axis in axes] for j in range(4))
    make_copy(S, D)(
        -(-target.size // _THREADS),
        stream,
        target.size,
        _eight(sizes, 1),
        buffer_of(source).pointer,
        source.span[0],
        _eight(reads, 0),
        buffer_of(where).pointer if where is not None else nothing(np.uint8).pointer,
        int(where is not None),
        mask.span[0],
        _eight(sees, 0),
        sign,
        fill,
        buffer_of(target).pointer,
        target.span[0],
        _eight(writes, 0),
    )


def copy_of_mask(kind: Kind, mask: View) -> View:
    """The same truth values in memory of their own."""
    made, shape, byte = new_buffer(kind, mask.size, np.uint8), mask.shape, np.dtype(np.uint8)
    target = View(made.address, shape, dense(shape), byte, True, made.owner)
    copy(kind.stream, mask, target)
    return target


@made_once
def make_sum(D: Any) -> Kernel:
    """Sum float64 over some axes: one block for each result, so that the order is fixed."""
    t = tools(np.float64, _TEAM)

    def kernel(values, kept, kept_steps, summed, summed_steps, count, out):
        room = cuda.shared.array(4 * 32, float64)
        first, i = int64(0), int64(cuda.blockIdx.x)
        for j in range(DIMS):
            first += i % kept[j] * kept_steps[j]
            i //= kept[j]
        total = 0.0
        for r in range(cuda.threadIdx.x, count, _THREADS):
            at, i = first, int64(r)
            for j in range(DIMS):
                at += i % summed[j] * summed_steps[j]
                i //= summed[j]
            total += values[at]
        total = t.total(total, room)
        if cuda.threadIdx.x == 0:
            out[int64(cuda.blockIdx.x)] = D(total)

    steps = types.UniTuple(int64, DIMS)
    shape = (steps, steps, steps, steps, int64)
    return Kernel(kernel, (pointer_to(np.float64), *shape, pointer_to(D)), _THREADS)


def sum_to(
    stream: Any, per_row: Buffer, batch: tuple[int, ...], shape: tuple[int, ...], out: View
) -> None:
    """Sum one number a row over the axes along which an argument of this shape was broadcast."""
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
