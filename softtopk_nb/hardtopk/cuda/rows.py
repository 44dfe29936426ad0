"""The passes of a thread group over a row, or a part of one, for the hard top-k."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import int32, int64

from ..._cuda.target import device
from ..._cuda.thread_groups import ThreadGroup, beside, made_once, tools


@device
def wanted(k, tau, n):
    """The number of ones of a row; -1 if k or the temperature is not allowed."""
    allowed = k >= 0.0 and k <= n and k == math.floor(k) and tau > 0.0 and tau < np.inf
    return int64(k) if allowed else int64(-1)


@device
def halve(lo, hi, middle, found, k):
    """The bracket of ordinals after `found` entries were counted at or above `middle`.

    At least k entries lie at or above `lo`, fewer than k above `hi`. If exactly k lie at or above
    `middle`, any value between the k-th and the next will do: the bracket closes there.
    """
    below = found < k
    lo = lo if below else middle
    hi = type(lo)(middle - 1) if below else hi
    return lo, middle if found == k else hi


class Passes(NamedTuple):
    """Passes of a group, and their results; `s` is its `Scratch`."""

    #: survey(span, s) -> numbers of NaN and of present entries, and the ends of their range
    survey: Any
    #: at_least(span, value, s) -> number of entries that are at least `value`
    at_least: Any
    #: at_least_each(span, a, b, c, s) -> the same for three values at once
    at_least_each: Any
    #: ties(span, value, s) -> numbers of entries that are greater, and that are equal
    ties: Any
    #: last_tied(span, value, k, s) -> the position up to which ties at `value`, the k-th largest,
    #: are ones
    last_tied: Any
    #: mark(span, value, last, defined, s, out): writes ones above `value`, and at it up to position
    #: `last`; NaN if not `defined`
    mark: Any


@made_once
def passes(T: Any, group: ThreadGroup) -> Passes:
    """The passes over rows of type T."""
    t, held, streams = tools(T, group), group.held, group.streams
    excluded, zero, one, undefined = T(-np.inf), T(0), T(1), T(np.nan)
    # Counts are added up as floats, as the groups' sums are. Only a group that streams can see more
    # than 2^24 entries.
    S = np.float64 if streams else np.float32

    @device
    def survey(span, s):
        lo, hi, bad, present = -excluded, excluded, int32(0), int32(0)
        for piece in range(t.pieces(span.n)):
            t.load(span, piece, excluded, s.regs)
            for j in range(held):
                v = s.regs[j]
                bad = int32(bad + (0 if v == v else 1))
                present = int32(present + (1 if v > excluded else 0))
                lo = v if excluded < v < lo else lo
                hi = v if v > hi else hi
        bad, present, _, _ = t.totals(S(bad), S(present), S(0), S(0), s.shared)
        lo, hi = t.extremes(lo, hi, s.shared)
        return bad, present, lo, hi

    @device
    def at_least(span, value, s):
        found = int32(0)
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, excluded, s.regs)
            for j in range(held):
                found = int32(found + (1 if s.regs[j] >= value else 0))
        return t.total(S(found), s.shared)

    @device
    def at_least_each(span, a, b, c, s):
        at_a, at_b, at_c = int32(0), int32(0), int32(0)
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, excluded, s.regs)
            for j in range(held):
                v = s.regs[j]
                at_a = int32(at_a + (1 if v >= a else 0))
                at_b = int32(at_b + (1 if v >= b else 0))
                at_c = int32(at_c + (1 if v >= c else 0))
        at_a, at_b, at_c, _ = t.totals(S(at_a), S(at_b), S(at_c), S(0), s.shared)
        return at_a, at_b, at_c

    @device
    def ties(span, value, s):
        above, equal = int32(0), int32(0)
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, excluded, s.regs)
            for j in range(held):
                above = int32(above + (1 if s.regs[j] > value else 0))
                equal = int32(equal + (1 if s.regs[j] == value else 0))
        above, equal, _, _ = t.totals(S(above), S(equal), S(0), S(0), s.shared)
        return above, equal

    @device
    def up_to(span, value, last, s):
        """Number of entries that are greater, or equal and at a position up to `last`."""
        found = int32(0)
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, excluded, s.regs)
            for j in range(held):
                tied = s.regs[j] == value and t.position(piece, j) <= last
                found = int32(found + (1 if s.regs[j] > value or tied else 0))
        return t.total(S(found), s.shared)

    @device
    def last_tied(span, value, k, s):
        # Invariant: fewer than k ones up to `lo`, at least k up to `hi`.
        lo, hi = int64(-1), span.n - 1
        while hi - lo > 1:
            middle = (lo + hi) >> 1
            if up_to(span, value, middle, s) >= k:
                hi = middle
            else:
                lo = middle
        return hi

    @device
    def mark(span, value, last, defined, s, out):
        for piece in range(t.pieces(span.n)):
            if streams:
                t.load(span, piece, excluded, s.regs)
            for j in range(held):
                v = s.regs[j]
                tied = v == value and t.position(piece, j) <= last
                p = one if v > value or tied else zero
                s.regs[j] = p if defined else undefined
            t.store(s.regs, beside(span, out), piece)

    return Passes(survey, at_least, at_least_each, ties, last_tied, mark)
