"""From rows on a device to a launch: which group for which row, which stream, what is kept.

A `Kernel` is compiled at its first launch on each kind of device and then kept, as are its
configured launches. Nothing depends on the number of rows but the number of blocks: a row's bits
are the same in any batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, types

from .target import SIMULATED, cuda
from .thread_groups import ThreadGroup

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small batch is no mistake

_lock = threading.Lock()


def pointer_to(T: Any) -> Any:
    """The type of a kernel's argument that is an array in the device's memory."""
    return types.CPointer(types.float16 if T is np.float16 else _real_type(T))


def _real_type(T: Any) -> Any:
    return {np.dtype(name): getattr(types, name) for name in _NAMES}[np.dtype(T)]


_NAMES = (
    *("float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)

# (entries of 4 bytes, group): the first that holds a row takes it.
_GROUPS = (
    (32, ThreadGroup(8, 4)),
    (128, ThreadGroup(32, 4)),
    (256, ThreadGroup(32, 8)),
    (512, ThreadGroup(32, 16)),
    (1024, ThreadGroup(128, 8)),
    (2048, ThreadGroup(128, 16)),
    (4096, ThreadGroup(256, 16)),
    (8192, ThreadGroup(512, 16)),
    (16384, ThreadGroup(512, 32)),
)

_MOST_OF_TWO = 64  # bytes of each of two rows that a thread can hold beside what it works out

_REGISTERS = 65536  # of a multiprocessor

#: Registers that a thread may have; the compiler takes as many of them as it finds useful. If not
#: told, it would make room for more blocks and move some of a search to memory, by its own rules.
ENOUGH = 128
#: The most there are, for polynomials beside the entries, and for functions of a user.
MANY = 255


def streaming(T: Any) -> ThreadGroup:
    """Who reads a longer row again in each pass. While one thread steers, other blocks work."""
    return ThreadGroup(256, _MOST_OF_TWO // np.dtype(T).itemsize, streams=True)


def choose(n: int, T: Any) -> ThreadGroup:
    """The group for rows of n entries of type T."""
    half = np.dtype(T).itemsize // 4  # entries of 8 bytes: half as many in as many registers
    for most, group in _GROUPS:
        if n * half <= most:
            lanes = group.lanes * half if group.lanes < 32 else group.lanes
            return ThreadGroup(lanes, group.held // half)
    return streaming(T)


def choose_for_two(n: int, T: Any) -> ThreadGroup:
    """The group for two rows of n entries of type T, or for one that is read only once."""
    group = choose(n, T)
    return streaming(T) if group.held * np.dtype(T).itemsize > _MOST_OF_TWO else group


class Kernel:
    """A kernel for one type of rows and one group, compiled when it is first launched.

    Each of its threads may have so many `registers`, where the block is not too large for that.
    """

    def __init__(
        self,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        threads: int,
        registers: int = ENOUGH,
    ):
        self.function = function
        self.arguments = arguments
        self.threads = threads
        #: Threads of a block, and how many blocks a multiprocessor must have room for, at least.
        self.bounds = threads, max(1, _REGISTERS // (registers * threads))
        self._compiled: dict[Any, Any] = {}
        self._configured: dict[Any, Any] = {}

    def __call__(self, blocks: int, stream: Any, *arguments: Any) -> None:
        """Launch on `blocks` blocks; nothing waits for it."""
        if blocks == 0:
            return
        key = self._device(), blocks, stream
        launch = self._configured.get(key)
        if launch is None:
            launch = self._prepare(key)
        launch(*arguments)

    @staticmethod
    def _device() -> Any:
        return None if SIMULATED else cuda.get_current_device().compute_capability

    def _compile(self, capability: Any) -> Any:
        """The kernel for a kind of device, from disk if it is there."""
        if SIMULATED:
            return cuda.jit(self.function)
        from . import cache

        dispatcher = cuda.jit(launch_bounds=self.bounds)(self.function)
        cache.keep(dispatcher, self.bounds, capability)
        dispatcher.compile(self.arguments)
        dispatcher.disable_compile()
        dispatcher._specialized = True  # it need not look at the types of each launch
        return dispatcher

    def _prepare(self, key: Any) -> Any:
        capability, blocks, stream = key
        with _lock:
            if capability not in self._compiled:
                self._compiled[capability] = self._compile(capability)
            compiled = self._compiled[capability]
            if SIMULATED:
                # The simulator keeps one configuration for a kernel, and not one for each launch.
                return lambda *arguments: compiled[blocks, self.threads](*arguments)
            if len(self._configured) >= 256:  # a different batch size each time: start afresh
                self._configured.clear()
            configured = compiled[blocks, self.threads, stream]
            self._configured[key] = configured
            return configured
