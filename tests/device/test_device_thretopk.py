"""ThreTopK on a device: every curve, method and group, and rows in parts, against the CPU.

What holds for all operators is in test_device_contract.py.
"""

from __future__ import annotations

import importlib
import math

import numpy as np
import operators
import pytest
from numba import config, cuda

import softtopk_nb as stk

pytestmark = pytest.mark.device

CURVES = [*operators.CURVES.values(), {"curve": "entmax", "alpha": 1 + 2.0**-30}]
every_curve = pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve["curve"])
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
newton_and_bisect = pytest.mark.parametrize("method", ["newton", "bisect"])

# (lanes, held, streams) and rows that they hold.
GROUPS = [
    ((8, 4, False), (1, 31, 32)),
    ((32, 4, False), (33, 100)),
    ((64, 4, False), (33,)),
    ((32, 4, True), (300,)),
    ((64, 4, True), (300,)),
]
groups = pytest.mark.parametrize(
    ("group", "n"), [(group, n) for group, sizes in GROUPS for n in sizes], ids=str
)


def back(d):
    """A device's results on the host."""
    return None if d is None else d.copy_to_host()


def all_of(x, k, tau, v, to=lambda a: a, back=lambda a: a, **options):
    """Everything that the operator computes, by name; without a direction, only p."""
    there, k = to(x), to(k)
    more = {"temperature": to(tau), **options}
    found = {"p": stk.thretopk(there, k, **more)}
    if v is not None:
        u = to(v)
        _, found["dp"] = stk.thretopk.jvp(there, k, u, dk=0.3, dtemperature=-0.2, **more)
        found["q"], pullback = stk.thretopk.vjp(there, k, **more)
        found["gx"], found["gk"], found["gtau"] = pullback(u)
        g, moves = to(np.roll(v, 1, axis=1)), {"dk": 0.3, "dtemperature": -0.2}
        gradients = stk.thretopk.hvp(there, k, u, g, **moves, **more)
        found["hx"], found["hk"], found["htau"] = gradients
        found["phi"] = stk.thretopk.potential(there, k, **more)
        found["lam"] = stk.thretopk.threshold(there, k, **more)
    return {name: np.asarray(back(value)) for name, value in found.items()}


def check(x, k, tau, v=None, **options):
    """A device's results against those of float64 on the CPU; returns them."""
    k, tau = np.broadcast_to(k, len(x)), np.broadcast_to(np.float64(tau), len(x))
    # k and tau go to the device as they are on the host, one number for each row.
    got = all_of(x, k, tau, v, lambda a: cuda.to_device(np.ascontiguousarray(a)), back, **options)
    wide = None if v is None else v.astype(np.float64)
    expected = all_of(x.astype(np.float64), k, tau, wide, **options)
    eps, double = np.finfo(x.dtype).eps, x.dtype == np.float64
    finite = np.where(np.isfinite(x), x, 0)
    spread = float((finite.max() - finite.min()) / tau.min())
    bound = (1e-13 if double else 1e-6) + 4 * eps * spread
    rough = (1e-12 if double else 2e-6) + 16 * eps * spread
    for name, value in got.items():
        other = expected[name]
        assert value.dtype == x.dtype
        assert value.shape == other.shape
        scale = np.abs(other[np.isfinite(other)]).max(initial=1.0)
        atol = 2 * bound if name in ("p", "q") else 4 * rough * scale
        np.testing.assert_allclose(value, other, rtol=0, atol=atol, err_msg=name)
    np.testing.assert_array_equal(got["p"], got.get("q", got["p"]))
    mass = got["p"].astype(np.float64).sum(axis=1)
    solved = np.isfinite(mass)
    least = 1e-12 if double else 1e-6
    assert np.all(np.abs(mass - k)[solved] <= least * np.maximum(1, k)[solved])
    return got


def rows(rng, n, dtype):
    """Four rows with ties, infinities and a NaN, where they are long enough, and a direction."""
    x = rng.normal(size=(4, n)).astype(dtype)
    v = rng.normal(size=(4, n)).astype(dtype)
    if n > 5:
        x[0, : n // 2] = x[0, 0]
        x[1, [0, 3]] = np.inf
        x[2, [0, 2]] = np.inf, -np.inf
        x[2, n // 2 : n // 2 + 3] = -np.inf
        x[3, n // 2] = np.nan
    assert np.unique(x).size > n
    return x, v


@pytest.fixture
def use_group(monkeypatch):
    """Give every row this group."""

    def use(lanes, held, streams):
        group = importlib.import_module("softtopk_nb._cuda.thread_groups").ThreadGroup(
            lanes, held, streams
        )
        for module, name in (
            ("softtopk_nb.thretopk.cuda", "choose"),
            ("softtopk_nb.thretopk.cuda", "choose_for_two"),
            ("softtopk_nb._cuda.long_rows", "choose"),
        ):
            monkeypatch.setattr(importlib.import_module(module), name, lambda n, T: group)

    return use


@pytest.fixture
def in_parts(monkeypatch, use_group):
    """Cut every row into parts of 256 entries, or into at most `most`; `rounds` of the search."""

    def use(most=1024, rounds=3):
        use_group(64, 4, True)
        parts = importlib.import_module("softtopk_nb._cuda.long_rows")
        monkeypatch.setattr(parts, "LONG", 1)
        monkeypatch.setattr(parts, "PIECES", 1)
        monkeypatch.setattr(parts, "MOST", most)
        long = importlib.import_module("softtopk_nb._threshold.cuda.long")
        monkeypatch.setattr(long, "rounds_of", lambda n, method: rounds)

    return use


# Rows that one group has to itself


@every_curve
def test_every_curve(curve, rng):
    x, v = rows(rng, 21, np.float32)
    check(x, np.array([11.25, 2.5, 7, 20]), 0.4, v, **curve)


@every_curve
def test_bisection(curve, rng):
    x, _ = rows(rng, 21, np.float64)
    check(x, np.array([11.25, 2.5, 7, 20]), 0.4, method="bisect", **curve)


@both_dtypes
@groups
def test_every_group(group, n, dtype, rng, use_group):
    use_group(*group)
    x, v = rows(rng, n, dtype)
    some = [0, 2] if n > 100 else range(4)
    check(x[some], 0.3 * n, np.array([0.1, 0.2, 4, 1])[some], v[some])


@both_dtypes
def test_edges_of_k(dtype, rng):
    x, v = rows(rng, 12, dtype)
    x[3] = rng.normal(size=12)
    for k in (0.0, 1e-3, 1.0, 8.0, 9.0, 11.0):  # all, none or some of an +inf row's entries
        check(x[[0, 1, 3]], k, 0.3, v[[0, 1, 3]])
    got = check(x[[0, 1, 3]], 12.0, 0.3, v[[0, 1, 3]])
    assert np.all(got["p"] == 1)
    assert not got["dp"].any()


@both_dtypes
def test_directions_at_infinite_entries_do_not_matter(dtype, rng):
    x, v = rows(rng, 20, dtype)
    x[3] = rng.normal(size=20)
    wild = np.where(np.isfinite(x), v, np.resize(np.array([np.nan, np.inf], dtype), x.shape))
    d, direction = cuda.to_device(x), cuda.to_device(wild)
    _, dp = stk.thretopk.jvp(d, 3, direction, dtemperature=1.0)
    _, expected = stk.thretopk.jvp(d, 3, cuda.to_device(v), dtemperature=1.0)
    np.testing.assert_array_equal(back(dp), back(expected))
    g = stk.thretopk.vjp(d, 3)[1](direction)
    expected = stk.thretopk.vjp(d, 3)[1](cuda.to_device(v))
    for one, other in zip(g, expected, strict=True):
        np.testing.assert_array_equal(back(one), back(other))


@both_dtypes
def test_far_from_the_threshold(dtype, rng):
    """Low temperatures, offsets, and rows that span nearly all numbers."""
    x, _ = rows(rng, 20, dtype)
    check(x + dtype(100), 5, 1e-3)
    huge = np.finfo(dtype).max
    wide = np.linspace(-1, 1, 21).astype(dtype)[None] * huge
    p = back(stk.thretopk(cuda.to_device(wide), 4))
    np.testing.assert_allclose(p, stk.thretopk(wide, 4), rtol=0, atol=1e-6)


def cauchy():
    return stk.Curve(
        lambda t: 0.5 + math.atan(t) / math.pi,
        lambda t: 1 / (math.pi * (1 + t * t)),
        name="cauchy",
    )


def logistic():
    return stk.Curve(
        lambda t: 1 / (1 + math.exp(-t)) if t > -700 else 0.0,
        lambda t: math.exp(-abs(t)) / (1 + math.exp(-abs(t))) ** 2,
        integral=lambda t: max(t, 0.0) + math.log1p(math.exp(-abs(t))),
        slope=lambda t: -math.tanh(t / 2) * math.exp(-abs(t)) / (1 + math.exp(-abs(t))) ** 2,
        name="logistic",
    )


@both_dtypes
def test_a_curve_of_ones_own(dtype, rng):
    x, v = rows(rng, 21, dtype)
    check(x, 4.5, 0.7, v, curve=logistic())


def test_potential_of_a_whole_row_has_the_mean_of_the_distribution(rng):
    """Limit: where everything is selected F(t) - t is needed at infinity, not far out."""
    curve = stk.Curve(
        lambda t: 0.5 + 0.5 * t / math.sqrt(2 + t * t),
        lambda t: (2 + t * t) ** -1.5,
        integral=lambda t: 0.5 * (t + math.sqrt(2 + t * t)),
    )
    x = cuda.to_device(np.array([1.0, 2.0, 3.0, 4.0]))
    assert back(stk.thretopk.potential(x, 4, curve=curve)) == pytest.approx(10.0, abs=1e-12)


def test_a_curve_without_an_antiderivative(rng):
    x, _ = rows(rng, 33, np.float64)
    d, curve = cuda.to_device(x), cauchy()
    p = back(stk.thretopk(d, 4.5, curve=curve, temperature=0.1))
    expected = stk.thretopk(x, 4.5, curve=curve, temperature=0.1)
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="antiderivative"):
        stk.thretopk.potential(d, 4.5, curve=curve)


# Rows in parts


@both_dtypes
def test_rows_in_parts(dtype, rng, in_parts):
    """One part and two, a last one of a single entry, parts of several pieces."""
    for n, most, some in ((256, 1024, [0]), (257, 1024, [1]), (600, 2, [0, 3])):
        in_parts(most)
        x, v = rows(rng, n, dtype)
        check(x[some], 0.25 * n, np.full(len(some), 0.3), v[some])


@every_curve
def test_curves_in_parts(curve, rng, in_parts):
    in_parts()
    x, v = rows(rng, 300, np.float32)
    check(x[[2]], 30, 0.3, v[[2]], **curve)


@both_dtypes
def test_edges_of_k_in_parts(dtype, rng, in_parts):
    in_parts()
    x, v = rows(rng, 300, dtype)
    x[3, :295] = -np.inf  # all that is left of it lies in the second part
    x[3, 297] = 0
    check(x, np.array([0.0, 1, 297, 3]), 0.3, v)
    check(x[[0, 3]], np.array([300.0, 5]), 0.3, v[[0, 3]])


@newton_and_bisect
@pytest.mark.parametrize("rounds", [0, 1, 30])
def test_one_block_goes_on_where_the_launches_end(rounds, method, rng, in_parts):
    x, _ = rows(rng, 300, np.float32)
    in_parts(rounds=rounds)
    check(x[[2]], 30, 0.3, method=method)


@pytest.mark.parametrize("cut", [False, True], ids=["one block", "parts"])
def test_a_row_has_the_same_bits_in_any_batch(cut, rng, in_parts, monkeypatch):
    """In whichever order the simulator lets threads run, too."""
    if cut:
        in_parts()
    x, v = rows(rng, 300, np.float32)
    x, v, k, tau = x[1:3], v[1:3], np.full(2, 30.0), np.full(2, 0.3)
    together = all_of(x, k, tau, v, cuda.to_device, back)
    if config.ENABLE_CUDASIM:
        monkeypatch.setattr(importlib.import_module("simulator"), "ORDER", -1)
    alone = all_of(x[1:], k[1:], tau[1:], v[1:], cuda.to_device, back)
    for name, value in alone.items():
        np.testing.assert_array_equal(value, together[name][1:], err_msg=name)
