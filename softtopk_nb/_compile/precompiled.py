"""Machine code that comes with the package, and the processor that kernels are compiled for.

A wheel may hold compiled kernels for a level: a set of instructions that many processors have.
Where one is for this Python, this Numba and this processor, all kernels of the process are of
that level: what came with the package is loaded, and the rest is compiled for the level too, so
that no two kernels round differently. Where none is, nothing here is in the way of Numba.

Code is read from inside the package alone, and is trusted as its sources are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import pathlib
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numba
from numba import config, njit
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

_V3 = {
    *("cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2"),
    *("bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
#: The levels, best first: the machine, the processor and the features, by LLVM's names.
LEVELS: dict[str, tuple[str, str, set[str]]] = {
    "x86-64-v4": ("x86_64", "x86-64-v4", _V4),
    "x86-64-v3": ("x86_64", "x86-64-v3", _V3),
    "armv8-a": ("aarch64", "generic", set()),
}
NATIVE = "native"
VARIABLE = "SOFTTOPK_NB_LEVEL"
FOLDER = pathlib.Path(__file__).parent.parent / "_precompiled"
#: The name under which a store has the digest of the sources that it was compiled from.
STAMP = "sources"

# What reading damaged code raises; a Python without lzma cannot open a store.
_DAMAGED: tuple[type[Exception], ...] = (zipfile.BadZipFile,)
with contextlib.suppress(ImportError):
    from lzma import LZMAError

    _DAMAGED += (LZMAError,)
_UNREADABLE: tuple[type[Exception], ...] = (OSError, KeyError, RuntimeError, *_DAMAGED)

_LOG = logging.getLogger("softtopk_nb")


def _asked() -> str:
    """The level that the user asks for, or ""."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", NATIVE, *LEVELS):
        expected = ", ".join((NATIVE, *LEVELS))
        raise ValueError(f"the environment variable {VARIABLE} is {asked!r}; expected {expected}")
    if asked in LEVELS and asked not in supported():
        raise ValueError(
            f"the environment variable {VARIABLE} is {asked!r}; this processor "
            f"({llvm.get_host_cpu_name()}) has levels {', '.join(supported()) or NATIVE}"
        )
    return asked


@functools.cache
def supported() -> tuple[str, ...]:
    """The levels that this processor has, best first."""
    machine, _, _ = llvm.get_process_triple().partition("-")
    host = llvm.get_host_cpu_features()
    return tuple(
        name
        for name, (its, _, needs) in LEVELS.items()
        if its == machine and all(host.get(each) for each in needs)
    )


def is_shipped() -> bool:
    """Whether compiled code came with the package; False too where its folder cannot be read."""
    return os.path.isdir(FOLDER)


def tag() -> str:
    """What compiled code is for, besides a level: the folder that holds it."""
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    compiler = f"numba{numba.__version__}-llvmlite{llvmlite.__version__}"
    return f"{python}-{compiler}-{llvm.get_process_triple()}"


def entry(module: str, qualname: str, label: str, signature: Any) -> str:
    """The name of a kernel in a store."""
    named = repr((module, qualname, label, str(signature)))
    return hashlib.sha256(named.encode()).hexdigest()[:32]


class _LevelCodegen(JITCPUCodegen):  # type: ignore[misc]  # Numba comes without type hints
    """As Numba compiles for the processor it runs on, for a level."""

    level: str

    def _get_host_cpu_name(self) -> str:
        return LEVELS[self.level][1]

    def _customize_tm_features(self) -> str:
        return ""


class Store(NamedTuple):
    """The compiled kernels of one level; every entry has a checksum of its own."""

    level: str
    path: pathlib.Path
    kernels: zipfile.ZipFile
    codegen: Any

    @classmethod
    def open(cls, level: str, path: pathlib.Path, stamp: bytes) -> Store:
        """Open the file; ValueError says why it cannot be used."""
        try:
            # In memory, once: a process that is forked must not share a place in a file.
            kernels = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
            found = kernels.read(STAMP)
        except _UNREADABLE as error:
            raise ValueError(f"{path} cannot be read ({error})") from error
        if found != stamp:
            raise ValueError(f"{path} was compiled from other sources")
        of_level = type("_Codegen", (_LevelCodegen,), {"level": level})
        return cls(level, path, kernels, of_level("softtopk_nb.exec"))

    def load(self, name: str) -> Any:
        """What Numba makes a compiled kernel of; None if there is none of this name."""
        try:
            return pickle.loads(self.kernels.read(name))
        except KeyError:
            return None
        except _DAMAGED as error:  # it is compiled for the level instead
            _LOG.info("a kernel in %s is damaged (%s); compiling it", self.path, error)
            return None


def _choose() -> tuple[Store | None, str]:
    """(the store that this process uses, or None; why)."""
    asked = _asked()
    if asked == NATIVE:
        return None, f"{VARIABLE} asks for it"
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None or not config.ENABLE_AVX:
        return None, "a variable of Numba's names the processor"
    from .stamp import package_stamp

    for level in [asked] if asked else supported():
        path = FOLDER / tag() / f"{level}.zip"
        if os.path.isfile(path):
            try:
                return Store.open(level, path, package_stamp()), str(path)
            except ValueError as error:
                return None, str(error)
    wanted = asked or " or ".join(supported()) or "this processor"
    return None, f"no compiled code came with the package for {wanted} and {tag()}"


@functools.cache
def chosen() -> tuple[Store | None, str]:
    """(the store of this process, or None if kernels are compiled for the processor; why)."""
    store, why = _choose()
    asked = os.environ.get(VARIABLE, "")
    if store is None and asked in LEVELS:
        warnings.warn(f"{VARIABLE} is {asked!r} and has no effect: {why}", stacklevel=2)
    elif store is None and is_shipped() and asked != NATIVE:
        _LOG.info("compiling kernels for this processor: %s", why)
    return store, why


def store() -> Store | None:
    """The store of this process, or None if kernels are compiled for the processor."""
    return chosen()[0]


def describe() -> str:
    """The processor that kernels are compiled for, and where they come from."""
    found, why = chosen()
    return f"{found.level if found else NATIVE} ({why})"


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let what is loaded or compiled meanwhile be for the level of this process."""
    context = cpu_target.target_context
    with global_compiler_lock:
        found, own = store(), context.codegen()
        if found is not None:
            context._internal_codegen = found.codegen
        try:
            yield
        finally:
            context._internal_codegen = own


def load(function: Any, label: str, signature: Any, context: Any) -> Any:
    """The compiled kernel that came with the package, or None."""
    found = store()
    if found is None or context.codegen() is not found.codegen:
        return None
    payload = found.load(entry(function.__module__, function.__qualname__, label, signature))
    if payload is None:
        return None
    rtsys.initialize(context)  # sets up memory allocation
    return CompileResult._rebuild(context, *payload)


def apart_in_compiled_code(dispatcher: Any, make_cache: Callable[[], Any], options: Any) -> Any:
    """Give compiled code that calls this kernel a form of its own; returns the dispatcher.

    A kernel that came with the package cannot become part of other code, and other code may be for
    another processor than the level.
    """

    @functools.cache
    def form(codegen: Any) -> Any:
        made = njit(**options)(dispatcher.py_func)
        made._cache = make_cache()
        return made

    def current() -> Any:
        return form(dispatcher.targetctx.codegen())

    own = dispatcher.get_call_template, dispatcher.get_overload
    dispatcher.get_call_template = lambda args, kws: (
        current().get_call_template(args, kws) if store() else own[0](args, kws)
    )
    dispatcher.get_overload = lambda signature: (
        current().get_overload(signature) if store() else own[1](signature)
    )
    return dispatcher


_asked()  # a name that is wrong is reported when the package is imported
