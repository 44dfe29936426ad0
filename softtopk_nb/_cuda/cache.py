"""Compiled device kernels on disk, beside the compiled code for the CPU.

Numba's own cache of kernels identifies a closure by a pickle of the objects it holds, which differs
between processes. Here a closure is identified by its names, its code, and what it holds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import operator
import types
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.types import Type
from numba.cuda import dispatcher as cuda_dispatcher
from numba.cuda.cudadrv import nvvm

from .._compile.cache import Cache

#: The oldest numba-cuda whose kernels were compiled here, and the undocumented functions of it that
#: the package uses.
_OLDEST = "0.24"
_PRIVATE = {
    "codegen": (
        "CUDACodeLibrary.get_cubin",
        "CUDACodeLibrary.get_cufunc",
        "CUDACodeLibrary._reduce_states",
    ),
    "cudadrv.nvvm": ("NVVM.get_ir_version",),
    "dispatcher": ("CUDADispatcher.compile", "_Kernel._rebuild", "_Kernel._reduce_states"),
}


def _require() -> None:
    """Raise ImportError unless numba-cuda is installed, with all the functions that are used."""
    remedy = f"expected numba-cuda {_OLDEST} or newer: pip install softtopk_nb[cuda13] or [cuda12]"
    try:
        found = f"numba-cuda {importlib.metadata.version('numba-cuda')}"
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"kernels for a device need numba-cuda, {remedy}") from None
    for module, names in _PRIVATE.items():
        part = importlib.import_module(f"numba.cuda.{module}")
        for name in names:
            try:
                operator.attrgetter(name)(part)
            except AttributeError:
                raise ImportError(f"{found} has no {module}.{name}; {remedy}") from None


_require()

_PACKAGE = __name__.partition(".")[0]
_PLAIN = int, float, str, bool, type(None), np.dtype, np.generic, Type


class Unknown(Exception):
    """A closure holds an object without a description that is the same in every process."""


@functools.cache
def _compilers() -> tuple[str, ...]:
    """Versions of the packages that make machine code of a kernel, and of the compiler's IR."""
    installed = []
    for name in ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{name} {importlib.metadata.version(name)}")
    return *installed, str(nvvm.NVVM().get_ir_version())


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """A function's bytecode, names and constants."""
    constants = (_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, *constants


def fingerprint(made: Any) -> Any:
    """A description of an object, the same in every process with this version of the package.

    A function of another package, such as a user's curve, raises `Unknown`: what it calls may
    change.
    """
    if isinstance(made, (Dispatcher, cuda_dispatcher.CUDADispatcher)):
        return "compiled", fingerprint(made.py_func)
    if isinstance(made, types.FunctionType):
        if made.__module__.partition(".")[0] != _PACKAGE:
            raise Unknown(made)
        held = (fingerprint(cell.cell_contents) for cell in made.__closure__ or ())
        return made.__module__, made.__qualname__, *_code(made.__code__), *held
    if isinstance(made, tuple):
        return type(made).__qualname__, *map(fingerprint, made)
    if isinstance(made, type):
        return made.__module__, made.__qualname__
    if isinstance(made, _PLAIN):
        return repr(made)
    raise Unknown(made)


class KernelCache(Cache):
    """The disk cache of a kernel for one kind of device."""

    def __init__(self, function: Any, *compiled_for: Any) -> None:
        super().__init__(function)
        made_of = repr((fingerprint(function), compiled_for, _compilers()))
        self._made_of = hashlib.sha256(made_of.encode()).hexdigest()

    def _key(self, signature: Any) -> tuple[str, str]:
        return str(signature), self._made_of

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        state = self._cache_file.load(self._key(sig))
        return None if state is None else cuda_dispatcher._Kernel._rebuild(**state)

    def _save_overload(self, sig: Any, data: Any) -> None:
        """Write the machine code to disk, without its sources, which are twenty times as long."""
        data._codelibrary._llvm_strs, data._codelibrary._ptx_cache = [], {}
        self._cache_file.save(self._key(sig), data._reduce_states())


def keep(dispatcher: Any, *compiled_for: Any) -> None:
    """Make a dispatcher look for its kernel on disk before it compiles, and write it there."""
    with contextlib.suppress(Unknown):  # with a user's function it is compiled in each process
        dispatcher._cache = KernelCache(dispatcher.py_func, *compiled_for)
