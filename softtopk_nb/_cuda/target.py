"""The one import of numba.cuda, and the device forms of scalar functions.

Imported only for an array on a device: a machine without CUDA never loads it. With
NUMBA_ENABLE_CUDASIM=1 the same kernels run in Numba's simulator, as Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, types

if not hasattr(np, "row_stack"):  # removed in NumPy 2.5, and numba-cuda 0.30 still refers to it
    np.row_stack = np.vstack  # noqa: NPY201

from numba import cuda

from .._math.elementary import DEVICE_FORMS

__all__ = ["SIMULATED", "cuda", "device", "load_wide", "store_wide"]

SIMULATED = bool(config.ENABLE_CUDASIM)

#: Bytes that a thread reads or writes at once where it can.
WIDE = 16


def device(function: Callable[..., Any]) -> Any:
    """Make a function callable from kernels; in the simulator it is left as it is."""
    return function if SIMULATED else cuda.jit(device=True)(function)


if SIMULATED:

    def load_wide(x, at):
        """WIDE bytes of x from entry `at` on, which lies at a multiple of WIDE bytes."""
        return tuple(x[at + j] for j in range(WIDE // x.itemsize))

    def store_wide(x, at, values):
        """Write WIDE bytes from entry `at` on."""
        for j, value in enumerate(values):
            x[at + j] = value

else:
    from llvmlite import ir
    from numba.cuda import libdevice
    from numba.cuda.extending import intrinsic

    def _lane(context: Any, builder: Any, pointer: Any, args: Any) -> Any:
        """(pointer to a vector, number of entries) at args = (pointer or array, offset, ...)."""
        entry = context.get_data_type(pointer.dtype)
        count = WIDE * 8 // pointer.dtype.bitwidth
        start = args[0]
        if not isinstance(pointer, types.CPointer):
            start = context.make_array(pointer)(context, builder, value=start).data
        place = builder.gep(start, [args[1]])
        return builder.bitcast(place, ir.VectorType(entry, count).as_pointer()), count

    @intrinsic
    def load_wide(typingctx: Any, x: Any, at: Any) -> Any:
        """WIDE bytes of x from entry `at` on, which lies at a multiple of WIDE bytes."""
        result = types.UniTuple(x.dtype, WIDE * 8 // x.dtype.bitwidth)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place, count = _lane(context, builder, signature.args[0], args)
            vector = builder.load(place, align=WIDE)
            lanes = [
                builder.extract_element(vector, ir.Constant(ir.IntType(32), j))
                for j in range(count)
            ]
            return context.make_tuple(builder, signature.return_type, lanes)

        return result(x, types.int64), codegen

    @intrinsic
    def store_wide(typingctx: Any, x: Any, at: Any, values: Any) -> Any:
        """Write WIDE bytes from entry `at` on."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place, count = _lane(context, builder, signature.args[0], args)
            vector = ir.Constant(place.type.pointee, ir.Undefined)
            for j in range(count):
                lane = builder.extract_value(args[2], j)
                vector = builder.insert_element(vector, lane, ir.Constant(ir.IntType(32), j))
            builder.store(vector, place, align=WIDE)
            return context.get_dummy_value()

        return types.void(x, types.int64, values), codegen

    @intrinsic
    def _exp2(typingctx: Any, a: Any) -> Any:
        """2**a by the device's own instruction: relative error 2**-22.5, 0 for subnormals."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            real = args[0].type
            function = builder.module.globals.get("llvm.nvvm.ex2.approx.ftz.f")
            if function is None:
                kind = ir.FunctionType(real, [real])
                function = ir.Function(builder.module, kind, "llvm.nvvm.ex2.approx.ftz.f")
            return builder.call(function, args)

        return a(a), codegen

    def _exp_neg(t: Any) -> Any:
        if t != types.float32:
            return lambda t: math.exp(t)
        # t / log 2 in two floats: the second holds the rounding error of the first.
        per_log2 = 1 / math.log(2)
        hi = np.float32(per_log2)
        lo = np.float32(per_log2 - float(hi))
        log2, floor = np.float32(math.log(2)), np.float32(-104.0)

        def impl(t):
            u = max(t, floor)
            n = u * hi
            rest = cuda.fma(u, lo, cuda.fma(u, hi, -n))
            e = _exp2(n)
            return cuda.fma(e, rest * log2, e)

        return impl

    def _quotient(a: Any, b: Any) -> Any:
        if a == types.float32 and b == types.float32:
            return lambda a, b: libdevice.fast_fdividef(a, b)
        return lambda a, b: a / b

    def _circular(t: Any) -> Any:
        # sin and cos would reserve stack memory for arguments of any size.
        per_pi = 1 / math.pi
        return lambda t: (libdevice.cospi(t * per_pi), libdevice.sinpi(t * per_pi))

    DEVICE_FORMS.update(circular=_circular, exp_neg=_exp_neg, quotient=_quotient)
