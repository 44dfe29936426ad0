"""The threshold of each row on a device: passes shared by a group of threads, steered by `newton`.

One thread of a group steers the search, with the same functions as on the CPU; the others wait for
the next threshold. Infinities are not removed here but summed as they are, since f is 0 or 1 there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import ENOUGH, MANY
from ..._cuda.row_kernels import ENTRIES, NUMBERS, ROWS, RowKernel
from ..._cuda.sorting import descending
from ..._cuda.target import device
from ..._cuda.thread_groups import (
    Entries,
    ThreadGroup,
    beside,
    entries_held,
    made_once,
    of_row,
    tools,
)
from ..._curves.base import split
from ..._curves.entmax import Entmax
from ..._curves.user import UserCurve
from ..._math.elementary import limits
from ..._nonfinite import ALL, UNDEFINED, WITH_INFINITIES, constant_values, verdict_of
from ..distribution import quantile_of_distribution
from ..methods import Scan
from ..newton import UNKNOWN, begin, inverse_temperature_of, polish, update
from ..policy import searched
from ..records import (
    ABOVE,
    CODE,
    ENDED,
    FINITE_COUNT,
    KIND,
    LEFT,
    MAX,
    MIN,
    PASSES,
    RECORD,
    REST,
    SLOPE,
    SOLUTION,
    TAKEN,
    WEIGHT,
    C,
    D,
)
from .scan import make_scan


@made_once
def on_device(curve: Any, T: Any) -> Any:
    """The curve with functions that a kernel can call; a user's are never called at infinity."""
    if not isinstance(curve, UserCurve):
        return curve
    most = limits(T(1))[2]
    cdf, pdf = (device(getattr(f, "py_func", f)) for f in (curve.cdf, curve.pdf))
    integral, slope = (
        f and device(getattr(f, "py_func", f)) for f in (curve.integral, curve.slope)
    )

    @device
    def bounded_cdf(t):
        return cdf(min(max(t, -most), most))

    @device
    def bounded_pdf(t):
        return pdf(min(max(t, -most), most))

    return curve._replace(cdf=bounded_cdf, pdf=bounded_pdf, integral=integral, slope=slope)


@device
def _at(regs, j):
    return regs[j]


@device
def _put(regs, j, value):
    regs[j] = value


def entries_for(curve: Any, held: int) -> Entries:
    """Access to the entries held by a thread, for loops that call this curve.

    The compiler may not unroll a loop over entmax or over a user's functions, which are long.
    """
    long = isinstance(curve, (Entmax, UserCurve))
    return entries_held(held) if long else Entries(_at, _put)


def registers_for(curve: Any) -> int:
    """Number of registers that each thread of a kernel may have."""
    return MANY if isinstance(curve, UserCurve) else ENOUGH


class Passes(NamedTuple):
    """The passes of a group over a row, some of them over a part of one; `s` is its `Scratch`.

    A function that sums entries is called after `count`, and finds them in registers if they fit.
    """

    #: count(span, s) -> number of NaN, of +inf, of -inf, and finite extremes
    count: Any
    #: classify(n, counts, k, tau, record) -> code; the first thread writes it and the counts
    classify: Any
    #: survey(span, k, tau, s) -> code: `count` and `classify`, for a row
    survey: Any
    #: moments(span, pivot, inv, s) -> sums of z and z^2, z = (x - pivot)/tau
    moments: Any
    #: middle(record) -> the middle of the range of the row
    middle: Any
    #: guess(record, s, ss) -> (c, d), the first guess by the moments about the middle
    guess: Any
    #: opening(record, c, d, inv): brackets the threshold; for one thread
    opening: Any
    #: tally(span, c, inv, d, s) -> the sums of `split`
    tally: Any
    #: steer(record, m, a, b, w, inv): moves the threshold, or ends the search; for one thread
    steer: Any
    #: seek(span, inv, s): continues a search from its bracket to its end
    seek: Any
    #: search(span, ordered, inv, s): moves the threshold in the record to the solution
    search: Any
    #: fill(span, inv, s, out): writes p
    fill: Any
    #: constant(span, code, k, s, out): writes p where nothing is solved
    constant: Any


@made_once
def passes(T: Any, group: ThreadGroup, curve: Any, method: Any) -> Passes:
    """The passes of a search for rows of type T; `s.record` has RECORD float64."""
    t = tools(T, group)
    held, entries, curve = group.held, entries_for(curve, group.held), on_device(curve, T)
    zero, one, infinity = T(0), T(1), T(np.inf)
    most = T(limits(T(1))[2])

    @device
    def count(span, s):
        regs = s.regs
        lo, hi, above, excluded, bad = most, -most, zero, zero, zero
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                bad += zero if v == v else one
                above += one if v == infinity else zero
                excluded += one if v == -infinity else zero
                finite = abs(v) < infinity
                lo = v if finite and v < lo else lo
                hi = v if finite and v > hi else hi
        bad, above, excluded, _ = t.totals(bad, above, excluded, zero, s.shared)
        lo, hi = t.extremes(lo, hi, s.shared)
        padded = t.pieces(span.n) * (group.lanes * held) - span.n
        return bad, above, excluded - padded, lo, hi

    @device
    def classify(n, counts, k, tau, record):
        bad, above, excluded, lo, hi = counts
        code = verdict_of(n, k, tau, bad, above, excluded)
        if t.rank() == 0:
            record[MIN], record[MAX] = lo, hi
            finite = n - above - excluded
            record[LEFT], record[FINITE_COUNT] = searched(curve, k - above, finite, one), finite
            record[ABOVE], record[KIND], record[SLOPE] = above, code, 0.0
            record[ENDED] = 1.0 if code > WITH_INFINITIES else 0.0
        return code

    @device
    def survey(span, k, tau, s):
        code = classify(span.n, count(span, s), k, tau, s.record)
        t.meet()
        return code

    @device
    def middle(record):
        return T(0.5 * record[MIN] + 0.5 * record[MAX])

    @device
    def moments(span, pivot, inv, s):
        first, second = zero, zero
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                if abs(s.regs[j]) < infinity:
                    z = (s.regs[j] - pivot) * inv
                    first += z
                    second += z * z
        first, second, _, _ = t.totals(first, second, zero, zero, s.shared)
        return first, second

    @device
    def tally(span, c, inv, d, s):
        """The sums (m, a, b, w) of `split` over the row."""
        m, a, b, w = zero, zero, zero, zero
        tm, ta, tb, tw = 0.0, 0.0, 0.0, 0.0
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                mi, ai, bi, wi = split(curve, (entries.at(s.regs, j) - c) * inv - d)
                m += T(mi)
                a += T(ai)
                b += T(bi)
                w += T(wi)
            if group.streams:
                # At most a few entries are added in float32 before float64.
                tm += m
                ta += a
                tb += b
                tw += w
                m, a, b, w = zero, zero, zero, zero
        if group.streams:
            return t.totals(tm, ta, tb, tw, s.shared)
        return t.totals(m, a, b, w, s.shared)

    @device
    def guess(record, first, second):
        finite, mean = record[FINITE_COUNT], first / record[FINITE_COUNT]
        variance = second / finite - mean * mean
        left = record[LEFT]
        return float64(middle(record)), quantile_of_distribution(
            curve, mean, variance, 0.0, finite, left
        )

    @device
    def first_guess(span, ordered, inv, s):
        first, second = moments(span, middle(s.record), inv, s)
        return guess(s.record, first, second)

    start = make_scan(curve, tally) if isinstance(method, Scan) else first_guess

    @device
    def opening(record, c, d, inv):
        begin(record, curve, record[LEFT], record[FINITE_COUNT], c, d, inv, method.modelled)

    @device
    def steer(record, m, a, b, w, inv):
        sums = m - record[ABOVE], a, b, w, *UNKNOWN, 0.0
        how = method.modelled, method.enough, False
        found = update(record, sums, record[LEFT], curve, inv, *how)
        record[ENDED], record[SLOPE] = 1.0 if found else 0.0, w

    @device
    def seek(span, inv, s):
        record = s.record
        while True:
            m, a, b, w = tally(span, T(record[C]), inv, T(record[D]), s)
            t.meet()
            if t.rank() == 0:
                steer(record, m, a, b, w, inv)
            t.meet()
            if record[ENDED] == 1.0:
                break

    @device
    def search(span, ordered, inv, s):
        c, d = start(span, ordered, inv, s)
        t.meet()
        if t.rank() == 0:
            opening(s.record, c, d, inv)
        t.meet()
        seek(span, inv, s)

    @device
    def fill(span, inv, s, out):
        regs, c, d, rest = s.regs, T(s.record[C]), T(s.record[D]), T(s.record[REST])
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, regs)
            for j in range(held):
                v = entries.at(regs, j)
                p = polish(curve, (v - c) * inv - d, rest, rest)
                entries.put(regs, j, p if abs(v) < infinity else one if v > zero else zero)
            t.store(regs, beside(span, out), piece)

    @device
    def constant(span, code, k, s, out):
        finite, top, bottom = constant_values(code, k, s.record[ABOVE], one)
        for piece in range(t.pieces(span.n)):
            if group.streams:
                t.load(span, piece, -infinity, s.regs)
            for j in range(held):
                v = s.regs[j]
                s.regs[j] = finite if abs(v) < infinity else top if v > zero else bottom
            t.store(s.regs, beside(span, out), piece)

    whole = survey, moments, middle, guess, opening, tally, steer, seek, search
    return Passes(count, classify, *whole, fill, constant)


@device
def keep(record, solution, base):
    """Write the solution of a row from its record."""
    code = record[KIND]
    solution[base + CODE], solution[base + WEIGHT] = code, record[SLOPE]
    if code > WITH_INFINITIES:
        end = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
        solution[base + C], solution[base + D], solution[base + REST] = end, 0.0, 0.0
        solution[base + TAKEN] = 0.0
    else:
        solution[base + C], solution[base + D] = record[C], record[D]
        solution[base + REST], solution[base + TAKEN] = record[REST], record[PASSES]


def in_order(rows: Rows, method: Any) -> Buffer:
    """The rows sorted, if the method needs them as `ordered` in `make_solve`; otherwise nothing."""
    return descending(rows) if isinstance(method, Scan) else rows.nothing


@made_once
def make_solve(
    T: Any, group: ThreadGroup, curve: Any, method: Any, writes: bool, keeps: bool
) -> RowKernel:
    """A kernel that solves rows: p to `out` if `writes`, the thresholds to `solution` if `keeps`.

    `ordered` is a sorted copy of the rows if the method needs one (`in_order`).
    """
    t, do = tools(T, group), passes(T, group, curve, method)

    @device
    def solve(here, s, batch, given):
        ordered, out, solution = given
        k, tau = of_row(batch.k, here.row), of_row(batch.temperature, here.row)
        code = do.survey(here.span, k, tau, s)
        if code > WITH_INFINITIES:
            if writes:
                do.constant(here.span, code, k, s, out)
        else:
            inv = inverse_temperature_of(tau, T(1))
            do.search(here.span, ordered, inv, s)
            if writes:
                do.fill(here.span, inv, s, out)
        if keeps and t.rank() == 0:
            keep(s.record, solution, here.row * SOLUTION)

    given = ENTRIES, ROWS, NUMBERS
    return RowKernel(T, group, solve, given, registers_for(curve), RECORD)
