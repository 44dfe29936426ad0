"""What a team of threads does with a row for the hard top-k, or with a part of one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import int32, int64

from ..._cuda.target import device
from ..._cuda.thread_groups import Team, made_once, tools


@device
def wanted(k, tau, n):
    """How many ones a row is to have; -1 where k or the temperature is not allowed."""
    allowed = k >= 0.0 and k <= n and k == math.floor(k) and tau > 0.0 and tau < np.inf
    return int64(k) if allowed else int64(-1)


@device
def halve(lo, hi, middle, found, k):
    """The bracket of ordinals after `found` entries were counted at or above `middle`.

    At least k entries lie at or above `lo`, fewer than k above `hi`. With k of them at or above
    `middle`, any value between the k-th and the next will do: the bracket closes there.
    """
    below = found < k
    lo = lo if below else middle
    hi = type(lo)(middle - 1) if below else hi
    return lo, middle if found == k else hi


class Passes(NamedTuple):
    """Passes of a team, and what they add up to."""

    #: survey(x, start, n, wide, regs, room) -> NaNs, present entries, the ends of their range
    survey: Any
    #: at_least(x, start, n, wide, value, regs, room) -> how many entries are at least `value`
    at_least: Any
    #: at_least_each(x, start, n, wide, a, b, c, regs, room) -> the same of three values at once
    at_least_each: Any
    #: ties(x, start, n, wide, value, regs, room) -> how many are greater, how many equal
    ties: Any
    #: last_tied(x, start, n, wide, value, k, regs, room): the place up to which ties at `value`,
    #: the k-th largest, are ones
    last_tied: Any
    #: mark(x, start, n, wide, value, last, defined, regs, out): writes ones above `value`, and at
    #: it up to place `last`; NaN where not `defined`
    mark: Any


@made_once
def passes(T: Any, team: Team) -> Passes:
    """The passes over rows of type T."""
    t, held, streams = tools(T, team), team.held, team.streams
    absent, zero, one, undefined = T(-np.inf), T(0), T(1), T(np.nan)
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
    def at_least_each(x, start, n, wide, a, b, c, regs, room):
        at_a, at_b, at_c = int32(0), int32(0), int32(0)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                v = regs[j]
                at_a = int32(at_a + (1 if v >= a else 0))
                at_b = int32(at_b + (1 if v >= b else 0))
                at_c = int32(at_c + (1 if v >= c else 0))
        at_a, at_b, at_c, _ = t.totals(S(at_a), S(at_b), S(at_c), S(0), room)
        return at_a, at_b, at_c

    @device
    def ties(x, start, n, wide, value, regs, room):
        above, equal = int32(0), int32(0)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                above = int32(above + (1 if regs[j] > value else 0))
                equal = int32(equal + (1 if regs[j] == value else 0))
        above, equal, _, _ = t.totals(S(above), S(equal), S(0), S(0), room)
        return above, equal

    @device
    def up_to(x, start, n, wide, value, last, regs, room):
        """How many are greater, or equal and not behind place `last`."""
        found = int32(0)
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                tied = regs[j] == value and t.position(piece, j) <= last
                found = int32(found + (1 if regs[j] > value or tied else 0))
        return t.total(S(found), room)

    @device
    def last_tied(x, start, n, wide, value, k, regs, room):
        # Invariant: fewer than k ones up to `lo`, at least k up to `hi`.
        lo, hi = int64(-1), n - 1
        while hi - lo > 1:
            middle = (lo + hi) >> 1
            if up_to(x, start, n, wide, value, middle, regs, room) >= k:
                hi = middle
            else:
                lo = middle
        return hi

    @device
    def mark(x, start, n, wide, value, last, defined, regs, out):
        for piece in range(t.pieces(n)):
            if streams:
                t.load(x, start, n, wide, piece, absent, regs)
            for j in range(held):
                v = regs[j]
                tied = v == value and t.position(piece, j) <= last
                p = one if v > value or tied else zero
                regs[j] = p if defined else undefined
            t.store(regs, start, n, wide, piece, out)

    return Passes(survey, at_least, at_least_each, ties, last_tied, mark)
