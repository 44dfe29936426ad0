"""What XLA calls in machine code: ThreTopK on rows, its tangent and its pullback.

A handler reads XLA's call frame, runs the kernel that the operator of arrays runs, by its address,
and returns. What is unusual it leaves to Python, which does the whole call: numbers that are not
right or not moderate, and rows whose search wants another turn.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from .._api.scaling import MODERATE
from .._compile.decorators import c_address, called_by_c, scalar
from .._curves.base import is_steep
from .._curves.user import UserCurve
from .._threads import pool
from .._threads.jobs import WORD, get
from .._threads.long_rows import LONG
from .._threshold.cpu import batch
from .._threshold.records import FLAGS, SOLUTION
from ..thretopk.cpu import rows as _rows
from . import sharing
from .calls import Call
from .sharing import PYTHON, SLOTS, call_c, slots_of

# The call frame, in bytes.
EXTENSION, ARGUMENTS, RESULTS = WORD, 9 * WORD, 14 * WORD
DATA, RANK, DIMS = 3 * WORD, 4 * WORD, 5 * WORD
FAR = 2.0**64  # as `_api.arguments.Direction` has room for


@intrinsic
def _pointer(typingctx: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to numbers of this type."""
    result = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.int64, kind), codegen


@scalar
def _buffer(frame, side, i):
    """The address of the i-th argument's or result's buffer."""
    return get(get(frame + side) + i * WORD)


@scalar
def _shape(frame):
    """How many rows x has, and how long they are."""
    buffer = _buffer(frame, ARGUMENTS, 0)
    rank, dims = get(buffer + RANK), get(buffer + DIMS)
    rows = 1
    for i in range(rank - 1):
        rows *= get(dims + i * WORD)
    return rows, get(dims + (rank - 1) * WORD)


@scalar
def _numbers(frame, side, i, rows, dtype):
    return carray(_pointer(get(_buffer(frame, side, i) + DATA), dtype), (rows,))


@scalar
def _table(frame, side, i, rows, n, dtype):
    return carray(_pointer(get(_buffer(frame, side, i) + DATA), dtype), (rows, n))


@scalar
def _read(frame, i, rows, dtype, least, most, out):
    """Copy the numbers of an argument, or its one number; whether all lie between these two."""
    several = get(_buffer(frame, ARGUMENTS, i) + RANK) > 0
    given, right = _numbers(frame, ARGUMENTS, i, rows if several else 1, dtype), True
    for j in range(rows):
        out[j] = given[j if several else 0]
        right = right and least <= out[j] <= most
    return right


def _solve(curve, method, dtype, name, run):
    least, most = MODERATE[dtype]

    @called_by_c
    def solve(frame):
        slots = slots_of(name)
        if get(frame + EXTENSION) != 0:
            return call_c(get(slots + PYTHON), frame)
        rows, n = _shape(frame)
        k, tau = np.empty(rows), np.empty(rows)
        right = _read(frame, 1, rows, dtype, 0.0, float(n), k)
        right = _read(frame, 2, rows, dtype, least, most, tau) and right
        flags = np.zeros(FLAGS, np.bool_)
        if right:
            x = _table(frame, ARGUMENTS, 0, rows, n, dtype)
            p = _table(frame, RESULTS, 0, rows, n, dtype)
            solution = _table(frame, RESULTS, 1, rows, SOLUTION, np.float64)
            given = x, k, tau, curve, method, p, solution, flags
            right = run(frame, slots, rows, rows * n, given)
        if not right or flags.any():
            return call_c(get(slots + PYTHON), frame)
        return 0

    return solve


def _push(curve, method, dtype, name, run):
    least, most = MODERATE[dtype]

    @called_by_c
    def push(frame):
        slots = slots_of(name)
        if get(frame + EXTENSION) != 0:
            return call_c(get(slots + PYTHON), frame)
        rows, n = _shape(frame)
        tau, dk, dtau = np.empty(rows), np.empty(rows), np.empty(rows)
        right, far = _read(frame, 2, rows, dtype, least, most, tau), FAR
        right = _read(frame, 5, rows, dtype, -far, far, dk) and right
        right = _read(frame, 6, rows, dtype, -far, far, dtau) and right
        mixed = np.zeros(1, np.bool_)
        if right:
            x = _table(frame, ARGUMENTS, 0, rows, n, dtype)
            solution = _table(frame, ARGUMENTS, 3, rows, SOLUTION, np.float64)
            v = _table(frame, ARGUMENTS, 4, rows, n, dtype)
            dp = _table(frame, RESULTS, 0, rows, n, dtype)
            right = run(
                frame, slots, rows, rows * n, (x, tau, curve, solution, v, dp, dk, dtau, mixed)
            )
        if not right or mixed[0]:
            return call_c(get(slots + PYTHON), frame)
        return 0

    return push


def _pull(curve, method, dtype, name, run):
    least, most = MODERATE[dtype]

    @called_by_c
    def pull(frame):
        slots = slots_of(name)
        if get(frame + EXTENSION) != 0:
            return call_c(get(slots + PYTHON), frame)
        rows, n = _shape(frame)
        tau, gk, gtau = np.empty(rows), np.empty(rows), np.empty(rows)
        right = _read(frame, 2, rows, dtype, least, most, tau)
        mixed = np.zeros(1, np.bool_)
        if right:
            x = _table(frame, ARGUMENTS, 0, rows, n, dtype)
            solution = _table(frame, ARGUMENTS, 3, rows, SOLUTION, np.float64)
            g = _table(frame, ARGUMENTS, 4, rows, n, dtype)
            gx = _table(frame, RESULTS, 0, rows, n, dtype)
            right = run(
                frame, slots, rows, rows * n, (x, tau, curve, solution, g, gx, gk, gtau, mixed)
            )
        if not right or mixed[0]:
            return call_c(get(slots + PYTHON), frame)
        in_k = _numbers(frame, RESULTS, 1, rows, dtype)
        in_tau = _numbers(frame, RESULTS, 2, rows, dtype)
        for i in range(rows):
            in_k[i], in_tau[i] = gk[i], gtau[i]
        return 0

    return pull


class _Verb(NamedTuple):
    """A handler and the kernel that it runs."""

    make: Any
    kernel: Any  # of x
    arguments: Any  # types like those that the handler hands to the kernel


class Compiled(NamedTuple):
    """A handler: its name, its address, and what it keeps."""

    name: str
    address: int
    slots: Any


def _of_solve(x, numbers, curve, method, state, flags):
    return x, numbers, numbers, curve, method, x, state, flags


def _of_push(x, numbers, curve, method, state, flags):
    return x, numbers, curve, state, x, x, numbers, numbers, flags


_VERBS = {
    "solve": _Verb(_solve, batch.fast_search, _of_solve),
    "push": _Verb(_push, lambda x: _rows.push, _of_push),
    "pull": _Verb(_pull, lambda x: _rows.pull, _of_push),
}


@functools.cache
def handler(verb: str, call: Call, kind: str, n: int, small: bool, python: int) -> Any:
    """A handler, or None if Python is to be called.

    `kind`: the type of the rows; `n`: their length; `small`: that all of them are not worth a
    second thread; `python`: the address of what calls Python.
    """
    if verb not in _VERBS or call.name != "thretopk" or not 0 < n < LONG:
        return None
    plan, dtype = call.op._plan(call.options), np.dtype(kind).type
    curve = plan.curve
    if isinstance(curve, UserCurve) or is_steep(curve) or not plan.method.sampled:
        return None
    made = _VERBS[verb]
    x, numbers = np.empty((1, n), dtype), np.empty(1)
    state, flags = np.empty((1, SOLUTION)), np.zeros(1, np.bool_)
    kernel = made.kernel(x)
    given = made.arguments(x, numbers, curve, plan.method, state, flags)
    slots = np.zeros(SLOTS, np.int64)
    slots[:2] = python, pool.address_of(kernel, given)
    if not small:
        share = pool.address_of(sharing.shared, (0, 0, 0, given))
        helper = c_address(sharing.help_out, types.int64)
        slots[2:] = pool.thread_count(), share, helper
    run = sharing.alone if small else sharing.together
    spelled = f"{verb} {call.word} {kind} {kernel.py_func.__name__} {small}"
    name = f"softtopk_nb_{hashlib.sha256(spelled.encode()).hexdigest()[:16]}"
    llvmlite.binding.add_symbol(name, slots.ctypes.data)
    function = made.make(curve, plan.method, dtype, name, run)
    return Compiled(name, c_address(function, types.int64), slots)
