"""Device arrays of other libraries: their memory, library and stream, and new ones of the kind.

Arrays are read through ``__cuda_array_interface__`` or DLPack, and nothing here waits for the
device. Results and scratch memory come from the library of the array that was given, so that they
follow its rules for memory and streams; no library is imported that is not loaded already.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .arrays import Buffer
from .target import SIMULATED, cuda


class View(NamedTuple):
    """The memory layout of a device array."""

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
        """(entries before the first one, entries from the lowest to the highest address)."""
        if self.size == 0:
            return 0, 0
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        before = -sum(r for r in reach if r < 0)
        return before, before + sum(r for r in reach if r > 0) + 1

    @property
    def contiguous(self) -> bool:
        """Whether the entries are contiguous in C order."""
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
    """A library's arrays on one device: how to allocate them, and their stream."""

    name: str
    #: empty(shape, dtype) -> an array of this kind
    empty: Callable[[tuple[int, ...], Any], Any]
    #: what kernels are launched on: the address of the caller's current stream, 0 the default
    stream: Any
    #: a context in which the device of the array is the current one
    device: Any


def device_of(view: View) -> int:
    """The number of the device on which an array lies; of memory that is not there 0."""
    owner = view.owner
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor):
        return int(owner.get_device())
    if SIMULATED or isinstance(getattr(owner, "kind", None), Kind) or len(cuda.gpus) == 1:
        return 0
    driver = importlib.import_module("cuda.bindings.driver")
    wanted = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    error, device = driver.cuPointerGetAttribute(wanted, view.address)
    return 0 if error else int(device)


def _memory(address: int, entries: int, dtype: np.dtype[Any]) -> Any:
    """The memory at an address as a kernel takes it: the address, or an array in the simulator."""
    if not SIMULATED:
        return address
    if entries == 0:
        return np.empty(0, dtype)
    block: Any = (ctypes.c_char * (entries * dtype.itemsize)).from_address(address)
    return np.frombuffer(block, dtype)


def buffer_of(view: View) -> Buffer:
    """The memory of a view, from its lowest address on."""
    before, entries = (0, view.size) if view.contiguous else view.span
    stored = np.dtype(np.uint8) if view.dtype == np.bool_ else view.dtype
    address = view.address - before * view.dtype.itemsize
    return Buffer(_memory(address, entries, stored), view.owner, address)


@functools.cache
def nothing(dtype: Any) -> Buffer:
    """An empty buffer, the placeholder for memory that is not given."""
    return Buffer(_memory(0, 0, np.dtype(dtype)), None, 0)


# Array interfaces.


def view_of(x: Any, name: str) -> View:
    """The layout of x, an array on a device (`_api.host_arrays.on_device`)."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_tensor(x, name)
    if hasattr(x, "view") and isinstance(x.view, View):
        return x.view  # of memory that is not there (`program`)
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


def _of_tensor(x: Any, name: str) -> View:
    """Where a tensor of PyTorch lies; its interface takes five times as long."""
    if x.requires_grad:
        raise TypeError(f"{name} requires grad; pass {name}.detach() and use vjp")
    if x.is_neg():
        x = x.resolve_neg()
    dtype = _dtype_of_numpy(x.dtype)
    if dtype is None or x.layout != sys.modules["torch"].strided:
        raise TypeError(f"{name} has dtype {x.dtype} and layout {x.layout}; expected dense numbers")
    return View(x.data_ptr(), tuple(x.shape), x.stride(), dtype, True, x)


@functools.cache
def _dtype_of_numpy(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's type of this name of PyTorch's, or None."""
    try:
        return np.dtype(str(dtype).partition(".")[2])
    except TypeError:
        return None


@functools.cache
def _dtype_of_torch(dtype: Any) -> Any:
    return getattr(sys.modules["torch"], np.dtype(dtype).name)


def _from_dlpack(x: Any) -> View:
    from cuda.core.utils import StridedMemoryView

    seen = StridedMemoryView.from_dlpack(x, stream_ptr=-1)  # on its own stream: no synchronisation
    strides = seen.strides if seen.strides is not None else dense(seen.shape)
    return View(
        seen.ptr, tuple(seen.shape), tuple(strides), np.dtype(seen.dtype), not seen.readonly, seen
    )


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous array in C order, in entries."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


# Kinds of arrays, by library.


def kind_of(x: Any) -> Kind:
    """The kind of a device array: its library, device and stream."""
    if isinstance(getattr(x, "kind", None), Kind):
        known: Kind = x.kind  # of memory that is not there (`program`)
        return known
    library = type(x).__module__.split(".")[0]
    return _LIBRARIES.get(library, _interface_kind)(x)


def stream_of_torch(torch: Any, device: int) -> int:
    """PyTorch's current stream on a device, without an object of it where there is a way."""
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(short(device) if short else torch.cuda.current_stream(device).cuda_stream)


def _torch(x: Any) -> Kind:
    torch = sys.modules["torch"]

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.empty(shape, dtype=_dtype_of_torch(dtype), device=x.device)

    device = x.get_device()
    stream = stream_of_torch(torch, device)
    return Kind("torch", empty, stream, torch.cuda.device(device))


def _cupy(x: Any) -> Kind:
    cupy = sys.modules["cupy"]
    stream = cupy.cuda.get_current_stream(x.device.id).ptr
    return Kind("cupy", cupy.empty, stream, x.device)


def _numba(x: Any) -> Kind:
    stream: Any = getattr(x, "stream", 0) or 0

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        return cuda.device_array(shape, dtype, stream=stream)

    handle = 0 if SIMULATED or stream == 0 else int(stream.handle)
    return Kind("numba", empty, handle, contextlib.nullcontext())


def _interface_kind(x: Any) -> Kind:
    """The kind of an array known by its interface alone: results are passed on through DLPack."""
    interface = getattr(x, "__cuda_array_interface__", None) or {}
    # 1 and 2 denote the two default streams; None means that no synchronisation is needed.
    pointer = interface.get("stream") or 0

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        made = cuda.device_array(shape, dtype)
        space = getattr(x, "__array_namespace__", None)
        return made if space is None else space().from_dlpack(made)

    return Kind("other", empty, pointer, contextlib.nullcontext())


_LIBRARIES: dict[str, Callable[[Any], Kind]] = {"torch": _torch, "cupy": _cupy, "numba": _numba}
