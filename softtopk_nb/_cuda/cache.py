"""Compiled kernels on disk, where the CPU's compiled code is.

Numba's own cache of kernels tells two closures apart by a pickle of what they hold, which differs
between processes. Here a closure is told by what it is made of: names, code, and what it holds.
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

from .._compile.cache import Cache

#: The oldest numba-cuda whose kernels were compiled here, and what the package uses of it that is
#: not documented.
_OLDEST = "0.24"
_PRIVATE = {
    "codegen": ("CUDACodeLibrary.get_cubin", "CUDACodeLibrary._reduce_states"),
    "cudadrv.nvvm": ("NVVM.get_ir_version",),
    "dispatcher": ("CUDADispatcher.compile", "_Kernel._rebuild", "_Kernel._reduce_states"),
}


def _require() -> None:
    """Raise ImportError unless numba-cuda is there, with all that is used of it."""
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

# After it has been looked at.
from numba.cuda.cudadrv import nvvm  # noqa: E402
from numba.cuda.dispatcher import CUDADispatcher, _Kernel  # noqa: E402

_PACKAGE = __name__.partition(".")[0]
_PLAIN = int, float, str, bool, type(None), np.dtype, np.generic, Type


class Unknown(Exception):
    """What a closure holds has no description that is the same in every process."""


@functools.cache
def _compilers() -> tuple[str, ...]:
    """The versions of what makes machine code of a kernel; the system's toolkit says its IR's."""
    installed = []
    for name in ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{name} {importlib.metadata.version(name)}")
    return *installed, str(nvvm.NVVM().get_ir_version())


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """A function's instructions and the constants in them."""
    constants = (_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, *constants


def fingerprint(made: Any) -> Any:
    """What an object is made of, the same in every process that has this version of the package.

    A function of another package, such as a user's curve, has none: what it calls may change.
    """
    if isinstance(made, (Dispatcher, CUDADispatcher)):
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
        return None if state is None else _Kernel._rebuild(**state)

    def _save_overload(self, sig: Any, data: Any) -> None:
        """Keep the machine code alone: what it was made from is twenty times as long."""
        data._codelibrary._llvm_strs, data._codelibrary._ptx_cache = [], {}
        self._cache_file.save(self._key(sig), data._reduce_states())


def keep(dispatcher: Any, *compiled_for: Any) -> None:
    """Have a dispatcher look for its kernel on disk before it compiles it, and put it there."""
    with contextlib.suppress(Unknown):  # with a function of a user's it is compiled each time
        dispatcher._cache = KernelCache(dispatcher.py_func, *compiled_for)
