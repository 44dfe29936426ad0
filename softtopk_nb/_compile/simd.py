"""Explicit SIMD vectors, for loops that the compiler does not vectorise by itself.

A vector holds LANES float64 numbers, one for each of LANES rows or neighbouring entries. It lives
in registers: it is loaded from a flat array of float32 or float64, and stored to one. On machines
with narrower registers LLVM uses several for one vector.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 8

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_LANE = ir.IntType(32)


class Vector(types.Type):  # type: ignore[misc]  # Numba comes without type hints
    """The Numba type of LANES float64 numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector({LANES} x float64)")


_vector = Vector()


@register_model(Vector)
class _Model(models.PrimitiveModel):  # type: ignore[misc]  # likewise
    def __init__(self, manager: Any, frontend: Any) -> None:
        super().__init__(manager, frontend, _VECTOR)


def _number(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    view = context.make_array(kind)(context, builder, value=array)
    return cgutils.get_item_pointer(context, builder, kind, view, [at])


def _read(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """LANES numbers of the array from `at` on, in its type, as LLVM sees them."""
    place = _number(context, builder, kind, array, at)
    vector = ir.VectorType(place.type.pointee, LANES)
    loaded = builder.load(builder.bitcast(place, vector.as_pointer()), typ=vector)
    loaded.align = context.get_abi_sizeof(place.type.pointee)
    return loaded


def _write(context: Any, builder: Any, kind: Any, array: Any, at: Any, value: Any) -> None:
    place = _number(context, builder, kind, array, at)
    vector = ir.VectorType(place.type.pointee, LANES)
    if vector != value.type:
        value = (builder.fptrunc if value.type == _VECTOR else builder.fpext)(value, vector)
    stored = builder.store(value, builder.bitcast(place, vector.as_pointer()))
    stored.align = context.get_abi_sizeof(place.type.pointee)


def _equal(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    return _shuffle(
        builder, builder.insert_element(nothing, number, _LANE(0)), nothing, [0] * LANES
    )


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_LANE, LANES), lanes))


def _is_flat(array: Any) -> bool:
    real = types.float32, types.float64
    flat = isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"
    return bool(flat and array.dtype in real)


@intrinsic
def load(typingctx: Any, array: Any, at: Any) -> Any:
    """LANES numbers of a flat array from `at` on, which need not be aligned."""
    if not _is_flat(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = _read(context, builder, signature.args[0], *args)
        return loaded if loaded.type == _VECTOR else builder.fpext(loaded, _VECTOR)

    return _vector(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, at: Any, vector: Any) -> Any:
    """Write a vector to a flat array from `at` on."""
    if not _is_flat(array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write(context, builder, signature.args[0], *args)
        return context.get_dummy_value()

    return types.void(array, types.intp, _vector), codegen


@intrinsic
def spread(typingctx: Any, array: Any, at: Any) -> Any:
    """A vector with entry `at` of a flat array of float64 in every lane."""
    if not (_is_flat(array) and array.dtype == types.float64):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _number(context, builder, signature.args[0], *args)
        return _equal(builder, builder.load(place, typ=ir.DoubleType()))

    return _vector(array, types.intp), codegen


@intrinsic
def constant(typingctx: Any, number: Any) -> Any:
    """A vector with this number in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _equal(builder, args[0])

    return _vector(types.float64), codegen


@intrinsic
def total(typingctx: Any, a: Any, b: Any) -> Any:
    """a + b, lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return _vector(_vector, _vector), codegen


@intrinsic
def product(typingctx: Any, a: Any, b: Any) -> Any:
    """a b, lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return _vector(_vector, _vector), codegen


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, lane by lane, fused where the machine fuses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        name = f"llvm.fmuladd.v{LANES}f64"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return _vector(_vector, _vector, _vector), codegen


@intrinsic
def magnitude(typingctx: Any, a: Any) -> Any:
    """|a|, lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR])
        name = f"llvm.fabs.v{LANES}f64"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return _vector(_vector), codegen


@intrinsic
def between(typingctx: Any, a: Any, low: Any, high: Any) -> Any:
    """`a` clipped to [low, high], lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, low, high = args
        a = builder.select(builder.fcmp_ordered("<", a, low), low, a)
        return builder.select(builder.fcmp_ordered(">", a, high), high, a)

    return _vector(_vector, _vector, _vector), codegen


@intrinsic
def where_less(typingctx: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` where a < b, else `no`, lane by lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *args[:2]), *args[2:])

    return _vector(_vector, _vector, _vector, _vector), codegen


@intrinsic
def turn(
    typingctx: Any, source: Any, at: Any, stride: Any, target: Any, to: Any, apart: Any
) -> Any:
    """Transpose a block of LANES by LANES numbers.

    The rows lie at `at`, `at + stride`, ... of `source`, the columns go to `to`, `to + apart`, ...
    of `target`; both are flat arrays, of one type or of float32 and float64.
    """
    if source.dtype != target.dtype and not (_is_flat(source) and _is_flat(target)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, at, stride, target, to, apart = args
        rows = []
        for i in range(LANES):
            place = builder.add(at, builder.mul(stride, at.type(i)))
            rows.append(_read(context, builder, signature.args[0], source, place))
        # Blocks of half the size are exchanged across the diagonal, down to single numbers.
        half = LANES // 2
        while half:
            keep = [lane if not lane & half else lane - half + LANES for lane in range(LANES)]
            move = [lane + half if not lane & half else lane + LANES for lane in range(LANES)]
            for i in range(LANES):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i] = _shuffle(builder, a, b, keep)
                    rows[i + half] = _shuffle(builder, a, b, move)
            half //= 2
        for i, row in enumerate(rows):
            place = builder.add(to, builder.mul(apart, to.type(i)))
            _write(context, builder, signature.args[3], target, place, row)
        return context.get_dummy_value()

    places = (types.intp, types.intp)
    return types.void(source, *places, target, *places), codegen


@intrinsic
def any_less(typingctx: Any, a: Any, b: Any) -> Any:
    """Whether a < b anywhere."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = builder.bitcast(builder.fcmp_ordered("<", *args), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", lanes, ir.IntType(LANES)(0))

    return types.boolean(a, b), codegen
