"""The compilers' settings, once: what every function handed to Numba is compiled with.

`kernel` marks what Python calls: compiled lazily, cached on disk, run without the GIL. `scalar`
marks what kernels are made of: it carries no fast-math flag, so that each formula is evaluated
as written in whatever loop it is inlined, and the same function can serve another target.
`summing` marks a loop whose sums may be reordered into SIMD lanes, `row` what contains such a
loop; the order is fixed by the machine code, so equal input still gives equal bits.

Numba hands a caller's fast-math flags down to any callee that states none; hence every
decorator here states its own.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import overload, register_jitable

__all__ = ["in_memory", "kernel", "overload_scalar", "package_stamp", "row", "scalar", "summing"]

_EXACT = {"fastmath": False, "error_model": "numpy"}
# No `nnan`, no `ninf`: the rules for NaN and infinities are promises.
_SUMS = {"reassoc", "contract", "nsz"}
# Only kernels are called from outside of compiled code.
_INNER = {"no_cfunc_wrapper": True, "nogil": True}
# Numba compiles a shared function once for each kernel, and which copy a process links depends
# on whether the disk cache was warm. For IEEE arithmetic all copies agree to the bit; where sums
# may be reordered they do not, so such loops are always made part of their kernel.
_INLINE = {"forceinline": True}


@functools.cache
def package_stamp() -> bytes:
    """Digest of every source file of the package: the age of all its cached machine code.

    Numba stamps a cached function with the file that holds it, and does not see that a function
    inlined from another file has changed; after an upgrade it would answer with the old code.
    """
    root = pathlib.Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.digest()


# Numba has no type hints: to mypy its class could be anything.
class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Compiled code of a function on disk, which several processes may read and write at a time.

    Numba numbers the files of machine code, and writes first which number is whose. Two processes
    can choose the same number, and a third can read before the file is there, and find that of an
    older version: each would run code for other arguments. Here a name says for what the code is,
    and is told when the file is there. What can be lost is a name, and then the code is compiled
    again.
    """

    def save(self, key: Any, data: Any) -> None:
        overloads = self._load_index()
        base = self._index_name.removesuffix(".nbi")
        version = self._source_stamp.hex()[:16]
        if not overloads:
            for old in pathlib.Path(self._cache_path).glob(f"{base}.*.nbc"):
                if not old.name.startswith(f"{base}.{version}"):
                    with contextlib.suppress(OSError):
                        old.unlink()
        name = f"{base}.{version}-{hashlib.sha256(self._dump(key)).hexdigest()[:16]}.nbc"
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})


def _cached(dispatcher: Any) -> Any:
    """Enable the disk cache, unless no directory can be written: then compile in each process."""
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        return dispatcher
    cache, file = dispatcher._cache, dispatcher._cache._cache_file
    cache._cache_file = _CacheFile(
        file._cache_path, file._index_name.removesuffix(".nbi"), package_stamp()
    )
    return dispatcher


def _collector_paused(dispatcher: Any) -> Any:
    """Pause the cyclic garbage collector while this function compiles: a fifth of the time.

    Compiling makes a great many objects that live until it ends, and each pass of the collector
    walks them all. Whoever found the collector running starts it again.
    """
    compile_now = dispatcher.compile

    @functools.wraps(compile_now)
    def compile_paused(signature: Any) -> Any:
        running = gc.isenabled()
        gc.disable()
        try:
            return compile_now(signature)
        finally:
            if running:
                gc.enable()

    dispatcher.compile = compile_paused
    return dispatcher


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point over arrays: lazily, cached, without the GIL, IEEE arithmetic."""
    return _collector_paused(_cached(njit(**_INNER, **_EXACT)(function)))


@functools.cache
def in_memory(compiled: Any) -> Any:
    """The same kernel without the disk cache, for arguments whose types end with the process.

    A user's own functions are such: their code would be written to disk and never found again.
    """
    return _collector_paused(njit(**_INNER, **_EXACT)(compiled.py_func))


def scalar(function: Callable[..., Any]) -> Any:
    """Make a function callable from compiled code, and leave it callable from Python."""
    return register_jitable(**_INNER, **_EXACT)(function)


def summing(function: Callable[..., Any]) -> Any:
    """As `scalar`, with sums that the vectoriser may reorder."""
    return register_jitable(**_INNER, **_INLINE, fastmath=_SUMS, error_model="numpy")(function)


def row(function: Callable[..., Any]) -> Any:
    """As `scalar`, for a function that calls `summing` ones: it too becomes part of its kernel."""
    return register_jitable(**_INNER, **_INLINE, **_EXACT)(function)


def overload_scalar(function: Callable[..., Any], *, inline: bool = False) -> Any:
    """Choose the compiled form of `function` by the types of its arguments."""
    return overload(function, jit_options={**_INNER, **(_INLINE if inline else {}), **_EXACT})


# A child forked while another thread compiles would inherit a lock that nobody will release.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
