"""Jobs that several threads share in machine code, without holding the GIL.

A kernel that needs more than one thread is called through `shared`. It writes the kernel's address
and arguments, the *job*, into its own stack frame; writes the job's address into the *boxes* of the
helper threads that its caller has reserved; and takes ranges until none is left, as do the helpers.
A helper waits in `serve`, where it polls its box for a while, and returns to Python only if no job
came. From the offer of a job to its last range no thread touches a Python object, so that none of
them ever waits for the GIL.

The kernel is called where it was compiled: every range of a row batch, in whichever thread, and a
call that one thread does alone execute the same instructions, and give the same bits.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._compile.decorators import kernel, scalar

WORD = 8  # bytes; every field below is one word, a signed integer, and these are byte offsets

# Fields of a helper's box, and its size in words: whole cache lines on any machine.
STATE, JOB, NEXT = range(0, 3 * WORD, WORD)
BOX = 32
IDLE, OFFERED, TAKEN = 0, 1, 2  # states: an offered job may be withdrawn

# Fields of a job: the function that calls the kernel on the arguments behind them; units of work
# (UNIT rows each) and how many of them are taken; and the range that failed, if any.
CALL, KERNEL, COUNT, UNIT, UNITS, THREADS, FAILED, FAILED_LO, FAILED_HI = range(0, 9 * WORD, WORD)
BEGUN = 16 * WORD  # on another cache line than the fields that are only read
JOB_WORDS = 32

YIELD_AFTER = 4096  # pauses before a waiting thread yields its core

_word = ir.IntType(64)
_yields = os.name == "posix"


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _word.as_pointer())


@intrinsic
def get(typingctx: Any, address: Any) -> Any:
    """The word at this address (atomic load, acquire)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_at(builder, args[0]), "acquire", WORD)

    return types.int64(types.int64), codegen


@intrinsic
def put(typingctx: Any, address: Any, value: Any) -> Any:
    """Write a word to this address (atomic store, release)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _at(builder, args[0]), "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def replace(typingctx: Any, address: Any, old: Any, new: Any) -> Any:
    """Replace the word at this address if it is still `old` (atomic); returns whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_at(builder, args[0]), args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the core that this thread is in a spin loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def offer_core(typingctx: Any) -> Any:
    """Yield this core to another thread, where the system offers that."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _yields:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


def _struct(context: Any, arguments: Any) -> Any:
    """The type of a job in memory: its words, then the kernel's arguments."""
    words = ir.ArrayType(_word, JOB_WORDS)
    return ir.LiteralStructType([words, *(context.get_value_type(kind) for kind in arguments)])


def _caller(context: Any, builder: Any, arguments: Any) -> Any:
    """A function (job, lo, hi) -> status that calls a job's kernel, for these argument types."""
    struct = _struct(context, arguments)
    kind = ir.FunctionType(ir.IntType(32), [_word, _word, _word])
    function = ir.Function(builder.module, kind, builder.module.get_unique_name("call_kernel"))
    function.linkage = "internal"
    inner = ir.IRBuilder(function.append_basic_block())
    job, lo, hi = function.args
    whole = inner.inttoptr(job, struct.as_pointer())
    places = [cgutils.gep_inbounds(inner, whole, 0, 1 + i) for i in range(len(arguments))]
    values = [inner.load(place) for place in places]
    address = inner.load(_at(inner, inner.add(job, _word(KERNEL))))
    kinds = (types.int64, types.int64, *arguments)
    callee = context.call_conv.get_function_type(types.none, kinds)
    status, _ = context.call_conv.call_function(
        inner, inner.inttoptr(address, callee.as_pointer()), types.none, kinds, [lo, hi, *values]
    )
    inner.ret(status.code)
    return function


@intrinsic
def written_down(typingctx: Any, address: Any, arguments: Any) -> Any:
    """The address of a job with this kernel and arguments, in the caller's stack frame."""
    kinds = tuple(arguments)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        job = cgutils.alloca_once(builder, _struct(context, kinds))
        job.align = 128
        for i, value in enumerate(cgutils.unpack_tuple(builder, args[1])):
            builder.store(value, cgutils.gep_inbounds(builder, job, 0, 1 + i))
        function = builder.ptrtoint(_caller(context, builder, kinds), _word)
        for word, value in ((CALL, function), (KERNEL, args[0])):
            builder.store(value, cgutils.gep_inbounds(builder, job, 0, 0, word // WORD))
        return builder.ptrtoint(job, _word)

    return types.int64(types.int64, arguments), codegen


@intrinsic
def call_kernel(typingctx: Any, function: Any, job: Any, lo: Any, hi: Any) -> Any:
    """Call a job's kernel on lo .. hi by `function`; returns its status, 0 unless it raised."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_word, _word, _word])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int32(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def call_and_raise(typingctx: Any, address: Any, lo: Any, hi: Any, arguments: Any) -> Any:
    """Call the kernel at this address on lo .. hi, and raise what it raises."""
    kinds = (types.int64, types.int64, *arguments)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        callee = context.call_conv.get_function_type(types.none, kinds)
        values = [args[1], args[2], *cgutils.unpack_tuple(builder, args[3])]
        status, _ = context.call_conv.call_function(
            builder, builder.inttoptr(args[0], callee.as_pointer()), types.none, kinds, values
        )
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, arguments), codegen


@intrinsic
def call_at(typingctx: Any, address: Any, lo: Any, hi: Any, arguments: Any) -> Any:
    """Call the kernel at this address on lo .. hi; returns its status, 0 unless it raised."""
    kinds = (types.int64, types.int64, *arguments)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        callee = context.call_conv.get_function_type(types.none, kinds)
        values = [args[1], args[2], *cgutils.unpack_tuple(builder, args[3])]
        status, _ = context.call_conv.call_function(
            builder, builder.inttoptr(args[0], callee.as_pointer()), types.none, kinds, values
        )
        return status.code

    return types.int32(types.int64, types.int64, types.int64, arguments), codegen


@scalar
def take_part(job):
    """Take ranges of a job, large ones first, and call its kernel on them until none is left."""
    call, count = get(job + CALL), get(job + COUNT)
    unit, units = get(job + UNIT), get(job + UNITS)
    shares = 2 * get(job + THREADS)
    while True:
        begun = get(job + BEGUN)
        if begun >= units:
            return
        size = (units - begun) // shares if units - begun > shares else 1
        if not replace(job + BEGUN, begun, begun + size):
            continue
        lo, hi = begun * unit, (begun + size) * unit
        hi = hi if hi < count else count
        if call_kernel(call, job, lo, hi) != 0 and replace(job + FAILED, 0, 1):
            put(job + FAILED_LO, lo)
            put(job + FAILED_HI, hi)
            put(job + BEGUN, units)


@scalar
def _wait_for(box):
    """Wait until the helper of this box has ended its last range."""
    waited = 0
    while get(box + STATE) != IDLE:
        waited += 1
        if waited > YIELD_AFTER:
            offer_core()
        else:
            pause()


@kernel
def shared(address, first, start, count, unit, threads, *arguments):
    """Call the kernel at this address on ranges that cover start .. count, of whole units.

    `first` is the address of the first helper's box, or 0; each box holds that of the next.
    """
    job = written_down(address, arguments)
    put(job + COUNT, count)
    put(job + UNIT, unit)
    put(job + UNITS, (count + unit - 1) // unit)
    put(job + THREADS, threads)
    put(job + FAILED, 0)
    put(job + BEGUN, start // unit)
    box = first
    while box != 0:
        put(box + JOB, job)
        put(box + STATE, OFFERED)
        box = get(box + NEXT)
    take_part(job)
    box = first
    while box != 0:
        # A helper that has not started yet is not waited for: at the end of the process none
        # starts.
        if not replace(box + STATE, OFFERED, IDLE):
            _wait_for(box)
        box = get(box + NEXT)
    if get(job + FAILED) != 0:
        # The failed range is run again here, and raises here.
        lo, hi = get(job + FAILED_LO), get(job + FAILED_HI)
        call_and_raise(address, lo, hi, arguments)


@kernel
def serve(box, patience):
    """Run the jobs that are offered in this box, until none has come for `patience` pauses."""
    waited = 0
    while waited < patience:
        # Read first: a compare-and-swap takes the cache line from all other cores.
        state = box + STATE
        if get(state) == OFFERED and replace(state, OFFERED, TAKEN):
            take_part(get(box + JOB))
            put(state, IDLE)
            waited = 0
        else:
            pause()
            waited += 1
