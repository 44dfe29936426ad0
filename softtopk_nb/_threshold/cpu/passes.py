"""One pass over a row: the sums, the p it writes, and the correction of p by the last step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..._compile.array_intrinsics import (
    APART,
    block,
    empty,
    read_apart,
    window,
    write_apart,
    write_beside,
)
from ..._compile.decorators import scalar, specialized, specialized_summing, summing
from ..._curves.base import (
    cdf_after_shift,
    cheap_approximation,
    clamp,
    distance_to_kink,
    exact_between_kinks,
    has_second_derivative,
    higher_derivatives,
    may_leave_range,
    second_derivative_sums,
    shift_factors,
    shifts_by_value_alone,
    slope_sum,
    split,
    sums_its_slope,
)
from ..._math.elementary import float_of, ordinal_of, wide_vectors
from ..._math.sums import FEW, accurate_sum
from ..newton import polish
from ..policy import has_cheap_passes, searches_in_float32

BLOCK = 1024  # entries summed in the row's own type before float64 is used
SHARE = 8.0  # of the sum of p, to which the sums a and b are accurate as they are


def _is_float32(x: Any) -> bool:
    """Whether this is an array of float32, or the type of one."""
    return x.dtype in (np.float32, types.float32)


def _is_array(x: Any) -> bool:
    """Whether this is an array, or the type of one; otherwise it is None."""
    return isinstance(x, (types.Array, np.ndarray))


@specialized_summing
def _sums(part, c, inv, d, curve, p, slopes):
    """The sums of `tally` over one block of a row."""
    writes, writes_slopes = _is_array(p), _is_array(slopes)
    curved, kinked = has_second_derivative(curve), exact_between_kinks(curve)

    def sums(part, c, inv, d, curve, p, slopes):
        wide_vectors()
        T = part.dtype.type
        m = a = b = w = T(0)
        v, second, third = T(0), T(0), T(0)
        near = ordinal_of(T(np.inf))  # ordinals of positive numbers order as the numbers do
        for i in range(part.shape[0]):
            t = (read_apart(part, i) - c) * inv - d
            mi, ai, bi, wi = split(curve, t)
            if writes:
                write_apart(p, i, bi if mi == T(0) else mi - ai)
            if writes_slopes:
                write_beside(slopes, i, wi)
            if curved:
                each = second_derivative_sums(curve, t, ai, bi, wi)
                v += each[0]
                second += each[1]
                third += each[2]
            if kinked:
                distance = ordinal_of(distance_to_kink(curve, t))
                near = distance if distance < near else near
            m += mi
            a += ai
            b += bi
            w += wi
        return m, a, b, w, v, second, third, float_of(near)

    return sums


@scalar
def settled(m, a, b, p):
    """(a, b) with m - a + b = sum p: the larger of the two is recomputed from the accurate sum.

    They are returned unchanged where both are so small beside that sum that their errors do not
    matter, nor the rounding of p close to 1, which the sum of p contains and they do not.
    """
    if p.shape[0] > FEW and SHARE * (a + b) > m - a + b:
        difference = accurate_sum(p) - m
        if b >= a:
            b = difference + a
        else:
            a = b - difference
    return a, b


@specialized
def tally(x, c, inv, d, curve, out=None, slopes=None, scratch=None):
    """One pass: the sums (m, a, b, w) of `split` over t = (x - c)/tau - d, and four more numbers.

    These are the sums of the second, third and fourth derivative of f at t, NaN if they are not
    computed, and a clearance: how far the threshold may move before an entry passes a kink of f; 0
    without kinks. With `out` it also writes f(t), and f'(t) to `slopes` unless p alone is enough,
    for `correct`. A search over a float32 row may end on these sums if `out` or `scratch` (of
    `pass_scratch`) is given. Blocks are added in order: otherwise the compiler would make one loop
    of them in float64, and one sum.
    """
    short = _is_float32(x)
    writes, keeps = _is_array(out), short and (_is_array(out) or _is_array(scratch))
    writes_slopes = writes and _is_array(slopes) and not shifts_by_value_alone(curve)
    curved, kinked = has_second_derivative(curve), exact_between_kinks(curve)
    follows = not sums_its_slope(curve)

    def sums_of_row(x, c, inv, d, curve, out=None, slopes=None, scratch=None):
        m, a, b, w, near = 0.0, 0.0, 0.0, 0.0, np.inf
        v, second, third = 0.0, 0.0, 0.0
        v3 = v4 = np.nan
        for start in range(0, x.shape[0], BLOCK):
            part = block(x, start, BLOCK)
            p = rates = None
            if writes:
                p = block(out, start, BLOCK)
            elif keeps:
                p = window(scratch, APART, part.shape[0])
            if writes_slopes:
                rates = block(slopes, start, BLOCK)
            mi, ai, bi, wi, vi, second_i, third_i, near_i = _sums(part, c, inv, d, curve, p, rates)
            above, more_a, more_b = np.float64(mi), np.float64(ai), np.float64(bi)
            if keeps:
                more_a, more_b = settled(above, more_a, more_b, p)
            m += mi
            a += more_a
            b += more_b
            w += wi
            v += vi
            second += second_i
            third += third_i
            near = near_i if near_i < near else near
        if follows:
            w = slope_sum(curve, a, b, w)
        if curved:
            v, v3, v4 = higher_derivatives(curve, w, v, second, third)
            if not short:
                v3 = v4 = np.nan
        else:
            v = np.nan
        if not kinked:
            near = 0.0
        return m, a, b, w, v, v3, v4, near if near < np.inf else 0.0

    return sums_of_row


@summing
def _shorten(x, c, inv, d, t):
    """Write t = (x - c)/tau - d, in another type.

    It is a separate loop: one with both types would have half as many lanes for the shorter one.
    """
    wide_vectors()
    for i in range(x.shape[0]):
        t[i] = (x[i] - c) * inv - d


@specialized
def pass_scratch(curve, x, n):
    """Scratch for passes over n entries: for t in float32 or p of a float32 block; x if neither."""
    if searches_in_float32(curve, x):
        return lambda curve, x, n: empty(n, np.float32)
    if _is_float32(x):
        return lambda curve, x, n: empty(BLOCK + APART, np.float32)
    return lambda curve, x, n: x


@specialized
def search_pass(x, c, inv, d, curve, final, out, slopes, scratch):
    """One pass of a search, as `tally`; a cheap one unless it may be `final`.

    A cheap pass writes nothing. Over float32 it uses the `cheap_approximation`, over float64 it is
    in float32 if the search begins so. `scratch`: of `pass_scratch`.
    """
    cheap, in_float32 = cheap_approximation(curve), searches_in_float32(curve, x)
    zero, one = np.float32(0), np.float32(1)

    def any_pass(x, c, inv, d, curve, final, out, slopes, scratch):
        return tally(x, c, inv, d, curve, out, slopes, scratch)

    def cheap_or_final(x, c, inv, d, curve, final, out, slopes, scratch):
        if final:
            return tally(x, c, inv, d, curve, out, slopes, scratch)
        return tally(x, c, inv, d, cheap)

    def short_or_final(x, c, inv, d, curve, final, out, slopes, scratch):
        if final:
            return tally(x, c, inv, d, curve, out, slopes)
        t = window(scratch, 0, x.shape[0])
        _shorten(x, c, inv, d, t)
        return tally(t, zero, one, zero, curve)

    if not has_cheap_passes(curve, x):
        return any_pass
    return short_or_final if in_float32 else cheap_or_final


@specialized_summing
def correct(x, c, inv, d, below, above, curve, slopes, p):
    """Shift p, which `tally` has written, by the last step of the search."""
    by_value, clamps = shifts_by_value_alone(curve), may_leave_range(curve)

    def moved(x, c, inv, d, below, above, curve, slopes, p):
        wide_vectors()
        for i in range(p.shape[0]):
            q = p[i]
            w, t = q, q
            if not by_value:
                w, t = slopes[i], (x[i] - c) * inv - d
            q = type(q)(cdf_after_shift(curve, q, w, t, below, above))
            if clamps:
                q = clamp(curve, q)
            p[i] = q

    return moved


@summing
def fill(x, c, inv, d, step, curve, out):
    """Write p at the threshold c + tau d, shifted by `step` from there."""
    wide_vectors()
    T = x.dtype.type
    below, above = shift_factors(curve, step)
    below, above = T(below), T(above)
    for i in range(x.shape[0]):
        out[i] = polish(curve, (x[i] - c) * inv - d, below, above)
