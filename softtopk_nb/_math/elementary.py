"""Elementary functions of one number, written so that loops over them vectorise.

Numba's `math.exp` is a library call, which stops a loop from being vectorised. The exponential
here is branch-free arithmetic on numbers of the argument's own type.

Each is a Python function, which defines it, with a compiled form for the CPU, and another for a
device that has instructions of its own for it (`_cuda.target`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.target_extension import current_target
from numba.extending import intrinsic

from .._compile.decorators import overload_scalar

#: Replacements compiled for a device (`_cuda.target`), by name: argument types -> implementation.
DEVICE_FORMS: dict[str, Any] = {}


@intrinsic
def fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a*b + c, as a fused multiply-add where the machine has one: the same bits in every loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        t = args[0].type
        name = "llvm.fma" if current_target() == "cuda" else "llvm.fmuladd"
        function = builder.module.declare_intrinsic(name, [t], ir.FunctionType(t, [t, t, t]))
        return builder.call(function, args)

    return a(a, a, a), codegen


def fma(a: float, b: float, c: float) -> float:
    """a*b + c, as a fused multiply-add where the machine has one."""
    return a * b + c


@overload_scalar(fma)
def _compiled_fma(a, b, c):
    return lambda a, b, c: fused(a, b, c)


@intrinsic
def _round_even(typingctx: Any, a: Any) -> Any:
    """The nearest integer, as a float (`math.floor` gives an int64 and is not vectorised)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.rint", [args[0].type])
        return builder.call(function, args)

    return a(a), codegen


@intrinsic
def power_of_two(typingctx: Any, shifted: Any) -> Any:
    """2**n from 3 * 2**(mantissa - 1) + n, for an n in the range of normal exponents.

    In that sum the low bits are n: no conversion to integers, which AVX2 lacks for float64.
    """
    mantissa, bias = (23, 127) if shifted.bitwidth == 32 else (52, 1023)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(shifted.bitwidth)
        bits = builder.add(builder.bitcast(args[0], integer), integer(bias))
        return builder.bitcast(builder.shl(bits, integer(mantissa)), args[0].type)

    return shifted(shifted), codegen


@intrinsic
def wide_vectors(typingctx: Any) -> Any:
    """Let the kernel that calls this use the widest vectors that the machine has.

    For many processors with AVX-512, LLVM prefers 256 bits, since the first of them lowered their
    clock for 512.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # llvmlite accepts only attributes that it knows, and this is not one of them.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


def exp_neg(t: float) -> float:
    """e**t for t <= 0, relative error at most 2 units in the last place; 0 below the normal range.

    t = n log 2 + r with |r| <= log(2)/2 (Cody and Waite: log 2 in two parts, the first short
    enough that n times it is exact), and e**r = 1 + r + r**2 g(r), g by the polynomial that agrees
    with it at Chebyshev's points: degree 4 in float32, 9 in float64, off by less than a tenth of a
    unit.
    """
    return type(t)(math.exp(t))


def half_exp_neg(t: float) -> float:
    """e**t / 2 for t <= 0, to the accuracy of `exp_neg`; 0 where it is below the normal range."""
    return type(t)(0.5 * math.exp(t))


@overload_scalar(exp_neg)
def _exp_neg(t):
    if current_target() == "cuda":
        return DEVICE_FORMS["exp_neg"](t)
    return _exponential(t, 1.0)


@overload_scalar(half_exp_neg)
def _half_exp_neg(t):
    if current_target() == "cuda":
        return lambda t: type(t)(0.5) * exp_neg(t)
    return _exponential(t, 0.5)


def _exponential(t, factor):
    """The compiled form of `exp_neg` times `factor`, 1 or 1/2, for the type of t.

    It is 0 where the product would be subnormal: on some processors that takes a hundred cycles.
    """
    if t is types.float32:
        real, mantissa, lowest = np.float32, 23, -87.3
        log2_hi, log2_lo = 0.693359375, -2.12194440054690583e-4
        g = (0.5, 0.1666657702559799, 0.041666554662050534)
        g += (0.008363173074513711, 0.001392617611993558)
    else:
        real, mantissa, lowest = np.float64, 52, -708.3
        log2_hi, log2_lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10
        g = (0.5, 0.16666666666666669, 0.041666666666624164, 0.008333333333330065)
        g += (0.0013888888917196719, 0.00019841269863040545, 2.4801521322368692e-05)
        g += (2.7557268480310024e-06, 2.7620075879983367e-07, 2.5100375832561234e-08)
    minus_hi, minus_lo = real(-log2_hi), real(-log2_lo)
    lowest -= math.log(factor)
    per_log2, floor, zero, one = real(1 / math.log(2)), real(lowest), real(0), real(1)
    scale = real(factor)
    c = tuple(map(real, g))
    # Added to a number, it leaves the nearest integer in the low bits.
    magic = real(1.5 * 2.0**mantissa)
    short = len(c) == 5

    def impl(t):
        u = t if t > floor else floor
        shifted = fused(u, per_log2, magic)
        n = shifted - magic
        r = fused(n, minus_lo, fused(n, minus_hi, u))
        if short:
            q = c[4]
        else:
            q = fused(fused(fused(fused(fused(c[9], r, c[8]), r, c[7]), r, c[6]), r, c[5]), r, c[4])
        q = fused(fused(fused(fused(q, r, c[3]), r, c[2]), r, c[1]), r, c[0])
        q = fused(fused(q, r, one), r, one)
        return scale * (q * power_of_two(shifted)) if t >= floor else zero

    return impl


def limits(t: Any) -> tuple[float, float, float]:
    """(eps, smallest normal number, largest number) of the type of t, as float64.

    `t` is a number or, where a function is made for the types of its arguments, a Numba type.
    """
    info = np.finfo(np.float32 if t is types.float32 or isinstance(t, np.float32) else np.float64)
    return float(info.eps), float(info.tiny), float(info.max)


@overload_scalar(limits)
def _limits(t):
    values = limits(t)
    return lambda t: values


def quotient(a: float, b: float) -> float:
    """a/b for b of moderate size, to a rounding or two."""
    return a / b


@overload_scalar(quotient)
def _quotient(a, b):
    if current_target() == "cuda":
        return DEVICE_FORMS["quotient"](a, b)
    return lambda a, b: a / b


def circular(t: float) -> tuple[float, float]:
    """(cos t, sin t) of a float64, |t| <= 10^6, to within 2^-52."""
    return math.cos(t), math.sin(t)


@overload_scalar(circular)
def _circular(t):
    if current_target() == "cuda":
        return DEVICE_FORMS["circular"](t)
    # t = q pi/2 + r with |r| <= pi/4: pi/2 in three parts, the first two short enough for their
    # product with q to be exact. Then Taylor polynomials in r, off by less than 2^-56.
    per_part = 2.0 / math.pi
    part_1, part_2 = 1.5707963267341256, 6.077100506303966e-11
    part_3 = 2.0222662487959506e-21
    c = tuple((-1.0) ** j / math.factorial(2 * j) for j in range(9))
    s = tuple((-1.0) ** j / math.factorial(2 * j + 1) for j in range(9))

    def impl(t):
        q = _round_even(t * per_part)
        r = fused(-q, part_3, fused(-q, part_2, fused(-q, part_1, t)))
        z = r * r
        cosine = fused(fused(fused(fused(c[8], z, c[7]), z, c[6]), z, c[5]), z, c[4])
        cosine = fused(fused(fused(fused(cosine, z, c[3]), z, c[2]), z, c[1]), z, c[0])
        sine = fused(fused(fused(fused(s[8], z, s[7]), z, s[6]), z, s[5]), z, s[4])
        sine = fused(fused(fused(sine, z, s[3]), z, s[2]), z, s[1])
        sine = fused(r * z, sine, r)
        # The quarter of the circle: -2 to 2.
        quarter = q - 4.0 * _round_even(0.25 * q)
        crossed = abs(quarter) == 1.0
        a, b = (sine, cosine) if crossed else (cosine, sine)
        a = -a if (quarter == 1.0) | (abs(quarter) == 2.0) else a
        b = -b if (quarter == -1.0) | (abs(quarter) == 2.0) else b
        return a, b

    return impl


def to_ordinal(a: Any) -> Any:
    """The ordinal of a float: a signed integer that orders as the floats do.

    Infinities enclose the finite numbers; NaNs lie outside them.
    """
    integer: Any = np.int32 if isinstance(a, np.float32) else np.int64
    bits: Any = np.asarray(a).view(integer)[()]
    return bits if bits >= 0 else bits ^ np.iinfo(integer).max


def from_ordinal(o: Any) -> Any:
    """The float with this ordinal, int32 or int64: the inverse of `to_ordinal`."""
    real = np.float32 if isinstance(o, np.int32) else np.float64
    bits = o if o >= 0 else o ^ np.iinfo(type(o)).max
    return np.asarray(bits).view(real)[()]


@intrinsic
def ordinal_of(typingctx: Any, a: Any) -> Any:
    """`to_ordinal` in compiled code."""
    integer_type = types.int32 if a.bitwidth == 32 else types.int64

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(a.bitwidth)
        bits = builder.bitcast(args[0], integer)
        sign = builder.ashr(bits, integer(a.bitwidth - 1))
        return builder.xor(bits, builder.lshr(sign, integer(1)))

    return integer_type(a), codegen


@intrinsic
def float_of(typingctx: Any, o: Any) -> Any:
    """`from_ordinal` in compiled code."""
    real_type, real = (
        (types.float32, ir.FloatType()) if o.bitwidth == 32 else (types.float64, ir.DoubleType())
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(o.bitwidth)
        sign = builder.ashr(args[0], integer(o.bitwidth - 1))
        bits = builder.xor(args[0], builder.lshr(sign, integer(1)))
        return builder.bitcast(bits, real)

    return real_type(o), codegen


@overload_scalar(to_ordinal)
def _compiled_to_ordinal(a):
    return lambda a: ordinal_of(a)


@overload_scalar(from_ordinal)
def _compiled_from_ordinal(o):
    return lambda o: float_of(o)
