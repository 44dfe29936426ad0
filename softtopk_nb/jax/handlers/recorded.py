"""The handler of calls on a device: it looks up a program, reads addresses, and launches.

Whatever it cannot do it leaves to Python, with what it has found (`..device`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ..._compile.array_intrinsics import held
from ..._compile.decorators import called_by_c, scalar
from ..._threads.jobs import WORD, get
from ..frame import (
    ARGUMENTS,
    ATTRIBUTES,
    COUNT,
    DATA,
    EXTENSION,
    RESULTS,
    buffer_at,
    entries_of,
    pointer,
)
from ..sharing import API, CONTEXT, call_c, destroy, handler_data_of

STREAM_GET = 10 * WORD  # in XLA's interface
ALIGNED = 16  # bytes: kernels read as many at once

# Words of the handler's data: the address that calls Python, and that of the table of programs,
# which is a mask, a free word, and then pairs of a key and an address.
PYTHON, PLACES = range(0, 2 * WORD, WORD)
# Attributes of a call in XLA's order, which is that of their names.
OF_K, KEY, OF_TEMPERATURE = range(3)
# Words of a loaded program: how many they are, the numbers of arguments and of results; then a slot
# and a number of entries for each of these; then the launches.
LENGTH, TAKES, GIVES, FIRST = range(4)
# What the handler finds, beside errors of the driver, which are positive.
DONE, NOT_LOADED, UNFIT, NO_STREAM, NO_MEMORY = 0, -1, -2, -3, -4


@scalar
def _attribute(frame, i):
    """The word of the i-th attribute, a number."""
    return get(get(get(get(frame + ATTRIBUTES) + i * WORD) + WORD))


@scalar
def _loaded(places, key):
    """The address of the loaded program with this key, or 0."""
    mask = get(places)
    i = key & mask
    while True:
        entry = places + (2 + 2 * i) * WORD
        known = get(entry)
        if known == key:
            return get(entry + WORD)
        if known == 0:
            return 0
        i = (i + 1) & mask


@scalar
def _stream_of(frame):
    """The stream on which XLA runs the call, or 0."""
    words = np.zeros(4, np.int64)
    words[0], words[2] = 4 * WORD, get(frame + CONTEXT)
    error = call_c(get(get(frame + API) + STREAM_GET), words.ctypes.data)
    if error != 0:
        destroy(frame, error)
    held((words,))
    return 0 if error != 0 else words[3]


def make(name: str, replay: Any, slots: tuple[int, int, int]) -> Any:
    """The handler, whose data the linker knows by this name.

    `slots` has the number of slots, that of k and that of the temperature.
    """
    count, of_k, of_temperature = slots

    @scalar
    def run(frame, places):
        address = _loaded(places, _attribute(frame, KEY))
        if address == 0:
            return NOT_LOADED
        program = carray(pointer(address, np.int64), (get(address),))
        starts, at = np.zeros(count, np.int64), FIRST
        starts[of_k] = _attribute(frame, OF_K)
        starts[of_temperature] = _attribute(frame, OF_TEMPERATURE)
        for side, buffers in ((ARGUMENTS, program[TAKES]), (RESULTS, program[GIVES])):
            if get(frame + side + COUNT) != buffers:
                return UNFIT
            for i in range(buffers):
                buffer = buffer_at(frame, side, i)
                data = get(buffer + DATA)
                if entries_of(buffer) != program[at + 1] or data % ALIGNED != 0:
                    return UNFIT
                starts[program[at]] = data
                at += 2
        stream = _stream_of(frame)
        return NO_STREAM if stream == 0 else replay(program[at:], stream, starts)

    @called_by_c
    def handle(frame):
        handler_data, asked = handler_data_of(name), np.empty(2, np.int64)
        asked[0], asked[1] = frame, DONE
        while True:
            if get(frame + EXTENSION) == 0:
                try:
                    asked[1] = run(frame, get(handler_data + PLACES))
                except Exception:
                    asked[1] = NO_MEMORY
                if asked[1] == DONE:
                    return 0
            error = call_c(get(handler_data + PYTHON), asked.ctypes.data)
            if error != 0 or asked[1] != NOT_LOADED:
                held((asked,))
                return error

    return handle
