"""The source's algorithm on a device: where `scan` ends, by a bisection over the sorted entries.

The number m of entries above the threshold follows from the mass at one entry or another: a team
adds it up anew at log2(n) of them, instead of carrying the recurrences of `scan` from one entry to
the next. Sums are over the row as it lies, so that only the entries tried are read from the sorted
copy. The closed forms are those of `scan`; what they leave to rounding, the search that follows
takes care of.
"""

from __future__ import annotations

from typing import Any

from numba import float64, int64

from .._cuda import device
from .curves import Clip, Exp, Laplace
from .scan import below, beyond, within

__all__ = ["make_scan"]


def make_scan(curve: Any, tally: Any) -> Any:
    """The function that finds (c, d), the threshold c + tau d of a row, from `tally`.

    Its arguments are those of `search`, with the number of entries at +inf, that of finite ones,
    and what of k is left to these.
    """

    @device
    def bisect(x, ordered, start, n, wide, shift, above, finite, left, inv, regs, room):
        """(m, mass's sums at entry m, the tail `a` at entry m - 1).

        The mass at the sorted entry m, moved by `shift` temperatures, is at least `left`; at entry
        m - 1 it is less.
        """
        lo, hi = int64(-1), int64(finite)
        count, b_hi, a_lo = 0.0, 0.0, 0.0
        while hi - lo > 1:
            j = (lo + hi) >> 1
            c = ordered[start + int64(above) + j]
            m, a, b, _ = tally(x, start, n, wide, c, inv, shift, regs, room)
            m -= above
            if (m - left) - a + b >= 0.0:
                hi, count, b_hi = j, m, b
            else:
                lo, a_lo = j, a
        return hi, count, b_hi, a_lo

    @device
    def scan_exp(x, ordered, start, n, wide, above, finite, left, inv, regs, record, room):
        T = type(inv)
        m, count, b, _ = bisect(
            x, ordered, start, n, wide, T(0), above, finite, left, inv, regs, room
        )
        # `count` - m entries tie at entry m; they weigh 1 each there.
        return float64(ordered[start + int64(above) + m]), beyond(
            0.0, count - m - 1.0 + b, left - m
        )

    @device
    def scan_laplace(x, ordered, start, n, wide, above, finite, left, inv, regs, record, room):
        T = type(inv)
        m, count, b, a = bisect(
            x, ordered, start, n, wide, T(0), above, finite, left, inv, regs, room
        )
        at = start + int64(above) + m
        if m == finite:
            return float64(ordered[at - 1]), below(0.0, 2.0 * a, finite - left)
        c, rest = float64(ordered[at]), count - m - 1.0 + 2.0 * b
        if m == 0:
            return c, beyond(0.0, rest, 2.0 * left)
        return c, within((ordered[at - 1] - c) * inv, 0.0, 2.0 * a, 1.0 + rest, left - m)

    @device
    def scan_clip(x, ordered, start, n, wide, above, finite, left, inv, regs, record, room):
        # Pieces end where lambda passes an entry or an entry less the temperature. Within one the
        # first step of the search is exact (Theorem thm-closed-form-clip): it starts in the middle.
        T = type(inv)
        some, _, _, _ = bisect(
            x, ordered, start, n, wide, T(0), above, finite, left, inv, regs, room
        )
        full, _, _, _ = bisect(
            x, ordered, start, n, wide, T(-1), above, finite, left, inv, regs, room
        )
        first = start + int64(above)
        c = float64(ordered[first + some - 1])
        lower, upper = (ordered[first + full] - c) * inv - 1.0, 0.0
        if some < finite:
            lower = max(lower, (ordered[first + some] - c) * inv)
        if full > 0:
            upper = min(upper, (ordered[first + full - 1] - c) * inv - 1.0)
        return c, 0.5 * (lower + upper)

    return {Exp: scan_exp, Laplace: scan_laplace, Clip: scan_clip}[type(curve)]
