"""The normal tail and powers of fractions, as arithmetic that vectorises.

Each is a Python function, which defines it, and a compiled form without branches or library calls.
The coefficients are Chebyshev expansions, cut off where they fall below rounding and written as
powers; the tests compare them with 50 digits over the whole range.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from .._compile.decorators import overload_scalar, scalar
from .elementary import exp_neg, float_of, fma, fused, ordinal_of, power_of_two, quotient

# (t + a) times the Mills ratio of the normal distribution, in powers of y = (t - a)/(t + a), which
# goes from -1 to 1 as t goes from 0 to infinity.
_MILLS_32 = (
    4.0,
    (
        1.893219055e00,
        -1.523770314e00,
        9.704099614e-01,
        -4.675531274e-01,
        1.513885563e-01,
        -1.883037159e-02,
        -8.713460733e-03,
        3.919832456e-03,
        3.241714095e-04,
        -3.943441879e-04,
    ),
)
_MILLS_64 = (
    5.0,
    (
        1.92808104715315776e00,
        -1.66786659518895997e00,
        1.24154706157386641e00,
        -7.85911075546545268e-01,
        4.13644715732683799e-01,
        -1.73254734087150419e-01,
        5.21255024122787985e-02,
        -7.50328282067875933e-03,
        -1.99996197498436600e-03,
        1.36585916094243611e-03,
        -1.48833052323398018e-04,
        -1.24735658187210820e-04,
        4.18145858663246275e-05,
        9.97478008554273324e-06,
        -6.94503313849162823e-06,
        -8.36067598018140710e-07,
        1.09366335235939422e-06,
        9.66842835721632533e-08,
        -1.76412396897719040e-07,
        -1.73981242776791958e-08,
        2.81720119754430321e-08,
        3.18686684386651325e-09,
        -3.84418406496492017e-09,
        -3.33685048792316809e-10,
        3.12560544716041254e-10,
    ),
)

# Up to here Phi(-t) is a normal number. Beyond, both it and the density are returned as 0:
# arithmetic that gives subnormal numbers takes some processors a hundred times as long.
_LAST_32, _LAST_64 = 12.94, 37.5

# The same to 1e-4, and 2^r for |r| <= 1/2: polynomials of least relative error for their degree.
_CHEAP_MILLS = 2.5, (1.77144543, -1.08645875, 0.32823197, 0.01995184, -0.0331962)
_CHEAP_EXP2 = 0.99992807, 0.69326099, 0.24261112, 0.05517165


def normal_tail(t: float) -> tuple[float, float]:
    """(Phi(-t), Phi'(t)) for t >= 0, to 4 units in the last place up to 12.94 or 37.5; then 0.

    On processors that round a product before they add it, t^2/4 units more.
    """
    T = type(t)
    density = math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
    return T(0.5 * math.erfc(t * math.sqrt(0.5))), T(density)


@scalar
def _horner_4(c, first, q, y):
    """Four steps of Horner's rule, from coefficient `first` down; no loop, for the vectoriser."""
    q = fma(fma(q, y, c[first]), y, c[first - 1])
    return fma(fma(q, y, c[first - 2]), y, c[first - 3])


@overload_scalar(normal_tail)
def _normal_tail(t):
    T, (shift, c) = (np.float32, _MILLS_32) if t is types.float32 else (np.float64, _MILLS_64)
    a, half, one = T(shift), T(0.5), T(1)
    last, zero = T(_LAST_32 if T is np.float32 else _LAST_64), T(0)
    scale = T(1 / math.sqrt(2 * math.pi))
    c = tuple(T(v) for v in c)

    @scalar
    def mills(y):
        q = fma(c[9], y, c[8])
        return _horner_4(c, 3, _horner_4(c, 7, q, y), y)

    even, odd = c[0::2], c[1::2]

    @scalar
    def mills_64(y):
        # Two chains, half as long: the processor evaluates both at the same time.
        z = y * y
        p = _horner_4(even, 3, _horner_4(even, 7, _horner_4(even, 11, even[12], z), z), z)
        q = _horner_4(odd, 6, _horner_4(odd, 10, odd[11], z), z)
        q = fma(fma(fma(q, z, odd[2]), z, odd[1]), z, odd[0])
        return fma(q, y, p)

    if T is np.float64:
        mills = mills_64

    def impl(t):
        # Beyond, too, nothing may be subnormal, not even a value that is not used.
        u, factor = (t, scale) if t < last else (last, zero)
        square = u * u
        rest = fma(u, u, -square)  # its rounding error, which the exponential magnifies
        density = factor * exp_neg(-half * square)
        density = fma(-half * rest, density, density)
        share = quotient(one, u + a)
        return density * (share * mills((u - a) * share)), density

    return impl


def cheap_normal_tail(t: float) -> tuple[float, float]:
    """`normal_tail` in float32, with relative errors up to 2e-4; 0 from 12.94 on."""
    return normal_tail(t)


@overload_scalar(cheap_normal_tail)
def _cheap_normal_tail(t):
    T, (shift, c), e = np.float32, _CHEAP_MILLS, tuple(map(np.float32, _CHEAP_EXP2))
    a, most, magic = T(shift), T(_LAST_32), T(1.5 * 2.0**23)
    zero, one, twice, per_square = T(0), T(1), T(-2 * shift), T(-0.5 / math.log(2))
    c = tuple(T(v / math.sqrt(2 * math.pi)) for v in c)
    scale = T(1 / math.sqrt(2 * math.pi))

    def impl(t):
        u = t if t < most else most
        z = per_square * u
        shifted = fma(z, u, magic)
        r = fma(z, u, magic - shifted)
        power = fma(fma(fma(e[3], r, e[2]), r, e[1]), r, e[0]) * power_of_two(shifted)
        power = power if t < most else zero
        share = quotient(one, u + a)
        y = fma(twice, share, one)
        mills = fma(fma(fma(fma(c[4], y, c[3]), y, c[2]), y, c[1]), y, c[0])
        return power * (share * mills), power * scale

    return impl


def natural_log(s: float) -> float:
    """The logarithm of a positive normal number, to 3 units in the last place."""
    return type(s)(math.log(s))


def log_of_sum(s: float, rest: float) -> float:
    """The logarithm of s + rest, to 3 units in the last place, also where the sum is close to 1.

    `rest` is the rounding error of s, a positive normal number.
    """
    return type(s)(math.log(s) + rest / s)


def _logarithm(s, with_rest):
    """The compiled form of `natural_log`, or of `log_of_sum`, for numbers of this type.

    s = 2^e m with m in [sqrt(1/2), sqrt(2)), and e log 2 + log m = e log 2 + 2 artanh(u),
    u = (m - 1)/(m + 1). Between sqrt(1/2) and sqrt(2) m is s, and m - 1 is exact: the only error
    is the rest.
    """
    T, integer, mantissa, terms, digits = (
        (np.float32, np.int32, 23, 5, 12)
        if s is types.float32
        else (np.float64, np.int64, 52, 9, 40)
    )
    root, unit = (np.array(v, T).view(integer)[()] for v in (math.sqrt(0.5), 1.0))
    shift = integer(mantissa)
    high = T(round(math.log(2) * 2.0**digits) / 2.0**digits)
    low = T(math.log(2) - float(high))
    one, two = T(1), T(2)
    c = tuple(T(2 / (2 * j + 3)) for j in range(terms))
    long = terms == 9

    def log_of_sum(s, rest):
        bits = ordinal_of(s)
        exponent = integer((bits - root) >> shift)
        moved = integer(exponent << shift)
        e, m = T(np.int32(exponent)), float_of(integer(bits - moved))
        over = m - one
        if with_rest:
            over = fused(rest, float_of(integer(unit - moved)), over)
        u = quotient(over, m + one)
        z = u * u
        if long:
            series = fused(fused(fused(c[8], z, c[7]), z, c[6]), z, c[5])
            series = fused(series, z, c[4])
        else:
            series = c[4]
        series = fused(fused(fused(fused(series, z, c[3]), z, c[2]), z, c[1]), z, c[0])
        return fused(e, high, fused(e, low, fused(u * z, series, two * u)))

    return log_of_sum


@overload_scalar(natural_log)
def _natural_log(s):
    compiled = scalar(_logarithm(s, False))
    zero = np.float32(0) if s is types.float32 else np.float64(0)
    return lambda s: compiled(s, zero)


@overload_scalar(log_of_sum)
def _log_of_sum(s, rest):
    return _logarithm(s, True)


@scalar
def log_of_one_and(e):
    """log(1 + e) for 0 <= e <= 1, to 3 units in the last place."""
    s = type(e)(1) + e
    return log_of_sum(s, e - (s - type(e)(1)))


def power_of_fraction(s: float, rest: float, q: float) -> float:
    """(s + rest)^q for 0 <= s <= 1 and q > 0, `rest` as in `log_of_sum`; 0 for subnormal s.

    Its relative error is (3 + |q log s|) units.
    """
    return type(s)(math.pow(s, q) * math.exp(q * rest / s)) if s > 0.0 else type(s)(0)


@overload_scalar(power_of_fraction)
def _power_of_fraction(s, rest, q):
    T = np.float32 if s is types.float32 else np.float64
    tiny, zero = T(np.finfo(T).tiny), T(0)

    def impl(s, rest, q):
        safe = s if s > tiny else tiny
        p = exp_neg(q * log_of_sum(safe, rest))
        return p if s > tiny else zero

    return impl
