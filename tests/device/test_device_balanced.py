"""balancedtopk on a device: values, derivatives and every pass against those in memory."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from device_rows import fewer
from numba import config, cuda

import softtopk_nb as stk
from softtopk_nb.balanced import memory
from softtopk_nb.balanced import solve as search
from softtopk_nb.thretopk.operator import thretopk

pytestmark = pytest.mark.device

CURVES = {
    "laplace": {"curve": "laplace"},
    "exp": {"curve": "exp"},
    "clip": {"curve": "clip"},
    "normal": {"curve": "normal"},
    "cauchy": {"curve": "cauchy"},
    "entmax": {"curve": "entmax", "alpha": 1.5},
}
some = fewer([*CURVES], ["laplace", "clip", "entmax"])
every_curve = pytest.mark.parametrize("options", [CURVES[name] for name in some], ids=some)


def there(array):
    return cuda.to_device(np.ascontiguousarray(array))


def here(array):
    return array.copy_to_host() if hasattr(array, "copy_to_host") else array


def problem(rng, m=9, n=4, T=np.float64):
    """x, k and loads that some matrix within (0, 1) has."""
    x = (rng.normal(size=(m, n)) + rng.normal(size=n)).astype(T)
    p = rng.uniform(0.05, 0.95, size=(m, n))
    return x, p.sum(axis=1), p.sum(axis=0)


def everything(to, x, k, load, g, where=None, **options):
    """Value, thresholds, a derivative along a direction and all gradients, on the host."""
    options["where"] = None if where is None else to(where)
    found, pull = stk.balancedtopk.vjp(to(x), k, load, **options)
    moves = {"dk": 0.1, "dload": 0.1, "dtemperature": 0.3}
    value, dp = stk.balancedtopk.jvp(to(x), k, to(g), load, **moves, **options)
    np.testing.assert_array_equal(here(value.p), here(found.p))
    return [here(each) for each in (*found, dp, *pull(to(g)))]


def check(x, k, load, g, within, **options):
    """All of it on a device against that in memory, of float64; returns the former."""
    with np.errstate(invalid="ignore"):
        expected = everything(np.asarray, x.astype(np.float64), k, load, g, **options)
    got = everything(there, x, k, load, g, **options)
    for one, other in zip(got, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        finite = np.asarray(other)[np.isfinite(other)]
        atol = within * max(1.0, abs(finite).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)
    return got


@every_curve
@pytest.mark.parametrize("at_most", [False, True])
def test_values_and_derivatives(options, at_most, rng):
    x, k, load = problem(rng)
    load = load * rng.uniform(1.0, 1.3, 4) if at_most else load
    given = {**options, "temperature": 0.5, "at_most": at_most, "tol": 1e-13}
    got = check(x, k, load, rng.normal(size=x.shape), 1e-11, **given)
    np.testing.assert_allclose(got[0].sum(axis=1), k, rtol=1e-12)
    assert got[3].std() > 1e-2


def test_float32_and_axes(rng):
    x = rng.normal(size=(4, 2, 9)).astype(np.float32)
    k, load, g = np.full(9, 2.0), np.full(4, 4.5), rng.normal(size=x.shape).astype(np.float32)
    given = {"temperature": np.array([0.5, 2.0]), "axis": (2, 0), "tol": 1e-6}
    got = check(x, k, load, g, 1e-5, **given)
    assert {each.dtype for each in got} == {np.dtype(np.float32)}
    assert got[0].shape == x.shape
    assert got[1].shape == (2, 9)
    half = stk.balancedtopk(there(x.astype(np.float16)), k, load, **given)
    assert {here(each).dtype for each in half} == {np.dtype(np.float16)}
    np.testing.assert_allclose(here(half.p), got[0], rtol=0, atol=2e-3)


def test_a_curve_of_ones_own(rng):
    curve = stk.Curve(
        lambda t: 0.5 + 0.5 * t / (2 + t * t) ** 0.5, lambda t: (2 + t * t) ** -1.5, name="student"
    )
    x, k, load = problem(rng, T=np.float32)
    check(x, k, load, x, 1e-6, curve=curve, temperature=0.5, tol=1e-13)


@pytest.mark.parametrize("at_most", [False, True])
def test_budgets_that_leave_no_choice(at_most, rng):
    """Entries that are masked, and rows and columns of 0 and of all there is, in any order."""
    x = rng.normal(size=(2, 6, 4))
    k = np.array([0.0, 4.0, 2.0, 1.0, 1.5, 2.5])
    load = np.array([1.0, 5.0, 2.5, 2.5])
    room = 1.2 if at_most else 1.0
    check(x[0], k, room * load, x[1], 1e-10, tol=1e-12, at_most=at_most)
    where = rng.random((6, 4)) < 0.7
    p = np.where(where, rng.uniform(0.1, 0.9, size=where.shape), 0.0)
    p[2], where[3], p[3] = where[2], False, 0.0
    k, load = p.sum(axis=1), p.sum(axis=0)
    wild = np.where(where, x, rng.choice([np.nan, np.inf, 0.0], size=where.shape))
    got = check(wild, k, load, x, 1e-10, where=np.broadcast_to(where, x.shape), tol=1e-12)
    np.testing.assert_array_equal(got[0][:, ~where], 0)
    assert np.all(np.isinf(got[1][:, 2:4]))
    padding = np.arange(6)[:, None] >= 4
    kept = {"where": np.broadcast_to(~padding, x[0].shape), "clamp_k": True, "tol": 1e-12}
    got = check(x[0], 2, np.full(4, 2.0), x[1], 1e-10, at_most=at_most, **kept)
    np.testing.assert_allclose(got[0].sum(axis=1), 2.0 * ~padding[:, 0], rtol=1e-12)
    all_ones = here(stk.balancedtopk(there(x), 4).p)
    np.testing.assert_array_equal(all_ones, 1)


def test_nothing_harms_another_matrix(rng):
    """NaN makes its matrix NaN; +inf is 1; infinities without a solution give NaN."""
    x, k, load = problem(rng)
    k[4] += 1
    load[1] += 1
    k[4], load[1] = min(k[4], 3.5), load[1] - (k[4] - min(k[4], 3.5))
    bad, high, low = x.copy(), x.copy(), x.copy()
    bad[3, 2], high[4, 1], low[5] = np.nan, np.inf, -np.inf
    got = check(np.stack([bad, x, high, low]), k, load, np.stack([x] * 4), 1e-10, tol=1e-12)
    for each in got[:4]:
        assert np.isnan(each[[0, 3]]).all()
        assert np.isfinite(each[1:3]).all()
    assert got[0][2, 4, 1] == 1


@pytest.mark.parametrize("at_most", [False, True])
def test_many_rows(at_most, rng, monkeypatch):
    """They begin at the solution of a sample, with its matrix."""
    monkeypatch.setattr(search, "SAMPLE", 6)
    x, k, load = problem(rng, 40, 3)
    load = load * rng.uniform(1.0, 1.2, 3) if at_most else load
    check(x, k, load, x, 1e-9, temperature=0.5, at_most=at_most, tol=1e-13)


@pytest.mark.parametrize("at_most", [False, True])
def test_offsets(at_most, rng):
    """What is added to rows, and to columns that must meet a load, is taken off first."""
    x, k, load = problem(rng, 7, 4, np.float32)
    x += rng.integers(-500, 500, size=(7, 1)) + (0 if at_most else rng.integers(-500, 500, size=4))
    load = load * 1.1 if at_most else load
    check(x, k, load, x / 500, 2e-5, temperature=0.5, at_most=at_most, tol=1e-6)


# Passes


def both_passes(x, k):
    """The stores and the passes of a matrix, in memory and on a device."""
    engine = importlib.import_module("softtopk_nb.balanced.cuda")
    options = thretopk.check_options({"curve": "laplace", "alpha": None})
    stores = (
        memory.Store(x, (0, 1), None, lambda T: T),
        engine.Store(there(x), (0, 1), None, lambda T: T),
    )
    decided = memory.Decided(k, np.ones(x.shape[1]), None, None, (k, k))
    return [(store, store.passes(0, decided, options)) for store in stores]


SHAPES = [(1, 1, False), (258, 2, False), (3, 130, True)]


@pytest.mark.parametrize(
    ("m", "n", "streams", "T"),
    fewer(
        [(*shape, T) for shape in SHAPES for T in (np.float32, np.float64)],
        [(*SHAPES[0], np.float64), (*SHAPES[1], np.float32), (*SHAPES[2], np.float64)],
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_passes(m, n, streams, T, rng, monkeypatch):
    """One entry; several blocks of rows; several tiles, and rows that are read again."""
    if streams:
        module = importlib.import_module("softtopk_nb.balanced.cuda.passes")
        group = importlib.import_module("softtopk_nb._cuda.thread_groups").ThreadGroup
        monkeypatch.setattr(module, "choose_for_two", lambda n, T: group(64, 4, True))
    x = rng.normal(size=(m, n)).astype(T)
    k, b, tau = rng.uniform(0.2, 0.8, m) * n, rng.normal(size=n), 0.7
    if n > 1:
        x[0, ::3] = -np.inf
        k[0] *= 0.5
    found = []
    for store, passes in both_passes(x, k):
        solution, sums = passes.at(b, tau)
        at, load = (solution, tau), np.full(n, 0.4 * m)
        results = [sums, passes.thresholds(*at), passes.weigh(*at)]
        g = store.tables_of(there(x - 1) if len(found) else x - 1, "g")[0]
        projected, moved = passes.project(*at, g, k, 0.3)
        out, shares = passes.spread(projected, b)
        results += [moved, shares, passes.along_t(*at, out), *passes.extent, passes.present()]
        results += [*passes.moments(), passes.size()]
        for axis in (0, 1):
            means = passes.means(axis)
            results += [means, *passes.less_means(means, axis).extent]
        for bounded in (False, True):
            results.append(passes.columns_solved(*at, 0.5 * load, bounded))
        results.append(passes.sample(2).at(b, tau)[1])
        assert passes.dtype is T
        found.append(results)
    bound = 3e-5 if T is np.float32 else 1e-12
    for one, other in zip(*found, strict=True):
        size = max(1.0, np.nanmax(abs(np.asarray(one))))
        np.testing.assert_allclose(other, one, rtol=0, atol=bound * size)


def test_the_same_bits_in_any_batch(rng, monkeypatch):
    """In whichever order the simulator lets threads run, too."""
    x = rng.normal(size=(2, 20, 3)).astype(np.float32)
    options = {"temperature": 0.3, "tol": 1e-6}
    found, pull = stk.balancedtopk.vjp(there(x), 1, **options)
    gradients = pull(there(x))
    if config.ENABLE_CUDASIM:
        monkeypatch.setattr(importlib.import_module("simulator"), "ORDER", -1)
    alone, pull = stk.balancedtopk.vjp(there(x[1]), 1, **options)
    for one, other in zip(alone, found, strict=True):
        np.testing.assert_array_equal(here(one), here(other)[1])
    np.testing.assert_array_equal(here(pull(there(x[1])).x), here(gradients.x)[1])


# Arguments


def test_what_is_copied(rng, monkeypatch):
    """Numbers of rows and columns and the products of columns, and no number for each entry."""
    transfers = importlib.import_module("softtopk_nb._cuda.transfers")
    read, write, sizes = transfers.Room.read, transfers.Room.write, []

    def reading(room, source, shape, *kind):
        sizes.append(int(np.prod(shape)))
        return read(room, source, shape, *kind)

    def writing(room, values, target):
        sizes.append(values.size)
        write(room, values, target)

    monkeypatch.setattr(transfers.Room, "read", reading)
    monkeypatch.setattr(transfers.Room, "write", writing)
    x, k, load = problem(rng, 30, 3)
    everything(there, x, k, load, x, where=np.ones(x.shape, bool))
    assert max(sizes) == 31


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": 5}, ValueError, "k is 5; expected 0 <= k <= n = 3"),
        ({"k": there}, TypeError, "k is a CUDA array"),
        ({"load": there}, TypeError, "load is a CUDA array"),
        ({"load": [1, 1, 2]}, ValueError, "load sums to 4 and k to 3"),
        ({"where": [[True] * 3] * 3}, TypeError, "where is a list on the host"),
        ({"axis": (0, 0)}, ValueError, "the same axis twice"),
        ({"temperature": 0}, ValueError, "temperature is 0.0"),
        (
            {"k": [1, 1, 1], "mask": [[1, 0, 0], [1, 0, 0], [1, 1, 1]], "load": [1, 1, 1]},
            ValueError,
            "k and load cannot both be met: other budgets put 1 too much into column 0",
        ),
    ],
)
def test_bad_arguments(change, error, message, rng):
    given = {"k": 1, **change}
    for name in ("k", "load"):
        if given.get(name) is there:
            given[name] = there(np.ones(3))
    if "mask" in given:
        given["where"] = there(np.array(given.pop("mask"), bool))
    x, k = there(rng.normal(size=(3, 3))), given.pop("k")
    with pytest.raises(error, match=message):
        stk.balancedtopk(x, k, **given)


def test_a_search_that_does_not_converge(rng):
    x = there(rng.normal(size=(8, 3)))
    with pytest.raises(stk.ConvergenceError, match=r"after 1 steps"):
        stk.balancedtopk(x, 1, temperature=0.01, max_iter=1)
    where = there(np.array([[True, False, True]] * 8))
    given = {"temperature": 0.01, "max_iter": 1, "where": where}
    with pytest.raises(stk.ConvergenceError, match="allow more entries"):
        stk.balancedtopk(x, 1, [3.5, 0, 4.5], **given)


@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 1)])
def test_edges_of_shapes(shape):
    found, pull = stk.balancedtopk.vjp(there(np.ones(shape)), 0.5)
    np.testing.assert_allclose(here(found.p), np.full(shape, 0.5 / shape[-1]))
    assert pull(there(np.ones(shape))).x.shape == shape
