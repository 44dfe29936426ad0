"""One pass over a row: what it sums, what it writes, and how the last step corrects that."""

from __future__ import annotations

import numpy as np

from .._compile import overload_scalar, scalar, summing
from .._scalars import from_ordinal, limits, to_ordinal, wide_vectors
from .._views import block, read_apart, write_apart
from .curves import (
    autonomous,
    bend,
    bends,
    clearance,
    cornered,
    reach,
    shifted,
    shortened,
    slope,
    split,
    within,
)

__all__ = ["BLOCK", "close", "correct", "fill", "lighter", "polish", "scratch", "tally"]

BLOCK = 1024  # entries summed in the row's own type before float64 takes over


def lighter(x, light):
    """Whether numbers of `light` are of another type than the row's."""
    return light.dtype != x.dtype


@overload_scalar(lighter)
def _compiled_lighter(x, light):
    if light.dtype != x.dtype:
        return lambda x, light: True
    return lambda x, light: False


def scratch(curve, x):
    """Room for the `light` passes over rows like x."""
    return np.empty(BLOCK, np.float32 if shortened(curve) else x.dtype)


@overload_scalar(scratch)
def _compiled_scratch(curve, x):
    if shortened(curve):
        return lambda curve, x: np.empty(BLOCK, np.float32)
    return lambda curve, x: np.empty(BLOCK, x.dtype)


@summing
def _scale(part, c, inv, d, t):
    """t = (x - c)/tau - d, in another type."""
    wide_vectors()
    for i in range(part.shape[0]):
        t[i] = (part[i] - c) * inv - d


@summing
def _sums(part, c, inv, d, curve, p, rates, bent, clear):
    """What `tally` sums of a block; v if `bent`, and the clearance if `clear`, are not None."""
    wide_vectors()
    T = part.dtype.type
    m = a = b = w = v = T(0)
    near = to_ordinal(T(np.inf))  # distances are positive: they order alike
    for i in range(part.shape[0]):
        t = (read_apart(part, i) - c) * inv - d
        mi, ai, bi, wi = split(curve, t)
        if p is not None:
            write_apart(p, i, bi if mi == T(0) else mi - ai)
            if not autonomous(curve):
                write_apart(rates, i, wi)
        if bends(curve) and bent is not None:
            v += bend(curve, t, ai, bi, wi)
        if cornered(curve) and clear is not None:
            distance = to_ordinal(clearance(curve, t))
            near = distance if distance < near else near
        m += mi
        a += ai
        b += bi
        w += wi
    return m, a, b, w, v, np.float64(from_ordinal(near))


@summing
def tally(x, c, inv, d, curve, out=None, slopes=None, light=None):
    """One pass: the sums (m, a, b, w) of `curves.split` over t = (x - c)/tau - d, and two more.

    They are v, the sum of f''(t), NaN where it is not known, and a clearance: how far the threshold
    may move before an entry passes a corner of f; 0 without corners. With `out` it writes f(t) as
    well, and f'(t) to `slopes` unless the curve is autonomous: for `correct`.

    `light` is for a pass that does not end a search (`close`), an array of BLOCK numbers of the
    type to take f in. It leaves out the clearance, and v where the row is of that type itself.
    """
    m, a, b, w, v, clear = 0.0, 0.0, 0.0, 0.0, 0.0, np.inf
    for start in range(0, x.shape[0], BLOCK):
        part = block(x, start, BLOCK)
        if light is None:
            if out is None:
                sums = _sums(part, c, inv, d, curve, None, None, True, True)
            else:
                p, rates = block(out, start, BLOCK), block(slopes, start, BLOCK)
                sums = _sums(part, c, inv, d, curve, p, rates, True, True)
        elif lighter(x, light):
            # A loop with numbers of both types would have half as many lanes for the shorter ones.
            t, zero = block(light, 0, part.shape[0]), light.dtype.type(0)
            _scale(part, c, inv, d, t)
            sums = _sums(t, zero, light.dtype.type(1), zero, curve, None, None, True, None)
        else:
            sums = _sums(part, c, inv, d, curve, None, None, None, None)
        m += sums[0]
        a += sums[1]
        b += sums[2]
        w += sums[3]
        v += sums[4]
        clear = sums[5] if sums[5] < clear else clear
    whole = light is None
    bent = bends(curve) and (whole or lighter(x, light))
    known = cornered(curve) and whole and clear < np.inf
    return m, a, b, slope(curve, a, b, w), v if bent else np.nan, clear if known else 0.0


@scalar
def close(curve, one):
    """After a step so short a pass may be the last one of a search; others are `light`.

    A step without a corner in its way can be exact however long it is. Other searches in float64
    spend their first passes in float32, which is enough to come near.
    """
    patient = shortened(curve) and not cornered(curve) and limits(one)[0] < 1e-10
    return 2.0**-5 if patient else 1.0


@scalar
def _corrected(curve, p, w, t, below, above):
    """f(t - step) from p = f(t) and w = f'(t): the last step of a search (`judge`)."""
    return within(curve, type(p)(shifted(curve, p, w, t, below, above)))


@scalar
def polish(curve, t, below, above):
    """f(t - step), of a step as `curves.reach` gives it."""
    u, a, b, w = split(curve, t)
    return _corrected(curve, type(t)(b if u == 0.0 else u - a), w, t, below, above)


@summing
def correct(x, c, inv, d, below, above, curve, slopes, p):
    """Move p, with what `tally` has left, to where the last step of the search has led."""
    wide_vectors()
    for i in range(p.shape[0]):
        w = p[i] if autonomous(curve) else slopes[i]
        t = p[i] if autonomous(curve) else (x[i] - c) * inv - d
        p[i] = _corrected(curve, p[i], w, t, below, above)


@summing
def fill(x, c, inv, d, step, curve, out):
    """Write p, entry by entry: where c + tau d is, and then moved by the step."""
    wide_vectors()
    T = x.dtype.type
    below, above = reach(curve, step)
    below, above = T(below), T(above)
    for i in range(x.shape[0]):
        out[i] = polish(curve, (x[i] - c) * inv - d, below, above)
