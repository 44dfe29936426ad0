"""Random numbers from a counter: Philox 4x32-10, and Gumbel numbers from its words.

Four words are a function of a key and a counter. A thread that draws so keeps no state, and its
draws depend on the counter alone, not on how the threads were launched.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.decorators import scalar
from ..._math.elementary import limits

ROUNDS = 10

# Words of 32 bits are held in 64: compiled code would widen them in any case.
_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_TIMES_0, _TIMES_2 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEP_0, _STEP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_HIGH_BITS, _LOW_CUT = np.uint64(21), np.uint64(11)


@scalar
def philox(key, c0, c1, c2, c3):
    """Four random words, from a key of 64 bits and four words of a counter, all of type uint64."""
    k0, k1 = key & _WORD, key >> _HALF
    for _ in range(ROUNDS):
        a, b = c0 * _TIMES_0, c2 * _TIMES_2
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _WORD, (a >> _HALF) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + _STEP_0) & _WORD, (k1 + _STEP_1) & _WORD
    return c0, c1, c2, c3


@scalar
def uniform32(word):
    """A float32 in (0, 1] from one word, all of whose bits are used where the number is small."""
    return (np.float32(np.uint32(word)) + np.float32(0.5)) * np.float32(2.0**-32)


@scalar
def uniform64(high, low):
    """A float64 in (0, 1] from the 53 highest bits of two words."""
    bits = (high << _HIGH_BITS) | (low >> _LOW_CUT)
    return (np.float64(bits) + 0.5) * 2.0**-53


@scalar
def gumbel(u):
    """-log(-log(1 - u)), a standard Gumbel number if u is uniform, in the type of u.

    Large numbers, which decide a maximum, come from small u, where floats are densest: up to 22.9
    in float32 and 37.4 in float64. u = 1 counts as the float below.
    """
    T = type(u)
    below_one = T(1.0 - 0.5 * limits(u)[0])
    return T(-math.log(T(-math.log1p(-min(u, below_one)))))
