"""The rules for NaN and infinities, which every construction applies to a row first.

A row is looked at in one pass. A finite row goes to its construction as it is. A row with
infinities is compressed to its finite entries, each +inf taking one of k; solved; and expanded
again, so that an excluded entry (-inf, masked) is exactly as if it had never been there. A row of
any other kind is constant on the finite entries and needs no solving.
"""

from __future__ import annotations

import numpy as np

from ._compile.array_intrinsics import window
from ._compile.decorators import scalar
from ._compile.permute import count_of, pack, unpack
from ._math.elementary import to_ordinal, wide_vectors

# Kinds of rows, once the infinities have been counted. Up to WITH_INFINITIES a row has a threshold,
# or whatever its construction solves for; from NONE on it is constant on its finite entries.
FINITE = 0  # every entry finite, 0 < k < n
WITH_INFINITIES = 1  # infinities set aside, 0 < k left < finite entries left
NONE = 2  # k is used up by +inf: the finite entries are 0
ALL = 3  # the k that is left is the number of finite entries: they are 1
SHARED = 4  # more +inf than k: they share it equally
UNDEFINED = 5  # a NaN, or fewer entries than k


@scalar
def survey(x):
    """Ordinals of the smallest and the largest entry (NaNs lie outside), 0 for an empty row."""
    wide_vectors()
    lo = hi = to_ordinal(x[0] if x.shape[0] > 0 else x.dtype.type(0))
    for i in range(x.shape[0]):
        o = to_ordinal(x[i])
        lo = o if o < lo else lo
        hi = o if o > hi else hi
    return lo, hi


@scalar
def classify(x, k, lo, hi):
    """The kind of a row and its counts, from the ordinals that `survey` found.

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
    """The kind of a row of n entries, of which `finite` are finite and share `left` of k."""
    if left > finite:
        return UNDEFINED
    if left < 0:
        return SHARED
    if left == 0:
        return NONE
    if left == finite:
        return ALL
    return FINITE if finite == n else WITH_INFINITIES


@scalar
def verdict_of(n, k, tau, nans, above, excluded):
    """The kind of a row of n entries from k, the temperature, and counts of NaN, +inf and -inf."""
    if not (nans == 0.0 and k >= 0.0 and k <= n and tau > 0.0 and tau < np.inf):
        return UNDEFINED
    return verdict(n, np.int64(n - above - excluded), k - above)


@scalar
def length(x):
    """The length of a row without the -inf at its end; n if it holds nothing else.

    A row is solved as one of that length, and its end is not looked at again.
    """
    n, excluded = x.shape[0], x.dtype.type(-np.inf)
    while n > 0 and x[n - 1] == excluded:
        n -= 1
    return n if n > 0 else x.shape[0]


@scalar
def fill_behind(out, n, value):
    """Write `value` to `out` from position n on."""
    for j in range(n, out.shape[0]):
        out[j] = value


@scalar
def without_infinities(entries, k, scratch):
    """(the entries that are not infinite, written to `scratch`; the k that is left for them)."""
    n = pack(entries, entries, scratch)
    return window(scratch, 0, n), k - count_of(entries, entries.dtype.type(np.inf))


@scalar
def with_infinities(entries, values, above, out):
    """Undo `without_infinities`: write p of a row with `above` entries of +inf, from `values`."""
    T = out.dtype.type
    unpack(entries, values, T(0), out)
    if above > 0:
        for i in range(entries.shape[0]):
            out[i] = T(1) if entries[i] == np.inf else out[i]


@scalar
def taking_part(x, v, out, code, scratch):
    """(finite entries of a row, their v, memory for their derivatives), packed in `scratch`."""
    if code != WITH_INFINITIES:
        return x, v, out
    n = pack(x, x, scratch[0])
    pack(x, v, scratch[1])
    return window(scratch[0], 0, n), window(scratch[1], 0, n), window(scratch[2], 0, n)


@scalar
def pack_row(x, values, behind, out):
    """Write the values where x is not infinite, and then `behind` to the end of `out`."""
    fill_behind(out, pack(x, values, out), out.dtype.type(behind))


@scalar
def rows_at_once(n):
    """Number of rows of n entries to pack at a time: as many as fit in a core's own cache."""
    return max(1, (1 << 14) // max(1, n))


@scalar
def present_part(x, v, code):
    """(finite entries of a row, the v that belong to them)."""
    if code != WITH_INFINITIES:
        return x, v
    xs, vs = np.empty(x.shape[0], x.dtype), np.empty(x.shape[0], x.dtype)
    pack(x, x, xs)
    finite = pack(x, v, vs)
    return xs[:finite], vs[:finite]


@scalar
def expand(x, values, at_plus_inf, out):
    """Undo `permute.pack`: write `values` at finite entries, `at_plus_inf` at +inf, 0 at -inf.

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
    """The values of a row that needs no solving: (at finite entries, at +inf, at -inf).

    They have the type of `one`: cast later, they would be selected in float64 for each entry.
    """
    T = type(one)
    zero, nan = T(0), T(np.nan)
    if code == UNDEFINED:
        return nan, nan, nan
    return one if code == ALL else zero, T(k / above) if code == SHARED else one, zero


@scalar
def fill_constant(x, k, code, above, out):
    """Write p of a row that needs no solving."""
    T = out.dtype.type
    finite, top, bottom = constant_values(code, k, above, T(1))
    for i in range(x.shape[0]):
        if np.isfinite(x[i]):
            out[i] = finite
        else:
            out[i] = top if x[i] > 0 else bottom


@scalar
def fill_constant_row(x, k, code, above, out):
    """Write p as `fill_constant` for x, a row cut before its last -inf, and 0 or NaN there."""
    n = x.shape[0]
    fill_constant(x, k, code, above, window(out, 0, n))
    fill_behind(out, n, out.dtype.type(np.nan if code == UNDEFINED else 0.0))
