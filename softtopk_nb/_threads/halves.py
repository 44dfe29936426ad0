"""Conversion between float16 and float32 in integer arithmetic, which every processor vectorises.

NumPy converts entry by entry, and takes ten times as long again where a result is subnormal, as a
small p is. The bits are NumPy's: round to nearest, ties to even, overflow to infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._compile.array_intrinsics import borrowed
from .._compile.decorators import kernel
from .._math.elementary import from_ordinal, to_ordinal, wide_vectors
from . import pool

Array = npt.NDArray[Any]

#: Number of entries from which on this is faster than NumPy.
WORTH_IT = 1 << 13

_UNIT = 2.0**24  # subnormal numbers of float16 are integers over this
_ROUNDED = 3.0 * 2.0**22  # float32 numbers from here to twice this are integers
_BIAS = 112  # the difference of the exponent biases of float32 and float16


@kernel
def _widen(lo: int, hi: int, x: Any, out: Any) -> None:
    """Write the bits of float32 from those of float16."""
    wide_vectors()
    x, out = borrowed(x), borrowed(out)
    unit = np.float32(1.0 / _UNIT)
    for i in range(lo, hi):
        bits = np.int32(x[i])
        size = np.int32(bits & 0x7FFF)
        normal = np.int32((size << 13) + (_BIAS << 23))
        special = np.int32(normal + (_BIAS << 23))
        small = to_ordinal(np.float32(size) * unit)
        widened = small if size < 0x400 else special if size >= 0x7C00 else normal
        out[i] = np.int32(widened | np.int32((bits & 0x8000) << 16))


@kernel
def _narrow(lo: int, hi: int, x: Any, out: Any) -> None:
    """Write the bits of float16 from those of float32."""
    wide_vectors()
    x, out = borrowed(x), borrowed(out)
    unit, rounded = np.float32(_UNIT), np.float32(_ROUNDED)
    for i in range(lo, hi):
        bits = x[i]
        size = np.int32(bits & 0x7FFFFFFF)
        tie = np.int32((size >> 13) & 1)
        normal = np.int32((np.int32(size + 0xFFF + tie) >> 13) - (_BIAS << 10))
        small = np.int32(to_ordinal(from_ordinal(size) * unit + rounded) & 0x7FF)
        narrowed = small if size < 0x38800000 else normal
        narrowed = np.int32(0x7C00) if size >= 0x477FF000 else narrowed
        narrowed = np.int32(0x7E00) if size > 0x7F800000 else narrowed
        out[i] = np.uint16(narrowed | np.int32((bits >> 16) & 0x8000))


def widened(x: Array) -> Array:
    """A contiguous float16 array converted to float32."""
    out = np.empty(x.shape, np.float32)
    given, made = x.reshape(-1).view(np.uint16), out.reshape(-1).view(np.int32)
    pool.over(x.size, x.size // 2, _widen, given, made)
    return out


def narrowed(x: Array) -> Array:
    """A contiguous float32 array converted to float16."""
    out = np.empty(x.shape, np.float16)
    given, made = x.reshape(-1).view(np.int32), out.reshape(-1).view(np.uint16)
    pool.over(x.size, x.size // 2, _narrow, given, made)
    return out
