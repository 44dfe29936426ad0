"""Kinds of device arrays: where one lies, on which stream, and how to make another of its kind.

Arrays are read through ``__cuda_array_interface__`` or DLPack, and nothing here waits for the
device. Results and scratch memory come from the library of the array that was given, so that they
follow its rules for memory and streams; no library is imported that is not loaded already.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .arrays import Buffer
from .target import SIMULATED, cuda


class View(NamedTuple):
    """Where the entries of a device array lie."""

    address: int  # of the first entry
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in entries
    dtype: np.dtype[Any]
    writable: bool
    owner: Any

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """(entries before the first one, entries from the lowest to the highest one)."""
        if self.size == 0:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        before = -sum(r for r in reach if r < 0)
        return before, before + sum(r for r in reach if r > 0) + 1

    @property
    def contiguous(self) -> bool:
        """Whether the entries follow each other in C order."""
        expected = 1
        for n, s in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and s != expected:
                return self.size == 0
            expected *= n
        return True

    def overlaps(self, other: View) -> bool:
        """Whether the two could share memory."""
        ends = []
        for view in (self, other):
            before, entries = view.span
            first = view.address - before * view.dtype.itemsize
            ends.append((first, first + entries * view.dtype.itemsize))
        return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


class Kind(NamedTuple):
    """A library's arrays on one device."""

    name: str
    #: empty(shape, dtype) -> an array of this kind
    empty: Callable[[tuple[int, ...], Any], Any]
    #: what kernels are launched on: the caller's current stream
    stream: Any
    #: a context in which the device of the array is the current one
    device: Any


def _memory(address: int, entries: int, dtype: np.dtype[Any]) -> Any:
    """What a kernel is given for so many entries from an address on."""
    if not SIMULATED:
        return address
    if entries == 0:
        return np.empty(0, dtype)
    block: Any = (ctypes.c_char * (entries * dtype.itemsize)).from_address(address)
    return np.frombuffer(block, dtype)


def buffer_of(view: View) -> Buffer:
    """The memory of a view, from its lowest entry on."""
    before, entries = (0, view.size) if view.contiguous else view.span
    stored = np.dtype(np.uint8) if view.dtype == np.bool_ else view.dtype
    address = view.address - before * view.dtype.itemsize
    return Buffer(_memory(address, entries, stored), view.owner, address)


@functools.cache
def nothing(dtype: Any) -> Buffer:
    """What stands for memory that is not there."""
    return Buffer(_memory(0, 0, np.dtype(dtype)), None, 0)


class _Current:
    """Make a device the current one of its library and of Numba, which keep that apart."""

    def __init__(self, index: int, of_library: Any) -> None:
        self._index, self._of_library = index, of_library
        self._of_numba: Any = None

    def __enter__(self) -> None:
        self._of_library.__enter__()
        if not SIMULATED and cuda.get_current_device().id != self._index:
            self._of_numba = cuda.gpus[self._index]
            self._of_numba.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._of_numba is not None:
            self._of_numba.__exit__(*error)
            self._of_numba = None
        self._of_library.__exit__(*error)


# How arrays describe themselves.


def view_of(x: Any, name: str) -> View:
    """Where x lies; x is an array on a device (`_api.host_arrays.on_device`)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and x.requires_grad:
        raise TypeError(f"{name} requires grad; pass {name}.detach() and use vjp")
    if SIMULATED and isinstance(getattr(x, "_ary", None), np.ndarray):
        array = x._ary
        entry = array.dtype.itemsize
        strides = tuple(s // entry for s in array.strides)
        return View(array.ctypes.data, array.shape, strides, array.dtype, True, array)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return _from_dlpack(x)
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is a masked array; pass its data and where=")
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    if not dtype.isnative:
        raise TypeError(f"{name} has dtype {dtype}; expected native byte order on a device")
    address, read_only = interface["data"]
    strides = interface.get("strides")
    if strides is None:
        strides = dense(shape)
    elif any(s % dtype.itemsize for s in strides):
        raise TypeError(f"{name} has strides {strides}; expected multiples of {dtype.itemsize}")
    else:
        strides = tuple(s // dtype.itemsize for s in strides)
    return View(address or 0, shape, strides, dtype, not read_only, x)


def _from_dlpack(x: Any) -> View:
    from cuda.core.utils import StridedMemoryView

    seen = StridedMemoryView.from_dlpack(x, stream_ptr=-1)  # on its stream: nothing to wait for
    strides = seen.strides if seen.strides is not None else dense(seen.shape)
    return View(
        seen.ptr, tuple(seen.shape), tuple(strides), np.dtype(seen.dtype), not seen.readonly, seen
    )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of entries that lie one after the other."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


# Libraries.


def kind_of(x: Any) -> Kind:
    """The library, device and stream of a device array."""
    library = type(x).__module__.split(".")[0]
    return _LIBRARIES.get(library, _other)(x)


def _torch(x: Any) -> Kind:
    torch = sys.modules["torch"]

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), device=x.device)

    stream = torch.cuda.current_stream(x.device).cuda_stream
    index = x.device.index
    return Kind("torch", empty, _stream(index, stream), _Current(index, torch.cuda.device(index)))


def _cupy(x: Any) -> Kind:
    cupy = sys.modules["cupy"]
    index = x.device.id
    stream = cupy.cuda.get_current_stream(index).ptr
    return Kind("cupy", cupy.empty, _stream(index, stream), _Current(index, x.device))


def _numba(x: Any) -> Kind:
    stream = getattr(x, "stream", 0) or 0

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return cuda.device_array(shape, dtype, stream=stream)

    return Kind("numba", empty, stream, contextlib.nullcontext())


def _other(x: Any) -> Kind:
    """A library that is known by its interface alone: results pass through DLPack."""
    interface = getattr(x, "__cuda_array_interface__", None) or {}
    # 1 and 2 stand for the two default streams; without a stream there is nothing to wait for.
    pointer = interface.get("stream") or 0

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        made = cuda.device_array(shape, dtype)
        space = getattr(x, "__array_namespace__", None)
        return made if space is None else space().from_dlpack(made)

    return Kind("other", empty, _stream(0, pointer), contextlib.nullcontext())


_LIBRARIES: dict[str, Callable[[Any], Kind]] = {"torch": _torch, "cupy": _cupy, "numba": _numba}


@functools.lru_cache(maxsize=256)
def _stream(device: int, pointer: int) -> Any:
    """Numba's name for a stream that another library has made; 0 is the default stream of both."""
    return 0 if pointer == 0 or SIMULATED else cuda.external_stream(pointer)
