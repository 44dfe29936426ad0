"""The rules that hold for every operator, tried on every operator of the registry.

Nothing here knows any mathematics: an operator is compared with itself, called in another way.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import re

import numpy as np
import pytest
from operators import (
    VARIANTS,
    dtypes,
    each_op,
    every,
    every_once,
    of_real_k,
    same,
    smooth,
    smooth_once,
    smooth_with_or_without_k,
    with_or_without_k,
)

import softtopk_nb as stk
from softtopk_nb._api import array_calls, short_calls, without_k
from softtopk_nb._api.operator import Differentiable, registry
from softtopk_nb._threads import pool


def test_registry_holds_the_public_operators():
    assert {"hardtopk", "thretopk"} <= set(registry)
    assert set(VARIANTS) <= set(registry)
    for name, op in registry.items():
        assert getattr(stk, name) is op
    assert set(without_k.registry) == {"softmax", "log_softmax", "logsumexp"}


# Arrays


@with_or_without_k
@dtypes
@pytest.mark.parametrize("shape", [(64,), (3, 2, 17)])
def test_the_short_way_gives_the_same_bits(op, options, dtype, shape, rng, monkeypatch):
    """Rows with infinities and a NaN, k = 0 and k = n leave it, as they need other kernels."""
    x = rng.normal(size=shape).astype(dtype)
    special = x.copy()
    special.flat[[1, 5, 8]] = np.inf, -np.inf, np.nan
    numbers = itertools.product((3, 0, shape[-1], *([2.5] if op.real_k else [])), (1.0, 0.07, 2))
    orders = ({"largest": True}, {"largest": False}) if hasattr(op, "cpu") else ({},)
    calls = [
        lambda v=v, k=k, t=t, order=order: op(v, k, temperature=t, **order, **options)
        for v, (k, t), order in itertools.product((x, special), list(numbers), orders)
    ]
    found = [each() for each in calls]
    monkeypatch.setattr(short_calls, "value", lambda *_: None)
    for p, each in zip(found, calls, strict=True):
        same(p, each())


@smooth
@dtypes
@pytest.mark.parametrize("largest", [True, False])
def test_the_short_gradient_has_the_same_bits(op, options, dtype, largest, rng):
    """What backward passes of fronts use: also of a cotangent in another layout or type."""
    x, g = rng.normal(size=(2, 3, 17)).astype(dtype), rng.normal(size=(2, 3, 17)).astype(dtype)
    arguments = op, x, 3, 0.5, -1, largest, None, None, options
    short = short_calls.solve(*arguments)
    if short is None:
        assert short_calls.value(*arguments) is None
        return
    p, solved, state = short
    expected, vjp = op.vjp(x, 3, temperature=0.5, largest=largest, **options)
    same(p, expected)
    for cotangent in (g, g[..., ::-1], g.astype(float), np.broadcast_to(g[0, 0], g.shape)):
        same(solved.vjp_in_x(state, cotangent), vjp(cotangent).x)
    given = (x if largest else -x), np.full((2, 3), 3), np.full((2, 3), 0.5)
    same(solved.packed(state), array_calls.solve(op, options, given)[1])


@pytest.mark.parametrize("name", ["hardtopk", "thretopk", "gradtopk", "softmax", "log_softmax"])
def test_most_calls_on_few_entries_go_the_short_way(name, monkeypatch, rng):
    op, x = getattr(stk, name), rng.normal(size=(1, 64)).astype(np.float32)
    monkeypatch.setattr(short_calls.call, "check", None)
    p = op(x, *([8] if name.endswith("topk") else []), temperature=0.5)
    assert p.shape == x.shape


@with_or_without_k
@dtypes
def test_any_layout_gives_the_same_bits(op, options, dtype, rng):
    x = rng.normal(size=(6, 17)).astype(dtype)
    expected = op(x, 3, **options)
    before = x.copy()
    readonly = x.copy()
    readonly.flags.writeable = False
    layouts = {
        "read-only": readonly,
        "Fortran": np.asfortranarray(x),
        "strided": np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
        "negative strides": x[::-1, ::-1].copy()[::-1, ::-1],
        "byte-swapped": x.astype(x.dtype.newbyteorder()),
        "broadcast rows": np.lib.stride_tricks.as_strided(x, x.shape, x.strides, writeable=False),
    }
    for name, y in layouts.items():
        kept = y.copy()
        same(op(y, 3, **options), expected)
        np.testing.assert_array_equal(y, kept, err_msg=f"{name} input was modified")
    same(x, before)
    if dtype == np.float64:
        same(op(x.tolist(), 3, **options), expected)
        same(op(tuple(map(tuple, x)), 3, **options), expected)


@with_or_without_k
def test_axis(op, options, rng):
    x = rng.normal(size=(4, 9, 5))
    expected = np.stack(
        [np.stack([op(x[i, :, j], 2, **options) for j in range(5)], -1) for i in range(4)]
    )
    same(op(x, 2, axis=1, **options), expected)
    same(op(x, 2, axis=-2, **options), expected)
    same(op(x, 2, axis=np.int64(1), **options), expected)


@with_or_without_k
@pytest.mark.parametrize(
    ("given", "result"),
    [
        (np.float16, np.float16),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.float64),
        (np.uint64, np.float64),
        (np.bool_, np.float64),
        (">f4", np.float32),
        (">f8", np.float64),
        (">i4", np.float64),
    ],
)
def test_dtypes(op, options, given, result):
    x = np.array([[3, 0, 1, 2, 1], [0, 1, 0, 1, 1]]).astype(given)
    p = op(x, 2, **options)
    assert p.dtype == np.dtype(result)
    assert p.dtype.isnative
    wide = np.float32 if result == np.float16 else result
    same(p, op(x.astype(wide), 2, **options).astype(result))


@each_op
@pytest.mark.parametrize(
    "x",
    [
        np.ones(4, complex),
        np.array([1, 2, None, 4], object),
        np.ones(4, np.longdouble),
        np.array(["a", "b"]),
        np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
        np.ma.masked_less([1.0, 2.0, 3.0], 2),
        object(),
    ],
    ids=["complex", "object", "longdouble", "str", "datetime", "masked", "unknown"],
)
def test_other_dtypes_are_refused(op, x):
    with pytest.raises(TypeError, match=r"^x "):
        op(x, 1)


# k and temperature


@every
def test_k_and_temperature_per_row(op, options, rng):
    x = rng.normal(size=(3, 4, 11))
    k = rng.integers(0, 12, size=(3, 4))
    tau = rng.uniform(0.1, 2, size=(4,))
    assert len(np.unique(k)) > 3
    p = op(x, k, temperature=tau, **options)
    for i in range(3):
        for j in range(4):
            same(p[i, j], op(x[i, j], k[i, j], temperature=tau[j], **options))
    column = op(x, k[:, :1], temperature=0.5, **options)
    same(column, op(x, np.repeat(k[:, :1], 4, 1), temperature=0.5, **options))


@with_or_without_k
def test_numbers_may_keep_the_axis(op, options, rng):
    """k, the temperature and directions of x's number of axes: as without the axis of length 1."""
    x, v, g = rng.normal(size=(3, 3, 9, 4))
    k, tau = rng.integers(1, 4, size=(3, 1, 4)), rng.uniform(0.5, 2, size=(1, 1, 4))
    assert len(np.unique(k)) > 1
    common = {"axis": 1, **options}
    kept, dropped = {"temperature": tau}, {"temperature": tau[:, 0]}

    def alike(found, expected):
        for each, other in zip(found, expected, strict=True):
            if each is not None:
                same(each.squeeze(1) if each.shape[1] == 1 else each, other)

    same(op(x, k, **kept, **common), op(x, k[:, 0], **dropped, **common))
    row = x[0, :, 0]
    same(op(row, [2], temperature=[0.5], **options), op(row, 2, temperature=0.5, **options))
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            of_op = getattr(op, verb)
            same(of_op(x, k, **kept, **common), of_op(x, k[:, 0], **dropped, **common))
    if not hasattr(op, "jvp"):
        return
    moves = {"dtemperature": rng.normal(size=(3, 1, 1))}
    moves |= {"dk": rng.normal(size=(3, 1, 4))} if op.real_k else {}
    moved = {name: each[:, 0] for name, each in moves.items()}
    alike(
        op.jvp(x, k, v, **moves, **kept, **common),
        op.jvp(x, k[:, 0], v, **moved, **dropped, **common),
    )
    found = op.vjp(x, k, **kept, **common)[1](g)
    assert found.temperature.shape == tau.shape
    assert not op.real_k or found.k.shape == k.shape
    alike(found, op.vjp(x, k[:, 0], **dropped, **common)[1](g))
    if getattr(op, "has_second", False):
        found = op.hvp(x, k, v, g, **moves, **kept, **common)
        assert found.temperature.shape == tau.shape
        alike(found, op.hvp(x, k[:, 0], v, g, **moved, **dropped, **common))


@each_op
def test_real_k_only_where_it_may_be(op):
    x = [3.0, 1.0, 2.0]
    if op.real_k:
        assert op(x, 1.5).sum() == pytest.approx(1.5, abs=1e-12)
    else:
        for k in (1.5, 2.0, np.float32(1)):
            with pytest.raises(TypeError, match=r"^k is .*expected integers"):
                op(x, k)


@every
def test_edges_are_exact(op, options, rng):
    x = rng.normal(size=(2, 7))
    same(op(x, 0, **options), np.zeros_like(x))
    p = op(x, 7, **options)
    if op.bounded:
        same(p, np.ones_like(x))
    else:
        assert p.sum(-1) == pytest.approx([7, 7], abs=1e-11)
    same(op([[5.0]], 1, **options), np.ones((1, 1)))
    same(op([[5.0]], 0, **options), np.zeros((1, 1)))


@every
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (2, 0, 4)])
def test_empty(op, options, shape):
    x = np.empty(shape, np.float32)
    same(op(x, 0, **options), x)
    if isinstance(op, Differentiable):
        p, dp = op.jvp(x, 0, x, **options)
        same(p, x)
        same(dp, x)
        same(op.vjp(x, 0, **options)[1](x).x, x)


@every
def test_ties_and_constant_rows(op, options):
    p = op(np.full((2, 8), 1e6), 4, **options)
    assert p.sum(-1) == pytest.approx([4, 4], abs=1e-11)
    if isinstance(op, Differentiable):
        if options.get("method") == "dp":  # adds up in the order of the entries
            np.testing.assert_allclose(p, p[0, 0], rtol=1e-14)
        else:
            same(p, np.full_like(p, p[0, 0]))


# largest, where, out


@every
def test_largest(op, options, rng):
    x = rng.normal(size=(3, 10))
    same(op(x, 4, largest=False, **options), op(-x, 4, **options))
    same(op(x, 4, largest=np.True_, **options), op(x, 4, **options))


@every
@dtypes
def test_where_is_as_if_removed(op, options, dtype, rng):
    for n in (13, 5000):
        x = rng.normal(size=(2, n)).astype(dtype)
        mask = rng.random((2, n)) < 0.7
        masked = x.copy()
        masked[~mask] = np.nan
        p = op(masked, 3, where=mask, **options)
        for i in range(2):
            same(p[i, mask[i]], op(x[i, mask[i]], 3, **options))
            same(p[i, ~mask[i]], np.zeros((~mask[i]).sum(), dtype))
    x = rng.normal(size=(4, 6))
    row = np.array([True, True, False, True, True, False])
    same(op(x, 2, where=row, **options), op(x, 2, where=np.tile(row, (4, 1)), **options))
    column = np.array([[True], [False], [True], [True]])
    p = op(x, 1, where=column, **options)
    assert np.isnan(p[1]).all()
    assert not np.isnan(p[[0, 2, 3]]).any()
    same(op(x.T, 2, axis=0, where=row[:, None], **options), op(x, 2, where=row, **options).T)


@every
@dtypes
def test_k_may_be_clamped_to_the_entries_that_take_part(op, options, dtype, rng):
    """To the bit as with the smaller k; rows of nothing are 0, and gradients in k where it is."""
    x, v, g = rng.normal(size=(3, 6, 9)).astype(dtype)
    there = np.arange(9) < np.array([[0], [1], [3], [4], [7], [9]])
    x[3, 0], x[4, :2], x[~there] = -np.inf, np.inf, np.nan
    counts, k = np.array([0, 1, 3, 3, 7, 9]), 4
    common = {"where": there, "temperature": 0.5, **options}
    clamped, smaller = {**common, "clamp_k": True}, np.minimum(counts, k)
    expected = op(x, smaller, **common)
    assert not np.isnan(expected).any()
    same(op(x, k, **clamped), expected)
    same(op(x, np.full((6, 1), k), **clamped), expected)
    same(op(-x, k, largest=False, **clamped), expected)
    same(op(x.T, k, axis=0, **{**clamped, "where": there.T}), expected.T)
    same(op(x, 10**6, **clamped), op(x, counts, **common))
    assert np.isnan(op(x, k, **common)[:4]).all()
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            same(getattr(op, verb)(x, k, **clamped), getattr(op, verb)(x, smaller, **common))
    if not isinstance(op, Differentiable):
        return
    found, dp = op.jvp(x, k, v, dtemperature=0.3, **clamped)
    same(found, expected)
    same(dp, op.jvp(x, smaller, v, dtemperature=0.3, **common)[1])
    found, others = op.vjp(x, np.full(6, k), **clamped)[1](g), op.vjp(x, smaller, **common)[1](g)
    same(found.x, others.x)
    if op.real_k:
        same(found.k, others.k)
        assert (found.k[:4] == 0).all()
        assert found.k.any()
        assert (op.jvp(x, k, v * 0, dk=1.0, **clamped)[1][:4] == 0).all()
    if op.has_second:
        same(op.hvp(x, k, v, g, **clamped).x, op.hvp(x, smaller, v, g, **common).x)


@each_op
def test_chosen_entries_of_rows_that_have_fewer(op, rng):
    x, there = rng.normal(size=(2, 5)), np.array([[False, True, False, True, True], [True] * 5])
    x[0, 3:] = 1.0, 2.0
    values, indices = stk.topk(x, 4, op=op, where=there, clamp_k=True)
    best = sorted([1, 3, 4], key=lambda i: -x[0, i])
    assert indices[0].tolist() == [*best, 0]
    np.testing.assert_array_equal(values[0], [1, 1, 1, 0] if op.bounded else values[0])
    same(values[1], stk.topk(x[1], 4, op=op).values)
    same(indices[1], stk.topk(x[1], 4, op=op).indices)
    ordered = stk.topk(-x, 4, op=op, where=there, sorted=False, largest=False, clamp_k=True)
    assert ordered.indices[0].tolist() == [0, 1, 3, 4]
    assert stk.topk(x, 9, op=op, clamp_k=True).indices.shape == (2, 5)


@with_or_without_k
def test_out(op, options, rng):
    x = rng.normal(size=(4, 9))
    expected = op(x, 3, **options)
    for out in (
        np.full((4, 9), 7.0),
        np.full((4, 9), 7.0, order="F"),
        np.full((8, 27), 7.0)[::2, ::3],
        np.full((4, 9), 7.0)[::-1, ::-1],
        np.full((4, 9), 7.0, ">f8"),
    ):
        result = op(x, 3, out=out, **options)
        assert result is out
        np.testing.assert_array_equal(out, expected)
    inplace = x.copy()
    assert op(inplace, 3, out=inplace, **options) is inplace
    same(inplace, expected)
    buffer = np.concatenate([x.ravel(), np.zeros(9)])
    overlapping = buffer[9:].reshape(4, 9)
    op(buffer[:-9].reshape(4, 9), 3, out=overlapping, **options)
    same(overlapping, expected)
    half = np.empty((4, 9), np.float16)
    same(op(x.astype(np.float16), 3, out=half, **options), op(x.astype(np.float16), 3, **options))
    transposed = np.empty((9, 4))
    same(op(x.T, 3, axis=0, out=transposed, **options), expected.T)


def _placed(memory, dtype, shape, start, step):
    """A view of the memory from a byte on: every `step`-th number, backwards if it is negative."""
    numbers = np.ndarray((len(memory) - start) // np.dtype(dtype).itemsize, dtype, memory, start)
    size = int(np.prod(shape))
    return (
        numbers[: size * abs(step) : abs(step)] if step > 0 else numbers[:size][::step]
    ).reshape(shape)


@with_or_without_k
def test_out_may_share_memory_with_every_argument(op, options, rng):
    """Aliasing: an argument that is still needed once p has been written must not be read there.

    The same bytes, later or earlier ones, every other number, backwards, transposed, of another
    type; x, k, temperature, where, the directions, and what a pullback reads when it is called.
    """
    shape, batch = (5, 8), (5,)
    given = {
        "x": rng.normal(size=shape).astype(np.float32),
        "k": rng.integers(1, 5, size=batch),
        "temperature": rng.uniform(0.5, 2, size=batch),
        "where": rng.random(shape) < 0.8,
    }
    moves = {"dx": rng.normal(size=shape), "dtemperature": rng.normal(size=batch)}
    moves |= {"dk": rng.normal(size=batch)} if op.real_k else {}
    g = rng.normal(size=shape).astype(np.float32)

    def call(x, k, **kw):
        return (op(x, k, **kw, **options),)

    def jvp(x, k, dx, **kw):
        return op.jvp(x, k, dx, **kw, **options)

    def vjp(x, k, **kw):
        p, pullback = op.vjp(x, k, **kw, **options)
        gradients = [each for each in pullback(g) if each is not None]
        return p.copy(), *gradients, pullback(p).x  # a cotangent may be p itself

    memory = np.zeros(8 * 8 * 40, np.uint8)
    outs = [memory[640:800].view(np.float32).reshape(shape)]
    outs += [_placed(memory, np.float32, shape, 640, step) for step in (-1, 2)]
    outs += [outs[0].reshape(8, 5).T]
    for verb in (call, jvp, vjp) if hasattr(op, "jvp") else (call,):
        all_given = given | (moves if verb is jvp else {})
        for (name, value), out in itertools.product(all_given.items(), outs):
            # A mask makes copies of what it masks.
            arguments = {n: v for n, v in all_given.items() if name == "where" or n != "where"}
            expected = verb(**arguments)
            types = [">f8", np.float64] if value.dtype == np.float64 else [value.dtype]
            types += [np.float32] if name == "dx" else []
            for dtype, start, step in itertools.product(types, (640, 648, 608), (1, -1, 2)):
                here = _placed(memory, dtype, value.shape, start, step)
                memory[:] = 0
                here[...] = value
                for a, b in zip(verb(**arguments | {name: here}, out=out), expected, strict=True):
                    np.testing.assert_array_equal(a, b, f"{verb.__name__}, {name}: {here.strides}")


@with_or_without_k
def test_bad_out_is_refused(op, options):
    x = np.zeros((2, 3))
    frozen = np.zeros((2, 3))
    frozen.flags.writeable = False
    for out, error in (
        (np.zeros((3, 2)), ValueError),
        (np.zeros((2, 3), np.float32), TypeError),
        (np.zeros((2, 3), int), TypeError),
        ([[0.0] * 3] * 2, TypeError),
        (frozen, ValueError),
    ):
        with pytest.raises(error, match=r"^out "):
            op(x, 1, out=out, **options)


# Non-finite input


@with_or_without_k
@dtypes
def test_nan_stays_in_its_row(op, options, dtype, rng):
    x = rng.normal(size=(5, 12)).astype(dtype)
    clean = op(x, 3, **options)
    x[2, 7] = np.nan
    p = op(x, 3, **options)
    assert np.isnan(p[2]).all()
    same(np.delete(p, 2, 0), np.delete(clean, 2, 0))
    assert np.isnan(op(x[2], 0, **options)).all()
    x[2, 3] = np.inf
    assert np.isnan(op(x, 3, **options)[2]).all()
    x[2, 7] = -np.nan
    assert np.isnan(op(x, 3, **options)[2]).all()
    padded = np.append(rng.normal(size=250), np.full(50, -np.inf)).astype(dtype)
    padded[3] = np.nan
    assert np.isnan(op(padded, 3, **options)).all()


@every
@dtypes
def test_minus_infinity_is_excluded(op, options, dtype, rng):
    x = rng.normal(size=11).astype(dtype)
    x[[2, 5]] = -np.inf
    p = op(x, 4, **options)
    same(p[[2, 5]], np.zeros(2, dtype))
    same(np.delete(p, [2, 5]), op(np.delete(x, [2, 5]), 4, **options))
    rest = np.delete(op(x, 9, **options), [2, 5])
    same(rest, op(np.delete(x, [2, 5]), 9, **options))
    if op.bounded:
        same(rest, np.ones(9, dtype))
    assert np.isnan(op(x, 10, **options)).all()
    same(op(np.full(3, -np.inf, dtype), 0, **options), np.zeros(3, dtype))
    assert np.isnan(op(np.full(3, -np.inf, dtype), 1, **options)).all()
    padded = np.append(rng.normal(size=250), np.full(50, -np.inf)).astype(dtype)
    assert np.isnan(op(padded, 251, **options)).all()


@every
@dtypes
def test_plus_infinity_takes_one_of_k(op, options, dtype, rng):
    x = rng.normal(size=11).astype(dtype)
    x[[1, 6]] = np.inf
    p = op(x, 4, **options)
    same(p[[1, 6]], np.ones(2, dtype))
    same(np.delete(p, [1, 6]), op(np.delete(x, [1, 6]), 2, **options))
    same(np.delete(op(x, 2, **options), [1, 6]), np.zeros(9, dtype))
    x[3] = -np.inf
    same(op(x, 10, **options)[[1, 6, 3]], np.array([1, 1, 0], dtype))
    shared = op(x, 1, **options)
    # hardtopk always has exactly k ones: there the tie goes to the lowest index.
    share = 0.5 if isinstance(op, Differentiable) else 1.0
    expected = np.zeros(11, dtype)
    expected[[1, 6]] = share, 1 - share
    same(shared, expected)


@of_real_k
@dtypes
def test_a_k_next_to_0(op, options, dtype):
    """Subnormal k too, which `n * sigmoid(z)` reaches, by every verb."""
    x, v = np.array([-3.0, 1.0, 0.0, 2.0], dtype), np.arange(4.0)
    for k in (5e-324, 1e-310, 1e-200, 1e-50):
        p, vjp = op.vjp(x, k, **options)
        dp = op.jvp(x, k, 0 * v, dk=1.0, **options)[1]
        gradients = vjp(v)
        verbs = [verb for verb in ("threshold", "potential") if hasattr(op, verb)]
        numbers = [getattr(op, verb)(x, k, **options) for verb in verbs]
        for found in (p, dp, *gradients, *numbers):
            assert np.isfinite(found).all(), (k, found)
        np.testing.assert_allclose(p, np.zeros(4), rtol=0, atol=1e-17)
        if options.get("curve") != "cauchy":
            continue
        # All entries are far below the threshold, where the curve is nearly linear.
        np.testing.assert_allclose(dp, np.full(4, 0.25), rtol=1e-6)
        assert gradients.k == pytest.approx(1.5, rel=1e-6)


@every
@dtypes
def test_extreme_values_do_no_harm(op, options, dtype):
    big, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    x = np.array([[-big, big, 0, tiny], [big, big, -big, -big], [tiny, -tiny, 0, -0.0]], dtype)
    for tau in (1e-300, 1e-30, 1.0, 1e30, 1e300):
        p = op(x, 2, temperature=tau, **options)
        assert np.isfinite(p).all()
        assert p.sum(-1, dtype=float) == pytest.approx([2, 2, 2], abs=4e-6)
        if isinstance(op, Differentiable):
            _, dp = op.jvp(x, 2, np.ones_like(x), temperature=tau, **options)
            assert not np.isnan(dp).any()


# Rows


@with_or_without_k
@dtypes
@pytest.mark.parametrize("n", [3, 64, 1000, 5000])
def test_rows_are_independent_to_the_bit(op, options, dtype, n, rng, monkeypatch):
    rows = max(2, 140_000 // n)
    x = rng.normal(size=(rows, n)).astype(dtype)
    kw = {"temperature": 0.3, **options}
    together = op(x, 2, **kw)
    assert len({row.tobytes() for row in together}) > 1
    for i in (0, rows // 2, rows - 1):
        same(op(x[i], 2, **kw), together[i])
    same(op(x[::-1], 2, **kw), together[::-1])
    for threads in (1, 2, 5):
        monkeypatch.setattr(pool, "thread_count", lambda threads=threads: threads)
        same(op(x, 2, **kw), together)
        if hasattr(op, "jvp"):
            dp = op.jvp(x, 2, x, **kw)[1]
            same(dp[-1], op.jvp(x[-1], 2, x[-1], **kw)[1])


@with_or_without_k
@dtypes
def test_bits_do_not_depend_on_where_the_arrays_lie(op, options, dtype, rng):
    n = 57
    x, p = rng.normal(size=(2, n)).astype(dtype), None
    for start, gap in rng.integers(0, 40, size=(12, 2)):
        memory = np.empty(4 * n + 80, dtype)
        row = memory[start : start + 2 * n].reshape(2, n)
        out = memory[start + 2 * n + gap : start + 4 * n + gap].reshape(2, n)
        for here, there in ((row, out), (out, row)):
            here[...] = x
            op(here, 3, out=there, **options)
            p = there.copy() if p is None else p
            same(there, p)


@with_or_without_k
def test_same_input_same_bits(op, options, rng):
    x = rng.normal(size=(50, 300)).astype(np.float32)
    first = op(x, 7, **options)
    for _ in range(3):
        same(op(x.copy(), 7, **options), first)


# Derivatives


@smooth_with_or_without_k
@dtypes
def test_jvp_and_vjp_are_shaped_like_their_arguments(op, options, dtype, rng):
    x = rng.normal(size=(3, 4, 8)).astype(dtype)
    k, tau = np.full((4,), 2), np.full((3, 1), 0.7)
    p, dp = op.jvp(x, k, x, temperature=tau, **options)
    same(p, op(x, k, temperature=tau, **options))
    assert dp.shape == x.shape
    assert dp.dtype == dtype
    q, pullback = op.vjp(x, k, temperature=tau, **options)
    same(p, q)
    g = pullback(np.ones(8, dtype))
    assert isinstance(g, stk.Gradients)
    assert g.x.shape == x.shape
    assert g.x.dtype == dtype
    assert g.temperature.shape == tau.shape
    if op.real_k:
        assert g.k.shape == k.shape
        assert g.k.dtype == dtype
    else:
        assert g.k is None
    scalar = op.vjp(x[0, 0], 2, **options)[1](x[0, 0])
    assert np.ndim(scalar.temperature) == 0


def test_what_was_accepted_admits_no_other_argument_equal_to_it():
    """What a call's types and options say is kept for the next: 1 is not True."""
    x = np.ones((3, 4))
    stk.hardtopk(x, 1, axis=1)
    with pytest.raises(TypeError, match="axis is True; expected an integer"):
        stk.hardtopk(x, 1, axis=True)
    stk.thretopk(x, 1, curve="entmax", alpha=2)
    with pytest.raises(TypeError, match="alpha is"):
        stk.thretopk(x, 1, curve="entmax", alpha=2 + 0j)
    with pytest.raises(ValueError, match=r"curve is \['laplace'\]; expected one of"):
        stk.thretopk(x, 1, curve=["laplace"])  # it has no hash


@smooth
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_pullback_is_the_transpose_of_the_tangent(op, options, largest, axis, rng):
    x = rng.normal(size=(9, 9))
    mask = rng.random((9, 9)) < 0.8
    dx, g = rng.normal(size=(2, 9, 9))
    dtau, dk = rng.normal(size=(2, 9))
    kw = {"temperature": np.full(9, 0.6), "axis": axis, "largest": largest, "where": mask}
    k = np.full(9, 2)
    moves = {"dtemperature": dtau, **({"dk": dk} if op.real_k else {})}
    _, dp = op.jvp(x, k, dx, **moves, **kw, **options)
    gradients = op.vjp(x, k, **kw, **options)[1](g)
    left = np.vdot(g, dp)
    right = np.vdot(gradients.x, dx) + np.vdot(gradients.temperature, dtau)
    if op.real_k:
        right += np.vdot(gradients.k, dk)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-10)
    assert (gradients.x[~mask] == 0).all()


@smooth
@pytest.mark.parametrize("largest", [True, False])
def test_tangent_is_the_slope_of_the_value(op, options, largest, rng):
    x = rng.normal(size=(4, 12))
    dx, dtau = rng.normal(size=x.shape), 0.3
    kw = {"largest": largest, **options}
    moves = {"dk": -0.2} if op.real_k else {}
    _, dp = op.jvp(x, 3, dx, dtemperature=dtau, temperature=0.9, **moves, **kw)
    h = 1e-6
    k = [3 + s * h * moves.get("dk", 0) if op.real_k else 3 for s in (1, -1)]
    ahead = op(x + h * dx, k[0], temperature=0.9 + h * dtau, **kw)
    behind = op(x - h * dx, k[1], temperature=0.9 - h * dtau, **kw)
    np.testing.assert_allclose(dp, (ahead - behind) / (2 * h), atol=3e-7)


@smooth_with_or_without_k
def test_pullback_can_be_called_again(op, options, rng):
    x, g, h = rng.normal(size=(3, 5, 20))
    _, pullback = op.vjp(x, 3, **options)
    first = pullback(g)
    pullback(h)
    for a, b in zip(first, pullback(g), strict=True):
        if a is not None:
            same(a, b)
    inplace = x.copy()
    _, pullback = op.vjp(inplace, 3, out=inplace, **options)
    same(pullback(g).x, first.x)


@smooth_with_or_without_k
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("n", [7, 300])
def test_directions_beyond_the_range_of_the_type(op, options, n, dtype, rng):
    """Overflow: numbers that float32 has no room for, without a warning and without a NaN.

    A derivative is linear: where that along v is not 0, that along 2^600 v is beyond the range too.
    """
    x = rng.normal(size=(2, n)).astype(dtype)
    v, far = rng.normal(size=(2, n)), 2.0**600
    moves = {"dtemperature": 0.3, **({"dk": -0.2} if op.real_k else {})}
    for given, kw in ((v, moves), (v, {}), (0 * v, moves)):
        near = op.jvp(x, 3, given, **kw, **options)[1]
        dp = op.jvp(x, 3, given * far, **{m: far * d for m, d in kw.items()}, **options)[1]
        same(dp[near != 0], np.sign(near[near != 0]) * dtype(np.inf))
        assert not np.isnan(dp).any()
    near, gradients = op.vjp(x, 3, **options)[1](v), op.vjp(x, 3, **options)[1](v * far)
    same(gradients.x[near.x != 0], np.sign(near.x[near.x != 0]) * dtype(np.inf))
    assert gradients.temperature == np.sign(near.temperature) * dtype(np.inf)
    assert not np.isnan(op.jvp(x, 3, np.full((2, n), 1e300), **options)[1]).any()
    mixed = np.stack([v[0], v[1] * far])
    same(op.jvp(x, 3, mixed, **options)[1][0], op.jvp(x, 3, v, **options)[1][0])


@smooth
def test_derivatives_of_rows_with_infinities(op, options, rng):
    x, v = rng.normal(size=(2, 9))
    keep = np.ones(9, bool)
    keep[[1, 4]] = False
    y = x.copy()
    y[1], y[4] = np.inf, -np.inf
    same(op.jvp(y, 4, v, **options)[1][keep], op.jvp(x[keep], 3, v[keep], **options)[1])
    same(op.vjp(y, 4, **options)[1](v).x[keep], op.vjp(x[keep], 3, **options)[1](v[keep]).x)
    assert (op.jvp(y, 4, v, **options)[1][~keep] == 0).all()
    y[2] = np.nan
    assert np.isnan(op.jvp(y, 4, v, **options)[1]).all()
    gradients = op.vjp(y, 4, **options)[1](v)
    assert np.isnan(gradients.x).all()
    assert np.isnan(gradients.temperature)


@smooth
def test_derivatives_vanish_at_the_edges(op, options, rng):
    x = rng.normal(size=6)
    for k in (0, 6) if op.bounded else (0,):
        assert (op.jvp(x, k, x, dtemperature=1.0, **options)[1] == 0).all()
        gradients = op.vjp(x, k, **options)[1](x)
        assert (gradients.x == 0).all()
        assert gradients.temperature == 0
    if not op.bounded:
        dp = op.jvp(x, 6, x, dtemperature=0.5, **options)[1]
        assert dp.sum() == pytest.approx(0, abs=1e-12)
        assert (dp != 0).all()


# Bad arguments


@each_op
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": -1}, ValueError, r"^k is -1; expected 0 <= k <= n = 3"),
        ({"k": 4}, ValueError, r"^k is 4; expected 0 <= k <= n = 3"),
        ({"k": 2**64 - 1}, ValueError, r"^k is 18446744073709551615"),
        ({"k": [1, 4]}, ValueError, r"^k is 4"),
        ({"k": [1, 1, 1]}, ValueError, r"^k has shape \(3,\).*\(2,\)"),
        ({"k": [[1, 1], [1, 1]]}, ValueError, r"^k has shape \(2, 2\); .* to \(2, 1\)"),
        ({"k": [[1], [1], [1]]}, ValueError, r"^k has shape \(3, 1\); .* to \(2, 1\)"),
        ({"k": True}, TypeError, r"^k is True .*bool"),
        ({"k": [True, False]}, TypeError, r"^k is .*bool"),
        ({"k": "2"}, TypeError, r"^k is '2'"),
        ({"k": None}, TypeError, r"^k is None"),
        ({"k": 1j}, TypeError, r"^k is 1j"),
        ({"temperature": 0}, ValueError, r"^temperature is 0"),
        ({"temperature": 0.0}, ValueError, r"^temperature is 0\.0"),
        ({"temperature": float("inf")}, ValueError, r"^temperature is inf"),
        ({"temperature": -1.0}, ValueError, r"^temperature is -1"),
        ({"temperature": np.nan}, ValueError, r"^temperature is nan"),
        ({"temperature": np.inf}, ValueError, r"^temperature is inf"),
        ({"temperature": [1.0, 0.0]}, ValueError, r"^temperature is 0"),
        ({"temperature": [1.0] * 3}, ValueError, r"^temperature has shape \(3,\)"),
        ({"temperature": [[1.0, 2.0]]}, ValueError, r"^temperature has shape .* to \(2, 1\)"),
        ({"temperature": [[[1.0]]]}, ValueError, r"^temperature has shape \(1, 1, 1\)"),
        ({"temperature": True}, TypeError, r"^temperature is True"),
        ({"temperature": "hot"}, TypeError, r"^temperature is 'hot'"),
        ({"axis": 2}, np.exceptions.AxisError, r"axis is 2; expected"),
        ({"axis": -3}, np.exceptions.AxisError, r"axis is -3; expected"),
        ({"axis": 0.0}, TypeError, r"^axis is 0.0; expected an integer"),
        ({"axis": None}, TypeError, r"^axis is None"),
        ({"axis": True}, TypeError, r"^axis is True"),
        ({"axis": (0, 1)}, TypeError, r"^axis is \(0, 1\)"),
        ({"largest": 1}, TypeError, r"^largest is 1"),
        ({"clamp_k": 1}, TypeError, r"^clamp_k is 1; expected True or False"),
        ({"clamp_k": None}, TypeError, r"^clamp_k is None"),
        ({"clamp_k": True, "k": -1}, ValueError, r"^k is -1"),
        ({"clamp_k": True, "k": np.nan}, (TypeError, ValueError), r"^k is nan"),
        ({"clamp_k": True, "k": "2"}, TypeError, r"^k is '2'"),
        ({"clamp_k": True, "k": [9, 9, 9]}, ValueError, r"^k has shape \(3,\).*\(2,\)"),
        ({"where": [[1, 0, 1]] * 2}, TypeError, r"^where has dtype int"),
        ({"where": [True, False]}, ValueError, r"^where has shape \(2,\)"),
        ({"where": [[[True] * 3] * 2]}, ValueError, r"^where has shape \(1, 2, 3\)"),
        ({"speed": 3}, TypeError, r"unexpected keyword argument 'speed'"),
        ({"mask": True}, TypeError, r"unexpected keyword argument 'mask'; you may want where; it"),
    ],
    ids=lambda v: "-".join(f"{k}={v[k]}" for k in v) if isinstance(v, dict) else "",
)
def test_bad_arguments(op, change, error, message):
    x = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0]])
    out = np.full_like(x, 7.0)
    arguments = {"k": 1, "out": out, **change}
    calls = [op, *([op.vjp] if isinstance(op, Differentiable) else [])]
    if isinstance(op, Differentiable):
        calls.append(lambda x, k, **kw: op.jvp(x, k, x, **kw))
    for call in calls:
        with pytest.raises(error, match=message):
            call(x, **arguments)
        assert (out == 7.0).all()


@each_op
def test_bad_x(op):
    with pytest.raises(ValueError, match=r"^x is 0-dimensional"):
        op(3.0, 1)
    with pytest.raises(ValueError, match=r"^x is not an array"):
        op([[1.0, 2.0], [3.0]], 1)
    with pytest.raises(ValueError, match=r"^k is 1; expected 0 <= k <= n = 0"):
        op(np.empty((3, 0)), 1)
    with pytest.raises(TypeError, match="positional"):
        op(x=[1.0], k=1)


@smooth
def test_bad_directions(op, options):
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"^dx has shape \(2,\); .*\(2, 3\)"):
        op.jvp(x, 1, np.zeros(2), **options)
    with pytest.raises(TypeError, match=r"^dx has dtype complex"):
        op.jvp(x, 1, np.zeros((2, 3), complex), **options)
    with pytest.raises(ValueError, match=r"^dtemperature has shape \(3,\)"):
        op.jvp(x, 1, x, dtemperature=[1.0, 2.0, 3.0], **options)
    with pytest.raises(ValueError, match=r"^dtemperature has shape \(1, 2\); .* to \(2, 1\)"):
        op.jvp(x, 1, x, dtemperature=[[1.0, 2.0]], **options)
    _, pullback = op.vjp(x, 1, **options)
    with pytest.raises(ValueError, match=r"cotangent has shape \(4,\)"):
        pullback(np.zeros(4))
    with pytest.raises(TypeError, match=r"cotangent has dtype"):
        pullback(np.array(["a"] * 3))
    if not op.real_k:
        with pytest.raises(TypeError, match="dk"):
            op.jvp(x, 1, x, dk=1.0, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"curve": "relu"}, ValueError, "curve is 'relu'; expected one of 'exp'"),
        ({"curve": "sparsemax"}, ValueError, "or a Curve; you may want curve='clip' with k = 1"),
        ({"curve": None}, ValueError, "curve is None"),
        ({"curve": ["exp"]}, ValueError, r"curve is \['exp'\]"),
        ({"curve": "entmax"}, ValueError, "needs alpha"),
        ({"curve": "entmax", "alpha": 1}, ValueError, "alpha is 1; .*above 1"),
        ({"curve": "entmax", "alpha": np.nan}, ValueError, "alpha is nan"),
        ({"curve": "entmax", "alpha": "2"}, TypeError, "alpha is '2'"),
        ({"curve": "entmax", "alpha": True}, TypeError, "alpha is True"),
        ({"curve": "exp", "alpha": 2}, ValueError, "alpha is 2, but curve 'exp' .* temperature"),
        ({"method": "magic"}, ValueError, "method is 'magic'; expected one of 'auto'"),
        ({"method": ["auto"]}, ValueError, r"method is \['auto'\]"),
        ({"method": "scan", "curve": "sigmoid"}, ValueError, "method is 'scan', which"),
        ({"k": np.nan}, ValueError, "k is nan"),
        ({"k": 1e-17 - 1e-16}, ValueError, "k is -9"),
    ],
)
def test_bad_options_of_thretopk(options, error, message):
    x, k = [1.0, 2.0], options.pop("k", 1)
    op = stk.thretopk
    for call in (op, op.vjp, op.potential, op.threshold):
        with pytest.raises(error, match=message):
            call(x, k, **options)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"cost": 0.0}, ValueError, r"^cost is 0.0; expected positive finite numbers"),
        ({"cost": [1.0, -2.0, 3.0]}, ValueError, r"^cost is -2.0; expected positive"),
        ({"cost": [[1.0, np.nan, 3.0]]}, ValueError, r"^cost is nan; expected positive"),
        ({"cost": [1.0, np.inf, 3.0]}, ValueError, r"^cost is inf; expected positive"),
        ({"cost": [1.0, 2.0]}, ValueError, r"^cost has shape \(2,\); .* to \(2, 3\)"),
        ({"cost": [[[1.0]]]}, ValueError, r"^cost has shape \(1, 1, 1\)"),
        ({"cost": True}, TypeError, r"^cost is True"),
        ({"cost": "dear"}, TypeError, r"^cost is 'dear'"),
        ({"cost": [1j, 1.0, 1.0]}, TypeError, r"^cost is .*complex"),
        ({"k": 6.5}, ValueError, r"^k is 6.5; expected 0 <= k <= 6, the sum of the costs"),
        ({"k": -1}, ValueError, r"^k is -1"),
        ({"k": np.nan}, ValueError, r"^k is nan"),
        ({"k": [1.0, 2.0, 3.0]}, ValueError, r"^k has shape \(3,\)"),
        ({"method": "scan"}, ValueError, r"^method is 'scan', which has no cost"),
        ({"curve": "entmax", "alpha": 50}, ValueError, r"^alpha is 50; .* at most 2 with a cost"),
        ({"speed": 3}, TypeError, r"unexpected keyword argument 'speed'"),
    ],
)
def test_bad_costs(change, error, message):
    x = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0]])
    out, op = np.full_like(x, 7.0), stk.thretopk
    given = {"k": 1.0, "cost": [1.0, 2.0, 3.0], **change}
    for call in (op, op.vjp, lambda x, **kw: op.jvp(x, kw.pop("k"), x, **kw)):
        with pytest.raises(error, match=message):
            call(x, out=out, **given)
        assert (out == 7.0).all()
    for call in (op.potential, op.threshold):
        with pytest.raises(error, match=message):
            call(x, **given)


def test_where_a_cost_has_no_meaning():
    x, cost = np.array([[3.0, 1.0, 2.0]]), {"cost": [1.0, 2.0, 3.0]}
    with pytest.raises(NotImplementedError, match="no second derivative where a cost is given"):
        stk.thretopk.hvp(x, 1, x, x, **cost)
    with pytest.raises(TypeError, match=r"^dcost was given, but no cost"):
        stk.thretopk.jvp(x, 1, x, dcost=x)
    with pytest.raises(ValueError, match=r"^dcost has shape \(2,\)"):
        stk.thretopk.jvp(x, 1, x, dcost=[1.0, 2.0], **cost)
    with pytest.raises(TypeError, match=r"^cost was given where it has no meaning"):
        stk.fenchel_young(stk.thretopk, x, [[1, 0, 0]], 1, **cost)
    with pytest.raises(TypeError, match=r"^cost was given, but topk"):
        stk.topk(x, 1, **cost)
    with pytest.raises(TypeError, match=r"gradtopk .* 'cost'"):
        stk.gradtopk(x, 1, **cost)


SCORES = [[3.0, 1.0, 2.0], [2.0, 1.0, 0.0]]
MASK = [[True, False, False], [True, True, True]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": [1.0]}, ValueError, r"x has shape \(1,\); expected at least two axes"),
        ({"x": np.zeros((2, 0))}, ValueError, r"x has shape \(2, 0\); expected at least one"),
        ({"x": [["a"]]}, TypeError, "x has dtype"),
        ({"k": 4}, ValueError, "k is 4; expected 0 <= k <= n = 3, the number of columns"),
        ({"k": np.nan}, ValueError, "k is nan"),
        ({"k": True}, TypeError, "k is True"),
        ({"k": [1, 1, 1]}, ValueError, r"k has shape \(3,\)"),
        ({"load": [2, 1, -1]}, ValueError, "load is -1; expected 0 <= load <= m = 2, the number"),
        ({"load": [2.5, 0, 0]}, ValueError, "load is 2.5"),
        ({"load": [1, 1]}, ValueError, r"load has shape \(2,\)"),
        ({"load": 1}, ValueError, "load sums to 3 and k to 2, which differs by 1; expected"),
        ({"load": 0.5, "at_most": True}, ValueError, "load sums to 1.5, 0.5 less than k"),
        ({"load": -1.0, "at_most": True}, ValueError, "load is -1.0; expected 0 <= load"),
        (
            {"k": [1.9, 0.1], "load": [1.9, 0.1, 0.0]},
            ValueError,
            "the 1 largest k sum to 1.9, 0.8 more than the columns can take",
        ),
        ({"k": [2, 0], "where": MASK}, ValueError, "leaves 1 entries in row 0, 1 fewer than its k"),
        (
            {"load": [0.4, 1.2, 0.4], "where": MASK},
            ValueError,
            "leaves 1 entries in column 1, 0.2 fewer than its load of 1.2",
        ),
        (
            {"k": [1, 2], "load": [1, 0.5, 1.5], "where": MASK[::-1], "at_most": True},
            ValueError,
            "leaves 1 entries in row 1, 1 fewer",
        ),
        (
            {"k": [1, 1], "load": [0.5, 0.75, 0.75], "where": MASK},
            ValueError,
            "k and load cannot both be met: other budgets put 0.5 too much into column 0",
        ),
        ({"temperature": 0}, ValueError, "temperature is 0.0"),
        ({"curve": "relu"}, ValueError, "curve is 'relu'"),
        ({"axis": 1}, TypeError, "axis is 1; expected two axes"),
        ({"axis": (0, 0)}, ValueError, r"axis is \(0, 0\), the same axis twice"),
        ({"axis": (0, 2)}, np.exceptions.AxisError, "axis"),
        ({"at_most": 1}, TypeError, "at_most is 1; expected True or False"),
        ({"where": [1, 0, 1]}, TypeError, "where has dtype"),
        ({"clamp_k": 1}, TypeError, "clamp_k is 1; expected True or False"),
        ({"clamp_k": True, "k": -1}, ValueError, "k is -1; expected 0 <= k <= n = 3"),
        ({"tol": 0}, ValueError, "tol is 0; expected a positive finite number"),
        ({"max_iter": 0}, ValueError, "max_iter is 0; expected at least 1"),
        ({"max_iter": 1.5}, TypeError, "max_iter is 1.5; expected an integer"),
    ],
)
def test_bad_arguments_of_balancedtopk(change, error, message):
    given = {"x": SCORES, "k": 1, **change}
    x, k = given.pop("x"), given.pop("k")
    for call in (stk.balancedtopk, stk.balancedtopk.vjp):
        with pytest.raises(error, match=message):
            call(x, k, **given)
    with pytest.raises(error, match=message):
        stk.balancedtopk.jvp(x, k, 0.0, **given)


def test_an_argument_that_balancedtopk_does_not_have():
    with pytest.raises(TypeError, match=r"balancedtopk got an .* 'dim'; you may want axis, or dim"):
        stk.balancedtopk(np.array(SCORES), 1, dim=(0, 1))


def test_balancedtopk_that_does_not_converge():
    x = [np.eye(3), [*SCORES, [0.5, 0.1, 0.9]]]
    with pytest.raises(stk.ConvergenceError, match=r"after 1 steps .* of 2 matrices") as caught:
        stk.balancedtopk(x, 1, temperature=0.1, max_iter=1)
    assert caught.value.iterations == 1
    assert caught.value.error > 1e-10


# Objects


@each_op
def test_operators_are_objects_like_ufuncs(op):
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy(op) is op
    assert re.search(op.__name__, repr(op))
    parameters = inspect.signature(op).parameters
    for name in ("k", "temperature", "axis", "largest", "where", "out", "clamp_k"):
        assert name in parameters
    assert ">>> " in op.__doc__


@pytest.mark.torch
@each_op
def test_torch_tensors_on_the_cpu(op):
    try:
        import torch
    except ImportError:
        pytest.skip("needs the extra 'torch'")
    x = torch.tensor([[3.0, 1.0, 2.0]])
    p = op(x, 2)
    assert isinstance(p, torch.Tensor)
    assert p.dtype == torch.float32
    same(p.numpy(), op(x.numpy(), 2))
    assert op(x.requires_grad_(), 2).requires_grad == hasattr(op, "vjp")


@every_once
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_errors_of_the_caller_do_not_change_a_right_result(op, options, dtype, rng):
    """Under ``np.errstate(all="raise")``: ordinary, extreme and infinite rows, and masked ones."""
    most, least = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
    x = np.stack([rng.normal(size=7), 1000 * rng.normal(size=7), np.full(7, least)]).astype(dtype)
    x = np.vstack([x, np.array([[most, -most, most, 0, 1, -most, least]], dtype)])
    x = np.vstack([x, np.array([[np.inf, 1, -np.inf, 2, 0, -1, 3]], dtype)])
    g, y = rng.normal(size=7).astype(dtype), np.tile([1.0, 0, 0, 0, 1, 0, 0], (5, 1))
    for tau, where in ((1.0, None), (1e-3, np.arange(7) < 6), (1e30, None), (1e-30, None)):
        given = {"temperature": tau, "where": where, **options}

        def results(given=given, tau=tau):
            yield op(x, 2, **given)
            if isinstance(op, Differentiable):
                yield from op.jvp(x, 2, g, dtemperature=1.0, **given)
                yield from op.vjp(x, 2, **given)[1](g)
            if op.has_second:
                yield from op.hvp(x, 2, g, g, dtemperature=1.0, **given)
            for verb in ("potential", "threshold"):
                if hasattr(op, verb):
                    yield getattr(op, verb)(x, 2, **given)
            if op.has_potential:
                yield stk.fenchel_young(op, x, y, 2, **given)
                yield stk.fenchel_young.vjp(op, x, y, 2, **given)[1](1.0).x
            if op is stk.gradtopk:
                subsets = stk.KSubset(x, 2, tau)
                yield from (subsets.entropy(), subsets.log_prob(y), subsets.marginals())

        with np.errstate(all="ignore"):
            expected = [*results()]
        with np.errstate(all="raise"):
            found = [*results()]
        for one, other in zip(found, expected, strict=True):
            if one is not None:
                np.testing.assert_array_equal(one, other)


def test_subsets_and_derivatives_at_the_ends_of_the_range():
    """A difference of scores that overflows is as far as any; in temperatures it may not be."""
    most = 1e308
    log_p = stk.KSubset([most, -most], 1, 1000.0).log_prob([[1, 0], [0, 1]])
    np.testing.assert_allclose(log_p, [0.0, -2e305], rtol=1e-13, atol=1e-15)
    for x, k in (([1, -1, -1], 2), ([1, -1, -1, 1], 3), ([-1, -1, 1] * 60, 61)):
        scores, g = most * np.array(x), np.cos(np.arange(len(x)))
        for op in (stk.gradtopk, stk.thretopk):
            gradients = op.vjp(scores, k)[1](g), op.hvp(scores, k, g, g[::-1], dtemperature=1.0)
            for each in gradients:
                assert np.isfinite(each.x).all()
                assert np.isfinite(each.temperature)


@smooth_once
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_direction_that_is_no_number_spoils_its_own_row(op, options, wrong, rng):
    """In x, in the temperature, in a cotangent: never an error, and no finite number for NaN."""
    x, g, ones = *rng.normal(size=(2, 2, 5)), np.ones(2)
    bad, bad_rate = g.copy(), ones.copy()
    bad[0, 1] = bad_rate[0] = wrong
    given = {"temperature": ones, **options}
    pull = op.vjp(x, 2, **given)[1]
    cases = [
        (lambda v: pull(v).x, g, bad),
        (lambda v: pull(v).temperature, g, bad),
        (lambda v: op.jvp(x, 2, v, **given)[1], g, bad),
        (lambda rate: op.jvp(x, 2, g, dtemperature=rate, **given)[1], ones, bad_rate),
    ]
    if op.has_second:
        cases += [
            (lambda v: op.hvp(x, 2, v, g, **given).x, g, bad),
            (lambda a: op.hvp(x, 2, g, a, **given).x, g, bad),
            (lambda rate: op.hvp(x, 2, g, g, dtemperature=rate, **given).x, ones, bad_rate),
        ]
    if op.has_potential:
        y = np.tile([1.0, 1, 0, 0, 0], (2, 1))
        loss = stk.fenchel_young.vjp(op, x, y, 2, **given)[1]
        cases.append((lambda scale: loss(scale).x, ones, bad_rate))
        cases.append((lambda scale: loss(scale).temperature, ones, bad_rate))
    for of, right, with_wrong in cases:
        expected = of(right)
        with np.errstate(all="raise"):
            found = of(with_wrong)
        np.testing.assert_array_equal(found[1], expected[1])
        # The derivatives of the iterations are held within 1e250.
        held = "iter" in type(op).__module__ and not np.isnan(wrong)
        assert held or not np.isfinite(found[0]).all()


@smooth_once
@pytest.mark.parametrize("tau", [1.0, 0.05])
@dtypes
def test_a_common_offset_that_is_exact_changes_nothing(op, options, dtype, tau, rng):
    """Of values, derivatives and losses; a potential or threshold moves with it."""
    eps, offset = float(np.finfo(dtype).eps), 2.0**19 if dtype == np.float32 else 2.0**39
    x, g = (np.round(16 * rng.normal(size=(2, 9))) / 16).astype(dtype)
    y = np.arange(9) < 3

    def results(x):
        given = {"temperature": tau, **options}
        yield from op.jvp(x, 3, g, dtemperature=1.0, **given)
        yield from op.vjp(x, 3, **given)[1](g)
        if op.has_second:
            yield from op.hvp(x, 3, g, g[::-1], dtemperature=1.0, **given)
        if op.has_potential:
            loss, pull = stk.fenchel_young.vjp(op, x, y, 3, **given)
            yield from (loss, *pull(1.0))

    moved = x + dtype(offset)
    for one, other in zip(results(x), results(moved), strict=True):
        if one is not None:
            atol = 64 * eps * (1 + np.abs(one).max())
            np.testing.assert_allclose(other, one, rtol=0, atol=atol)
    for verb, times in (("potential", 3), ("threshold", 1)):
        if hasattr(op, verb):
            near, far = (getattr(op, verb)(v, 3, temperature=tau, **options) for v in (x, moved))
            assert abs(far - near - times * offset) <= 4 * eps * times * offset
