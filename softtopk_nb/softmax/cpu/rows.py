"""Softmax, its logarithm and logsumexp on rows, each for rows lo .. hi of a batch.

The record of a row for its derivatives is two numbers, from which they compute the probabilities
again: that takes less time than to store and to read them.
"""

from __future__ import annotations

import math

import numpy as np

from ..._compile.array_intrinsics import block, borrowed, held, window, workspace
from ..._compile.decorators import kernel, scalar, summing
from ..._compile.permute import pack, unpack
from ..._math.elementary import exp_neg, from_ordinal, to_ordinal, wide_vectors
from ..._math.sums import FEW
from ..._nonfinite import fill_behind, length, survey
from ..formulas import OF_LOGS, OF_LOGS_BACK, OF_SHARES, inverse, share, slope, z_of
from ..records import EXCESS, RECORD, TOP

# One more field of a row solved here: its number of entries above -inf. Those at -inf are removed
# before anything is summed, so that the others have the same bits as without them.
PRESENT = RECORD
SOLVED = RECORD + 1

BLOCK = 1024  # entries that are written, and summed while they are in the cache


@scalar
def top(x):
    """(the largest entry of a row, or NaN if any is; whether entries at -inf are to be removed).

    They are not where none would be left, nor beside +inf, where every other entry is excluded.
    """
    T = x.dtype.type
    lo, hi = survey(x)
    lowest, highest = to_ordinal(T(-np.inf)), to_ordinal(T(np.inf))
    ordered = lowest <= lo and hi <= highest
    return from_ordinal(hi) if ordered else T(np.nan), lo == lowest and lowest < hi < highest


# A loop that both writes and sums is vectorised only if the compiler's test at run time finds that
# its arrays do not overlap, and that test is coarse: the order of the sum would depend on the
# arrays' addresses. So each loop here does one of the two.


@summing
def write_block(part, m, inv, logs, out):
    """Write e^z of each entry, or z if `logs`."""
    wide_vectors()
    for i in range(part.shape[0]):
        z = z_of(part[i], m, inv)
        out[i] = z if logs else exp_neg(z)


@summing
def sum_block(part, logs):
    """(the sum of e^z below 1, the number of e^z = 1) of a block that `write_block` has written."""
    wide_vectors()
    T = part.dtype.type
    zero, one = T(0), T(1)
    s = ones = zero
    for i in range(part.shape[0]):
        e = exp_neg(part[i]) if logs else part[i]
        s += e if e < one else zero
        ones += one if e == one else zero
    return s, ones


@scalar
def exponentials(x, m, inv, logs, out):
    """Write e^z of each entry, or z; returns the sum of e^z below 1 and the number of e^z = 1.

    Blocks are added in order: otherwise the compiler would make one sum of them in float64.
    """
    rest, largest = 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        target = block(out, start, BLOCK)
        write_block(block(x, start, BLOCK), m, inv, logs, target)
        for first in range(0, target.shape[0], FEW):
            s, ones = sum_block(block(target, first, FEW), logs)
            rest += s
            largest += ones
    return rest, largest


@scalar
def total_of(m, rest, largest):
    """The sum of e^z, less 1.

    The 1 of the largest entry is left out of the sum, so that log p keeps its relative accuracy
    where p is close to 1 (prop-stable); other entries equal to it are counted.
    """
    return rest + (largest - 1.0) if m == m else np.nan


@scalar
def scale_of(excess):
    """The factor that turns e^z into probabilities."""
    return 1.0 / (1.0 + excess)


@scalar
def normalize(excess, logs, out):
    """Turn e^z into p, or z into log p."""
    wide_vectors()
    T = out.dtype.type
    scale, log_s = T(scale_of(excess)), T(math.log1p(excess))
    for i in range(out.shape[0]):
        out[i] = out[i] - log_s if logs else out[i] * scale


@kernel
def value(lo, hi, x, tau, record, logs, out):
    """Write softmax of each row or its logarithm, unless rows of `out` are empty; and records."""
    T = x.dtype.type
    x, out, record = borrowed(x), borrowed(out), borrowed(record)
    wanted, nothing = out.shape[1] > 0, T(-np.inf) if logs else T(0)
    own_scratch = workspace(x, 2, x.shape[1])
    scratch = borrowed(own_scratch)
    for i in range(lo, hi):
        n = length(x[i])
        entries = window(x[i], 0, n)
        m, excluded = top(entries)
        present = pack(entries, entries, scratch[0]) if excluded else n
        xs = window(scratch[0] if excluded else entries, 0, present)
        target = window(out[i] if wanted and not excluded else scratch[1], 0, present)
        rest, largest = exponentials(xs, m, inverse(tau[i], m), logs, target)
        record[i, TOP], record[i, EXCESS] = m, total_of(m, rest, largest)
        record[i, PRESENT] = present
        if wanted:
            normalize(record[i, EXCESS], logs, target)
            if excluded:
                unpack(entries, target, nothing, window(out[i], 0, n))
            fill_behind(out[i], n, nothing if m == m else T(np.nan))
    held((own_scratch,))


@summing
def probabilities(x, v, m, inv, scale, out):
    """Write p; returns <p, v>, <p, z>, and the sum of v over entries above -inf.

    Where p is 0, v may be anything.
    """
    wide_vectors()
    T = x.dtype.type
    zero, infinity = T(0), T(np.inf)
    mean_v, mean_z, whole = 0.0, 0.0, 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, target = block(x, start, BLOCK), block(out, start, BLOCK)
        vs = block(v, start, BLOCK)
        for i in range(part.shape[0]):
            target[i] = share(z_of(part[i], m, inv), scale)
        sv = sz = s = zero
        for i in range(part.shape[0]):
            z, p = z_of(part[i], m, inv), target[i]
            sv += p * vs[i] if p > zero else zero
            sz += p * z if p > zero else zero
            s += vs[i] if z > -infinity else zero
        mean_v += sv
        mean_z += sz
        whole += s
    return mean_v, mean_z, whole


@summing
def slopes(x, v, m, inv, dtau, mean, rule, out):
    """Turn p into the derivative along (v, dtau); returns its product with z."""
    wide_vectors()
    T = x.dtype.type
    zero, infinity = T(0), T(np.inf)
    product = 0.0
    for start in range(0, x.shape[0], BLOCK):
        part, target = block(x, start, BLOCK), block(out, start, BLOCK)
        vs = block(v, start, BLOCK)
        for i in range(part.shape[0]):
            z, p = z_of(part[i], m, inv), target[i]
            target[i] = slope(z, p, vs[i], inv, dtau, mean, rule)
        s = zero
        for i in range(part.shape[0]):
            z, moved = z_of(part[i], m, inv), target[i]
            s += moved * z if z > -infinity else zero
        product += s
    return product


@scalar
def constant(m, sums, out):
    """Whether a row's derivatives are constant; if so, writes them: 0, or NaN if the value is."""
    if abs(m) < np.inf:
        return False
    out[:] = np.nan if m != m or not (sums or m > 0.0) else 0.0
    return True


@scalar
def taking_part(x, v, present, scratch):
    """The entries of a row above -inf, `present` of them, and their v."""
    if present == x.shape[0]:
        return x, v
    return window(scratch[0], 0, pack(x, x, scratch[0])), window(
        scratch[1], 0, pack(x, v, scratch[1])
    )


@scalar
def moved(x, values, out):
    """Write values of the entries above -inf, unless they are there already; 0 elsewhere."""
    n, still = x.shape[0], out.dtype.type(0)
    if values.shape[0] < n:
        unpack(x, values, still, window(out, 0, n))
    fill_behind(out, n, still)


@kernel
def jvp(lo, hi, x, tau, record, logs, dx, dtau, out):
    """Write the derivative of softmax, or of its logarithm, along (dx, dtau)."""
    T = x.dtype.type
    x, dx, out, record = borrowed(x), borrowed(dx), borrowed(out), borrowed(record)
    own_scratch = workspace(x, 3, x.shape[1])
    scratch = borrowed(own_scratch)
    for i in range(lo, hi):
        m = T(record[i, TOP])
        if not constant(m, False, out[i]):
            inv, scale = inverse(tau[i], m), T(scale_of(record[i, EXCESS]))
            n, present = length(x[i]), int(record[i, PRESENT])
            entries = window(x[i], 0, n)
            xs, vs = taking_part(entries, window(dx[i], 0, n), present, scratch)
            target = window(out[i] if present == n else scratch[2], 0, present)
            mean_v, mean_z, _ = probabilities(xs, vs, m, inv, scale, target)
            mean, rule = T(mean_v - dtau[i] * mean_z), OF_LOGS if logs else OF_SHARES
            slopes(xs, vs, m, inv, T(dtau[i]), mean, rule, target)
            moved(entries, target, out[i])
    held((own_scratch,))


@kernel
def vjp(lo, hi, x, tau, record, logs, g, gtau, gx):
    """Write the gradients of <g, p>, or of <g, log p>."""
    T = x.dtype.type
    x, g, gx, record = borrowed(x), borrowed(g), borrowed(gx), borrowed(record)
    own_scratch = workspace(x, 3, x.shape[1])
    scratch = borrowed(own_scratch)
    for i in range(lo, hi):
        m = T(record[i, TOP])
        if constant(m, False, gx[i]):
            gtau[i] = gx[i, 0]
        else:
            inv, scale = inverse(tau[i], m), T(scale_of(record[i, EXCESS]))
            n, present = length(x[i]), int(record[i, PRESENT])
            entries = window(x[i], 0, n)
            xs, gs = taking_part(entries, window(g[i], 0, n), present, scratch)
            target = window(gx[i] if present == n else scratch[2], 0, present)
            mean, _, whole = probabilities(xs, gs, m, inv, scale, target)
            back, rule = T(whole if logs else mean), OF_LOGS_BACK if logs else OF_SHARES
            gtau[i] = -slopes(xs, gs, m, inv, T(0), back, rule, target)
            moved(entries, target, gx[i])
    held((own_scratch,))


@kernel
def jvp_logsumexp(lo, hi, x, tau, record, dx, dtau, out):
    """Write the derivative of logsumexp along (dx, dtau)."""
    T = x.dtype.type
    x, dx, record = borrowed(x), borrowed(dx), borrowed(record)
    own_scratch = workspace(x, 3, x.shape[1])
    scratch = borrowed(own_scratch)
    for i in range(lo, hi):
        m, excess = T(record[i, TOP]), record[i, EXCESS]
        if constant(m, True, scratch[2]):
            out[i] = scratch[2, 0]
        else:
            inv, scale = inverse(tau[i], m), T(scale_of(excess))
            n, present = length(x[i]), int(record[i, PRESENT])
            xs, vs = taking_part(window(x[i], 0, n), window(dx[i], 0, n), present, scratch)
            along, mean_z, _ = probabilities(xs, vs, m, inv, scale, window(scratch[2], 0, present))
            # thm-lse-gradient: softmax, and in the temperature its entropy log sum e^z - <p, z>.
            out[i] = along + (math.log1p(excess) - mean_z) * dtau[i]
    held((own_scratch,))


@kernel
def vjp_logsumexp(lo, hi, x, tau, record, g, gtau, gx):
    """Write the gradients of logsumexp, times g."""
    T = x.dtype.type
    x, gx, record = borrowed(x), borrowed(gx), borrowed(record)
    own_scratch = workspace(x, 3, x.shape[1])
    scratch = borrowed(own_scratch)
    for i in range(lo, hi):
        m, excess = T(record[i, TOP]), record[i, EXCESS]
        if constant(m, True, gx[i]):
            gtau[i] = gx[i, 0]
        else:
            inv, scale = inverse(tau[i], m), T(scale_of(excess))
            n, present = length(x[i]), int(record[i, PRESENT])
            entries = window(x[i], 0, n)
            xs, _ = taking_part(entries, entries, present, scratch)
            target = window(gx[i] if present == n else scratch[2], 0, present)
            _, mean_z, _ = probabilities(xs, xs, m, inv, scale, target)
            gtau[i] = g[i] * (math.log1p(excess) - mean_z)
            for j in range(target.shape[0]):
                target[j] *= T(g[i])
            moved(entries, target, gx[i])
    held((own_scratch,))


@kernel
def shift(lo, hi, x, tau, tops, out):
    """Write each row's largest entry to `tops`, and z; a NaN makes all z above -inf NaN."""
    T = x.dtype.type
    x, out = borrowed(x), borrowed(out)
    for i in range(lo, hi):
        m = tops[i] = top(x[i])[0]
        inv = inverse(tau[i], m)
        for j in range(x.shape[1]):
            z = z_of(x[i, j], m, inv)
            out[i, j] = T(np.nan) if m != m and x[i, j] > T(-np.inf) else z
