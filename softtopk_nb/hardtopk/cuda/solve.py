"""The hard top-k of one row on a device.

A row of at most 32 entries is sorted in the registers of a few threads. In a longer one the k-th
largest value is found by bisection, as on the CPU: at most 32 counting passes in float32, 64 in
float64, over entries that its group holds in registers if it can. Which of the entries equal to
this value become ones follows from the same bisection over positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64

from ..._cuda.row_kernels import ROWS, RowKernel
from ..._cuda.sorting import in_registers
from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, made_once, of_row, tools
from ..._math.elementary import from_ordinal, to_ordinal
from ..formulas import middle_of
from .rows import halve, passes, wanted


@made_once
def row_value(T: Any, group: ThreadGroup, sorts: bool) -> Any:
    """A device function that writes one row: f(span, k, s, out), NaN for a k of -1.

    It writes ones at the k largest entries, ties to the lowest index. `sorts`: the k-th largest is
    found by sorting, which needs a group within a warp.
    """
    t, do = tools(T, group), passes(T, group)
    excluded, zero = T(-np.inf), T(0)

    if sorts:
        sort, entry = in_registers(T, group)

        @device
        def find(span, k, lo, hi, s):
            sort(s.regs)
            kth = entry(s.regs, max(k - 1, 0))
            t.load(span, 0, excluded, s.regs)
            return kth

    else:

        @device
        def find(span, k, lo, hi, s):
            # Zeros of both signs are equal, and threads must not differ in which of them they hold.
            lo, hi = to_ordinal(lo + zero), to_ordinal(hi + zero)
            while lo < hi:
                middle = middle_of(lo, hi)
                found = do.at_least(span, from_ordinal(middle), s)
                lo, hi = halve(lo, hi, middle, found, k)
            return from_ordinal(lo)

    @device
    def fill(span, k, s, out):
        bad, present, lo, hi = do.survey(span, s)
        defined = bad == 0.0 and 0 <= k <= present
        value, last = zero, int64(-1)
        if defined:
            value = find(span, k, lo, hi, s)
            if k > 0:
                last = span.n
                if do.at_least(span, value, s) > k:
                    last = do.last_tied(span, value, k, s)
        do.mark(span, value, last, defined, s, out)

    return fill


@made_once
def make_hard(T: Any, group: ThreadGroup, sorts: bool) -> RowKernel:
    """A kernel that writes every row; see `row_value`."""
    fill = row_value(T, group, sorts)

    @device
    def hard(here, s, batch, given):
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        fill(here.span, wanted(k, tau, batch.n), s, given[0])

    return RowKernel(T, group, hard, (ROWS,))
