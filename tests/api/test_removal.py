"""Class of fault: an entry that is out still moves the last bits of the others.

An entry that is masked, or at -inf, is as if it were not there, to the bit: for every operator and
verb, at any temperature, on any processor. What decides how a row is solved may depend on the
entries that take part in it, and on nothing else of the array.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from operators import dtypes, every, same

import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable
from softtopk_nb._threshold.cpu.batch import LARGE

#: (entries, share of them that is kept): short rows, rows with a sample, and rows that are short
#: only without what is out.
SHAPES = [(17, 0.7), (100, 0.5), (700, 0.2), (1000, 0.8), (5000, 0.03), (5000, 0.9)]
TOP_ONE = stk.softmax, stk.log_softmax, stk.logsumexp


def verbs(op, options, k, tau, x, v, where=None):
    """What each verb of an operator gives of rows: those with an entry for each of x, the others.

    k and temperature are one number a row, so that their gradients are too.
    """
    ks, taus = np.full(len(x), k), np.full(len(x), tau)
    arguments = {"temperature": taus, **options}
    if where is not None:
        arguments["where"] = where
    entries, numbers = {"value": op(x, ks, **arguments)}, {}
    if isinstance(op, Differentiable):
        along = {"dk": 0.3} if op.real_k else {}
        entries["jvp"] = op.jvp(x, ks, v, dtemperature=0.2, **along, **arguments)[1]
        entries["vjp, value"], pullback = op.vjp(x, ks, **arguments)
        entries["vjp"], numbers["vjp, k"], numbers["vjp, temperature"] = pullback(v)
    for name in ("potential", "threshold"):
        if hasattr(op, name):
            numbers[name] = getattr(op, name)(x, ks, **arguments)
    return entries, {name: value for name, value in numbers.items() if value is not None}


def top_one_verbs(op, tau, x, v, where=None):
    """The same for softmax, its logarithm and logsumexp."""
    arguments = {"temperature": np.full(len(x), tau)}
    if where is not None:
        arguments["where"] = where
    entries, numbers = {}, {}
    of_entries = op is not stk.logsumexp
    kind = entries if of_entries else numbers
    kind["value"], kind["jvp"] = op.jvp(x, v, dtemperature=0.2, **arguments)
    _, pullback = op.vjp(x, **arguments)
    entries["vjp"], _, numbers["vjp, temperature"] = pullback(v if of_entries else v[:, 0])
    return entries, numbers


def rows_with_gaps(rng, n, share, dtype):
    """Rows, directions, and which entries are kept: the first one and about such a share."""
    x, v = rng.normal(size=(2, 3, n)).astype(dtype)
    keep = rng.random((3, n)) < share
    keep[:, 0] = True
    assert 0 < (~keep).sum() < keep.size
    return x, v, keep


def as_removed(of, x, v, keep):
    """`of(x, v, where)`, masked and with -inf, against the same of what is left of each row."""
    masked = of(np.where(keep, x, np.nan), v, keep)
    excluded = of(np.where(keep, x, x.dtype.type(-np.inf)), v, None)
    for i, kept in enumerate(keep):
        entries, numbers = of(x[i : i + 1, kept], v[i : i + 1, kept], None)
        for got in (masked, excluded):
            for name, expected in entries.items():
                same(got[0][name][i, kept], expected[0])
            for name, expected in numbers.items():
                same(got[1][name][i], expected[0])


@every
@dtypes
def test_what_is_out_moves_no_bit(op, options, dtype, rng):
    for n, share in SHAPES:
        x, v, keep = rows_with_gaps(rng, n, share, dtype)
        k, tau = min(3, keep.sum(axis=1).min()), 10 ** rng.uniform(-1.5, 0.7)
        as_removed(partial(verbs, op, options, k, tau), x, v, keep)


@pytest.mark.parametrize("n", [64, 5000])
def test_what_is_out_of_a_large_batch_moves_no_bit(n, rng):
    """Its first row says which kernel begins; rows without infinities and with a NaN are there."""
    x, v = rng.normal(size=(2, 70_000 // n, n)).astype(np.float32)
    keep = rng.random(x.shape) < 0.8
    keep[:, 0], keep[3:5] = True, True
    x[4, 1] = np.nan
    excluded = np.where(keep, x, np.float32(-np.inf))
    for order in (np.arange(len(x)), np.roll(np.arange(len(x)), -3)):
        assert x.size >= LARGE
        for op in (stk.thretopk, stk.gradtopk):
            p, dp = op.jvp(excluded[order], 5, v[order])
            for i, row in enumerate(order):
                kept = keep[row]
                alone, moved = op.jvp(x[row, kept], 5, v[row, kept])
                same(p[i, kept], alone)
                same(dp[i, kept], moved)


@pytest.mark.parametrize("op", TOP_ONE, ids=lambda op: op.__name__)
@dtypes
def test_what_is_out_of_the_top_one_family_moves_no_bit(op, dtype, rng):
    for n, share in SHAPES:
        x, v, keep = rows_with_gaps(rng, n, share, dtype)
        tau = 10 ** rng.uniform(-1.5, 0.7)
        as_removed(partial(top_one_verbs, op, tau), x, v, keep)


@pytest.mark.parametrize("share", [0.97, 0.5])
def test_what_is_out_of_a_long_row_moves_no_bit(share, rng):
    """What is left of a row that is solved in parts may be one that is not."""
    x, v, keep = rows_with_gaps(rng, 1_050_000, share, np.float32)
    x, v, keep = x[:1], v[:1], keep[:1]
    for op, options in ((stk.thretopk, {"curve": "sigmoid"}), (stk.gradtopk, {})):
        as_removed(partial(verbs, op, options, 70, 0.3), x, v, keep)
    for op in TOP_ONE:
        as_removed(partial(top_one_verbs, op, 0.3), x, v, keep)
