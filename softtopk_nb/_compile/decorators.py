"""The compiler settings for every function handed to Numba, in one place.

`kernel` marks a function that Python calls: compiled lazily, cached on disk, run without the GIL.
`scalar` marks a function called by kernels: it carries no fast-math flag, so that each formula is
evaluated as written in whatever loop it is inlined, and it can be compiled for other targets.
`summing` marks a loop whose sums may be reordered into SIMD lanes; the order is fixed by the
machine code, so equal input still gives equal bits.

Numba passes a caller's fast-math flags on to any callee that states none; hence every
decorator here states its own.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
from collections.abc import Callable
from typing import Any

from numba import config, njit, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.target_extension import get_local_target, target_registry
from numba.core.typing.templates import (
    _OverloadFunctionTemplate,
    infer,
    infer_global,
    make_overload_template,
)

from . import announce, collector, precompiled
from .cache import Cache
from .pipeline import HelperCompiler, KernelCompiler

if config.DISABLE_JIT:
    raise ImportError(
        "softtopk_nb is compiled by Numba and cannot run without it: unset NUMBA_DISABLE_JIT"
    )

_EXACT = {"fastmath": False, "error_model": "numpy"}
ON_ARM = platform.machine() in ("aarch64", "arm64", "ARM64")
# No `nnan`, no `ninf`: the rules for NaN and infinities are promises. For ARM, LLVM decides anew in
# each kernel which products to fuse with sums, by what else is computed: bits would differ.
_SUMS = {"reassoc", "nsz"} if ON_ARM else {"reassoc", "nsz", "contract"}
# Only kernels are called from Python.
_INNER = {"no_cfunc_wrapper": True, "nogil": True}
_KERNEL = {**_INNER, "pipeline_class": KernelCompiler}
# Numba compiles a shared function once for each kernel, and which copy a process links depends
# on whether the disk cache was warm. Where sums may be reordered, copies differ in the last bits,
# so such loops are always inlined into their kernel, with all that they call: a loop that contains
# a call is not vectorised, and the compiler would decide on inlining anew in each kernel.
_SHARED = {**_INNER, "no_cpython_wrapper": True, "forceinline": True}

_LOG = logging.getLogger("softtopk_nb")


def _cached(dispatcher: Any, label: str = "") -> Any:
    """Cache the function's compiled code on disk; returns its dispatcher."""
    dispatcher._cache = Cache(dispatcher.py_func, label)
    return dispatcher


def _collector_paused(dispatcher: Any) -> Any:
    """Pause the garbage collector while this function compiles."""
    compile_now = dispatcher.compile

    @functools.wraps(compile_now)
    def compile_paused(signature: Any) -> Any:
        with collector.paused(), precompiled.compiling():
            return compile_now(signature)

    dispatcher.compile = compile_paused
    return dispatcher


def _logged(dispatcher: Any) -> Any:
    """Log the first compilation of this kernel for each float type, unless it is found on disk."""
    compile_now, label = dispatcher._compiler.compile, set()
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}".partition(".")[2]

    @functools.wraps(compile_now)
    def compile_and_tell(args: Any, return_type: Any) -> Any:
        arrays = (str(a.dtype) for a in args if isinstance(a, types.Array))
        of = next((t for t in arrays if t.startswith("float")), "any type")
        folder = dispatcher._cache.cache_path
        if of not in label:
            label.add(of)
            kept = f"kept in {folder}" if folder else ""
            _LOG.info("compiling %s for %s; %s", name, of, kept or "kept by this process alone")
        with announce.waiting(name, of, bool(folder)):
            return compile_now(args, return_type)

    dispatcher._compiler.compile = compile_and_tell
    return dispatcher


def _by_types(dispatcher: Any) -> Any:
    """Compile for the types of the arguments alone where compiled code calls this kernel.

    Numba would compile it anew for each number that the calling code spells out.
    """
    template_for = dispatcher.get_call_template

    @functools.wraps(template_for)
    def template_by_types(args: Any, kws: Any) -> Any:
        kinds = {name: types.unliteral(kind) for name, kind in kws.items()}
        return template_for(tuple(map(types.unliteral, args)), kinds)

    dispatcher.get_call_template = template_by_types
    return dispatcher


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function of arrays for Python: lazily, cached, without the GIL, IEEE arithmetic.

    If its first parameters are `lo` and `hi`, several threads can share its work.
    """
    made = _cached(njit(**_KERNEL, **_EXACT)(function))
    if precompiled.is_shipped():

        def unshipped() -> Cache:
            return Cache(function, shipped=False)

        made = precompiled.apart_in_compiled_code(made, unshipped, {**_KERNEL, **_EXACT})
    return _logged(_collector_paused(_by_types(made)))


def called_by_c(function: Callable[..., Any], label: str = "") -> Any:
    """Compile as `kernel` does, for a function of integers that C calls by its address.

    `label`: identifies the closure in the disk cache, if the function is one.
    """
    return _logged(_collector_paused(_cached(njit(nogil=True, **_EXACT)(function), label)))


def c_address(function: Any, *kinds: Any) -> int:
    """The address at which C calls such a function; compiles it first if needed."""
    function.compile(kinds)
    compiled = function.overloads[kinds]
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    return int(compiled.library.get_pointer_to_function(name))


@functools.cache
def in_memory(compiled: Any) -> Any:
    """The kernel without the disk cache, for arguments whose types end with the process.

    A user's own functions are such: their code would be cached on disk and never found again.
    """
    return _logged(_collector_paused(_by_types(njit(**_KERNEL, **_EXACT)(compiled.py_func))))


def own(function: Callable[..., Any]) -> Any:
    """Compile a user's own function, for this process alone; it becomes part of its kernels."""
    return _collector_paused(njit(forceinline=True, **_EXACT)(function))


class _ByTypes(dict[Any, Any]):
    """Compiled overloads by argument types and processor, whatever the flags of the caller.

    Numba keeps one for each set of the caller's flags, which do not matter here: the first call of
    an operator compiled a quarter of its functions twice.
    """

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._of(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(self._of(key), value)

    @staticmethod
    def _of(key: Any) -> Any:
        return *key[:3], cpu_target.target_context.codegen()


def _jit_of_helper(template: Any) -> Any:
    """The decorator with which a helper is compiled, for the target of the calling code."""
    jit = _OverloadFunctionTemplate._get_jit_decorator(template)
    on_cpu = get_local_target(template.context) is target_registry["cpu"]
    return functools.partial(jit, pipeline_class=HelperCompiler) if on_cpu else jit


def _overload(function: Callable[..., Any], choose: Callable[..., Any], **options: Any) -> None:
    """`numba.extending.overload`, with compiled overloads that all callers share."""
    strict = not options.pop("for_all", False)
    template = make_overload_template(function, choose, {**_SHARED, **options}, strict, "never")
    template._impl_cache = _ByTypes()
    template._get_jit_decorator = _jit_of_helper
    infer(template)
    infer_global(function, types.Function(template))


def _shared(function: Callable[..., Any], **options: Any) -> Any:
    """Make a function callable from compiled code too, compiled with these options."""
    _overload(function, lambda *args, **kwargs: function, for_all=True, **options)
    return function


def scalar(function: Callable[..., Any]) -> Any:
    """Make a function callable from compiled code too; floating point is evaluated as written."""
    return _shared(function, **_EXACT)


def summing(function: Callable[..., Any]) -> Any:
    """Make a function callable from compiled code too; the vectoriser may reorder its sums."""
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
    """Make a function callable from compiled code whose body `make` builds for the argument types.

    What follows from the types alone is a constant of the function made: a branch on it is removed
    before its body is compiled. From Python `make` gets the arguments themselves.
    """
    return _specialized(make, **_EXACT)


def specialized_summing(make: Callable[..., Any]) -> Any:
    """Compile as `specialized` does; the vectoriser may reorder the sums."""
    return _specialized(make, fastmath=_SUMS, error_model="numpy")


# A child forked while another thread compiles would inherit a lock that nobody will release.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )
