"""XLA's call frame, read in machine code; `foreign` reads it in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from .._compile.decorators import scalar
from .._threads.jobs import WORD, get

# Offsets in the call frame and in a buffer, in bytes.
EXTENSION, ARGUMENTS, RESULTS, ATTRIBUTES = WORD, 9 * WORD, 14 * WORD, 20 * WORD
COUNT = -2 * WORD  # of the number of buffers, from the pointer to their addresses
TYPE, DATA, RANK, DIMS = 2 * WORD, 3 * WORD, 4 * WORD, 5 * WORD
FAR = 2.0**64  # the bound of `_api.arguments.Direction`


@intrinsic
def pointer(typingctx: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to numbers of this type."""
    result = types.CPointer(kind.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(types.int64, kind), codegen


@scalar
def buffer_at(frame, side, i):
    """The address of the i-th argument's or result's buffer."""
    return get(get(frame + side) + i * WORD)


@scalar
def entries_of(buffer):
    """The number of entries of a buffer."""
    dims, entries = get(buffer + DIMS), 1
    for i in range(get(buffer + RANK)):
        entries *= get(dims + i * WORD)
    return entries


@scalar
def shape_of(frame):
    """(number of rows of x, their length)."""
    buffer = buffer_at(frame, ARGUMENTS, 0)
    rank, dims = get(buffer + RANK), get(buffer + DIMS)
    rows = 1
    for i in range(rank - 1):
        rows *= get(dims + i * WORD)
    return rows, get(dims + (rank - 1) * WORD)


@scalar
def numbers(frame, side, i, rows, dtype):
    """The i-th argument or result as an array of a number for each row."""
    return carray(pointer(get(buffer_at(frame, side, i) + DATA), dtype), (rows,))


@scalar
def table(frame, side, i, rows, n, dtype):
    """The i-th argument or result as an array of n numbers for each row."""
    return carray(pointer(get(buffer_at(frame, side, i) + DATA), dtype), (rows, n))


@scalar
def read(frame, i, rows, dtype, least, most, out):
    """Copy an argument's number or numbers to `out`; returns whether all lie in [least, most]."""
    several = get(buffer_at(frame, ARGUMENTS, i) + RANK) > 0
    given, right = numbers(frame, ARGUMENTS, i, rows if several else 1, dtype), True
    for j in range(rows):
        out[j] = given[j if several else 0]
        right = right and least <= out[j] <= most
    return right


@scalar
def whole_problem(frame, dtype, least, most):
    """(number of rows, their length, k as integers, temperatures, whether all are valid)."""
    rows, n = shape_of(frame)
    k, tau = np.empty(rows, np.int64), np.empty(rows)
    right = read(frame, 1, rows, np.int32, 0, n, k)
    return rows, n, k, tau, read(frame, 2, rows, dtype, least, most, tau) and right


@scalar
def direction_of(frame, i, rows, dtype):
    """(the numbers of an argument that is a direction, whether their squares do not overflow)."""
    moves, far = np.empty(rows), FAR
    right = read(frame, i, rows, dtype, -far, far, moves)
    return moves, right


@scalar
def value_of(frame, rows, n, dtype):
    """(x, the first result)."""
    return table(frame, ARGUMENTS, 0, rows, n, dtype), table(frame, RESULTS, 0, rows, n, dtype)


@scalar
def moved_of(frame, rows, n, dtype):
    """(x, the direction or cotangent, the first result)."""
    x, out = value_of(frame, rows, n, dtype)
    return x, table(frame, ARGUMENTS, 4, rows, n, dtype), out


@scalar
def moved_problem(frame, is_vjp, dtype, least, most):
    """(x, k, tau, direction or cotangent, direction in tau, first result, whether all is right).

    A cotangent comes without a direction in the temperature, which is 0 then.
    """
    rows, n, k, tau, right = whole_problem(frame, dtype, least, most)
    x, v, out = moved_of(frame, rows, n, dtype)
    if is_vjp:
        return x, k, tau, v, np.zeros(rows), out, right
    dtau, moderate = direction_of(frame, 6, rows, dtype)
    return x, k, tau, v, dtau, out, right and moderate


@scalar
def leave(frame, gk, gtau, rows, dtype):
    """Write gradients in k and in the temperature to the results."""
    in_k, in_tau = numbers(frame, RESULTS, 1, rows, dtype), numbers(frame, RESULTS, 2, rows, dtype)
    for i in range(rows):
        in_k[i], in_tau[i] = gk[i], gtau[i]
