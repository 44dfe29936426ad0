"""The threshold of each row on a device: the passes of `newton`, each shared by a team of threads.

One thread of a team steers the search, with the functions that steer it on the CPU; the others
wait for the next threshold. Infinities are not set aside here but summed as they are, since f is
0 or 1 there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from ..._cuda.arrays import Buffer, Rows
from ..._cuda.launch import ENOUGH, MANY, Kernel, pointer_to
from ..._cuda.sorting import descending
from ..._cuda.target import cuda, device
from ..._cuda.thread_groups import ROOM, Entries, Team, argument, entries_held, made_once, tools
from ..._curves.base import split
from ..._curves.entmax import Entmax
from ..._curves.user import UserCurve
from ..._math.elementary import limits
from ..._nonfinite import ALL, MIXED, SHARED, UNDEFINED, verdict
from ..law import quantile_of_law
from ..methods import Scan
from ..newton import UNKNOWN, advance, begin, inverse_temperature_of, polish
from ..records import CODE, MAX, MIN, PASSES, REST, SOLUTION, STATE, TAKEN, WEIGHT, C, D
from .scan import make_scan

# A row's record: the solver's state; then what of k the finite entries get, how many those are and
# how many entries are +inf, the kind of row (`_nonfinite`), whether the search has ended, and
# the sum of f' in its last pass.
LEFT, FINITE_COUNT, ABOVE, KIND, FOUND, SLOPE = range(STATE, STATE + 6)
RECORD = STATE + 6


@made_once
def on_device(curve: Any, T: Any) -> Any:
    """The curve with functions that a kernel can call; a user's are not asked about infinity."""
    if not isinstance(curve, UserCurve):
        return curve
    most = limits(T(1))[2]
    cdf, pdf = (device(getattr(f, "py_func", f)) for f in (curve.cdf, curve.pdf))
    integral = curve.integral and device(getattr(curve.integral, "py_func", curve.integral))

    @device
    def bounded_cdf(t):
        return cdf(min(max(t, -most), most))

    @device
    def bounded_pdf(t):
        return pdf(min(max(t, -most), most))

    return curve._replace(cdf=bounded_cdf, pdf=bounded_pdf, integral=integral)


@device
def _at(regs, j):
    return regs[j]


@device
def _put(regs, j, value):
    regs[j] = value


def entries_for(curve: Any, held: int) -> Entries:
    """How loops over the entries held that call a curve get at them.

    The compiler may not unroll a loop over entmax or over a user's functions, which are long.
    """
    long = isinstance(curve, (Entmax, UserCurve))
    return entries_held(held) if long else Entries(_at, _put)


def registers_for(curve: Any) -> int:
    """What each thread of a kernel may have."""
    return MANY if isinstance(curve, UserCurve) else ENOUGH


class Passes(NamedTuple):
    """What a team does with a row, or some of it with a part of one."""

    #: count(x, start, n, wide, regs, room) -> number of NaN, of +inf, of -inf, and finite extremes
    count: Any
    #: judge(n, bad, above, absent, lo, hi, k, tau, record) -> code; the lead writes it to record
    judge: Any
    #: survey(x, start, n, wide, k, tau, regs, record, room) -> code; finite, above, left in record
    survey: Any
    #: middle(record) -> the middle of the range of the row
    middle: Any
    #: moments(x, start, n, wide, pivot, inv, regs, room) -> sums of z and z^2, z = (x - pivot)/tau
    moments: Any
    #: guess(record, s, ss) -> (c, d) to start from, by the moments about the middle
    guess: Any
    #: opening(record, c, d, inv): brackets the threshold; for one thread
    opening: Any
    #: tally(x, start, n, wide, c, inv, d, regs, room) -> the sums of `split`
    tally: Any
    #: steer(record, m, a, b, w, inv): moves record, or says that it is found; for one thread
    steer: Any
    #: seek(x, start, n, wide, inv, regs, record, room): takes a search from its opening to its end
    seek: Any
    #: search(x, ordered, start, n, wide, inv, regs, record, room): moves record to the threshold
    search: Any
    #: fill(x, start, n, wide, inv, regs, record, out): writes p
    fill: Any
    #: constant(x, start, n, wide, code, k, regs, record, out): writes p where nothing is solved
    constant: Any


@made_once
def passes(T: Any, team: Team, curve: Any, method: Any) -> Passes:
    """The passes of a search; `record` is an array of RECORD float64 that the team shares."""
    t = tools(T, team)
    held, entries, curve = team.held, entries_for(curve, team.held), on_device(curve, T)
    zero, one, infinity = T(0), T(1), T(np.inf)
    most = T(limits(T(1))[2])

    @device
    def count(x, start, n, wide, regs, room):
        lo, hi, above, absent, bad = most, -most, zero, zero, zero
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                bad += zero if v == v else one
                above += one if v == infinity else zero
                absent += one if v == -infinity else zero
                finite = abs(v) < infinity
                lo = v if finite and v < lo else lo
                hi = v if finite and v > hi else hi
        bad, above, absent, _ = t.totals(bad, above, absent, zero, room)
        lo, hi = t.extremes(lo, hi, room)
        padded = t.pieces(n) * (team.lanes * held) - n
        return bad, above, absent - padded, lo, hi

    @device
    def judge(n, bad, above, absent, lo, hi, k, tau, record):
        finite = int64(n - above - absent)
        if not (bad == 0.0 and k >= 0.0 and k <= n and tau > 0.0 and tau < np.inf):
            code = UNDEFINED
        else:
            code = verdict(n, finite, k - above)
        if t.rank() == 0:
            record[MIN], record[MAX] = lo, hi
            record[LEFT], record[FINITE_COUNT], record[ABOVE] = k - above, finite, above
            record[KIND], record[FOUND], record[SLOPE] = code, 1.0 if code > MIXED else 0.0, 0.0
        return code

    @device
    def survey(x, start, n, wide, k, tau, regs, record, room):
        bad, above, absent, lo, hi = count(x, start, n, wide, regs, room)
        code = judge(n, bad, above, absent, lo, hi, k, tau, record)
        t.meet()
        return code

    @device
    def middle(record):
        return T(0.5 * record[MIN] + 0.5 * record[MAX])

    @device
    def moments(x, start, n, wide, pivot, inv, regs, room):
        s, ss = zero, zero
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                if abs(regs[j]) < infinity:
                    z = (regs[j] - pivot) * inv
                    s += z
                    ss += z * z
        s, ss, _, _ = t.totals(s, ss, zero, zero, room)
        return s, ss

    @device
    def tally(x, start, n, wide, c, inv, d, regs, room):
        """The sums (m, a, b, w) of `split` over the row."""
        m, a, b, w = zero, zero, zero, zero
        tm, ta, tb, tw = 0.0, 0.0, 0.0, 0.0
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                mi, ai, bi, wi = split(curve, (entries.at(regs, j) - c) * inv - d)
                m += T(mi)
                a += T(ai)
                b += T(bi)
                w += T(wi)
            if team.streams:
                # Not more than a few entries in a row of float32 additions.
                tm += m
                ta += a
                tb += b
                tw += w
                m, a, b, w = zero, zero, zero, zero
        if team.streams:
            return t.totals(tm, ta, tb, tw, room)
        return t.totals(m, a, b, w, room)

    @device
    def guess(record, s, ss):
        finite, mean = record[FINITE_COUNT], s / record[FINITE_COUNT]
        variance = ss / finite - mean * mean
        left = record[LEFT]
        return float64(middle(record)), quantile_of_law(curve, mean, variance, 0.0, finite, left)

    @device
    def first_guess(x, ordered, start, n, wide, above, finite, left, inv, regs, record, room):
        s, ss = moments(x, start, n, wide, middle(record), inv, regs, room)
        return guess(record, s, ss)

    first = make_scan(curve, tally) if isinstance(method, Scan) else first_guess

    @device
    def opening(record, c, d, inv):
        begin(record, curve, record[LEFT], record[FINITE_COUNT], c, d, inv, method.modelled)

    @device
    def steer(record, m, a, b, w, inv):
        sums = m - record[ABOVE], a, b, w, *UNKNOWN, 0.0
        how = method.modelled, method.enough, False
        found = advance(record, sums, record[LEFT], curve, inv, *how)
        record[FOUND], record[SLOPE] = 1.0 if found else 0.0, w

    @device
    def seek(x, start, n, wide, inv, regs, record, room):
        while True:
            m, a, b, w = tally(x, start, n, wide, T(record[C]), inv, T(record[D]), regs, room)
            t.meet()
            if t.rank() == 0:
                steer(record, m, a, b, w, inv)
            t.meet()
            if record[FOUND] == 1.0:
                break

    @device
    def search(x, ordered, start, n, wide, inv, regs, record, room):
        above, finite, left = record[ABOVE], record[FINITE_COUNT], record[LEFT]
        c, d = first(x, ordered, start, n, wide, above, finite, left, inv, regs, record, room)
        t.meet()
        if t.rank() == 0:
            opening(record, c, d, inv)
        t.meet()
        seek(x, start, n, wide, inv, regs, record, room)

    @device
    def fill(x, start, n, wide, inv, regs, record, out):
        c, d, rest = T(record[C]), T(record[D]), T(record[REST])
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = entries.at(regs, j)
                p = polish(curve, (v - c) * inv - d, rest, rest)
                entries.put(regs, j, p if abs(v) < infinity else one if v > zero else zero)
            t.store(regs, start, n, wide, piece, out)

    @device
    def constant(x, start, n, wide, code, k, regs, record, out):
        finite = T(np.nan) if code == UNDEFINED else one if code == ALL else zero
        top = T(np.nan) if code == UNDEFINED else one
        bottom = T(np.nan) if code == UNDEFINED else zero
        if code == SHARED:
            top = T(k / record[ABOVE])
        for piece in range(t.pieces(n)):
            if team.streams:
                t.load(x, start, n, wide, piece, -infinity, regs)
            for j in range(held):
                v = regs[j]
                regs[j] = finite if abs(v) < infinity else top if v > zero else bottom
            t.store(regs, start, n, wide, piece, out)

    whole = survey, middle, moments, guess, opening, tally, steer, seek, search
    return Passes(count, judge, *whole, fill, constant)


@device
def keep(record, solution, base):
    """Write the solution of a row from its record."""
    code = record[KIND]
    solution[base + CODE], solution[base + WEIGHT] = code, record[SLOPE]
    if code > MIXED:
        end = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
        solution[base + C], solution[base + D], solution[base + REST] = end, 0.0, 0.0
        solution[base + TAKEN] = 0.0
    else:
        solution[base + C], solution[base + D] = record[C], record[D]
        solution[base + REST], solution[base + TAKEN] = record[REST], record[PASSES]


def in_order(rows: Rows, method: Any) -> Buffer:
    """What `make_solve` takes for `ordered`."""
    return descending(rows) if isinstance(method, Scan) else rows.nothing


@made_once
def make_solve(T: Any, team: Team, curve: Any, method: Any, writes: bool, keeps: bool) -> Kernel:
    """Solve every row: p to `out` if it `writes`, the thresholds to `solution` if it `keeps`.

    `ordered` are the rows once more, sorted, where the method asks for that (`in_order`).
    """
    t, do = tools(T, team), passes(T, team, curve, method)
    rows_of_block, held = team.rows, team.held

    def solve(
        x, ordered, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, out, solution
    ):
        regs = cuda.local.array(held, T)
        records = cuda.shared.array((rows_of_block, RECORD), float64)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        record, start = records[t.slot()], row * n
        k = argument(ks, k_all, k_per_row, row)
        tau = argument(taus, tau_all, tau_per_row, row)
        code = do.survey(x, start, n, wide, k, tau, regs, record, room)
        if code > MIXED:
            if writes:
                do.constant(x, start, n, wide, code, k, regs, record, out)
        else:
            inv = inverse_temperature_of(tau, T(1))
            do.search(x, ordered, start, n, wide, inv, regs, record, room)
            if writes:
                do.fill(x, start, n, wide, inv, regs, record, out)
        if keeps and t.rank() == 0:
            keep(record, solution, row * SOLUTION)

    numbers, real = pointer_to(np.float64), pointer_to(T)
    per_row = (numbers, float64, int32)
    arguments = (real, real, int64, int64, int32, *per_row, *per_row, real, numbers)
    return Kernel(solve, arguments, team.threads, registers_for(curve))
