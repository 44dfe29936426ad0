"""One pass over a row: what it sums, what it writes, and how the last step corrects that."""

from __future__ import annotations

import numpy as np
from numba import types

from ..._compile.array_intrinsics import APART, block, read_apart, window, write_apart
from ..._compile.decorators import overload_scalar, row, summing
from ..._curves.base import (
    cheap_approximation,
    distance_to_kink,
    exact_between_kinks,
    has_second_derivative,
    higher_derivatives,
    second_derivative_sums,
    shift_factors,
    shifts_by_value_alone,
    slope_sum,
    split,
    to_fifth_order,
)
from ..._math.elementary import from_ordinal, to_ordinal, wide_vectors
from ..._math.sums import FEW, accurate_sum
from ..newton import _corrected, polish
from ..policy import has_light_passes, searches_in_float32

BLOCK = 1024  # entries summed in the row's own type before float64 takes over
SHARE = 8.0  # of the sum of p, to which the sums a and b are accurate as they are


@summing
def _sums(part, c, inv, d, curve, p, rates):
    """What `tally` adds up over the blocks of a row."""
    wide_vectors()
    T = part.dtype.type
    m = a = b = w = T(0)
    v, second, third = T(0), T(0), T(0)
    near = to_ordinal(T(np.inf))  # distances are positive: they order alike
    for i in range(part.shape[0]):
        t = (read_apart(part, i) - c) * inv - d
        mi, ai, bi, wi = split(curve, t)
        if p is not None:
            write_apart(p, i, bi if mi == T(0) else mi - ai)
            if rates is not None and not shifts_by_value_alone(curve):
                write_apart(rates, i, wi)
        if has_second_derivative(curve):
            each = second_derivative_sums(curve, t, ai, bi, wi)
            v += each[0]
            second += each[1]
            third += each[2]
        if exact_between_kinks(curve):
            distance = to_ordinal(distance_to_kink(curve, t))
            near = distance if distance < near else near
        m += mi
        a += ai
        b += bi
        w += wi
    return m, a, b, w, v, second, third, from_ordinal(near)


def _part_of(x, start):
    """A block of x, or None."""
    return None if x is None else block(x, start, BLOCK)


@overload_scalar(_part_of, inline=True)
def _compiled_part_of(x, start):
    if isinstance(x, types.Array):
        return lambda x, start: block(x, start, BLOCK)
    return lambda x, start: None


def _kept_of(out, room, part, start):
    """Where a pass over a block leaves p: in `out`, or in `room`, or nowhere (None)."""
    if out is not None:
        return _part_of(out, start)
    return None if room is None else window(room, APART, len(part))


@overload_scalar(_kept_of, inline=True)
def _compiled_kept_of(out, room, part, start):
    if isinstance(out, types.Array):
        return lambda out, room, part, start: block(out, start, BLOCK)
    if isinstance(room, types.Array) and part.dtype == types.float32:
        return lambda out, room, part, start: window(room, APART, part.shape[0])
    return lambda out, room, part, start: None


def _settled(m, a, b, p):
    """(a, b) with m - a + b = sum p, the larger of the two from the others.

    Where p is not kept, or both are so small beside that sum that errors of theirs do not matter,
    nor those of p close to 1 that the sum has and they have not: as they are.
    """
    return a, b


@overload_scalar(_settled, inline=True)
def _compiled_settled(m, a, b, p):
    if not (isinstance(p, types.Array) and p.dtype == types.float32):
        return lambda m, a, b, p: (np.float64(a), np.float64(b))

    def impl(m, a, b, p):
        m, a, b = np.float64(m), np.float64(a), np.float64(b)
        if p.shape[0] > FEW and SHARE * (a + b) > m - a + b:
            difference = accurate_sum(p) - m
            if b >= a:
                b = difference + a
            else:
                a = b - difference
        return a, b

    return impl


@row
def tally(x, c, inv, d, curve, out=None, slopes=None, room=None):
    """One pass: the sums (m, a, b, w) of `split` over t = (x - c)/tau - d, and four more.

    They are those of the second, third and fourth derivative of f at t, NaN where it is not taken,
    and a clearance: how far the threshold may move before an entry passes a corner of f; 0 without
    corners. With `out` it writes f(t) as well, and f'(t) to `slopes` unless p alone is
    enough: for `correct`. On the sums of a float32 row a search may end with `out`, or with
    `room`, of `pass_room`. Blocks are added in their order: else the compiler would make one loop
    of them in float64, and one sum.
    """
    m, a, b, w, near = 0.0, 0.0, 0.0, 0.0, np.inf
    v, second, third = 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        part = block(x, start, BLOCK)
        p, rates = _kept_of(out, room, part, start), _part_of(slopes, start)
        sums = _sums(part, c, inv, d, curve, p, rates)
        more_a, more_b = _settled(sums[0], sums[1], sums[2], p)
        m += sums[0]
        a += more_a
        b += more_b
        w += sums[3]
        v += sums[4]
        second += sums[5]
        third += sums[6]
        near = sums[7] if sums[7] < near else near
    w = slope_sum(curve, a, b, w)
    v, v3, v4 = higher_derivatives(curve, w, v, second, third)
    if not to_fifth_order(x.dtype.type(1)):
        v3 = v4 = np.nan
    return m, a, b, w, v, v3, v4, near if near < np.inf else 0.0


@summing
def _shorten(x, c, inv, d, t):
    """t = (x - c)/tau - d, in another type.

    A loop of its own: one with numbers of both types would have half as many lanes for the shorter.
    """
    wide_vectors()
    for i in range(x.shape[0]):
        t[i] = (x[i] - c) * inv - d


def pass_room(curve, x, n):
    """Room for passes over n entries: for them in float32, or for p of a float32 block."""
    return np.empty(
        n if searches_in_float32(curve, x) else BLOCK + APART if x.itemsize == 4 else 0, np.float32
    )


@overload_scalar(pass_room, inline=True)
def _compiled_pass_room(curve, x, n):
    if searches_in_float32(curve, x):
        return lambda curve, x, n: np.empty(n, np.float32)
    size = BLOCK + APART if x.dtype == types.float32 else 0
    return lambda curve, x, n: np.empty(size, np.float32)


def search_pass(x, c, inv, d, curve, near, out, slopes, room):
    """One pass of a search, as `tally`: a light one unless `near`, within `final_pass_radius`.

    A light pass keeps nothing. Over float32 it takes the `cheap_approximation`, over float64 it is
    in float32 if the search begins so. `room`: of `pass_room`.
    """
    if near:
        return tally(x, c, inv, d, curve, out, slopes, room)
    return tally(x, c, inv, d, cheap_approximation(curve))


@overload_scalar(search_pass, inline=True)
def _compiled_search_pass(x, c, inv, d, curve, near, out, slopes, room):
    if not has_light_passes(curve, x):
        return lambda x, c, inv, d, curve, near, out, slopes, room: tally(
            x, c, inv, d, curve, out, slopes, room
        )
    if not searches_in_float32(curve, x):
        return search_pass

    def impl(x, c, inv, d, curve, near, out, slopes, room):
        if near:
            return tally(x, c, inv, d, curve, out, slopes)
        t, zero, one = window(room, 0, x.shape[0]), np.float32(0), np.float32(1)
        _shorten(x, c, inv, d, t)
        return tally(t, zero, one, zero, curve)

    return impl


@summing
def correct(x, c, inv, d, below, above, curve, slopes, p):
    """Move p, with what `tally` has left, to where the last step of the search has led."""
    wide_vectors()
    for i in range(p.shape[0]):
        w = p[i] if shifts_by_value_alone(curve) else slopes[i]
        t = p[i] if shifts_by_value_alone(curve) else (x[i] - c) * inv - d
        p[i] = _corrected(curve, p[i], w, t, below, above)


@summing
def fill(x, c, inv, d, step, curve, out):
    """Write p, entry by entry: where c + tau d is, and then moved by the step."""
    wide_vectors()
    T = x.dtype.type
    below, above = shift_factors(curve, step)
    below, above = T(below), T(above)
    for i in range(x.shape[0]):
        out[i] = polish(curve, (x[i] - c) * inv - d, below, above)
