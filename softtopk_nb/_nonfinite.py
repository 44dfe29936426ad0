"""What every construction does to a row before its mathematics: the non-finite rules, once.

A row is looked at in one pass. A finite row goes to its construction as it is. A row that holds
infinities is compressed to its finite entries, each +inf taking one of k; solved; and expanded
again, so that an excluded entry (-inf, masked) is exactly as if it had never been there. What
remains is constant on the finite entries and needs no solving.
"""

from __future__ import annotations

import numpy as np

from ._compile.array_intrinsics import window
from ._compile.decorators import scalar
from ._compile.permute import count_of, pack, unpack
from ._math.elementary import to_ordinal, wide_vectors

# What a row is, once its infinities have been counted. Up to MIXED it has a threshold, or
# whatever its construction solves for; from NONE on it is constant on its finite entries.
FINITE = 0  # every entry finite, 0 < k < n
MIXED = 1  # infinities set aside, 0 < k left < finite entries left
NONE = 2  # nothing of k is left for the finite entries: they are 0
ALL = 3  # as much of k is left as there are finite entries: they are 1
SHARED = 4  # more +inf than k: they share it equally
UNDEFINED = 5  # a NaN, or fewer entries than k


@scalar
def survey(x):
    """Ordinals of the smallest and the largest entry, 0 for an empty row; NaNs lie outermost."""
    wide_vectors()
    lo = hi = to_ordinal(x[0] if x.shape[0] > 0 else x.dtype.type(0))
    for i in range(x.shape[0]):
        o = to_ordinal(x[i])
        lo = o if o < lo else lo
        hi = o if o > hi else hi
    return lo, hi


@scalar
def classify(x, k, lo, hi):
    """What the row is, from `survey`'s ordinals of it.

    Returns (code, number of finite entries, number of +inf, k left to the finite entries, ordinals
    of the smallest and the largest finite entry).
    """
    T = x.dtype.type
    lowest, highest = to_ordinal(T(-np.inf)), to_ordinal(T(np.inf))
    n = finite = x.shape[0]
    above = 0
    if lo < lowest or hi > highest:
        return UNDEFINED, 0, 0, k, lo, hi
    if lo == lowest or hi == highest:
        least, most = hi, lo
        for i in range(n):
            o = to_ordinal(x[i])
            if o == lowest:
                finite -= 1
            elif o == highest:
                finite -= 1
                above += 1
            else:
                least = o if o < least else least
                most = o if o > most else most
        lo, hi = least, most
    left = k - above
    return verdict(n, finite, left), finite, above, left, lo, hi


@scalar
def verdict(n, finite, left):
    """What a row of n entries is: so many of them finite, and so much of k left to those."""
    if left > finite:
        return UNDEFINED
    if left < 0:
        return SHARED
    if left == 0:
        return NONE
    if left == finite:
        return ALL
    return FINITE if finite == n else MIXED


@scalar
def verdict_of(n, k, tau, nans, above, excluded):
    """As `verdict`, from k and the temperature and counts of what is not finite."""
    if not (nans == 0.0 and k >= 0.0 and k <= n and tau > 0.0 and tau < np.inf):
        return UNDEFINED
    return verdict(n, np.int64(n - above - excluded), k - above)


@scalar
def length(x):
    """How many entries come before those of -inf at a row's end; all, if the row is nothing else.

    Such a row is solved as one of that length, and its end is not looked at again.
    """
    n, excluded = x.shape[0], x.dtype.type(-np.inf)
    while n > 0 and x[n - 1] == excluded:
        n -= 1
    return n if n > 0 else x.shape[0]


@scalar
def fill_behind(out, n, value):
    """Write the value from place n on."""
    for j in range(n, out.shape[0]):
        out[j] = value


@scalar
def without_infinities(entries, k, room):
    """(the entries that are not infinite, in `room`; how much of k they get)."""
    n = pack(entries, entries, room)
    return window(room, 0, n), k - count_of(entries, entries.dtype.type(np.inf))


@scalar
def with_infinities(entries, values, above, out):
    """Undo `without_infinities`: p of the row, of which so many are +inf, from the others'."""
    T = out.dtype.type
    unpack(entries, values, T(0), out)
    if above > 0:
        for i in range(entries.shape[0]):
            out[i] = T(1) if entries[i] == np.inf else out[i]


@scalar
def taking_part(x, v, out, code, room):
    """The finite entries of a row, what belongs to them, and where their derivatives go."""
    if code != MIXED:
        return x, v, out
    n = pack(x, x, room[0])
    pack(x, v, room[1])
    return window(room[0], 0, n), window(room[1], 0, n), window(room[2], 0, n)


@scalar
def pack_row(x, values, behind, out):
    """Write the values at the entries that are not infinite, and `behind` after them."""
    fill_behind(out, pack(x, values, out), out.dtype.type(behind))


@scalar
def rows_at_once(n):
    """How many rows of n entries are packed at a time: what a core's own cache holds."""
    return max(1, (1 << 14) // max(1, n))


@scalar
def present_part(x, v, code):
    """The finite entries of a row and what belongs to them."""
    if code != MIXED:
        return x, v
    xs, vs = np.empty(x.shape[0], x.dtype), np.empty(x.shape[0], x.dtype)
    pack(x, x, xs)
    finite = pack(x, v, vs)
    return xs[:finite], vs[:finite]


@scalar
def expand(x, values, at_plus_inf, out):
    """Undo `permute.pack`; +inf entries receive `at_plus_inf`, -inf entries 0.

    It goes from the last entry to the first, so that `values` may be the first part of `out`.
    """
    T = out.dtype.type
    j = values.shape[0]
    if j == x.shape[0]:  # no infinities: a loop that vectorises
        for i in range(j):
            out[i] = values[i]
        return
    for i in range(x.shape[0] - 1, -1, -1):
        if np.isfinite(x[i]):
            j -= 1
            out[i] = values[j]
        else:
            out[i] = T(at_plus_inf) if x[i] > 0 else T(0)


@scalar
def constant_values(code, k, above, one):
    """What a row that needs no solving is at its finite entries, at those at +inf, and at -inf.

    In the type of `one`: cast later, they would be chosen in float64 for each entry.
    """
    T = type(one)
    zero, nan = T(0), T(np.nan)
    if code == UNDEFINED:
        return nan, nan, nan
    return one if code == ALL else zero, T(k / above) if code == SHARED else one, zero


@scalar
def fill_constant(x, k, code, above, out):
    """The value of a row that needs no solving."""
    T = out.dtype.type
    finite, top, bottom = constant_values(code, k, above, T(1))
    for i in range(x.shape[0]):
        if np.isfinite(x[i]):
            out[i] = finite
        else:
            out[i] = top if x[i] > 0 else bottom


@scalar
def fill_constant_row(x, k, code, above, out):
    """As `fill_constant`, where x is a row without those of -inf at its end: they get 0, or NaN."""
    n = x.shape[0]
    fill_constant(x, k, code, above, window(out, 0, n))
    fill_behind(out, n, out.dtype.type(np.nan if code == UNDEFINED else 0.0))
