"""Rows of bfloat16: the handler of float32 rows is called on a chunk of them at a time.

XLA would convert all rows before and after a call: beside x, p and their derivatives there would be
arrays of twice their size. A chunk stays in the caches.
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
    COUNT,
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
from .sharing import PYTHON, THREADS, call_c, handler_data_of, together

LARGE = 1 << 18  # number of entries from which on this is worth while
PIECE = 1 << 16  # entries that a thread gets at a time
MOST = 3  # arrays that are converted, at most: x, a direction or cotangent, a result
BFLOAT16, FLOAT32, KIND = 16, 11, (1 << 32) - 1  # XLA's codes of types, and the bits of one
NUMBER = 4  # bytes of a number of any other type
# Offsets of the data of `widen`, of `narrow`, and of the address of the handler of float32 rows.
WIDEN, NARROW, INNER = 0, SECOND, SECOND + PYTHON
# A copy of a buffer, in words: XLA's struct, then its two sizes.
SIZES = DIMS // WORD + 1
BUFFER = SIZES + 2


@kernel
def widen(lo, hi, bits, wide):
    """Convert rows lo .. hi of bfloat16 to float32."""
    words = wide.view(np.uint32)
    for i in range(lo, hi):
        for j in range(bits.shape[1]):
            words[i, j] = np.uint32(bits[i, j]) << np.uint32(16)


@kernel
def narrow(lo, hi, wide, bits):
    """Convert rows lo .. hi of float32 to bfloat16, rounded to nearest, ties to even."""
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
def _fit(frame, buffers, scratch, lo, count):
    """Write structs for `count` rows of the buffers from row `lo` on; float32 ones in `scratch`."""
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
            own[TYPE // WORD], own[DATA // WORD] = FLOAT32, scratch[used].ctypes.data
            used += 1
        else:
            own[DATA // WORD] += lo * (entries // rows) * NUMBER


@scalar
def _convert(frame, handler_data, buffers, lo, back):
    """Convert the arguments of a chunk of rows or, if `back`, its results."""
    _, n = shape_of(frame)
    arguments = get(frame + ARGUMENTS + COUNT)
    for b in range(buffers.shape[0]):
        original, count = _original(frame, b), buffers[b, SIZES]
        if (b >= arguments) == back and _is_narrow(original):
            place = get(original + DATA) + lo * n * 2
            bits = carray(pointer(place, np.uint16), (count, n))
            wide = carray(pointer(buffers[b, DATA // WORD], np.float32), (count, n))
            if back:
                together(frame, handler_data + NARROW, count, count * n // 4, (wide, bits))
            else:
                together(frame, handler_data + WIDEN, count, count * n // 4, (bits, wide))


@scalar
def _by_pieces(frame, handler_data):
    """Call the handler of float32 rows on chunk after chunk; returns the first error, or 0."""
    rows, n = shape_of(frame)
    arguments, results = get(frame + ARGUMENTS + COUNT), get(frame + RESULTS + COUNT)
    own, places = np.empty(get(frame) // WORD, np.int64), np.empty(arguments + results, np.int64)
    buffers = np.empty((arguments + results, BUFFER), np.int64)
    piece = min(rows, max(1, PIECE * get(handler_data + THREADS) // n))
    scratch, error = np.empty((MOST, piece, n), np.float32), 0
    for word in range(own.shape[0]):
        own[word] = get(frame + word * WORD)
    for b in range(places.shape[0]):
        places[b] = buffers[b].ctypes.data
    own[ARGUMENTS // WORD] = places.ctypes.data
    own[RESULTS // WORD] = places.ctypes.data + arguments * WORD
    for lo in range(0, rows, piece):
        _fit(frame, buffers, scratch, lo, min(piece, rows - lo))
        _convert(frame, handler_data, buffers, lo, False)
        error = call_c(get(handler_data + INNER), own.ctypes.data)
        if error != 0:
            break
        _convert(frame, handler_data, buffers, lo, True)
    held((own, places, buffers, scratch))
    return error


def made(name: str) -> Any:
    """A handler, whose data the linker knows by this name."""

    @called_by_c
    def handle(frame):
        control = keep()
        handler_data, error = handler_data_of(name), 0
        if get(frame + EXTENSION) != 0:
            error = call_c(get(handler_data + PYTHON), frame)
        else:
            try:
                error = _by_pieces(frame, handler_data)
            except Exception:  # out of memory, for example: Python raises it again, with a message
                error = call_c(get(handler_data + PYTHON), frame)
        restore(control)
        return error

    return handle
