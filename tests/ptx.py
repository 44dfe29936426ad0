"""Kernels compiled for a device that need not be there: PTX, machine code, and what they use."""

import collections
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from numba import types

CAPABILITIES = [(8, 0), (9, 0)]


class Report(NamedTuple):
    ptx: str
    registers: int
    stack: int
    spilled: int  # bytes, stores and loads
    shared: int
    binary: bytes

    def count(self, pattern):
        return len(re.findall(pattern, self.ptx))

    def wide(self, operation):
        """Instructions that move 16 bytes of global memory: LDG or STG."""
        return len(re.findall(rf"\b{operation}\.E\S*\.128", _disassembled(self.binary)))


def doubles(ptx):
    """Instructions on float64."""
    return len(re.findall(r"\.f64\b", ptx))


def doubles_alike(ptx):
    """How often the one instruction on float64 occurs that occurs most often."""
    kinds = collections.Counter(re.findall(r"[\w.]*\.f64\b[\w.]*", ptx))
    return max(kinds.values(), default=0)


class _Capability:
    def __init__(self, capability):
        self.compute_capability = capability


@functools.cache
def _tool(name):
    """ptxas or nvdisasm: from the NVIDIA wheels, or from the system."""
    from cuda import pathfinder

    found = pathfinder.find_nvidia_binary_utility(name) or shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} was not found; it is part of the extra `ptx`")
    return found


def compile_for(kernel, capability):
    """PTX of a kernel of the package, a `_cuda.launch.Kernel`."""
    import numba.cuda.dispatcher
    from numba import cuda

    # A device function asks for the current device even where the capability is given.
    asked = numba.cuda.dispatcher.get_current_device
    numba.cuda.dispatcher.get_current_device = lambda: _Capability(capability)
    try:
        ptx, _ = cuda.compile(
            kernel.function,
            types.void(*kernel.arguments),
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=kernel.bounds,
        )
    finally:
        numba.cuda.dispatcher.get_current_device = asked
    return ptx


@functools.lru_cache(maxsize=1)
def _disassembled(binary):
    """The machine code in a file that ptxas has written, as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "k.cubin")
        path.write_bytes(binary)
        # To find out where branches lead takes time, and nobody asks.
        command = [_tool("nvdisasm"), "--print-code", "--no-dataflow", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def report(kernel, capability=(9, 0)):
    ptx = compile_for(kernel, capability)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(ptx)
        arch = f"-arch=sm_{capability[0]}{capability[1]}"
        done = subprocess.run(
            [_tool("ptxas"), "-v", arch, source, "-o", binary],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        machine_code = binary.read_bytes()

    def number(pattern):
        found = re.search(pattern, done.stderr)
        return int(found.group(1)) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return Report(
        ptx,
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        spilled,
        number(r"(\d+) bytes smem"),
        machine_code,
    )


@functools.cache
def usable():
    """None, or why kernels cannot be compiled here."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "the simulator does not compile"
    try:
        from numba import cuda

        if cuda.implementation != "NVIDIA":
            return "numba-cuda is not installed"
        cuda.compile(lambda x: None, types.void(types.int32), device=False, abi="numba", cc=(9, 0))
        _tool("ptxas")
        _tool("nvdisasm")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
