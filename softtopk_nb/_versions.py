"""Versions and hardware of this installation."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import sys
from typing import IO

#: The oldest versions that the fronts are written for, as pyproject.toml declares them.
FLOORS = {"torch": "2.6", "jax": "0.7", "dask": "2025.1", "sklearn": "1.6"}


_NEEDED = "numba", "llvmlite", "numpy", "scipy", "numba-cuda"
_OF_FRONTS = "torch", "jax", "jaxlib", "dask", "scikit-learn"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def require(front: str, name: str) -> None:
    """Import the library of a front, or say which version of it to install.

    Raises
    ------
    ImportError
        If the library is not installed, or is older than the front is written for.
    """
    needs = f"softtopk_nb.{front} needs {name}"
    remedy = f"pip install softtopk_nb[{front}]"
    try:
        found = importlib.import_module(front).__version__
    except ImportError as error:
        raise ImportError(f"{needs}, which is not installed: {remedy}") from error
    if _numbers(found) < _numbers(FLOORS[front]):
        raise ImportError(f"{needs} {FLOORS[front]} or newer, found {found}: {remedy}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _simd() -> str:
    """The widest vectors that Numba compiles for on this machine."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    for feature, width in (("avx512f", 512), ("avx2", 256), ("avx", 256), ("sse2", 128)):
        if features.get(feature):
            return f"{width} bits ({feature})"
    return "128 bits (neon)" if features.get("neon") else "unknown"


def _gpu() -> tuple[str, str]:
    """(the GPU, or why there is none; the CUDA compiler). Asking loads the CUDA driver."""
    compiler = "unknown"
    try:
        from ._cuda.target import SIMULATED, cuda

        if SIMULATED:
            return "simulated on the CPU (NUMBA_ENABLE_CUDASIM)", "none"
        compiler = str(cuda.implementation)
        if compiler != "NVIDIA":
            compiler += ": numba-cuda is not in use (extras cuda12, cuda13)"
        if not cuda.is_available():
            return "none: no CUDA driver or device was found", compiler
        device = cuda.get_current_device()
        major, minor = device.compute_capability
        return f"{device.name} (compute capability {major}.{minor})", compiler
    except Exception as error:  # a broken driver must not hide the rest of the report
        return f"none: {type(error).__name__}: {error}", compiler


def show_versions(file: IO[str] | None = None) -> None:
    """Print the versions of the libraries, the number of threads, the SIMD width and the GPU.

    Parameters
    ----------
    file : text file, default=None
        Where to print; standard output by default.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> stk.show_versions()  # doctest: +SKIP
    softtopk_nb  0.1.0
    ...
    """
    import llvmlite.binding as llvm

    from . import __version__
    from ._compile import precompiled
    from ._threads.pool import thread_count

    gpu, compiler = _gpu()
    lines = {
        "softtopk_nb": __version__,
        "python": f"{platform.python_version()} ({platform.platform()})",
        **{name: _version(name) for name in (*_NEEDED, *_OF_FRONTS)},
        "cpu": llvm.get_host_cpu_name(),
        "SIMD": _simd(),
        "compiled for": precompiled.describe(),
        "threads": f"{thread_count()} of its own pool (no Numba threading layer is used)",
        "GPU": gpu,
        "numba.cuda": compiler,
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}", file=file or sys.stdout)
