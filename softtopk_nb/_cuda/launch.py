"""Launches of kernels: the thread group for a row's length, the stream, and compiled kernels kept.

A `Kernel` is compiled at its first launch on each kind of device and then kept. Its parameters are
packed here and handed to the driver: Numba's own launch looks at the type of each every time, which
takes longer than all else. Nothing depends on the number of rows but the number of blocks: a row's
bits are the same in any batch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, types

from .._compile import collector
from .target import SIMULATED, cuda
from .thread_groups import ThreadGroup

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # a small batch is no mistake

MOST_WORDS = 192  # that the parameters of a kernel may have

_lock = threading.Lock()


def pointer_to(T: Any) -> Any:
    """The Numba type of a kernel's argument that is an array of T in device memory."""
    return types.CPointer(types.float16 if T is np.float16 else _real_type(T))


def _real_type(T: Any) -> Any:
    return {np.dtype(name): getattr(types, name) for name in _NAMES}[np.dtype(T)]


_NAMES = (
    *("float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)

# (entries of 4 bytes, group): a row gets the first group that holds it.
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

_MOST_OF_TWO = 64  # bytes of each of two rows that a thread can hold beside its results

_REGISTERS = 65536  # of a multiprocessor

#: Registers that a thread may have; the compiler takes as many of them as it finds useful. Without
#: this limit it would by its own rules aim for more blocks, and spill some of a search to memory.
ENOUGH = 128
#: The most there are: for polynomials beside the entries, and for a user's functions.
MANY = 255


def streaming(T: Any) -> ThreadGroup:
    """The group for a longer row, which it reads again in each pass."""
    return ThreadGroup(256, _MOST_OF_TWO // np.dtype(T).itemsize, streams=True)


def choose(n: int, T: Any) -> ThreadGroup:
    """The thread group for rows of n entries of type T."""
    half = np.dtype(T).itemsize // 4  # entries of 8 bytes: half as many in the same registers
    for most, group in _GROUPS:
        if n * half <= most:
            lanes = group.lanes * half if group.lanes < 32 else group.lanes
            return ThreadGroup(lanes, group.held // half)
    return streaming(T)


def choose_for_two(n: int, T: Any) -> ThreadGroup:
    """The thread group for two rows of n entries of type T, or for one that is read only once."""
    group = choose(n, T)
    return streaming(T) if group.held * np.dtype(T).itemsize > _MOST_OF_TWO else group


class _Words(threading.local):
    """Memory for the parameters of a launch, a word each, and their addresses: one per thread."""

    def __init__(self) -> None:
        self.values = (ctypes.c_int64 * MOST_WORDS)()
        first = ctypes.addressof(self.values)
        self._places = (ctypes.c_void_p * MOST_WORDS)(*(first + 8 * i for i in range(MOST_WORDS)))
        self.places = ctypes.addressof(self._places)


_words = _Words()


@functools.cache
def driver() -> Any:
    """NVIDIA's functions of the driver, which numba-cuda brings along: needed to launch alone."""
    return importlib.import_module("cuda.bindings.driver")


@functools.cache
def launching() -> int:
    """The address of `cuLaunchKernel`."""
    error, address, _ = driver().cuGetProcAddress(b"cuLaunchKernel", 12000, 0)
    if error:
        raise RuntimeError(f"the driver has no cuLaunchKernel: {error.name}")
    return int(address)


def _formats(kind: Any) -> str:
    """How `struct` packs a parameter of this type, a word for each of its members."""
    if isinstance(kind, types.BaseTuple):
        return "".join(map(_formats, kind))
    return "d" if kind == types.float64 else "q"


def _flat(values: tuple[Any, ...], into: list[Any]) -> list[Any]:
    """The members of nested tuples, in their order, added to a list."""
    for value in values:
        if isinstance(value, tuple):
            _flat(value, into)
        else:
            into.append(value)
    return into


class Kernel:
    """A kernel for one type of rows and one group, compiled when it is first launched.

    Each of its threads may have `registers` registers, unless the block is too large for that.
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
        #: Threads of a block, and the least number of blocks that must fit on a multiprocessor.
        self.bounds = threads, max(1, _REGISTERS // (registers * threads))
        self._pack = struct.Struct("=" + "".join(map(_formats, arguments))).pack_into
        self._handles: dict[int, int] = {}  # what the driver calls the kernel, for each device
        self._compiled: dict[Any, Any] = {}

    def __call__(self, blocks: int, stream: Any, *arguments: Any) -> None:
        """Launch on `blocks` blocks of a stream, or record that; nothing waits for it."""
        if blocks == 0:
            return
        if SIMULATED:
            self.compiled(None)[blocks, self.threads](*arguments)
        elif isinstance(stream, int):
            self.launch(current_device(), blocks, stream, _flat(arguments, []))
        else:
            stream.launch(self, blocks, _flat(arguments, []))

    def launch(self, device: int, blocks: int, stream: int, parameters: list[Any]) -> None:
        """Launch on a device, the current one, with parameters that are a word each."""
        handle = self.load(device, stream)
        words = _words
        self._pack(words.values, 0, *parameters)
        given = handle, blocks, 1, 1, self.threads, 1, 1, 0, stream, words.places, 0
        if error := driver().cuLaunchKernel(*given)[0]:
            retry(device, error, lambda: driver().cuLaunchKernel(*given)[0])

    def compiled(self, capability: Any) -> Any:
        """The kernel for a kind of device, as Numba has it: compiled once."""
        with _lock:
            if capability not in self._compiled:
                self._compiled[capability] = self._compile(capability)
            return self._compiled[capability]

    def _compile(self, capability: Any) -> Any:
        """The kernel compiled for a compute capability, from disk if it is there."""
        if SIMULATED:
            return cuda.jit(self.function)
        from . import cache  # what it needs of numba-cuda is not in the simulator

        dispatcher = cuda.jit(launch_bounds=self.bounds)(self.function)
        cache.keep(dispatcher, self.bounds, capability)
        with collector.paused():
            dispatcher.compile(self.arguments)
        dispatcher.disable_compile()
        return dispatcher

    def load(self, device: int, stream: int | None = None) -> int:
        """What the driver calls the kernel on a device: independent of the context.

        Raises a RuntimeError if it would have to be loaded while the stream is captured.
        """
        if device in self._handles:
            return self._handles[device]
        if stream is not None and _is_capturing(stream):
            raise RuntimeError(
                "a kernel of this call has not been loaded yet, which ends the capture of a graph; "
                "make the call once, with arrays of this shape and type, before the capture"
            )
        with cuda.gpus[device]:  # for Numba, which keeps its own record of the current device
            capability = cuda.get_current_device().compute_capability
            (compiled,) = self.compiled(capability).overloads.values()
            self._handles[device] = handle = int(compiled._codelibrary.get_cufunc().handle)
            driver().cuKernelGetFunction(handle)  # loads it now, and not within a CUDA graph
        return handle


def retry(
    device: int,
    error: int,
    launch: Callable[[], int],
    failed: str = "a kernel could not be launched",
) -> None:
    """Launch again if the thread had no context yet on this device, and raise what is wrong."""
    code = driver().CUresult
    if error == code.CUDA_ERROR_INVALID_CONTEXT:
        with cuda.gpus[device]:
            error = launch()
    if error:
        raise RuntimeError(f"{failed}: {code(error).name}")


def _is_capturing(stream: int) -> bool:
    """Whether what is launched on a stream becomes part of a graph."""
    error, status = driver().cuStreamIsCapturing(stream)
    active = driver().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return bool(not error and status == active)


def current_device() -> int:
    """The number of the device that is current in this thread."""
    error, device = driver().cuCtxGetDevice()
    # A thread without a context gets one from Numba.
    return int(cuda.get_current_device().id) if error else int(device)
