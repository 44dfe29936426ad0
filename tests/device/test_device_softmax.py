"""The softmax functions on a device: equal to the CPU's, row by row, and draws as they should be.

On a GPU these run as they are; without one, in Numba's simulator (NUMBA_ENABLE_CUDASIM=1).
"""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from numba import config, cuda
from scipy import stats

import softtopk_nb as stk

pytestmark = pytest.mark.device

SMOOTH = {"softmax": stk.softmax, "log_softmax": stk.log_softmax, "logsumexp": stk.logsumexp}
every = pytest.mark.parametrize("f", [pytest.param(f, id=name) for name, f in SMOOTH.items()])
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])
GROUPS = ["small", "held", "block", "streaming warp", "streaming block"]
DRAWS = 300 if config.ENABLE_CUDASIM else 40_000
PUBLIC = json.loads(Path(__file__).parents[1].joinpath("data", "public.json").read_text("utf-8"))


def on(x):
    return cuda.to_device(np.array(x, order="C"))


def back(d):
    assert not isinstance(d, (np.ndarray, np.generic))
    return d.copy_to_host()


def close(got, expected, spread=0.0):
    """Equal to the CPU's result to api.md's accuracy, and in NaN and infinities."""
    got, expected = back(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    double = expected.dtype == np.float64
    eps = 2.0**-52 if double else 2.0**-23
    bound = (1e-13 if double else 1e-6) + 4 * eps * spread
    np.testing.assert_allclose(got, expected, rtol=16 * eps, atol=2 * bound)


def spread(x, tau):
    finite = np.where(np.isfinite(x), x, 0).astype(np.float64)
    return (finite.max() - finite.min()) / np.min(tau)


@pytest.fixture
def group(request, monkeypatch):
    """Make every kernel use this group, whatever the rows."""
    from softtopk_nb._cuda.thread_groups import ThreadGroup
    from softtopk_nb.softmax import cuda as smooth
    from softtopk_nb.softmax.cuda import noise as cuda_noise

    named = {
        "small": ThreadGroup(8, 4),
        "held": ThreadGroup(32, 4),
        "block": ThreadGroup(64, 4),
        "streaming warp": ThreadGroup(16, 4, streams=True),
        "streaming block": ThreadGroup(64, 4, streams=True),
    }
    if request.param is not None:
        for module, name in (
            (smooth, "choose"),
            (smooth, "choose_for_two"),
            (cuda_noise, "choose"),
        ):
            monkeypatch.setattr(module, name, lambda n, T: named[request.param])
        return named[request.param]
    return None


groups = pytest.mark.parametrize("group", GROUPS, indirect=True)


def sizes(group):
    """Lengths that a group sees in one piece or in several, not all of them multiples of it."""
    if group.streams:
        return [group.lanes * group.held + 36]
    return [1, 31, 32] if group.lanes < 32 else [33, 100] if group.lanes == 32 else [200]


def hostile(rng, n, dtype):
    """Rows with ties, infinities, NaN and nothing at all."""
    x = (3 * rng.normal(size=(9, n))).astype(dtype)
    x[1, rng.integers(n)] = np.inf
    x[2, rng.integers(n)] = -np.inf
    x[3] = -np.inf
    x[4, rng.integers(n)] = np.nan
    x[5] = 1.5
    x[6, : (n + 1) // 2] = np.inf
    x[6, -1] = -np.inf
    x[7] *= 1e4
    x[8] += 1e6 if dtype is np.float64 else 1e3
    return x


# ---------------------------------------------------------------------------- smooth functions


def check(f, x, rng):
    """Value and derivatives of rows, against the CPU."""
    dtype = x.dtype.type
    tau, dtau = rng.uniform(0.2, 2, size=len(x)), rng.normal(size=len(x))
    dx = rng.normal(size=x.shape).astype(dtype)
    r = spread(x, tau)
    value, tangent = f.jvp(on(x), on(dx), dtemperature=on(dtau), temperature=on(tau))
    expected, expected_tangent = f.jvp(x, dx, dtemperature=dtau, temperature=tau)
    close(value, expected, r)
    g = rng.normal(size=expected.shape).astype(dtype)
    again, pullback = f.vjp(on(x), temperature=on(tau))
    np.testing.assert_array_equal(back(again), back(value))
    gradients, wanted = pullback(on(g)), f.vjp(x, temperature=tau)[1](g)
    assert gradients.k is None
    # A derivative is a product with z/tau, which is as large as the spread.
    atol = 100 * np.finfo(dtype).eps * (1 + r / np.min(tau))
    for got, reference in (
        (tangent, expected_tangent),
        (gradients.x, wanted.x),
        (gradients.temperature, wanted.temperature),
    ):
        assert back(got).dtype == reference.dtype
        np.testing.assert_allclose(back(got), reference, rtol=1e-5, atol=atol)


@every
@dtypes
@groups
def test_equals_the_cpu(f, dtype, group, rng):
    for n in sizes(group):
        check(f, hostile(rng, n, dtype), rng)


@pytest.fixture
def in_parts(monkeypatch):
    """Cut every row into parts of 16 bytes for each of 64 threads, or into at most `most`."""
    from softtopk_nb._cuda import long_rows
    from softtopk_nb._cuda.thread_groups import ThreadGroup

    def use(dtype, most=1024):
        for name, value in {"LONG": 1, "PIECES": 1, "MOST": most}.items():
            monkeypatch.setattr(long_rows, name, value)
        group = ThreadGroup(64, 16 // np.dtype(dtype).itemsize, streams=True)
        monkeypatch.setattr(long_rows, "choose", lambda n, T: group)

    return use


@every
@pytest.mark.parametrize(("dtype", "n", "most"), [(np.float32, 300, 9), (np.float64, 267, 2)])
def test_rows_in_parts_equal_the_cpu(f, dtype, n, most, rng, in_parts):
    in_parts(dtype, most)
    check(f, hostile(rng, n, dtype), rng)


def test_a_temperature_that_is_not_allowed_in_parts(rng, in_parts):
    """The row becomes NaN in all of its parts, and no other row does."""
    in_parts(np.float64)
    x, tau = rng.normal(size=(2, 140)), np.array([0.5, -1.0])
    for f in SMOOTH.values():
        value, pullback = f.vjp(on(x), temperature=on(tau))
        for got in (back(value), *map(back, pullback(on(np.ones(value.shape)))[::2])):
            assert np.isnan(got[1]).all()
            assert not np.isnan(got[0]).any()


@every
def test_axes_masks_types_and_one_temperature(f, rng):
    x = rng.normal(size=(3, 5, 4))
    where = rng.uniform(size=x.shape) < 0.7
    where[:, 0] = True
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        v = (4 * x).astype(dtype)
        expected = f(v, axis=1, temperature=0.7, where=where)
        got = f(on(v), axis=1, temperature=0.7, where=on(where))
        assert back(got).dtype == expected.dtype
        rtol = 2e-3 if dtype is np.float16 else 1e-5
        np.testing.assert_allclose(back(got), expected, rtol=rtol, atol=1e-6)
    g = rng.normal(size=expected.shape)
    wanted = f.vjp(x, axis=1, temperature=0.7, where=where)[1](g)
    value, pullback = f.vjp(on(x), axis=1, temperature=0.7, where=on(where))
    close(value, f(x, axis=1, temperature=0.7, where=where))
    got = pullback(on(g))
    np.testing.assert_array_equal(back(pullback(on(g)).x), back(got.x))
    close(got.x, wanted.x)
    np.testing.assert_allclose(back(got.temperature), wanted.temperature, rtol=1e-12)
    per_row = rng.uniform(0.5, 2, size=(3, 1))
    wanted = f.vjp(x, axis=1, temperature=per_row)[1](g)
    got = f.vjp(on(x), axis=1, temperature=on(per_row))[1](on(g))
    assert got.temperature.shape == (3, 1)
    np.testing.assert_allclose(back(got.temperature), wanted.temperature, rtol=1e-11)
    assert back(f(on(np.empty((0, 3))))).size == 0
    row = rng.normal(size=6)
    close(f(on(row)), f(row))


@every
def test_out(f, rng):
    """As of operators with a k: arguments may lie where the value is written."""
    given = {
        "x": rng.normal(size=(3, 7)),
        "dx": rng.normal(size=(3, 7)),
        "temperature": np.array([0.5, 1.0, 2.0]),
        "dtemperature": np.array([0.3, -0.2, 0.1]),
    }

    def jvp(x, **kw):
        return f.jvp(x, **kw)

    expected, tangent = jvp(**given)
    x, tau, g = given["x"], given["temperature"], np.ones_like(expected)
    gradient = f.vjp(x, temperature=tau)[1](g).x
    out = on(np.zeros(expected.shape))
    assert f(on(x), temperature=on(tau), out=out) is out
    close(out, expected, 10)
    for name, value in given.items():
        memory, arrays = on(np.zeros(21)), {n: on(v) for n, v in given.items()}
        arrays[name] = here = memory[: value.size].reshape(*value.shape)
        out = memory[: expected.size].reshape(*expected.shape)
        here.copy_to_device(value)
        p, dp = jvp(**arrays, out=out)
        assert p is out
        close(p, expected, 10)
        close(dp, tangent, 100)
        if name in ("x", "temperature"):
            here.copy_to_device(value)
            p, pullback = f.vjp(arrays["x"], temperature=arrays["temperature"], out=out)
            close(p, expected, 10)
            close(pullback(on(g)).x, gradient, 100)
    for wrong, error, match in (
        (np.zeros(expected.shape), TypeError, "^out is .*on the host"),
        (on(np.zeros(2)), ValueError, r"^out has shape \(2,\)"),
        (on(np.float32(expected)), TypeError, "^out has dtype float32; expected float64"),
    ):
        with pytest.raises(error, match=match):
            f(on(x), out=wrong)


def test_logsumexp_of_one_row():
    x = np.array([3.0, 2.0, 1.0, 4.0])
    value, pullback = stk.logsumexp.vjp(on(x))
    assert value.shape == ()
    gradients = pullback(1.0)
    close(gradients.x, stk.softmax(x))
    close(gradients.temperature, stk.logsumexp.vjp(x)[1](1.0).temperature)
    close(stk.energy_score(on(x[None])), stk.energy_score(x[None]))
    out = on(np.zeros(1))
    assert stk.energy_score(on(x[None]), out=out) is out
    close(out, stk.energy_score(x[None]))
    with pytest.raises(TypeError, match=r"^the cotangent is None"):
        pullback(None)


def test_extreme_scales():
    """prop-stable: as on the CPU, and what overflows is the lowest finite number."""
    lowest = np.finfo(np.float64).min
    x = np.array([[1e300, 1e300, 1e300 * (1 - 2**-52), -1e300]])
    np.testing.assert_array_equal(
        back(stk.softmax(on(x), temperature=1e-3)), np.array([[0.5, 0.5, 0.0, 0.0]])
    )
    assert back(stk.logsumexp(on(x), temperature=1e-3))[0] == 1e300
    y = np.array([[1.7e308, -1.7e308, -np.inf]])
    np.testing.assert_array_equal(back(stk.log_softmax(on(y))), [[0.0, lowest, -np.inf]])
    # On a device temperatures and differences beyond the type's numbers act as the last of them.
    z, most = np.float32([[3e38, -3e38, 1.0]]), float(np.finfo(np.float32).max)
    differences = np.array([[0.0, -most, -3e38]])
    for tau in (1e-30, 1e-300, 1e300, 1e38):
        e = np.exp(differences / max(min(tau, most), 1 / most))
        close(stk.softmax(on(z), temperature=tau), (e / e.sum()).astype(np.float32))
    # log p keeps its relative accuracy where p rounds to 1.
    for gap in (20.0, 50.0, 300.0, 700.0):
        x = np.array([[0.0, gap, 0.5]])
        np.testing.assert_allclose(
            back(stk.log_softmax(on(x))), stk.log_softmax(x), rtol=1e-13, atol=0
        )


@every
def test_what_the_host_cannot_see_makes_the_row_nan(f, rng):
    x = rng.normal(size=(5, 7))
    tau = np.array([1.0, 0.0, -1.0, np.nan, np.inf])
    result = back(f(on(x), temperature=on(tau)))
    np.testing.assert_allclose(result[0], f(x[0]), rtol=1e-12)
    assert np.isnan(result[1:]).all()
    for moved in (
        f.jvp(on(x), on(x), temperature=on(tau))[1],
        f.vjp(on(x), temperature=on(tau))[1](on(result)).x,
    ):
        assert np.isnan(back(moved)[1:]).all()
        assert not np.isnan(back(moved)[0]).any()


def test_softmax_of_published_vectors():
    """exp at k = 1 where no entry is capped is softmax (id-softmax): the oracle's 60 digits."""
    cases = [c for c in PUBLIC if c.get("curve") == "exp" and c["k"] == 1 and len(c["x"]) <= 33]
    for c in cases:
        x = np.array([c["x"]])
        close(stk.softmax(on(x), temperature=c["temperature"]), np.array([c["p"]]))
        lam = np.array([c["threshold"]])
        np.testing.assert_allclose(
            back(stk.logsumexp(on(x), temperature=c["temperature"])), lam, rtol=1e-12
        )
    assert cases


def test_rows_are_independent(rng):
    x = rng.normal(size=(20, 37)).astype(np.float32)
    whole = back(stk.softmax(on(x)))
    for i in (0, 7, 19):
        np.testing.assert_array_equal(back(stk.softmax(on(x[i : i + 1])))[0], whole[i])


def test_bad_arguments(rng):
    x = on(rng.normal(size=(2, 3)))
    for error, match, call in (
        (ValueError, "^temperature is 0", lambda: stk.softmax(x, temperature=0)),
        (TypeError, "^temperature", lambda: stk.softmax(x, temperature=np.ones(2))),
        (ValueError, "^x has shape", lambda: stk.softmax(on(np.empty((2, 0))))),
        (TypeError, "^where", lambda: stk.softmax(x, where=np.ones((2, 3), bool))),
        (TypeError, "^dx", lambda: stk.softmax.jvp(x, np.ones((2, 3)))),
        (TypeError, "^the cotangent", lambda: stk.softmax.vjp(x)[1](np.ones((2, 3)))),
        (TypeError, "^x is a CUDA array", lambda: stk.sample_categorical(x)),
        (TypeError, "^x is a CUDA array", lambda: stk.gradual(x, 2)),
        (TypeError, "is a CUDA array", lambda: stk.sinkhorn(x)),
        (ValueError, "^k is 4", lambda: stk.gumbel_topk(x, 4)),
        (ValueError, "^k is 4", lambda: stk.gumbel_topk(x, 4, relax=stk.thretopk)),
        (ValueError, "^k is -1", lambda: stk.gumbel_topk(x, -1)),
        (TypeError, "^k is", lambda: stk.gumbel_topk(x, 1.5)),
        (ValueError, "^size is", lambda: stk.gumbel_max(x, 2**33)),
        (TypeError, "^rng is", lambda: stk.gumbel_max(x, rng="no")),
        (TypeError, "^relax is", lambda: stk.gumbel_topk(x, 1, relax=3)),
        (TypeError, "^relax returned", lambda: stk.gumbel_topk(x, 1, relax=lambda *_, **__: 1)),
        (
            ValueError,
            "^relax returned shape",
            lambda: stk.gumbel_topk(x, 1, relax=lambda *_, **__: on(np.ones(3))),
        ),
    ):
        with pytest.raises(error, match=match):
            call()


# ----------------------------------------------------------------------------------- draws


def fits(counts, probabilities):
    expected = counts.sum() * np.asarray(probabilities) / np.sum(probabilities)
    assert expected.min() > 5
    return stats.chisquare(counts, expected).pvalue > 1e-4


@dtypes
def test_distribution_is_softmax(dtype):
    """thm-gumbel-max: indices have the probabilities softmax(x/tau)."""
    x = np.array([1.5, -np.inf, 2.0, 2.4, 0.8], dtype)
    present = x > -np.inf
    draws = back(stk.gumbel_max(on(x), DRAWS, rng=1, temperature=0.7))
    assert draws.dtype == np.int64
    assert draws.shape == (DRAWS,)
    counts = np.bincount(draws, minlength=5)
    assert counts[1] == 0
    p, other = (stk.softmax(x.astype(np.float64), temperature=t)[present] for t in (0.7, 1.4))
    assert fits(counts[present], p)
    assert not fits(counts[present], other)


def test_distribution_of_two_without_replacement():
    """Plackett-Luce: the second of two has the distribution of softmax over what is left."""
    p = np.array([0.7, 0.2, 0.1])
    draws = back(stk.gumbel_topk(on(np.log(p)), 2, DRAWS, rng=5))
    pairs = list(itertools.permutations(range(3), 2))
    counts = np.array([np.sum((draws == pair).all(axis=1)) for pair in pairs])
    assert counts.sum() == DRAWS
    distribution = [p[a] * p[b] / (1 - p[a]) for a, b in pairs]
    assert fits(counts, distribution)
    assert not fits(counts, [p[a] * p[b] for a, b in pairs])


@dtypes
@groups
def test_draws_do_not_depend_on_the_launch(dtype, group, rng):
    """The k largest of the same noisy scores, in order, whatever threads look at them."""
    from softtopk_nb.softmax.cuda.philox import gumbel, philox, uniform32, uniform64

    def noise(seed, row, draw, n):
        g = []
        for count in range(n):
            w = philox(*(np.uint64(v) for v in (seed, count, draw, row, 0)))
            if dtype is np.float32:
                g += [gumbel(uniform32(v)) for v in w]
            else:
                g += [gumbel(uniform64(*w[:2])), gumbel(uniform64(*w[2:]))]
            if len(g) >= n:
                return np.array(g[:n])

    for n in sizes(group):
        x, k = rng.normal(size=(2, n)).astype(dtype), min(n, 3)
        index = back(stk.gumbel_topk(on(x), k, 2, rng=9, temperature=0.5))
        assert index.shape == (2, 2, k)
        seed = int(np.random.default_rng(9).integers(0, 2**64, dtype=np.uint64))
        for row, draw in itertools.product(range(2), range(2)):
            keys = (x[row] - x[row].max()) / dtype(0.5) + noise(seed, row, draw, n)
            assert keys.dtype == dtype
            np.testing.assert_array_equal(index[row, draw], np.argsort(-keys)[:k])


@dtypes
@groups
def test_relaxed_draws_agree_with_indices(dtype, group, rng):
    """One seed, one noise: relaxed and hard draws name the same entries."""
    for n in sizes(group)[-1:]:
        x = rng.normal(size=(3, n)).astype(dtype)
        x[1, :2] = np.inf
        x[2, 3:7] = -np.inf
        hard = back(stk.gumbel_max(on(x), rng=3))
        soft = back(stk.gumbel_softmax(on(x), rng=3, temperature=0.02))
        assert soft.dtype == dtype
        np.testing.assert_array_equal(soft.argmax(axis=1), hard)
        np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-6)
        assert np.all(soft[2, 3:7] == 0)
        assert np.all(soft[1, 2:] == 0)


@dtypes
@pytest.mark.parametrize(("pieces", "more", "most", "draws"), [(2, 1, 1024, 3), (3, 4, 2, 1)])
def test_draws_from_rows_in_parts_are_those_of_one_block(
    dtype, pieces, more, most, draws, rng, in_parts, monkeypatch
):
    """Index by index and bit by bit; a last part of one entry, parts of two pieces."""
    from softtopk_nb.softmax.cuda import long_noise as cuda_long_noise

    n = pieces * 64 * 16 // np.dtype(dtype).itemsize + more
    x = hostile(rng, n, dtype)[[3, 4, 6]]
    x[0, [5, n - 1]] = 0.5  # all that there is, in the first part and in the last
    scores, tau = on(x), on(rng.uniform(0.2, 2, size=len(x)))

    def results():
        index = [back(stk.gumbel_topk(scores, k, draws, rng=7, temperature=tau)) for k in (0, 3)]
        seen = []
        relaxed = {"relax": lambda noisy, k, temperature: seen.append(back(noisy)) or noisy}
        stk.gumbel_topk(scores, 1, draws, rng=7, **relaxed)
        return *index, *seen

    whole = results()
    in_parts(dtype, most)
    monkeypatch.setattr(cuda_long_noise, "AT_ONCE", 2)
    launched, perturb = [], cuda_long_noise.perturb
    monkeypatch.setattr(cuda_long_noise, "perturb", lambda *a: launched.append(a) or perturb(*a))
    parts = results()
    assert len(launched) == 1
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one, other)
    index = parts[1]
    assert {5, n - 1} == set(index[0, 0, :2])
    assert (index[0, :, 2] == -1).all()
    assert (index[1] == -1).all()
    assert ((index[2] >= 0) & (index[2] < (n + 1) // 2)).all()


@pytest.mark.skipif(
    not config.ENABLE_CUDASIM, reason="patches the noise, fixed in a compiled kernel"
)
@pytest.mark.parametrize("cut", [False, True], ids=["one block", "parts"])
def test_of_equal_entries_the_first_is_drawn(cut, in_parts, monkeypatch):
    module = importlib.import_module("softtopk_nb.softmax.cuda.gumbel")
    monkeypatch.setattr(module, "gumbel", lambda u: u - u)
    if cut:
        in_parts(np.float64)
    x = np.zeros((1, 300))
    x[0, [140, 299]] = 1
    index = back(stk.gumbel_topk(on(x), 5, rng=0))
    assert index.tolist() == [[140, 299, 0, 1, 2]]


@dtypes
def test_softmax_of_noisy_rows_in_parts(dtype, rng, in_parts):
    x = hostile(rng, 300, dtype)
    whole = back(stk.gumbel_softmax(on(x), rng=3, temperature=0.5))
    in_parts(dtype)
    parted = back(stk.gumbel_softmax(on(x), rng=3, temperature=0.5))
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(parted, whole, rtol=tolerance, atol=tolerance)
    hard = back(stk.gumbel_max(on(x), rng=3))
    np.testing.assert_array_equal(hard[hard >= 0], parted.argmax(axis=1)[hard >= 0])
    bad = back(stk.gumbel_max(on(x[:2]), rng=3, temperature=on(np.array([1.0, -1.0]))))
    assert bad.tolist() == [hard[0], -1]


def test_relaxed_masks(rng):
    """With `relax`, its mask of x + G; infinities mean what they mean to it."""
    x = rng.normal(size=(5, 3)).astype(np.float32)
    x[1, 0], x[2, 1] = np.inf, -np.inf
    k, tau = np.array([1.0, 2.0, 1.0]), np.array([0.1, 0.2, 0.3])
    p = back(stk.gumbel_topk(on(x), on(k), rng=2, relax=stk.thretopk, axis=0, temperature=on(tau)))
    assert p.shape == x.shape
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(axis=0), k, rtol=1e-5)
    assert p[1, 0] == 1
    assert p[2, 1] == 0
    several = back(
        stk.gumbel_topk(on(x), on(k), 2, rng=2, relax=stk.thretopk, axis=0, temperature=on(tau))
    )
    assert several.shape == (3, 2, 5)
    np.testing.assert_array_equal(several[:, 0].T, p)
    assert np.abs(several[:, 0] - several[:, 1]).max() > 0.01
    seen = []

    def keep(noisy, k, **arguments):
        seen.append((back(noisy), k, arguments))
        return noisy

    half = back(stk.gumbel_topk(on(x.astype(np.float16)), 2, rng=2, relax=keep, axis=0))
    assert half.dtype == np.float16
    noisy, given, arguments = seen[0]
    assert given == 2
    assert arguments == {"temperature": 1.0}
    np.testing.assert_array_equal(noisy.T.astype(np.float16), half)
    # The indices without replacement are those of the same noise.
    index = back(stk.gumbel_topk(on(x[:, 2:]), 2, rng=2, axis=0))
    mask = back(stk.gumbel_topk(on(x[:, 2:]), 2, rng=2, axis=0, relax=stk.hardtopk))
    assert set(index[0]) == set(np.flatnonzero(mask[:, 0]))


def test_rows_that_nothing_can_be_drawn_from():
    """-1 where the CPU raises: the host cannot know without waiting."""
    x = np.zeros((5, 4))
    x[1, 2] = np.nan
    x[2] = -np.inf
    x[3, 1:] = -np.inf
    x[4, :2] = np.inf
    assert (back(stk.gumbel_max(on(x), rng=0)) >= 0).tolist() == [True, False, False, True, True]
    index = back(stk.gumbel_topk(on(x), 3, rng=0))
    assert sorted(index[0]) == sorted(set(index[0]))
    assert index[1].tolist() == index[2].tolist() == [-1, -1, -1]
    assert index[3].tolist() == [0, -1, -1]
    assert set(index[4][:2]) == {0, 1}
    assert index[4][2] == -1
    assert np.isnan(back(stk.gumbel_softmax(on(x), rng=0))[1:3]).all()
    tau = np.array([1.0, 1.0, 1.0, 0.0, np.nan])
    assert back(stk.gumbel_max(on(x), rng=0, temperature=on(tau)))[3:].tolist() == [-1, -1]


def test_seeds_and_shapes(rng):
    x = on(rng.normal(size=(3, 6)))
    generator = np.random.default_rng(1)
    first, second = (back(stk.gumbel_max(x, 20, rng=generator)) for _ in range(2))
    assert np.any(first != second)
    np.testing.assert_array_equal(back(stk.gumbel_max(x, 20, rng=1)), first)
    np.testing.assert_array_equal(back(stk.gumbel_max(x, 5, rng=1)), first[:, :5])
    assert back(stk.gumbel_max(x, (2, 10), rng=1)).shape == (3, 2, 10)
    np.testing.assert_array_equal(back(stk.gumbel_max(x, (2, 10), rng=1)).reshape(3, 20), first)
    assert back(stk.gumbel_max(x, ())).shape == (3,)
    assert back(stk.gumbel_max(x, 0)).shape == (3, 0)
    assert back(stk.gumbel_topk(x, 0)).shape == (3, 0)
    assert back(stk.gumbel_max(on(np.zeros(4)))).shape == ()
    assert sorted(back(stk.gumbel_topk(x, 6, axis=1))[0]) == list(range(6))
