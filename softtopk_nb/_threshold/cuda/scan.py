"""The algorithm of Su (2024) on a device, by bisection over the sorted entries.

The number m of entries above the threshold follows from the sum of p at some entries: a group
computes it anew at log2(n) of them, instead of carrying the recurrences of `scan` from one entry to
the next. Sums are over the row in its own order, so that only the entries tried are read from the
sorted copy. The closed forms are those of `scan`; the search that follows corrects their rounding
errors.
"""

from __future__ import annotations

from typing import Any

from numba import float64, int64

from ..._cuda.target import device
from ..._curves.clip import Clip
from ..._curves.exp import Exp
from ..._curves.laplace import Laplace
from ..closed_form import below, beyond, within
from ..records import ABOVE, FINITE_COUNT, LEFT

#: Number of bisections for a curve, the s-th with the entries shifted by -s temperatures: the
#: linear pieces of clip end where the threshold passes an entry, or an entry less the temperature.
BISECTIONS = {Exp: 1, Laplace: 1, Clip: 2}


@device
def middle_of(lo, hi):
    """The index of the sorted entry to try next."""
    return (lo + hi) >> 1


@device
def halve(lo, hi, count, b_hi, a_lo, m, a, b, left):
    """The bisection after a pass at its middle with the sums m (of finite entries), a and b.

    The sum of p at the sorted entry `hi` is at least `left`, with the sums `count` and `b_hi`; at
    entry `lo` it is less, with the sum `a_lo`. It starts from -1 and the number of entries.
    """
    j = middle_of(lo, hi)
    if (m - left) - a + b >= 0.0:
        return lo, j, m, b, a_lo
    return j, hi, count, b_hi, a


@device
def _closed_exp(ordered, first, finite, left, inv, m, count, b, a, full):
    # `count` - m entries tie at entry m; they weigh 1 each there.
    return float64(ordered[first + m]), beyond(0.0, count - m - 1.0 + b, left - m)


@device
def _closed_laplace(ordered, first, finite, left, inv, m, count, b, a, full):
    at = first + m
    if m == finite:
        return float64(ordered[at - 1]), below(0.0, 2.0 * a, finite - left)
    c, rest = float64(ordered[at]), count - m - 1.0 + 2.0 * b
    if m == 0:
        return c, beyond(0.0, rest, 2.0 * left)
    return c, within((ordered[at - 1] - c) * inv, 0.0, 2.0 * a, 1.0 + rest, left - m)


@device
def _closed_clip(ordered, first, finite, left, inv, m, count, b, a, full):
    # Within a linear piece the first step of the search is exact (Theorem thm-closed-form-clip): it
    # starts in the middle.
    c = float64(ordered[first + m - 1])
    lower, upper = (ordered[first + full] - c) * inv - 1.0, 0.0
    if m < finite:
        lower = max(lower, (ordered[first + m] - c) * inv)
    if full > 0:
        upper = min(upper, (ordered[first + full - 1] - c) * inv - 1.0)
    return c, 0.5 * (lower + upper)


def make_closed_form(curve: Any) -> Any:
    """The function for the curve that computes (c, d), threshold c + tau d, from the bisections.

    Its arguments are the sorted rows and the position of this row's first finite entry; the number
    of finite entries and the k left to them; 1/tau; then `hi`, `count`, `b_hi` and `a_lo` of the
    bisection, and `hi` of the last one.
    """
    return {Exp: _closed_exp, Laplace: _closed_laplace, Clip: _closed_clip}[type(curve)]


def make_scan(curve: Any, tally: Any) -> Any:
    """scan(span, ordered, inv, s) -> (c, d), the threshold c + tau d of a row, from `tally`."""
    closed_form, twice = make_closed_form(curve), BISECTIONS[type(curve)] == 2

    @device
    def bisect(span, ordered, first, shift, inv, s):
        """`hi`, `count`, `b_hi` and `a_lo` at the end of a bisection."""
        lo, hi = int64(-1), int64(s.record[FINITE_COUNT])
        count, b_hi, a_lo = 0.0, 0.0, 0.0
        while hi - lo > 1:
            c = ordered[first + middle_of(lo, hi)]
            m, a, b, _ = tally(span, c, inv, shift, s)
            m, left = m - s.record[ABOVE], s.record[LEFT]
            lo, hi, count, b_hi, a_lo = halve(lo, hi, count, b_hi, a_lo, m, a, b, left)
        return hi, count, b_hi, a_lo

    @device
    def scan(span, ordered, inv, s):
        T, first = type(inv), span.start + int64(s.record[ABOVE])
        m, count, b, a = bisect(span, ordered, first, T(0), inv, s)
        full = m
        if twice:
            full, _, _, _ = bisect(span, ordered, first, T(-1), inv, s)
        finite, left = s.record[FINITE_COUNT], s.record[LEFT]
        return closed_form(ordered, first, finite, left, inv, m, count, b, a, full)

    return scan
