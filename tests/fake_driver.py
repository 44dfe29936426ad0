"""A CUDA driver without a device, and what a program has asked of it.

    import fake_driver
    with tempfile.TemporaryDirectory() as folder: fake_driver.build(folder); ...

`device/fake_driver/driver.c` says what it does. It is found in place of the system's by a process
that is started with `environment(folder)`: real kernels are compiled and loaded, and every launch
is kept. A kernel does nothing, and memory has zeros: what is in it afterwards means nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parent / "device" / "fake_driver" / "driver.c"
_PARAMETERS, _BYTES = 192, 4096


def compiler() -> str | None:
    """The C compiler, or None."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def build(folder: str | Path) -> None:
    """Compile the driver into this folder, under the name that programs look for."""
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler was found; expected cc, gcc or the one that CC names")
    library = Path(folder) / "libcuda.so.1"
    flags = ("-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")
    named = "-Wl,-soname,libcuda.so.1"
    subprocess.run([found, *flags, named, "-o", library, SOURCE, "-ldl"], check=True)


def environment(folder: str | Path) -> dict[str, str]:
    """What the environment of a process says that is to find the driver."""
    paths = (str(folder), os.environ.get("LD_LIBRARY_PATH", ""))
    own = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **own, "PYTHONPATH": f"{SOURCE.parents[2]}:{SOURCE.parents[3]}"}


def run(program: str, known: dict[str, str]) -> str:
    """What a program prints in a process of its own with this environment."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=known,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


class _Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 4096),
        ("count", ctypes.c_int),
        ("offsets", ctypes.c_uint * _PARAMETERS),
        ("sizes", ctypes.c_uint * _PARAMETERS),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.POINTER(_Kernel)),
        ("grid", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("bytes", ctypes.c_int),
        ("parameters", ctypes.c_ubyte * _BYTES),
    ]


class Launch(NamedTuple):
    """A launch, as the driver was asked for it."""

    name: str  # of the kernel, mangled
    grid: tuple[int, ...]  # blocks and threads, along x, y and z each
    shared: int
    stream: int
    parameters: tuple[bytes, ...]  # each as many bytes as the machine code says
    device: int  # that was current


class Driver:
    """What this process has asked of the driver."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL("libcuda.so.1")
        self._library.fake_launches.restype = ctypes.c_long
        self._library.fake_waits.restype = ctypes.c_long
        self._library.fake_largest_to_host.restype = ctypes.c_long
        self._library.fake_launch.restype = ctypes.POINTER(_Launch)
        self._library.fake_launch.argtypes = [ctypes.c_long]
        self._library.fake_set_capturing.argtypes = [ctypes.c_void_p]

    def reset(self) -> None:
        """Forget all launches, waits and copies."""
        self._library.fake_reset()

    def set_device(self, device: int) -> None:
        """Make a device the current one of this thread."""
        self._library.fake_set_device(device)

    def capture(self, stream: int) -> None:
        """Have the driver say that this stream is being captured; 0: none is."""
        self._library.fake_set_capturing(stream)

    @property
    def waits(self) -> int:
        """How often the host has waited for the device."""
        return int(self._library.fake_waits())

    @property
    def largest_to_host(self) -> int:
        """Bytes of the largest copy from the device to the host."""
        return int(self._library.fake_largest_to_host())

    @property
    def launches(self) -> list[Launch]:
        """The launches since the last reset."""
        return [self._launch(i) for i in range(self._library.fake_launches())]

    def _launch(self, i: int) -> Launch:
        found = self._library.fake_launch(i).contents
        kernel, given = found.kernel.contents, bytes(found.parameters)
        places = zip(kernel.offsets[: kernel.count], kernel.sizes[: kernel.count], strict=True)
        parameters = tuple(given[at : at + size] for at, size in places)
        stream = int(found.stream or 0)
        asked = kernel.name.decode(), tuple(found.grid), found.shared, stream, parameters
        return Launch(*asked, found.device)


class Pretence:
    """What PyTorch says of devices and streams: to be changed by tests."""

    def __init__(self, driver: Driver | None) -> None:
        self.current = 0  # device
        self.stream = 0  # current there
        self.places: dict[int, int] = {}  # devices by the addresses of memory; 0 for all others
        self._driver = driver

    def move(self, x: Any, device: int) -> Any:
        """The tensor, whose memory lies on this device from now on."""
        self.places[x.untyped_storage().data_ptr()] = device
        return x

    def place(self, x: Any) -> int:
        """The device of a tensor."""
        return self.places.get(x.untyped_storage().data_ptr(), 0)

    @property
    def cuda_stream(self) -> int:
        """The current stream, as PyTorch's object of one says it."""
        return self.stream

    def set_device(self, device: int) -> None:
        """Make a device the current one."""
        self.current = device
        if self._driver:
            self._driver.set_device(device)


class _Device:
    """As `torch.cuda.device`: within it a device is the current one."""

    def __init__(self, said: Pretence, device: Any) -> None:
        self._said, self._device = said, getattr(device, "index", device) or 0

    def __enter__(self) -> None:
        self._before = self._said.current
        self._said.set_device(self._device)

    def __exit__(self, *error: object) -> None:
        self._said.set_device(self._before)


def pretend_cuda(torch: Any, put: Any = setattr, driver: Driver | None = None) -> Pretence:
    """Have all tensors of PyTorch's build for the CPU say that they lie on a device.

    put: `setattr`, or pytest's that undoes it.
    """
    said = Pretence(driver)
    put(torch.Tensor, "is_cuda", True)
    put(torch.Tensor, "get_device", lambda x: said.place(x) if said.places else 0)
    put(torch.Tensor, "__cuda_array_interface__", property(_described))
    put(torch.cuda, "current_device", lambda: said.current)
    if put is setattr:  # PyTorch's build for CUDA has it too
        put(torch._C, "_cuda_getCurrentRawStream", lambda device: said.stream)
    put(torch.cuda, "current_stream", lambda device=None: said)
    put(torch.cuda, "device", lambda device: _Device(said, device))
    return said


def without_waits(torch: Any) -> Any:
    """A context in which PyTorch raises where it would wait for a device to read a number."""
    from torch.utils._python_dispatch import TorchDispatchMode

    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore
            name = function.name().partition("::")[2].partition(".")[0]
            chosen = args[1] if name in ("index", "index_put_") else ()
            masks = any(each is not None and each.dtype == torch.bool for each in chosen)
            if name in waiting or masks:
                raise RuntimeError(f"{name} would wait for the device")
            return function(*args, **(kwargs or {}))

    return Watch()


def pretend_gpu(torch: Any) -> None:
    """As `pretend_cuda`, for a whole program that asks PyTorch for memory, events and graphs there.

    Its times mean nothing; that it runs to its end does.
    """
    pretend_cuda(torch)
    importlib.import_module("torch._dynamo")  # it needs the generator as a type
    made = torch.Generator

    class Cpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), options: Any = None
        ) -> Any:
            options = dict(options or {})
            if str(options.get("device", "")).startswith("cuda"):
                options["device"] = "cpu"
            return function(*arguments, **options)

    class Event:
        def __init__(self, **options: Any) -> None:
            self.time = 0.0

        def record(self) -> None:
            self.time = time.perf_counter()

        def elapsed_time(self, end: Event) -> float:
            return max(1e3 * (end.time - self.time), 1e-6)

    class Stream:
        cuda_stream = 0

        def wait_stream(self, other: Any) -> None:
            """Nothing is ever waited for."""

    class Graph:
        def replay(self) -> None:
            """Nothing was captured."""

    Cpu().__enter__()
    torch.Generator = lambda device="cpu": made()
    torch.compile = lambda function, **options: function
    cuda, stream = torch.cuda, Stream()
    cuda.is_available, cuda.get_device_name = lambda: True, lambda: "no device"
    cuda.get_device_properties = lambda device: types.SimpleNamespace(L2_cache_size=2**20)
    cuda.empty_cache = cuda.synchronize = lambda: None
    cuda.Event, cuda.Stream, cuda.CUDAGraph = Event, Stream, Graph
    cuda.graph = cuda.stream = contextlib.nullcontext
    cuda.current_stream = lambda device=None: stream


def _described(x: Any) -> dict[str, Any]:
    import numpy as np

    name = str(x.dtype).partition(".")[2]
    entry = x.element_size()
    strides = None if x.is_contiguous() else tuple(entry * s for s in x.stride())
    return {
        "typestr": np.dtype(name).str,
        "shape": tuple(x.shape),
        "strides": strides,
        "data": (x.data_ptr(), False),
        "version": 2,
    }
