"""The hard top-k on a device.

A row of at most 32 entries is sorted in the registers of a few threads. A longer one is bisected
for its k-th largest value, as on the CPU: at most 32 counting passes in float32, 64 in float64,
over entries that its team holds in registers if it can. Which of those that equal this value get a
one is found by the same bisection over places: up to which place there are as many as are wanted.
One team works on a row, however long.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64

from .._cuda import cuda, device
from .._device import Buffer, Rows
from .._launch import Kernel, choose, pointer_to
from .._scalars import from_ordinal, to_ordinal
from .._sort import in_registers
from .._team import ROOM, Team, argument, made_once, tools
from .rows import middle_of

__all__ = ["make_hard", "row_value", "value", "wanted"]

SORTED = 32  # entries: rows up to this length are sorted


@device
def wanted(k, tau, n):
    """How many ones a row is to have; -1 where k or the temperature is not allowed."""
    allowed = k >= 0.0 and k <= n and k == math.floor(k) and tau > 0.0 and tau < np.inf
    return int64(k) if allowed else int64(-1)


class _Counts(NamedTuple):
    """Passes of a team over a row."""

    #: survey(x, start, n, wide, regs, room) -> NaNs, present entries, the ends of their range
    survey: Any
    #: at_least(x, start, n, wide, value, regs, room) -> how many entries are at least `value`
    at_least: Any
    #: up_to(x, start, n, wide, value, last, regs, room) -> how many are greater, or equal and not
    #: behind place `last`
    up_to: Any


def _make_counts(T: Any, team: Team) -> _Counts:
    t, held, streams = tools(T, team), team.held, team.streams
    absent = T(-np.inf)
    # Counts are added up as floats, which is what teams add. Only a team that streams can see more
    # than 2^24 entries.
    S = np.float64 if streams else np.float32

    @device
    def survey(x, start, n, wide, regs, room):
        lo, hi, bad, present = -absent, absent, int32(0), int32(0)
        for piece in range(t.pieces(n)):
            t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                v = regs[j]
                bad = int32(bad + (0 if v == v else 1))
                present = int32(present + (1 if v > absent else 0))
                lo = v if absent < v < lo else lo
                hi = v if v > hi else hi
        bad, present, _, _ = t.totals(S(bad), S(present), S(0), S(0), room)
        lo, hi = t.extremes(lo, hi, room)
        return bad, present, lo, hi

    @device
    def at_least(x, start, n, wide, value, regs, room):
        found = int32(0)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                found = int32(found + (1 if regs[j] >= value else 0))
        return t.total(S(found), room)

    @device
    def up_to(x, start, n, wide, value, last, regs, room):
        found = int32(0)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                tied = regs[j] == value and t.position(piece, j) <= last
                found = int32(found + (1 if regs[j] > value or tied else 0))
        return t.total(S(found), room)

    return _Counts(survey, at_least, up_to)


@made_once
def row_value(T: Any, team: Team, sorts: bool) -> Any:
    """What writes one row: f(x, start, n, wide, k, regs, room, out), NaN for a k of -1.

    Ones at the k largest entries, ties to the lowest index. `sorts`: the k-th largest
    is found by sorting, which takes a team within a warp.
    """
    t, do = tools(T, team), _make_counts(T, team)
    held, streams = team.held, team.streams
    absent, zero, one, undefined = T(-np.inf), T(0), T(1), T(np.nan)

    if sorts:
        sort, entry = in_registers(T, team)

        @device
        def find(x, start, n, wide, k, lo, hi, regs, room):
            sort(regs)
            kth = entry(regs, max(k - 1, 0))
            t.load(x, start, n, wide, 0, absent, regs)
            return kth

    else:

        @device
        def find(x, start, n, wide, k, lo, hi, regs, room):
            # Invariant: at least k entries lie at or above `lo`, fewer than k above `hi`.
            # Zeros of both signs are equal, and threads must not differ in which of them they hold.
            lo, hi = to_ordinal(lo + zero), to_ordinal(hi + zero)
            while lo < hi:
                middle = middle_of(lo, hi)
                found = do.at_least(x, start, n, wide, from_ordinal(middle), regs, room)
                if found >= k:
                    lo = middle
                else:
                    hi = type(lo)(middle - 1)
                if found == k:
                    break
            return from_ordinal(lo)

    @device
    def last_tied(x, start, n, wide, value, k, regs, room):
        """The place up to which ties at `value`, the k-th largest, are ones."""
        if k == 0 or do.at_least(x, start, n, wide, value, regs, room) == k:
            return n if k > 0 else int64(-1)
        # Invariant: fewer than k ones up to `lo`, at least k up to `hi`.
        lo, hi = int64(-1), n - 1
        while hi - lo > 1:
            middle = (lo + hi) >> 1
            if do.up_to(x, start, n, wide, value, middle, regs, room) >= k:
                hi = middle
            else:
                lo = middle
        return hi

    @device
    def fill(x, start, n, wide, k, regs, room, out):
        bad, present, lo, hi = do.survey(x, start, n, wide, regs, room)
        defined = bad == 0.0 and 0 <= k <= present
        value, last = zero, int64(-1)
        if defined:
            value = find(x, start, n, wide, k, lo, hi, regs, room)
            last = last_tied(x, start, n, wide, value, k, regs, room)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                v = regs[j]
                tied = v == value and t.position(piece, j) <= last
                p = one if v > value or tied else zero
                regs[j] = p if defined else undefined
            t.store(regs, start, n, wide, piece, out)

    return fill


@made_once
def make_hard(T: Any, team: Team, sorts: bool) -> Kernel:
    """Write every row; see `row_value`."""
    t, fill = tools(T, team), row_value(T, team, sorts)
    rows_of_block, held = team.rows, team.held

    def hard(x, rows, n, wide, ks, k_all, k_per_row, taus, tau_all, tau_per_row, out):
        regs = cuda.local.array(held, T)
        room = cuda.shared.array(ROOM, float64)
        row = int64(cuda.blockIdx.x) * rows_of_block + t.slot()
        if row >= rows:
            return
        k = wanted(
            argument(ks, k_all, k_per_row, row), argument(taus, tau_all, tau_per_row, row), n
        )
        fill(x, row * n, n, wide, k, regs, room, out)

    per_row = (pointer_to(np.float64), float64, int32)
    real = pointer_to(T)
    arguments = (real, int64, int64, int32, *per_row, *per_row, real)
    return Kernel(hard, arguments, team.threads)


def value(rows: Rows, plan: Any, out: Buffer) -> None:
    """Write p."""
    team = choose(rows.n, rows.dtype)
    make_hard(rows.dtype, team, rows.n <= SORTED)(
        team.blocks(rows.rows),
        rows.stream,
        rows.x.pointer,
        rows.rows,
        rows.n,
        rows.wide(out),
        *rows.k,
        *rows.temperature,
        out.pointer,
    )
