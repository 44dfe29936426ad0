"""Sharing a call's rows among XLA's own threads, without the GIL.

The thread that was called writes the work as a job (`_threads.jobs`) into its own stack frame, and
passes a *shared job* to XLA's pool: a small allocation that every thread which holds it may read at
any time. Threads that start while the caller is working take part; those that start later find it
closed. So the caller never waits for a thread that has not started, and calls that wait for one
another cannot all wait. The last thread to release a shared job frees it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._compile import ranges
from .._compile.array_intrinsics import held
from .._compile.decorators import called_by_c, scalar
from .._compile.subnormals import keep, restore
from .._threads import jobs
from .._threads.jobs import WORD, call_at, get, new_job, put, replace, take_part
from .._threads.pool import LANES, UNIT, WORTH_A_THREAD

# Fields of a shared job: holders, threads at work (less CLOSED once none may start), the job.
HOLDERS, AT_WORK, JOB = range(0, 3 * WORD, WORD)
SHARED_JOB = 3 * WORD
CLOSED = 1 << 32

# The call frame of XLA and its interface, byte offsets as in `c_api.h`.
API, CONTEXT = 2 * WORD, 3 * WORD
ERROR_DESTROY, SCHEDULE, NUM_THREADS = 8 * WORD, 17 * WORD, 18 * WORD

# Fields of a handler's data: the address that calls Python, the kernel, its entry point, the most
# threads, `shared`, `help_out`.
PYTHON, KERNEL, ENTRY_POINT, THREADS, SHARED, HELP = range(0, 6 * WORD, WORD)
HANDLER_DATA = 6

_word = ir.IntType(64)


@intrinsic
def handler_data_of(typingctx: Any, name: Any) -> Any:
    """The address of the data that the linker knows by this name (a literal)."""
    if not isinstance(name, types.StringLiteral):
        return None
    symbol = name.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), []), symbol
        )
        return builder.ptrtoint(place, _word)

    return types.int64(name), codegen


@intrinsic
def call_c(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the C function at this address with one word; returns the word that it returns."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_word, [_word])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _allocated(typingctx: Any, size: Any) -> Any:
    """The address of `size` new bytes, or 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_word, [_word])
        malloc = cgutils.get_or_insert_function(builder.module, kind, "malloc")
        return builder.call(malloc, [args[0]])

    return types.int64(types.int64), codegen


@intrinsic
def _free(typingctx: Any, address: Any) -> Any:
    """Free memory that `_allocated` has returned."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_word])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "free"), [args[0]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@scalar
def _added(address, number):
    """Add to the word at this address (atomic); returns its old value."""
    while True:
        before = get(address)
        if replace(address, before, before + number):
            return before


@scalar
def _put_down(shared_job):
    """Release a shared job; the last holder frees it."""
    if _added(shared_job + HOLDERS, -1) == 1:
        _free(shared_job)


@called_by_c
def help_out(shared_job):
    """Take part in a shared job, if it is still open, from a thread of XLA's pool."""
    while True:
        before = get(shared_job + AT_WORK)
        if before < 0:
            break
        if replace(shared_job + AT_WORK, before, before + 1):
            control = keep()
            take_part(get(shared_job + JOB))
            restore(control)
            _added(shared_job + AT_WORK, -1)
            break
    _put_down(shared_job)
    return 0


@scalar
def destroy(frame, error):
    """Free an error of XLA's."""
    words = np.zeros(3, np.int64)
    words[0], words[2] = 3 * WORD, error
    call_c(get(get(frame + API) + ERROR_DESTROY), words.ctypes.data)
    held((words,))


@scalar
def _pool_size(frame):
    """The number of threads in XLA's pool, or 0."""
    count, words = np.zeros(1, np.int64), np.zeros(4, np.int64)
    words[0], words[2], words[3] = 4 * WORD, get(frame + CONTEXT), count.ctypes.data
    error = call_c(get(get(frame + API) + NUM_THREADS), words.ctypes.data)
    held((words, count))
    if error != 0:
        destroy(frame, error)
        return 0
    return count[0]


@scalar
def _hand_out(frame, shared_job, helpers, function):
    """Schedule `function` with a shared job on `helpers` threads of XLA's pool."""
    words = np.zeros(5, np.int64)
    words[0], words[2] = 5 * WORD, get(frame + CONTEXT)
    words[3], words[4] = function, shared_job
    schedule = get(get(frame + API) + SCHEDULE)
    for _ in range(helpers):
        error = call_c(schedule, words.ctypes.data)
        if error != 0:
            destroy(frame, error)
            _put_down(shared_job)
    held((words,))


@scalar
def _wait_for_helpers(shared_job):
    """Wait until all threads that have started have ended."""
    waited = 0
    while get(shared_job + AT_WORK) != -CLOSED:
        waited += 1
        if waited > jobs.YIELD_AFTER:
            jobs.offer_core()
        else:
            jobs.pause()


@intrinsic
def _written(typingctx: Any, arguments: Any) -> Any:
    """The address of these arguments for a kernel's entry point, in the caller's stack frame."""
    kinds = tuple(arguments)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = cgutils.unpack_tuple(builder, args[0])
        return ranges.written(builder, ranges.flat(context, builder, kinds, values))

    return types.int64(arguments), codegen


@intrinsic
def _call_shared(typingctx: Any, function: Any, words: Any) -> Any:
    """Call `shared`, at this address, with these words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(_word, [_word] * len(values))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)

    return types.int64(types.int64, words), codegen


@called_by_c
def shared(frame, handler_data, count, work, threads, arguments):
    """Run the kernel as `together`, by this number of threads; returns 1 if it raises.

    It is called by its address: its variables in each handler's frame would take 0.6 us more.
    """
    job = new_job()
    put(job + jobs.CALL, get(handler_data + ENTRY_POINT))
    put(job + jobs.ARGUMENTS, arguments)
    unit = (count * UNIT + work - 1) // work
    unit = unit if unit < LANES // 2 else (unit + LANES - 1) // LANES * LANES
    put(job + jobs.COUNT, count)
    put(job + jobs.UNIT, unit)
    put(job + jobs.UNITS, (count + unit - 1) // unit)
    put(job + jobs.THREADS, threads)
    put(job + jobs.FAILED, 0)
    put(job + jobs.BEGUN, 0)
    shared_job = _allocated(SHARED_JOB)
    if shared_job != 0:
        put(shared_job + JOB, job)
        put(shared_job + AT_WORK, 0)
        put(shared_job + HOLDERS, threads)
        _hand_out(frame, shared_job, threads - 1, get(handler_data + HELP))
    take_part(job)
    if shared_job != 0:
        _added(shared_job + AT_WORK, -CLOSED)
        _wait_for_helpers(shared_job)
        _put_down(shared_job)
    return get(job + jobs.FAILED)


@scalar
def alone(frame, handler_data, count, work, arguments):
    """Run the kernel as `together` by the calling thread alone, which saves 0.5 us."""
    kernel = get(handler_data + KERNEL)
    return kernel != 0 and call_at(kernel, 0, count, arguments) == 0


@scalar
def together(frame, handler_data, count, work, arguments):
    """Call the kernel on 0 .. count with these arguments; returns whether it has done all of them.

    It has not if it raises, or if its address is not known yet. `work` as in
    `_threads.pool.over`.
    """
    kernel = get(handler_data + KERNEL)
    if kernel == 0:
        return False
    pieces = min(count, 1 + work // WORTH_A_THREAD)
    threads = min(pieces, get(handler_data + THREADS))
    if threads > 1:
        threads = min(threads, 1 + _pool_size(frame))
    if threads <= 1:
        return call_at(kernel, 0, count, arguments) == 0
    words = frame, handler_data, count, work, threads, _written(arguments)
    return _call_shared(get(handler_data + SHARED), words) == 0
