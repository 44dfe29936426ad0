"""Compress selected entries of a row to the front of another row, and expand them again.

Entries that are excluded at random make a branch that no processor can predict. So a vector of
neighbours is moved at once, by its bit pattern of entries present, and what is written behind them
is overwritten by the next vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .decorators import scalar

_BYTES = 32  # of a vector: the size of an AVX2 register
_LANE = ir.IntType(32)
_WORD = ir.IntType(64)


@scalar
def lanes_of(values: Any) -> Any:
    """Number of entries of this array's type in a vector."""
    return _BYTES // values.itemsize


def _place(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    view = context.make_array(kind)(context, builder, value=array)
    return cgutils.get_item_pointer(context, builder, kind, view, [at])


def _load(context: Any, builder: Any, kind: Any, array: Any, at: Any, lanes: int) -> Any:
    place = _place(context, builder, kind, array, at)
    vector = ir.VectorType(place.type.pointee, lanes)
    loaded = builder.load(builder.bitcast(place, vector.as_pointer()), typ=vector)
    loaded.align = 1
    return loaded


@intrinsic
def _pattern(typingctx: Any, x: Any, start: Any) -> Any:
    """A bit for each entry of the vector from `start` on: 0 if the entry is infinite."""
    lanes = _BYTES * 8 // x.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = _load(context, builder, signature.args[0], args[0], args[1], lanes)
        name = f"llvm.fabs.v{lanes}f{x.dtype.bitwidth}"
        function = ir.FunctionType(loaded.type, [loaded.type])
        magnitude = cgutils.get_or_insert_function(builder.module, function, name)
        infinity = ir.Constant(loaded.type, [float("inf")] * lanes)
        bits = builder.fcmp_unordered("!=", builder.call(magnitude, [loaded]), infinity)
        return builder.zext(builder.bitcast(bits, ir.IntType(lanes)), _WORD)

    return types.int64(x, types.intp), codegen


@intrinsic
def _count_vector(typingctx: Any, x: Any, start: Any, value: Any) -> Any:
    """Number of entries of the vector from `start` on that equal `value`."""
    lanes = _BYTES * 8 // x.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = _load(context, builder, signature.args[0], args[0], args[1], lanes)
        one = builder.insert_element(ir.Constant(loaded.type, ir.Undefined), args[2], _LANE(0))
        zeros = ir.Constant(ir.VectorType(_LANE, lanes), [0] * lanes)
        wanted = builder.shuffle_vector(one, ir.Constant(loaded.type, ir.Undefined), zeros)
        bits = builder.bitcast(builder.fcmp_ordered("==", loaded, wanted), ir.IntType(lanes))
        return builder.zext(builder.ctpop(bits), _WORD)

    return types.int64(x, types.intp, x.dtype), codegen


def _permuted(builder: Any, vector: Any, pattern: Any, places: list[list[int]], name: str) -> Any:
    """The vector permuted by the row of `places` for this pattern; `name` is that of the table."""
    lanes = vector.type.count
    few = ir.IntType(8 * lanes)
    words = [sum(place << 8 * j for j, place in enumerate(row)) for row in places]
    table = ir.Constant(ir.ArrayType(few, len(words)), words)
    table = cgutils.global_constant(builder.module, f"{name}_{lanes}", table)
    entry = builder.load(cgutils.gep_inbounds(builder, table, 0, pattern), typ=few)
    bytes_of = builder.bitcast(entry, ir.VectorType(ir.IntType(8), lanes))
    index = builder.zext(bytes_of, ir.VectorType(_LANE, lanes))
    result = ir.Constant(vector.type, ir.Undefined)
    for i in range(lanes):  # LLVM makes this one instruction where the machine has it
        number = builder.extract_element(vector, builder.extract_element(index, _LANE(i)))
        result = builder.insert_element(result, number, _LANE(i))
    return result


def _to_front(pattern: int, lanes: int) -> list[int]:
    """The positions of a pattern's ones, then zeros."""
    ones = [i for i in range(lanes) if pattern >> i & 1]
    return ones + [0] * (lanes - len(ones))


def _from_front(pattern: int, lanes: int) -> list[int]:
    """For each position, the number of the pattern's ones before it."""
    return [(pattern & ((1 << i) - 1)).bit_count() % lanes for i in range(lanes)]


@intrinsic
def _pack_vector(typingctx: Any, pattern: Any, values: Any, start: Any, out: Any, at: Any) -> Any:
    """Write the values from `start` on whose bits are 1 to `out` from `at` on; return how many."""
    lanes = _BYTES * 8 // values.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = _load(context, builder, signature.args[1], args[1], args[2], lanes)
        places = [_to_front(pattern, lanes) for pattern in range(1 << lanes)]
        packed = _permuted(builder, loaded, args[0], places, "to_front")
        place = _place(context, builder, signature.args[3], args[3], args[4])
        target = ir.VectorType(place.type.pointee, lanes)
        if out.dtype.bitwidth > values.dtype.bitwidth:
            packed = builder.fpext(packed, target)
        builder.store(packed, builder.bitcast(place, target.as_pointer())).align = 1
        return builder.ctpop(args[0])

    return types.int64(types.int64, values, types.intp, out, types.intp), codegen


@intrinsic
def _unpack_vector(
    typingctx: Any, pattern: Any, values: Any, at: Any, excluded: Any, out: Any, start: Any
) -> Any:
    """Undo `_pack_vector`, with `excluded` at the entries whose bits are 0."""
    lanes = _BYTES * 8 // values.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = _load(context, builder, signature.args[1], args[1], args[2], lanes)
        places = [_from_front(pattern, lanes) for pattern in range(1 << lanes)]
        spread = _permuted(builder, loaded, args[0], places, "from_front")
        bits = builder.bitcast(
            builder.trunc(args[0], ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes)
        )
        one = builder.insert_element(ir.Constant(loaded.type, ir.Undefined), args[3], _LANE(0))
        zeros = ir.Constant(ir.VectorType(_LANE, lanes), [0] * lanes)
        nothing = builder.shuffle_vector(one, ir.Constant(loaded.type, ir.Undefined), zeros)
        place = _place(context, builder, signature.args[4], args[4], args[5])
        chosen = builder.select(bits, spread, nothing)
        builder.store(chosen, builder.bitcast(place, loaded.type.as_pointer())).align = 1
        return builder.ctpop(args[0])

    kinds = types.int64, values, types.intp, values.dtype, out, types.intp
    return types.int64(*kinds), codegen


@scalar
def count_of(x: Any, value: Any) -> Any:
    """Number of entries equal to `value`."""
    lanes, found, start = lanes_of(x), 0, 0
    while start + lanes <= x.shape[0]:
        found += _count_vector(x, start, value)
        start += lanes
    for i in range(start, x.shape[0]):
        found += x[i] == value
    return found


@scalar
def pack(x: Any, values: Any, out: Any) -> Any:
    """Write the values where x is not infinite to the front of `out`; return their number.

    At most as many as `out` has entries; it is of the type of `values` or a wider one.
    """
    lanes, n, capacity = lanes_of(values), values.shape[0], out.shape[0]
    j = start = 0
    while start + lanes <= n and j + lanes <= capacity:
        j += _pack_vector(_pattern(x, start), values, start, out, j)
        start += lanes
    for i in range(start, n):
        if abs(x[i]) != np.inf and j < capacity:
            out[j] = values[i]
            j += 1
    return j


@scalar
def unpack(x: Any, values: Any, excluded: Any, out: Any) -> None:
    """Undo `pack`, with `excluded` at the infinities; `values` and `out` must not overlap."""
    lanes, n, capacity = lanes_of(out), out.shape[0], values.shape[0]
    j = start = 0
    while start + lanes <= n and j + lanes <= capacity:
        j += _unpack_vector(_pattern(x, start), values, j, excluded, out, start)
        start += lanes
    for i in range(start, n):
        present = abs(x[i]) != np.inf and j < capacity
        out[i] = values[j] if present else excluded
        j += present
