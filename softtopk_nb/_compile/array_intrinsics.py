"""Arrays as the compiler should see them: their rows, tables and blocks; and a search for keys.

Nothing here copies, and each function leaves out a bounds check or a reference count that a
general array would need, because its caller guarantees what the check would find.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from .decorators import scalar

#: Numbers left free between arrays that a loop reads, writes and sums: the compiled loop checks
#: whether they lie closer than a few vectors; if so, it goes one entry at a time, in another order.
APART = 128

SEEN = 8  # keys that `seek` compares at a time


@intrinsic
def held(typingctx: Any, arrays: Any) -> Any:
    """Keep the arrays of a tuple alive until here: what was `borrowed` of them stays valid."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(arrays), codegen


def layout_known(rows: int, columns: int) -> Any:
    """A function that tells the compiler the shape of a table, and returns the table.

    It then sees that its rows do not overlap, and that a loop along them can be vectorised.
    """

    @intrinsic
    def known(typingctx: Any, table: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, value=args[0])
            array.shape = ir.Constant(array.shape.type, [rows, columns])
            value = array._getvalue()
            return impl_ret_borrowed(context, builder, signature.return_type, value)

        return table(table), codegen

    return known


def records_in(table_width: int, first: int, kind: Any) -> Any:
    """(take, put): a record of float64 in each column of a table, from the row `first` on.

    take(table, r) is the record in column r, a `kind`, which is a NamedTuple; put(table, r, record)
    writes it. One by one its fields would take the compiler three times as many statements.
    """
    count = len(kind._fields)
    record = types.NamedUniTuple(types.float64, count, kind)

    def places(context: Any, builder: Any, table: Any, args: Any) -> Any:
        data = context.make_array(table)(context, builder, value=args[0]).data
        for i in range(count):
            offset = ir.Constant(args[1].type, (first + i) * table_width)
            yield builder.gep(data, [builder.add(args[1], offset)])

    @intrinsic
    def take(typingctx: Any, table: Any, r: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            where = places(context, builder, signature.args[0], args)
            return context.make_tuple(builder, record, [builder.load(p) for p in where])

        return record(table, types.intp), codegen

    @intrinsic
    def put(typingctx: Any, table: Any, r: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            where = places(context, builder, signature.args[0], args)
            for place, value in zip(where, cgutils.unpack_tuple(builder, args[2]), strict=True):
                builder.store(value, place)
            return context.get_dummy_value()

        return types.void(table, types.intp, record), codegen

    return take, put


@intrinsic
def columns_from(typingctx: Any, table: Any, first: Any) -> Any:
    """The columns of a table from column `first` on, with the shape of the whole table."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, value=args[0])
        array.data = builder.gep(array.data, [args[1]])
        value = array._getvalue()
        return impl_ret_borrowed(context, builder, signature.return_type, value)

    return table(table, types.intp), codegen


def _scopes(builder: Any, *names: str) -> Any:
    """The alias scopes of all loads or stores by these functions, as LLVM metadata."""
    module = builder.module
    domain = module.add_metadata(["softtopk_nb"])
    return module.add_metadata([module.add_metadata([name, domain]) for name in names])


@intrinsic
def read_apart(typingctx: Any, x: Any, i: Any) -> Any:
    """x[i], of an array to which no `write_apart` writes.

    For a loop that reads, writes and sums the compiler would make two versions: the one for arrays
    that lie close to each other goes one entry at a time, and sums in another order.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, value=args[0])
        loaded = builder.load(cgutils.get_item_pointer(context, builder, kind, array, [args[1]]))
        loaded.set_metadata("alias.scope", _scopes(builder, "read apart"))
        return loaded

    return x.dtype(x, types.intp), codegen


@intrinsic
def write_apart(typingctx: Any, out: Any, i: Any, value: Any) -> Any:
    """out[i] = value, of an array from which no `read_apart` reads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = _stored(context, builder, signature, args)
        stored.set_metadata("alias.scope", _scopes(builder, "write apart"))
        stored.set_metadata("noalias", _scopes(builder, "read apart"))
        return context.get_dummy_value()

    return types.void(out, types.intp, out.dtype), codegen


@intrinsic
def write_beside(typingctx: Any, out: Any, i: Any, value: Any) -> Any:
    """out[i] = value, as `write_apart` does beside it in the same loop to another array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = _stored(context, builder, signature, args)
        stored.set_metadata("noalias", _scopes(builder, "read apart", "write apart"))
        return context.get_dummy_value()

    return types.void(out, types.intp, out.dtype), codegen


def _stored(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The instruction that stores the third argument in the array that is the first."""
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, value=args[0])
    return builder.store(
        args[2], cgutils.get_item_pointer(context, builder, kind, array, [args[1]])
    )


@intrinsic
def window(typingctx: Any, x: Any, start: Any, n: Any) -> Any:
    """The n entries of a row from `start` on, without a check that it has them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, value=args[0])
        (stride,) = cgutils.unpack_tuple(builder, array.strides, 1)
        if signature.args[0].layout == "C":
            stride = context.get_constant(
                types.intp, context.get_abi_sizeof(array.data.type.pointee)
            )
        array.data = cgutils.pointer_add(builder, array.data, builder.mul(args[1], stride))
        array.shape = context.make_tuple(builder, types.UniTuple(types.intp, 1), [args[2]])
        array.nitems = args[2]
        return impl_ret_borrowed(context, builder, signature.return_type, array._getvalue())

    return x(x, types.intp, types.intp), codegen


def _places(pattern: int) -> int:
    """The positions of a pattern's ones: SEEN numbers of a byte each, the first in the lowest byte.

    The bytes after the last are overwritten or never read.
    """
    ones = (i for i in range(SEEN) if pattern >> i & 1)
    return sum(place << 8 * j for j, place in enumerate(ones))


@intrinsic
def _seek_in_vector(typingctx: Any, keys: Any, start: Any, limit: Any, at: Any, found: Any) -> Any:
    """`seek` in the SEEN keys from `start` on, after `found` before; returns how many are found.

    The positions come from a table and are written all at once: an instruction that compresses into
    memory takes some machines a hundred cycles.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, where = (
            cgutils.get_item_pointer(
                context, builder, kind, context.make_array(kind)(context, builder, value=array), [i]
            )
            for kind, array, i in (
                (signature.args[0], args[0], args[1]),
                (signature.args[3], args[3], args[4]),
            )
        )
        number, place, few = args[2].type, ir.IntType(64), ir.IntType(8)
        numbers, places, packed = (ir.VectorType(t, SEEN) for t in (number, place, few))
        lane = ir.IntType(32)

        def splat(value: Any, vector: Any) -> Any:
            single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, lane(0))
            zeros = ir.Constant(ir.VectorType(lane, SEEN), [0] * SEEN)
            return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), zeros)

        loaded = builder.load(builder.bitcast(first, numbers.as_pointer()), typ=numbers)
        loaded.align = context.get_abi_sizeof(number)
        above = builder.fcmp_ordered(">", loaded, splat(args[2], numbers))
        pattern = builder.bitcast(above, ir.IntType(SEEN))
        known = [_places(pattern) for pattern in range(1 << SEEN)]
        table = ir.Constant(ir.ArrayType(place, len(known)), known)
        table = cgutils.global_constant(builder.module, "places_found", table)
        entry = cgutils.gep_inbounds(builder, table, 0, builder.zext(pattern, place))
        those = builder.zext(builder.bitcast(builder.load(entry, typ=place), packed), places)
        stored = builder.store(
            builder.add(those, splat(args[1], places)),
            builder.bitcast(where, places.as_pointer()),
        )
        stored.align = context.get_abi_sizeof(place)
        return builder.zext(builder.ctpop(pattern), place)

    types_of = (keys, types.intp, keys.dtype, at, types.intp)
    return types.intp(*types_of), codegen


@scalar
def seek(keys, limit, at):
    """Write the positions of the keys that exceed the limit to `at`, in order; return their number.

    Such keys may lie anywhere, and a branch for each could not be predicted. `at` is as long as
    `keys`; after the positions that were found it holds arbitrary numbers.
    """
    found, start = 0, 0
    while start + SEEN <= keys.shape[0]:
        found += _seek_in_vector(keys, start, limit, at, found)
        start += SEEN
    for i in range(start, keys.shape[0]):
        if keys[i] > limit:
            at[found] = i
            found += 1
    return found


@scalar
def block(x, start, most):
    """The entries of a row from `start` on, at most `most` of them, as a view."""
    left = x.shape[0] - start
    return window(x, start, left if left < most else most)


@intrinsic
def borrowed(typingctx: Any, x: Any) -> Any:
    """The array without a reference count, valid for as long as the caller holds the original.

    A row of an array increments its reference count, an atomic operation on one address: threads
    that each take rows of one array would wait for each other.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, value=args[0])
        array.meminfo = ir.Constant(array.meminfo.type, None)
        array.parent = ir.Constant(array.parent.type, None)
        return array._getvalue()

    return x(x), codegen


@intrinsic
def empty(typingctx: Any, shape: Any, dtype: Any = None) -> Any:
    """np.empty(shape, dtype) of one or two dimensions, which takes a fifteenth of a second less.

    Numba compiles its own once for each kind of array, with machine code that nobody calls.
    """
    several = isinstance(shape, types.BaseTuple)
    entry = types.float64 if dtype is None else dtype.dtype
    kind = types.Array(entry, len(shape) if several else 1, "C")
    sizes = types.UniTuple(types.intp, kind.ndim) if several else types.intp

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from numba.np.arrayobj import populate_array  # loaded with the first compilation

        shape = cgutils.unpack_tuple(builder, args[0]) if several else [args[0]]
        item = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
        )
        strides = [item]
        for size in reversed(shape):
            strides.insert(0, builder.mul(strides[0], size))
        align = context.get_constant(
            types.uint32, context.get_preferred_array_alignment(kind.dtype)
        )
        memory = context.nrt.meminfo_alloc_aligned(builder, strides[0], align)
        array = context.make_array(kind)(context, builder)
        populate_array(
            array,
            data=builder.bitcast(context.nrt.meminfo_data(builder, memory), array.data.type),
            shape=cgutils.pack_array(builder, shape),
            strides=cgutils.pack_array(builder, strides[1:]),
            itemsize=item,
            meminfo=memory,
        )
        return array._getvalue()

    return kind(sizes, types.Omitted(None) if dtype is None else dtype), codegen


@scalar
def workspace(like, rows, columns):
    """An uninitialised array of this many rows and columns, of another array's type."""
    return empty((rows, columns), like.dtype)
