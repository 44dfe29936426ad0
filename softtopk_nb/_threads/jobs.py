"""Jobs that several threads share in machine code, without holding the GIL.

A kernel that needs more than one thread is called with the address of a record
(`_compile.ranges`), and passes its entry point and arguments to `shared`. This writes them, the
*job*, into its own stack frame; writes the job's address into the *boxes* of the helper threads
that its caller has reserved; and takes ranges until none is left, as do the helpers. A helper waits
in `serve`, where it polls its box for a while, and returns to Python only if no job came. From the
offer of a job to its last range no thread touches a Python object, so that none of them ever waits
for the GIL.

The kernel is called where it was compiled: every range of a row batch, in whichever thread, and a
call that one thread does alone execute the same instructions, and give the same bits.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._compile import ranges
from .._compile.decorators import c_address, called_by_c, kernel, scalar

WORD = 8  # bytes; every field below is one word, a signed integer, and these are byte offsets

# Fields of a helper's box, and its size in words: whole cache lines on any machine.
STATE, JOB, NEXT = range(0, 3 * WORD, WORD)
BOX = 32
# The record of a call is in the box of its first helper, on another cache line than what helpers
# poll; the size of a unit and the number of threads follow it.
RECORD = 16 * WORD
LO, HI, OF_UNIT, OF_THREADS = (each * WORD for each in (ranges.LO, ranges.HI, 3, 4))
IDLE, OFFERED, TAKEN = 0, 1, 2  # states: an offered job may be withdrawn

# Fields of a job: the kernel's entry point and the address of its arguments; units of work (UNIT
# rows each) and how many of them are taken; and the range that failed, if any.
CALL, ARGUMENTS, COUNT, UNIT, UNITS, THREADS, FAILED, FAILED_LO, FAILED_HI = range(
    0, 9 * WORD, WORD
)
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


@intrinsic
def new_job(typingctx: Any) -> Any:
    """The address of a job, in the caller's stack frame."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        job = cgutils.alloca_once(builder, ir.ArrayType(_word, JOB_WORDS))
        job.align = 128
        return builder.ptrtoint(job, _word)

    return types.int64(), codegen


@intrinsic
def call_kernel(typingctx: Any, function: Any, arguments: Any, lo: Any, hi: Any) -> Any:
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
    call, arguments, count = get(job + CALL), get(job + ARGUMENTS), get(job + COUNT)
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
        if call_kernel(call, arguments, lo, hi) != 0 and replace(job + FAILED, 0, 1):
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


@called_by_c
def shared(record, entry_point, arguments):
    """Run a kernel on ranges that cover the record's, of whole units; returns 1 if one failed.

    The record is in the box of the first helper, and each box holds the address of the next.
    """
    job, count, unit = new_job(), get(record + HI), get(record + OF_UNIT)
    put(job + CALL, entry_point)
    put(job + ARGUMENTS, arguments)
    put(job + COUNT, count)
    put(job + UNIT, unit)
    put(job + UNITS, (count + unit - 1) // unit)
    put(job + THREADS, get(record + OF_THREADS))
    put(job + FAILED, 0)
    put(job + BEGUN, get(record + LO) // unit)
    box = first = record - RECORD
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
    if get(job + FAILED) == 0:
        return 0
    put(record + LO, get(job + FAILED_LO))
    put(record + HI, get(job + FAILED_HI))
    return 1


@functools.cache
def address_of_shared() -> int:
    """The address of `shared`, for records; compiles it first if needed."""
    return c_address(shared, *3 * [types.int64])


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
