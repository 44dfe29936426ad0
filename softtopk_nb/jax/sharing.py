"""Work of XLA's, shared out among XLA's own threads, without the interpreter's lock.

The thread that was called writes down the work as a job (`_threads.jobs`) in its own frame, and
hands out *tickets* for it to XLA's pool: one small piece of memory, which every thread that holds
it may read at any time. Who comes while the caller is at work takes part; who comes later finds the
ticket closed. So the caller waits for nobody who has not begun, and calls that wait for one another
cannot all wait. Who puts the ticket down last frees it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._compile.array_intrinsics import held
from .._compile.decorators import called_by_c, kernel, scalar
from .._compile.subnormals import keep, restore
from .._threads import jobs
from .._threads.jobs import WORD, call_at, get, put, replace, take_part, written_down
from .._threads.pool import LANES, UNIT, WORTH_A_THREAD

# A ticket: who holds it, how many are at work (less CLOSED once nobody may begin), on what job.
HOLDERS, AT_WORK, JOB = range(0, 3 * WORD, WORD)
TICKET = 3 * WORD
CLOSED = 1 << 32

# The call frame of XLA and its interface, in bytes, as `c_api.h` has them.
API, CONTEXT = 2 * WORD, 3 * WORD
ERROR_DESTROY, SCHEDULE, NUM_THREADS = 8 * WORD, 17 * WORD, 18 * WORD

# What a handler keeps: how Python is called, the kernel, the most threads, `shared`, `help_out`.
PYTHON, KERNEL, THREADS, SHARED, HELP = range(0, 5 * WORD, WORD)
SLOTS = 5

_word = ir.IntType(64)


@intrinsic
def slots_of(typingctx: Any, name: Any) -> Any:
    """The address of what was made known to the linker under this name (a literal)."""
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
    """Call what is at this address with one word, as C does; the word that it returns."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_word, [_word])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _allocated(typingctx: Any, size: Any) -> Any:
    """The address of so many bytes, or 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_word, [_word])
        malloc = cgutils.get_or_insert_function(builder.module, kind, "malloc")
        return builder.call(malloc, [args[0]])

    return types.int64(types.int64), codegen


@intrinsic
def _free(typingctx: Any, address: Any) -> Any:
    """Give memory back."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_word])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "free"), [args[0]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@scalar
def _added(address, number):
    """Add to the word at this address; what it was before."""
    while True:
        before = get(address)
        if replace(address, before, before + number):
            return before


@scalar
def _put_down(ticket):
    """Hold a ticket no longer."""
    if _added(ticket + HOLDERS, -1) == 1:
        _free(ticket)


@called_by_c
def help_out(ticket):
    """What a thread of XLA's pool does with a ticket: part of its job, if there is one still."""
    while True:
        before = get(ticket + AT_WORK)
        if before < 0:
            break
        if replace(ticket + AT_WORK, before, before + 1):
            control = keep()
            take_part(get(ticket + JOB))
            restore(control)
            _added(ticket + AT_WORK, -1)
            break
    _put_down(ticket)
    return 0


@scalar
def _destroy(frame, error):
    words = np.zeros(3, np.int64)
    words[0], words[2] = 3 * WORD, error
    call_c(get(get(frame + API) + ERROR_DESTROY), words.ctypes.data)
    held((words,))


@scalar
def _pool_size(frame):
    """How many threads XLA has for us."""
    count, words = np.zeros(1, np.int64), np.zeros(4, np.int64)
    words[0], words[2], words[3] = 4 * WORD, get(frame + CONTEXT), count.ctypes.data
    error = call_c(get(get(frame + API) + NUM_THREADS), words.ctypes.data)
    held((words, count))
    if error != 0:
        _destroy(frame, error)
        return 0
    return count[0]


@scalar
def _hand_out(frame, ticket, helpers, function):
    """Offer a ticket to so many threads."""
    words = np.zeros(5, np.int64)
    words[0], words[2] = 5 * WORD, get(frame + CONTEXT)
    words[3], words[4] = function, ticket
    schedule = get(get(frame + API) + SCHEDULE)
    for _ in range(helpers):
        error = call_c(schedule, words.ctypes.data)
        if error != 0:
            _destroy(frame, error)
            _put_down(ticket)
    held((words,))


@scalar
def _wait_for_helpers(ticket):
    """Until all who have begun have ended."""
    waited = 0
    while get(ticket + AT_WORK) != -CLOSED:
        waited += 1
        if waited > jobs.YIELD_AFTER:
            jobs.offer_core()
        else:
            jobs.pause()


@kernel
def shared(frame, slots, count, work, threads, arguments):
    """`together` by so many threads.

    It is called by its address: its memory in the frame of each handler would take 0.6 us more.
    """
    job = written_down(get(slots + KERNEL), arguments)
    unit = (count * UNIT + work - 1) // work
    unit = unit if unit < LANES // 2 else (unit + LANES - 1) // LANES * LANES
    put(job + jobs.COUNT, count)
    put(job + jobs.UNIT, unit)
    put(job + jobs.UNITS, (count + unit - 1) // unit)
    put(job + jobs.THREADS, threads)
    put(job + jobs.FAILED, 0)
    put(job + jobs.BEGUN, 0)
    ticket = _allocated(TICKET)
    if ticket != 0:
        put(ticket + JOB, job)
        put(ticket + AT_WORK, 0)
        put(ticket + HOLDERS, threads)
        _hand_out(frame, ticket, threads - 1, get(slots + HELP))
    take_part(job)
    if ticket != 0:
        _added(ticket + AT_WORK, -CLOSED)
        _wait_for_helpers(ticket)
        _put_down(ticket)
    if get(job + jobs.FAILED) != 0:
        raise RuntimeError


@scalar
def alone(frame, slots, count, work, arguments):
    """`together` by the one thread that has called: what the sharing takes is 0.5 us."""
    kernel = get(slots + KERNEL)
    return kernel != 0 and call_at(kernel, 0, count, arguments) == 0


@scalar
def together(frame, slots, count, work, arguments):
    """Call the kernel on 0 .. count with these arguments; say whether it has done all of them.

    It has not where it raises, nor where its address is not known yet. `work` as in
    `_threads.pool.over`.
    """
    kernel = get(slots + KERNEL)
    if kernel == 0:
        return False
    pieces = min(count, 1 + work // WORTH_A_THREAD)
    threads = min(pieces, get(slots + THREADS))
    if threads > 1:
        threads = min(threads, 1 + _pool_size(frame))
    if threads <= 1:
        return call_at(kernel, 0, count, arguments) == 0
    given = count, work, threads, arguments
    return call_at(get(slots + SHARED), frame, slots, given) == 0
