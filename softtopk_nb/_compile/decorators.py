"""The compilers' settings, once: what every function handed to Numba is compiled with.

`kernel` marks what Python calls: compiled lazily, cached on disk, run without the GIL. `scalar`
marks what kernels are made of: it carries no fast-math flag, so that each formula is evaluated
as written in whatever loop it is inlined, and the same function can serve another target.
`summing` marks a loop whose sums may be reordered into SIMD lanes; the order is fixed by the
machine code, so equal input still gives equal bits.

Numba hands a caller's fast-math flags down to any callee that states none; hence every
decorator here states its own.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Callable
from typing import Any

from numba import config, njit, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.templates import infer, infer_global, make_overload_template

from .cache import Cache

if config.DISABLE_JIT:
    raise ImportError(
        "softtopk_nb is compiled by Numba and cannot run without it: unset NUMBA_DISABLE_JIT"
    )

_EXACT = {"fastmath": False, "error_model": "numpy"}
# No `nnan`, no `ninf`: the rules for NaN and infinities are promises.
_SUMS = {"reassoc", "contract", "nsz"}
# Only kernels are called from outside of compiled code.
_INNER = {"no_cfunc_wrapper": True, "nogil": True}
# Numba compiles a shared function once for each kernel, and which copy a process links depends
# on whether the disk cache was warm. Where sums may be reordered copies do not agree to the bit, so
# such loops are always made part of their kernel; and all that they call, for a loop with a call in
# it has no lanes, and the compiler would choose anew in each kernel.
_SHARED = {**_INNER, "no_cpython_wrapper": True, "forceinline": True}

_LOG = logging.getLogger("softtopk_nb")


def _cached(dispatcher: Any, told: str = "") -> Any:
    """Keep what this function is compiled to on disk."""
    dispatcher._cache = Cache(dispatcher.py_func, told)
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


def _logged(dispatcher: Any) -> Any:
    """Log the first time that this kernel is compiled for a type, and not found on the disk."""
    compile_now, told = dispatcher._compiler.compile, set()
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}".partition(".")[2]

    @functools.wraps(compile_now)
    def compile_and_tell(args: Any, return_type: Any) -> Any:
        arrays = (str(a.dtype) for a in args if isinstance(a, types.Array))
        of = next((t for t in arrays if t.startswith("float")), "any type")
        if of not in told:
            told.add(of)
            kept = f"kept in {dispatcher._cache.cache_path}" if dispatcher._cache.cache_path else ""
            _LOG.info("compiling %s for %s; %s", name, of, kept or "kept by this process alone")
        return compile_now(args, return_type)

    dispatcher._compiler.compile = compile_and_tell
    return dispatcher


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point over arrays: lazily, cached, without the GIL, IEEE arithmetic."""
    return _logged(_collector_paused(_cached(njit(**_INNER, **_EXACT)(function))))


def called_by_c(function: Callable[..., Any], told: str = "") -> Any:
    """As `kernel`, for a function of integers that is called from outside by its address.

    `told`: a name that says what it was made for, if it was made for something.
    """
    return _logged(_collector_paused(_cached(njit(nogil=True, **_EXACT)(function), told)))


def c_address(function: Any, *kinds: Any) -> int:
    """Where C finds such a function; compiled, if it is not yet."""
    function.compile(kinds)
    compiled = function.overloads[kinds]
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    return int(compiled.library.get_pointer_to_function(name))


@functools.cache
def in_memory(compiled: Any) -> Any:
    """The same kernel without the disk cache, for arguments whose types end with the process.

    A user's own functions are such: their code would be written to disk and never found again.
    """
    return _logged(_collector_paused(njit(**_INNER, **_EXACT)(compiled.py_func)))


def own(function: Callable[..., Any]) -> Any:
    """Compile a user's own function, for this process alone; it becomes part of its kernels."""
    return _collector_paused(njit(forceinline=True, **_EXACT)(function))


class _ByTypes(dict[Any, Any]):
    """Compiled forms by the types of their arguments, whatever the caller is compiled with.

    Numba keeps one for each set of the caller's flags, of which ours use none: the first call of
    an operator compiled a quarter of its functions twice.
    """

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key[:3])

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[:3], value)


def _overload(function: Callable[..., Any], choose: Callable[..., Any], **options: Any) -> None:
    """`numba.extending.overload`, with compiled forms that every caller shares."""
    strict = not options.pop("for_all", False)
    template = make_overload_template(function, choose, {**_SHARED, **options}, strict, "never")
    template._impl_cache = _ByTypes()
    infer(template)
    infer_global(function, types.Function(template))


def _shared(function: Callable[..., Any], **options: Any) -> Any:
    """Make a function callable from compiled code, and leave it callable from Python."""
    _overload(function, lambda *args, **kwargs: function, for_all=True, **options)
    return function


def scalar(function: Callable[..., Any]) -> Any:
    """Make a function callable from compiled code, and leave it callable from Python."""
    return _shared(function, **_EXACT)


def summing(function: Callable[..., Any]) -> Any:
    """As `scalar`, with sums that the vectoriser may reorder."""
    return _shared(function, fastmath=_SUMS, error_model="numpy")


def overload_scalar(function: Callable[..., Any]) -> Any:
    """Choose the compiled form of `function` by the types of its arguments."""

    def decorate(choose: Callable[..., Any]) -> Callable[..., Any]:
        _overload(function, choose, **_EXACT)
        return choose

    return decorate


def _specialized(make: Callable[..., Any], **options: Any) -> Any:
    @functools.wraps(make)
    def function(*args: Any) -> Any:
        return make(*args)(*args)

    _overload(function, make, **options)
    return function


def specialized(make: Callable[..., Any]) -> Any:
    """As `scalar`, for a function that `make` makes anew for each set of argument types.

    What follows from the types alone is a constant of the function made: a branch on it is dropped
    before anything in it is compiled. From Python `make` gets the arguments themselves.
    """
    return _specialized(make, **_EXACT)


def specialized_summing(make: Callable[..., Any]) -> Any:
    """As `specialized`, with sums that the vectoriser may reorder."""
    return _specialized(make, fastmath=_SUMS, error_model="numpy")


# A child forked while another thread compiles would inherit a lock that nobody will release.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
