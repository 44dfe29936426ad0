"""Rows of bfloat16: a handler of float32 rows is called on some of them at a time.

What XLA would convert, it would convert for all rows before or after: beside x, p and their
derivatives there would be arrays of twice their size. What a piece takes stays in the caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .._compile.array_intrinsics import held
from .._compile.decorators import called_by_c, kernel, scalar
from .._compile.subnormals import keep, restore
from .._threads.jobs import WORD, get
from .frame import (
    ARGUMENTS,
    DATA,
    DIMS,
    EXTENSION,
    RANK,
    RESULTS,
    TYPE,
    buffer_at,
    pointer,
    shape_of,
)
from .handlers.verbs import SECOND
from .sharing import PYTHON, THREADS, call_c, slots_of, together

LARGE = 1 << 18  # entries from which on it is worth while
PIECE = 1 << 16  # entries that a thread gets at a time
MOST = 3  # arrays that are converted: x, a direction or cotangent, a result
BFLOAT16, FLOAT32, KIND = 16, 11, (1 << 32) - 1  # XLA's words for types, and the bits of one
NUMBER = 4  # bytes of whatever is not a bfloat16
COUNT = -2 * WORD  # where a frame says how many buffers a side has, from where their addresses are
# The slots of `widen`, of `narrow`, and the one with the address of the handler of float32 rows.
WIDEN, NARROW, INNER = 0, SECOND, SECOND + PYTHON
# A copy of a buffer, in words: what XLA says of it, then its two sizes.
SIZES = DIMS // WORD + 1
BUFFER = SIZES + 2


@kernel
def widen(lo, hi, bits, wide):
    """Rows lo .. hi of bfloat16 as float32."""
    words = wide.view(np.uint32)
    for i in range(lo, hi):
        for j in range(bits.shape[1]):
            words[i, j] = np.uint32(bits[i, j]) << np.uint32(16)


@kernel
def narrow(lo, hi, wide, bits):
    """Rows lo .. hi of float32 as bfloat16: the nearest, of two that are as near the even one."""
    words = wide.view(np.uint32)
    for i in range(lo, hi):
        for j in range(bits.shape[1]):
            word = words[i, j]
            up = np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
            is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            rounded = word | np.uint32(0x400000) if is_nan else word + up
            bits[i, j] = np.uint16(np.uint32(rounded) >> np.uint32(16))


@scalar
def _original(frame, b):
    """The address of the b-th buffer: the results follow the arguments."""
    arguments = get(frame + ARGUMENTS + COUNT)
    if b < arguments:
        return buffer_at(frame, ARGUMENTS, b)
    return buffer_at(frame, RESULTS, b - arguments)


@scalar
def _is_narrow(buffer):
    return get(buffer + TYPE) & KIND == BFLOAT16


@scalar
def _fit(frame, buffers, room, lo, count):
    """Write buffers of so many rows from `lo` on: in `room`, if they are to be float32."""
    rows, _ = shape_of(frame)
    rank_of_x, used = get(buffer_at(frame, ARGUMENTS, 0) + RANK), 0
    for b in range(buffers.shape[0]):
        original, own, entries = _original(frame, b), buffers[b], 1
        for word in range(SIZES):
            own[word] = get(original + word * WORD)
        rank = own[RANK // WORD]
        if rank == 0:
            continue
        for axis in range(rank):
            entries *= get(own[DIMS // WORD] + axis * WORD)
        own[RANK // WORD] = 2 if rank == rank_of_x else 1
        own[DIMS // WORD] = own.ctypes.data + SIZES * WORD
        own[SIZES], own[SIZES + 1] = count, entries // rows
        if _is_narrow(original):
            own[TYPE // WORD], own[DATA // WORD] = FLOAT32, room[used].ctypes.data
            used += 1
        else:
            own[DATA // WORD] += lo * (entries // rows) * NUMBER


@scalar
def _convert(frame, slots, buffers, lo, back):
    """Convert the arguments of a piece or, back, its results."""
    _, n = shape_of(frame)
    arguments = get(frame + ARGUMENTS + COUNT)
    for b in range(buffers.shape[0]):
        original, count = _original(frame, b), buffers[b, SIZES]
        if (b >= arguments) == back and _is_narrow(original):
            place = get(original + DATA) + lo * n * 2
            bits = carray(pointer(place, np.uint16), (count, n))
            wide = carray(pointer(buffers[b, DATA // WORD], np.float32), (count, n))
            if back:
                together(frame, slots + NARROW, count, count * n // 4, (wide, bits))
            else:
                together(frame, slots + WIDEN, count, count * n // 4, (bits, wide))


@scalar
def _by_pieces(frame, slots):
    """Call the handler of float32 rows on piece after piece; the first error, or 0."""
    rows, n = shape_of(frame)
    arguments, results = get(frame + ARGUMENTS + COUNT), get(frame + RESULTS + COUNT)
    own, places = np.empty(get(frame) // WORD, np.int64), np.empty(arguments + results, np.int64)
    buffers = np.empty((arguments + results, BUFFER), np.int64)
    piece = min(rows, max(1, PIECE * get(slots + THREADS) // n))
    room, error = np.empty((MOST, piece, n), np.float32), 0
    for word in range(own.shape[0]):
        own[word] = get(frame + word * WORD)
    for b in range(places.shape[0]):
        places[b] = buffers[b].ctypes.data
    own[ARGUMENTS // WORD] = places.ctypes.data
    own[RESULTS // WORD] = places.ctypes.data + arguments * WORD
    for lo in range(0, rows, piece):
        _fit(frame, buffers, room, lo, min(piece, rows - lo))
        _convert(frame, slots, buffers, lo, False)
        error = call_c(get(slots + INNER), own.ctypes.data)
        if error != 0:
            break
        _convert(frame, slots, buffers, lo, True)
    held((own, places, buffers, room))
    return error


def made(name: str) -> Any:
    """The handler itself, whose slots are known to the linker by this name."""

    @called_by_c
    def handle(frame):
        control = keep()
        slots, error = slots_of(name), 0
        if get(frame + EXTENSION) != 0:
            error = call_c(get(slots + PYTHON), frame)
        else:
            try:
                error = _by_pieces(frame, slots)
            except Exception:  # without memory, say: Python meets it again, and says so
                error = call_c(get(slots + PYTHON), frame)
        restore(control)
        return error

    return handle
