"""XLA's call frame, read in machine code: `foreign` reads it in Python."""

from __future__ import annotations

from typing import Any

from numba import carray, types
from numba.extending import intrinsic

from .._compile.decorators import scalar
from .._threads.jobs import WORD, get

# The call frame, in bytes.
EXTENSION, ARGUMENTS, RESULTS = WORD, 9 * WORD, 14 * WORD
DATA, RANK, DIMS = 3 * WORD, 4 * WORD, 5 * WORD
FAR = 2.0**64  # as `_api.arguments.Direction` has room for


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
def shape_of(frame):
    """How many rows x has, and how long they are."""
    buffer = buffer_at(frame, ARGUMENTS, 0)
    rank, dims = get(buffer + RANK), get(buffer + DIMS)
    rows = 1
    for i in range(rank - 1):
        rows *= get(dims + i * WORD)
    return rows, get(dims + (rank - 1) * WORD)


@scalar
def numbers(frame, side, i, rows, dtype):
    """The i-th argument or result, of a number for each row."""
    return carray(pointer(get(buffer_at(frame, side, i) + DATA), dtype), (rows,))


@scalar
def table(frame, side, i, rows, n, dtype):
    """The i-th argument or result, of n numbers for each row."""
    return carray(pointer(get(buffer_at(frame, side, i) + DATA), dtype), (rows, n))


@scalar
def read(frame, i, rows, dtype, least, most, out):
    """Copy the numbers of an argument, or its one number; whether all lie between these two."""
    several = get(buffer_at(frame, ARGUMENTS, i) + RANK) > 0
    given, right = numbers(frame, ARGUMENTS, i, rows if several else 1, dtype), True
    for j in range(rows):
        out[j] = given[j if several else 0]
        right = right and least <= out[j] <= most
    return right
