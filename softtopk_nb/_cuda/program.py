"""Programs: the launches of a call, recorded once and repeated with other addresses.

What the host does for a call on a device depends on the operator, its options, types and layout,
and on no number in memory. So a call is made once with memory that is not there (`Memory`): its
addresses say which part of a call they are of (`Place`), and its stream is a `Recording`, which
keeps what it is asked to launch. A call alike then repeats these launches, in machine code, and
looks at nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .._compile.array_intrinsics import held
from .._compile.decorators import kernel, scalar
from .arrays import Buffer
from .interop import Kind, View, dense
from .launch import MOST_WORDS, launching, retry

# What an address or a number of a program is of: x, the value, memory that is kept with the state,
# the cotangent, the gradient in x, memory that is not kept, k and the temperature.
X, VALUE, KEPT, COTANGENT, GRADIENT, SCRATCH, K, TEMPERATURE = range(8)
_ALIGNED = 256  # bytes: scratch arrays begin at multiples of this, as those of libraries do
_FIRST = 1 << 40  # addresses begin here, as far apart: none is 0, and none reaches the next


class Block:
    """Memory that is not there: which part of a call it is, and where in that part it begins."""

    _numbers = itertools.count()

    def __init__(self, slot: int, size: int = 0, start: int = 0) -> None:
        self.slot, self.size, self.offset = slot, size, 0
        # Modulo the widest read `start` is that of the address: what is aligned follows from it.
        self.address = _FIRST + (next(self._numbers) << 40) + start


class Place(int):
    """An address that knows its block and how far from its start it lies."""

    block: Block
    within: int

    def __new__(cls, block: Block, within: int = 0) -> Place:
        self = super().__new__(cls, block.address + within)
        self.block, self.within = block, within
        return self

    @property
    def slot(self) -> int:
        """The slot that it is of."""
        return self.block.slot

    @property
    def offset(self) -> int:
        """Its distance from the start of the slot, in bytes."""
        return self.block.offset + self.within

    def __add__(self, more: int) -> Place:
        return Place(self.block, self.within + int(more))

    def __sub__(self, less: int) -> Any:
        return self + -less if not isinstance(less, Place) else int(self) - int(less)


class Number(float):
    """A number that each call has its own of."""

    slot: int
    offset = 0

    def __new__(cls, value: float, slot: int) -> Number:
        self = super().__new__(cls, value)
        self.slot = slot
        return self


class Memory:
    """An array that is not there."""

    __cuda_ndarray__ = True

    def __init__(self, kind: Kind, block: Block, shape: tuple[int, ...], dtype: Any) -> None:
        self.kind, self.block = kind, block
        self.view = View(Place(block), shape, dense(shape), np.dtype(dtype), True, self)


class Launch(NamedTuple):
    """A launch, with the words of its parameters that each call has its own of."""

    kernel: Any
    blocks: int
    words: tuple[Any, ...]
    own: tuple[tuple[int, int, int], ...]  # (which word, slot, offset)


class Recording:
    """What stands for a stream, and for the library that gives memory, while a call is recorded."""

    def __init__(self, slot: int) -> None:
        self._slot = slot  # of the memory that is asked for
        self._asked: list[Block] = []
        self._launches: list[tuple[Any, int, tuple[Any, ...]]] = []
        self.kind = Kind("recording", self._empty, self, contextlib.nullcontext())

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Memory:
        block = Block(self._slot, math.prod(shape) * np.dtype(dtype).itemsize)
        self._asked.append(block)
        return Memory(self.kind, block, shape, dtype)

    def launch(self, kernel: Any, blocks: int, words: list[Any]) -> None:
        """Keep a launch."""
        self._launches.append((kernel, blocks, tuple(words)))

    def program(self, *results: tuple[Memory, int]) -> Program:
        """The program, whose results have slots of their own and are not of the memory it needs."""
        for result, slot in results:
            result.block.slot = slot
        size = 0
        for block in self._asked:
            if block.slot == self._slot:
                block.offset = size
                size += -(-block.size // _ALIGNED) * _ALIGNED
        launches = (Launch(*each, _own(each[-1])) for each in self._launches)
        return Program(tuple(launches), size)


def _own(words: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (i, word.slot, word.offset)
        for i, word in enumerate(words)
        if isinstance(word, (Place, Number))
    )


class Program:
    """Launches to be repeated, and how much memory they work in."""

    def __init__(self, launches: tuple[Launch, ...], size: int) -> None:
        self.launches, self.bytes = launches, size
        self._tables: dict[int, Any] = {}

    def run(self, device: int, stream: int, starts: list[Any]) -> None:
        """Launch all on the current device; `starts` has an address or a number for each slot."""
        words = np.empty(len(starts), np.int64)
        reals = words.view(np.float64)
        for i, start in enumerate(starts):
            (reals if type(start) is float else words)[i] = start
        given = self.table(device, stream), stream, words
        if error := repeat(*given):
            retry(device, error, lambda: repeat(*given))

    def table(self, device: int, stream: int | None = None) -> Any:
        """The launches as words for `replay`, with their kernels loaded on a device."""
        if device not in self._tables:
            words = [launching(), len(self.launches)]
            for launch in self.launches:
                words += _words_of(launch, device, stream)
            self._tables[device] = np.array(words, np.int64)
        return self._tables[device]


def _words_of(launch: Launch, device: int, stream: int | None) -> list[int]:
    kernel, blocks, given, own = launch
    places = {i: (1 + slot, offset) for i, slot, offset in own}
    words = [kernel.load(device, stream), blocks, kernel.threads, len(given)]
    for i, word in enumerate(given):
        words += places.get(i, (0, _bits(word)))
    return words


def _bits(word: Any) -> int:
    """The bits of a number as an integer."""
    return int(np.float64(word).view(np.int64)) if isinstance(word, float) else int(word)


@intrinsic
def _launch(
    typingctx: Any,
    function: Any,
    kernel: Any,
    blocks: Any,
    threads: Any,
    stream: Any,
    parameters: Any,
) -> Any:
    """Call `cuLaunchKernel` at this address; returns its error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, half = ir.IntType(64), ir.IntType(32)
        one, none = half(1), half(0)
        at, kernel, blocks, threads, stream, parameters = args
        kind = ir.FunctionType(half, [word, *[half] * 7, word, word, word])
        blocks, threads = builder.trunc(blocks, half), builder.trunc(threads, half)
        grid = blocks, one, one, threads, one, one, none
        given = kernel, *grid, stream, parameters, word(0)
        return builder.call(builder.inttoptr(at, kind.as_pointer()), given)

    return types.int32(*[types.int64] * 6), codegen


@scalar
def replay(table, stream, starts):
    """Repeat the launches of a table on a stream; returns the driver's first error, or 0.

    `starts` has a word for each slot: an address, or the bits of a number.
    """
    words, places = np.empty(MOST_WORDS, np.int64), np.empty(MOST_WORDS, np.int64)
    for i in range(MOST_WORDS):
        places[i] = words.ctypes.data + 8 * i
    error, at = 0, 2
    for _ in range(table[1]):
        kernel, blocks, threads, count = table[at], table[at + 1], table[at + 2], table[at + 3]
        at += 4
        for i in range(count):
            slot = table[at]
            words[i] = table[at + 1] if slot == 0 else table[at + 1] + starts[slot - 1]
            at += 2
        error = _launch(table[0], kernel, blocks, threads, stream, places.ctypes.data)
        if error != 0:
            break
    held((words, places))
    return error


@kernel
def repeat(table, stream, starts):
    """`replay`, called from Python."""
    return replay(table, stream, starts)


def resolved(state: Any, starts: list[Any], owner: Any) -> Any:
    """A recorded state with the addresses that a call has had."""
    if isinstance(state, Place):
        return starts[state.slot] + state.offset
    if isinstance(state, Buffer):
        address = resolved(state.address, starts, owner)
        return Buffer(address, owner, address)
    if isinstance(state, tuple):
        members = (resolved(each, starts, owner) for each in state)
        return state._make(members) if hasattr(state, "_make") else tuple(members)
    return state
