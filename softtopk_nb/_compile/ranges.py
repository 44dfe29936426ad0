"""Kernels that several threads share: an entry point of their own in the machine code.

A kernel over ranges has `lo` and `hi` as its first parameters. Python may also call it with SHARED
for `lo` and the address of a *record* for `hi`. The kernel then writes its other arguments into
its stack frame, and calls the function that the record names. This gets three addresses: of the
record, of the entry point and of the arguments. With them any thread can run a range:
``entry_point(arguments, lo, hi)`` returns 0 unless the kernel raised.

So one compiled function shares out the work of all kernels, whatever their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

SHARED = -1
# A record has three words: the function to call, and the range that is wanted. If a range fails,
# the function writes it here and returns another number than 0; the kernel runs it again and
# raises.
FUNCTION, LO, HI = range(3)

_word = ir.IntType(64)


def is_over_ranges(function: Callable[..., Any]) -> bool:
    """Whether the kernel's first parameters are `lo` and `hi`."""
    return function.__code__.co_varnames[:2] == ("lo", "hi")


def entry_point_of(fndesc: Any) -> str:
    """The name of a kernel's entry point in its machine code."""
    return f"{fndesc.llvm_func_name}.entry_point"


def flat(context: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """Values of these types as a kernel gets them: an array is several arguments."""
    return list(context.get_arg_packer(kinds).as_arguments(builder, values))


def written(builder: Any, arguments: Any) -> Any:
    """The address of a kernel's arguments, behind `lo` and `hi`, in the caller's stack frame."""
    memory = cgutils.alloca_once(builder, ir.LiteralStructType([each.type for each in arguments]))
    for i, value in enumerate(arguments):
        builder.store(value, cgutils.gep_inbounds(builder, memory, 0, i))
    return builder.ptrtoint(memory, _word)


def _entry_point(module: Any, kernel: Any, name: str, kinds: Any) -> Any:
    """A function (arguments, lo, hi) -> status that calls the kernel on arguments `written`."""
    function = ir.Function(module, ir.FunctionType(ir.IntType(32), [_word, _word, _word]), name)
    builder = ir.IRBuilder(function.append_basic_block())
    address, lo, hi = function.args
    # Where the kernel writes its result, which is None, and the exception.
    own = [builder.alloca(each.pointee) for each in kernel.function_type.args[:2]]
    whole = builder.inttoptr(address, ir.LiteralStructType(kinds).as_pointer())
    places = [cgutils.gep_inbounds(builder, whole, 0, i) for i in range(len(kinds))]
    rest = [builder.load(place) for place in places]
    builder.ret(builder.call(kernel, [*own, lo, hi, *rest], attrs=("noinline",)))
    return function


def _shareable(module: Any, kernel: Any, entry_point: Any) -> Any:
    """A function called as the kernel is, which shares out its work if `lo` is SHARED."""
    function = ir.Function(module, kernel.function_type, f"{kernel.name}.shareable")
    function.linkage = "internal"
    result, exception, lo, hi, *rest = function.args
    begin = function.append_basic_block("begin")
    share, end, run = map(function.append_basic_block, ("share", "end", "run"))

    builder = ir.IRBuilder(begin)
    builder.cbranch(builder.icmp_signed("==", lo, _word(SHARED)), share, run)

    builder.position_at_end(share)
    record = builder.inttoptr(hi, _word.as_pointer())
    wanted, failed_lo, failed_hi = (builder.gep(record, [_word(i)]) for i in (FUNCTION, LO, HI))
    kind = ir.FunctionType(_word, [_word, _word, _word])
    call = builder.inttoptr(builder.load(wanted), kind.as_pointer())
    job = hi, builder.ptrtoint(entry_point, _word), written(builder, rest)
    failed = builder.icmp_signed("!=", builder.call(call, job), _word(0))
    again = builder.load(failed_lo), builder.load(failed_hi)
    builder.cbranch(failed, run, end)

    builder.position_at_end(end)
    builder.ret(ir.IntType(32)(0))

    builder.position_at_end(run)
    range_of_call = [builder.phi(_word) for _ in again]
    for each, given, failed in zip(range_of_call, (lo, hi), again, strict=True):
        each.add_incoming(given, begin)
        each.add_incoming(failed, share)
    # A jump: the other arguments stay where they are.
    given = [result, exception, *range_of_call, *rest]
    builder.ret(builder.call(kernel, given, tail=True, attrs=("noinline",)))
    return function


class _Lower(Lower):  # type: ignore[misc]  # Numba comes without type hints
    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Make what Python calls, as Numba does, of the function that can be shared."""
        context, fndesc = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
        kernel = ir.Function(module, kind, fndesc.llvm_func_name)
        kinds = [each.type for each in kernel.args[4:]]
        entry_point = _entry_point(module, kernel, entry_point_of(fndesc), kinds)
        function = _shareable(module, kernel, entry_point)
        PyCallWrapper(
            context, module, function, fndesc, self.env, self.call_helper, release_gil
        ).build()
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class Lowering(NativeLowering):  # type: ignore[misc]
    """Lower a kernel over ranges."""

    _name = "lowering_to_a_kernel_over_ranges"

    @property
    def lowering_class(self) -> Any:
        return _Lower
