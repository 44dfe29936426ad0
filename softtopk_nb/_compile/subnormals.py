"""Keep subnormal numbers in threads whose processor is set to flush them to 0.

XLA sets its threads so, and `torch.set_flush_denormal` the calling one. Kernels would then give
other bits, by the thread that has the row, and find that 5e-324 <= 0.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .decorators import ON_ARM, kernel, scalar

_X86 = platform.machine() in ("x86_64", "AMD64")
# The bits that flush: in MXCSR (results, arguments), in FPCR (both). 0 on other processors.
_FLUSHING = 1 << 15 | 1 << 6 if _X86 else 1 << 24 if ON_ARM else 0
#: Half of this is 0 in a thread that flushes; 1 where the processor cannot be set not to.
LEAST = 2.0**-1022 if _FLUSHING else 1.0

_word, _half = ir.IntType(64), ir.IntType(32)


def _bytes(builder: Any, place: Any) -> Any:
    return builder.bitcast(place, ir.IntType(8).as_pointer())


def _intrinsic(builder: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [each.type for each in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


@intrinsic
def _control(typingctx: Any) -> Any:
    """The control word of floating-point arithmetic in this thread (MXCSR or FPCR; otherwise 0)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _X86:
            place = cgutils.alloca_once(builder, _half)
            _intrinsic(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), _bytes(builder, place))
            return builder.zext(builder.load(place), _word)
        return _intrinsic(builder, "llvm.aarch64.get.fpcr", _word) if ON_ARM else _word(0)

    return types.int64(), codegen


@intrinsic
def _set_control(typingctx: Any, control: Any) -> Any:
    """Set the control word; no arithmetic is moved across this by the compiler."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("acq_rel", "singlethread")
        if _X86:
            place = cgutils.alloca_once(builder, _half)
            builder.store(builder.trunc(args[0], _half), place)
            _intrinsic(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), _bytes(builder, place))
        elif ON_ARM:
            _intrinsic(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), args[0])
        builder.fence("acq_rel", "singlethread")
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@scalar
def keep() -> Any:
    """Keep subnormal numbers in this thread from here on; returns the setting for `restore`."""
    control = _control()
    if control & _FLUSHING:
        _set_control(control & ~_FLUSHING)
    return control


@scalar
def restore(control: Any) -> None:
    """Set the thread as it was before `keep`, which returned `control`."""
    if control & _FLUSHING:
        _set_control(control)


@kernel
def _keep() -> Any:
    return keep()


@kernel
def _restore(control: Any) -> None:
    restore(control)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keep subnormal numbers in this thread within a `with` statement."""
    control = _keep()
    try:
        yield
    finally:
        _restore(control)
