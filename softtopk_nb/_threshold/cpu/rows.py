"""The robust search for each row's threshold: sum f((x - lambda)/tau) = k over finite entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._compile.array_intrinsics import borrowed
from ..._compile.decorators import kernel, overload_scalar, scalar
from ..._math.elementary import from_ordinal
from ..._nonfinite import (
    ALL,
    UNDEFINED,
    WITH_INFINITIES,
    classify,
    expand,
    fill_constant,
    present_part,
    survey,
)
from ..._threads.sampling import sample, sample_size
from ..methods import Bisect, Newton, Scan
from ..newton import begin, inverse_temperature, update
from ..policy import FAINT, ROUGH, enough_for, searched, when_final
from ..records import CODE, MAX, MIN, PASSES, REST, STATE, TAKEN, UNSOLVED, WEIGHT, C, D
from .passes import fill, pass_scratch, search_pass
from .scan import scan
from .start import SAMPLED, guess


@scalar
def _scan(method, state, x, curve, k, inv):
    return scan(x, curve, k, inv)


_FIRST: dict[type, Any] = {Newton: guess, Scan: _scan, Bisect: guess}


def first(method, state, x, curve, k, inv):
    """(c, d): the first guess c + tau d of the threshold, by the method."""
    return _FIRST[type(method)](method, state, x, curve, k, inv)


@overload_scalar(first)
def _first(method, state, x, curve, k, inv):
    return _FIRST[method.instance_class]


@scalar
def take(state, sums, k, curve, inv, method, enough, final, radius):
    """Update the search from a pass: (whether it ended, whether the next may be final)."""
    c, d = state[C], state[D]
    found = update(state, sums, k, curve, inv, method.modelled, enough, not final)
    move = abs((state[C] - c) * inv + (state[D] - d))
    return found, move <= radius or sums[3] == 0.0 or found


@kernel
def solve(lo, hi, x, k, tau, curve, method, out, solution):
    """Solve the rows of lo .. hi whose CODE is UNSOLVED: p to `out` (unless its rows are empty).

    The thresholds go to `solution`: sum f((x - lambda)/tau) = k over the finite entries of each
    row. A long row is first solved roughly, on a sample of them.
    """
    T = x.dtype.type
    state = np.empty(STATE)
    scratch, (radius, variance) = pass_scratch(curve, x, x.shape[1]), when_final(curve, x)
    x, out, solution = borrowed(x), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        entries, p, answer = x[i], out[i], solution[i]
        if answer[CODE] != UNSOLVED:
            continue
        code, n, above, left, lowest, highest = classify(entries, k[i], *survey(entries))
        answer[CODE], answer[TAKEN] = code, 0.0
        if code > WITH_INFINITIES:
            answer[C] = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
            answer[D] = answer[REST] = answer[WEIGHT] = 0.0
            if p.shape[0] > 0:
                fill_constant(entries, k[i], code, above, p)
            continue

        present, _ = present_part(entries, entries, code)
        left, inv = searched(curve, left, n, T(1)), inverse_temperature(tau[i], x)
        state[MIN], state[MAX] = from_ordinal(lowest), from_ordinal(highest)

        part, share = present, left
        if method.sampled and n >= SAMPLED:
            part = np.empty(sample_size(n), x.dtype)
            sample(present, 0, n, part.shape[0], part)
            share = left * part.shape[0] / n
        c, d = first(method, state, part, curve, share, inv)
        begin(state, curve, share, part.shape[0], c, d, inv, method.modelled)
        # As `lanes` does, so that a row has the same bits if it is in float64 and not sampled.
        keeps = p.shape[0] > 0 or method.enough == 0.0
        may_be_cheap = method.sampled and keeps and left >= FAINT
        begins_final = variance == np.inf or not may_be_cheap
        final = begins_final or part.shape[0] < n
        while True:
            whole, c, seen = part.shape[0] == n, state[C], state[D]
            exact = whole and keeps
            sums = search_pass(
                part, T(c), inv, T(seen), curve, exact and final, None, None, scratch
            )
            enough = enough_for(method, n) if whole else ROUGH
            found, near = take(state, sums, share, curve, inv, method, enough, final, radius)
            if found and whole and final:
                break
            final = near or not exact or not may_be_cheap
            if found and not whole:
                part, share = present, left
                c, d = state[C], state[D] + state[REST]
                begin(state, curve, share, n, c, d, inv, method.modelled)
                final = begins_final

        answer[C], answer[D], answer[REST] = state[C], state[D], state[REST]
        answer[TAKEN], answer[WEIGHT] = state[PASSES], sums[3]
        if p.shape[0] > 0:
            values = p[:n]
            step = state[D] + state[REST] - seen
            fill(present, T(state[C]), inv, T(seen), step, curve, values)
            if code == WITH_INFINITIES:
                expand(entries, values, 1.0, p)
