"""The Dask front: the results of one process, to the bit, on every scheduler."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import softtopk_nb as stk
from softtopk_nb._api.operator import registry

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
std = pytest.importorskip("softtopk_nb.dask")

import cloudpickle  # noqa: E402
import dask  # noqa: E402

pytestmark = [
    pytest.mark.dask,
    # Tests compute what is right in this process beside a client: Dask 2025.1 says that they do.
    pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler"),
    # Nannies are told to end while a test that kills workers still waits for them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

N = 17 * std.PART + 77
WITHOUT_K = "softmax", "log_softmax", "logsumexp"
IN_CHUNKS = "hardtopk", "thretopk", "gradtopk", *WITHOUT_K


@pytest.fixture(autouse=True)
def synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def client():
    """Two worker processes of one thread."""
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def two_workers(client):
    """Wait for both; a nanny that went with its worker is replaced once the cluster has noticed."""
    for _ in range(12):
        client.cluster.scale(2)
        with contextlib.suppress(TimeoutError):
            return client.wait_for_workers(2, timeout=10)
    raise TimeoutError("two workers have not come in two minutes")


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def made(n, chunks, dtype=np.float32):
    """(an array in memory, the same made chunk by chunk where it is needed)."""
    lazy = da.random.default_rng(0).normal(size=n, chunks=chunks).astype(dtype)
    return lazy.compute(scheduler="synchronous"), lazy


def pair(name):
    return getattr(stk, name), getattr(std, name), () if name in WITHOUT_K else (100,)


def test_every_operator_is_there():
    assert set(registry) <= set(std.__all__)
    assert set(WITHOUT_K) < set(std.__all__)


@pytest.mark.parametrize("name", [*registry, *WITHOUT_K])
@pytest.mark.parametrize("axis", [-1, 0])
def test_rows_in_chunks(name, axis, rng):
    f, g, _ = pair(name)
    x, dx = rng.normal(size=(2, 6, 5, 12))
    where, tau = rng.random(x.shape) < 0.8, rng.uniform(0.5, 2.0, (5, 12) if axis == 0 else 5)
    batch = tau.shape if axis == 0 else (6, 5)
    k = () if name in WITHOUT_K else (rng.integers(1, 3, batch),)
    chunks = (6, 2, 5) if axis == 0 else (4, 2, 12)
    lazy = da.from_array(x, chunks=chunks)
    of_k = tuple(da.from_array(each, chunks=chunks[1:] if axis == 0 else chunks[:2]) for each in k)
    kw = {"temperature": tau, "axis": axis, "where": where}
    p = g(lazy, *of_k, **kw)
    same(p, f(x, *k, **kw))
    if name != "logsumexp":
        assert p.chunks == lazy.chunks
    assert p._meta.dtype == x.dtype
    if name == "hardtopk":
        return
    for found, expected in zip(
        g.jvp(lazy, *of_k, dx, dtemperature=0.3, **kw),
        f.jvp(x, *k, dx, dtemperature=0.3, **kw),
        strict=True,
    ):
        same(found, expected)
    cotangent = rng.normal(size=batch) if name == "logsumexp" else dx
    found, expected = g.vjp(lazy, *of_k, **kw)[1](cotangent), f.vjp(x, *k, **kw)[1](cotangent)
    same(found.x, expected.x)
    assert (found.k is None) == (expected.k is None)
    for one, other in zip(found[1:], expected[1:], strict=True):
        if other is not None:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
            assert one.shape == np.shape(other)
    for verb in ("potential", "threshold"):
        if hasattr(g, verb):
            kw.pop("where", None)
            same(getattr(g, verb)(lazy, *of_k, **kw), getattr(f, verb)(x, *k, **kw))


def _pickled(*arrays):
    """Bytes of the largest of their graphs."""
    return max(len(cloudpickle.dumps(dict(a.__dask_graph__()))) for a in arrays)


@pytest.mark.parametrize(
    ("n", "chunk"), [(64, 64), (64, 32), (1 << 20, 1 << 19)], ids=["rows", "short", "long"]
)
def test_a_graph_holds_a_number_once_for_all_rows(n, chunk):
    """Where an array of them would take 8 MB."""
    x = da.zeros((10**6, n), chunks=(10**5, chunk), dtype=np.float32)
    tau = {"temperature": np.float32(0.5)}
    f = std.thretopk
    assert _pickled(f(x, 4, **tau), f(x, np.array(4.5), where=x > 0, **tau)) < 1 << 17
    assert _pickled(f.potential(x, 4, **tau), f.threshold(x, 4, **tau)) < 1 << 17
    assert _pickled(*f.jvp(x, np.array([4]), x, dk=0.5, dtemperature=1, **tau)) < 1 << 17
    assert _pickled(*f.vjp(x, 4, **tau)[1](x)) < 1 << 17
    gradients = std.logsumexp.vjp(x, **tau)[1](1.0)
    assert _pickled(gradients.x, gradients.temperature) < 1 << 17


def test_a_task_holds_its_block_of_an_array_in_memory(rng):
    x = da.zeros((64, 1000), chunks=(4, 1000))
    dx, where = rng.normal(size=x.shape), rng.random(x.shape) < 0.5
    p, dp = std.thretopk.jvp(x, np.full(64, 4.5), dx, dk=np.ones(64), where=where)
    gradients = std.thretopk.vjp(x, np.full(64, 4.5))[1](dx)
    for whole in (p, dp, gradients.x):
        (block,) = dask.optimize(whole.blocks[0])
        assert _pickled(block) < dx.nbytes / 8


@pytest.mark.parametrize("along", [12, 7])
@pytest.mark.parametrize("lazy", [False, True])
def test_numbers_may_keep_the_axis(along, lazy, rng):
    x, v = rng.normal(size=(2, 6, 12, 5))
    k, tau = rng.uniform(1, 4, size=(6, 1, 5)), rng.uniform(0.5, 2, size=(1, 1, 5))
    dk, kept = rng.normal(size=(6, 1, 1)), lambda a: da.from_array(a, chunks=(2, 1, 5)[: a.ndim])
    known = (lambda a: a) if not lazy else kept
    given = {"temperature": known(tau), "axis": 1}
    chunked, direction = (da.from_array(a, chunks=(2, along, 5)) for a in (x, v))
    found = std.thretopk.jvp(chunked, known(k), direction, dk=known(dk), **given)
    expected = stk.thretopk.jvp(x, k, v, dk=dk, temperature=tau, axis=1)
    for each, other in zip(found, expected, strict=True):
        same(each, other)
    found = std.thretopk.vjp(chunked, known(k), **given)[1](direction)
    expected = stk.thretopk.vjp(x, k, temperature=tau, axis=1)[1](v)
    same(found.k, expected.k)
    assert found.temperature.shape == tau.shape
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-13)
    with pytest.raises(ValueError, match=r"^k has shape \(6, 2, 5\); .* to \(6, 1, 5\)"):
        std.thretopk(chunked, known(np.ones((6, 2, 5))), axis=1)


@pytest.mark.parametrize("name", registry)
@pytest.mark.parametrize("known", [lambda k: k, lambda k: da.from_array(k, chunks=2)])
def test_k_may_be_clamped(name, known, rng):
    f, g, _ = pair(name)
    x, there = rng.normal(size=(4, 9)), np.arange(9) < np.array([[0], [1], [4], [9]])
    lazy = da.from_array(x, chunks=(2, 5 if name in IN_CHUNKS else 9))
    k, common = np.array([3, 10**6, 3, 3]), {"where": there, "clamp_k": True}
    same(g(lazy, known(k), **common), f(x, k, **common))
    if hasattr(g, "vjp"):
        found, expected = g.vjp(lazy, known(k), **common), f.vjp(x, k, **common)
        same(found[1](lazy).x, expected[1](x).x)
    with pytest.raises(TypeError, match=r"^clamp_k is 1"):
        g(lazy, 2, clamp_k=1)


@pytest.mark.parametrize("name", ["hardtopk", "thretopk", "gradtopk"])
def test_k_may_be_clamped_with_the_axis_in_chunks(name):
    f, g, _ = pair(name)
    x, lazy = made(N, 5 * std.PART)
    where, k = np.arange(N) < 90, 100
    lazy_where = da.from_array(where, chunks=5 * std.PART)
    common = {"clamp_k": True}
    same(g(lazy, k, where=lazy_where, **common), f(x, k, where=where, **common))
    same(g(lazy, k, **common), f(x, k))
    if hasattr(g, "vjp"):
        gradients = g.vjp(lazy, k, where=lazy_where, **common)[1](lazy)
        assert not gradients.x.any().compute()
        assert gradients.k is None or float(gradients.k.compute()) == 0.0


def test_where_may_be_one_bool(rng):
    x = rng.normal(size=(4, 6))
    same(std.thretopk(da.from_array(x), 2, where=True), stk.thretopk(x, 2, where=True))


@pytest.mark.parametrize("chunks", [(2, 5, 12), (2, 5, 7)])
@pytest.mark.parametrize("k", [3, np.int32(3), np.array(3), np.array([3]), np.full((6, 1), 3)])
def test_numbers_for_all_rows(k, chunks, rng):
    """Each gradient has the shape of its number."""
    x, dx = rng.normal(size=(2, 6, 5, 12))
    lazy, tau = da.from_array(x, chunks=chunks), np.float64(0.5) * np.ones(np.shape(k))
    f, g, kw = stk.thretopk, std.thretopk, {"temperature": tau}
    for found, expected in zip(
        g.jvp(lazy, k, dx, dk=tau, dtemperature=2, **kw),
        f.jvp(x, k, dx, dk=tau, dtemperature=2, **kw),
        strict=True,
    ):
        same(found, expected)
    found, expected = g.vjp(lazy, k, **kw)[1](dx), f.vjp(x, k, **kw)[1](dx)
    same(found.x, expected.x)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.shape == np.shape(other) == np.shape(k)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", IN_CHUNKS)
def test_axis_in_chunks_has_the_bits_of_one_process(name, dtype, rng):
    f, g, k = pair(name)
    x, dx = rng.normal(size=(2, N)).astype(dtype)
    lazy = da.from_array(x, chunks=4 * std.PART)
    same(g(lazy, *k), f(x, *k))
    if name == "hardtopk":
        return
    for found, expected in zip(
        g.jvp(lazy, *k, dx, dtemperature=0.3), f.jvp(x, *k, dx, dtemperature=0.3), strict=True
    ):
        same(found, expected)
    cotangent = 2.0 if name == "logsumexp" else dx
    found, expected = g.vjp(lazy, *k)[1](cotangent), f.vjp(x, *k)[1](cotangent)
    same(found.x, expected.x)
    same(found.temperature, expected.temperature)
    for verb in ("potential", "threshold"):
        if hasattr(g, verb):
            same(getattr(g, verb)(lazy, *k), getattr(f, verb)(x, *k))


@pytest.mark.parametrize("curve", ["exp", "clip", "sigmoid", "normal", "cauchy", "entmax", "own"])
def test_curves_with_their_axis_in_chunks(curve, rng):
    x, dx = rng.normal(size=(2, N)).astype(np.float32)
    options = {"curve": curve}
    if curve == "entmax":
        options["alpha"] = 3.0  # steep: worked on in float64
    if curve == "own":
        options["curve"] = stk.Curve(
            lambda t: 0.5 + 0.5 * t / (1 + t * t) ** 0.5, lambda t: 0.5 * (1 + t * t) ** -1.5
        )
    lazy = da.from_array(x, chunks=6 * std.PART)
    for found, expected in zip(
        std.thretopk.jvp(lazy, 1000.5, dx, dk=0.5, **options),
        stk.thretopk.jvp(x, 1000.5, dx, dk=0.5, **options),
        strict=True,
    ):
        same(found, expected)
    found = std.thretopk.vjp(lazy, 1000.5, **options)[1](dx)
    expected = stk.thretopk.vjp(x, 1000.5, **options)[1](dx)
    same(found.x, expected.x)
    same(found.k, expected.k)


@pytest.mark.parametrize("name", IN_CHUNKS)
def test_infinities_and_masks_with_the_axis_in_chunks(name, rng):
    """Rows as they come, long and short once infinities are out, and rows that are constant."""
    f, g, k = pair(name)
    x, dx = rng.normal(size=(2, 6, 20 * std.PART))
    x[1, ::50], x[2, : 19 * std.PART], x[4, 5] = -np.inf, -np.inf, np.nan
    x[3, :150] = np.inf
    lazy = da.from_array(x, chunks=(4, 7 * std.PART + 3))
    where = rng.random(x.shape[1]) < 0.95
    bounds = {"rtol": 1e-9, "atol": 1e-12}
    for kw in ({}, {"where": where}, {"largest": False}):
        if "largest" in kw and name in WITHOUT_K:
            continue
        np.testing.assert_allclose(g(lazy, *k, **kw), f(x, *k, **kw), **bounds)
        if name == "hardtopk":
            continue
        found = g.jvp(lazy, *k, dx, dtemperature=0.3, **kw)[1]
        expected = f.jvp(x, *k, dx, dtemperature=0.3, **kw)[1]
        np.testing.assert_allclose(found, expected, **bounds)
        cotangent = dx[:, 0] if name == "logsumexp" else dx
        found, expected = g.vjp(lazy, *k, **kw)[1](cotangent), f.vjp(x, *k, **kw)[1](cotangent)
        np.testing.assert_allclose(found.x, expected.x, **bounds)
        for verb in ("potential", "threshold"):
            if hasattr(g, verb):
                one, other = getattr(g, verb)(lazy, *k, **kw), getattr(f, verb)(x, *k, **kw)
                np.testing.assert_allclose(one, other, **bounds)


@pytest.mark.parametrize("tau", [1e-35, 1e30])
def test_temperatures_near_the_ends_with_the_axis_in_chunks(tau, rng):
    x = rng.normal(size=N).astype(np.float32)
    lazy = da.from_array(x, chunks=4 * std.PART)
    same(std.thretopk(lazy, 9.5, temperature=tau), stk.thretopk(x, 9.5, temperature=tau))
    for verb in ("potential", "threshold"):
        found = getattr(std.thretopk, verb)(lazy, 9.5, temperature=tau)
        same(found, getattr(stk.thretopk, verb)(x, 9.5, temperature=tau))


@pytest.mark.parametrize("exponent", [-130, -61, 61, 120])
@pytest.mark.parametrize("name", ["thretopk", "gradtopk", "softmax", "logsumexp"])
def test_derivatives_near_the_ends_with_the_axis_in_chunks(name, exponent, rng):
    """As in one process, of scores in the units of the temperature."""
    f, g, k = pair(name)
    x, dx = rng.normal(size=(2, N)).astype(np.float32)
    x, dx = np.ldexp(x, exponent), np.ldexp(dx, exponent // 2)
    lazy, tau = da.from_array(x, chunks=4 * std.PART), 2.0**exponent
    moves = {"dtemperature": tau / 4, **({"dk": 0.5} if name == "thretopk" else {})}
    cotangent = 2.0 if name == "logsumexp" else dx
    along = g.jvp(lazy, *k, dx, temperature=tau, **moves)[1]
    expected = f.jvp(x, *k, dx, temperature=tau, **moves)[1]
    found = g.vjp(lazy, *k, temperature=tau)[1](cotangent)
    wanted = f.vjp(x, *k, temperature=tau)[1](cotangent)
    for one, other in ((along, expected), (found.x, wanted.x)):
        one, most = np.asarray(one), np.abs(other).max(initial=0)
        assert 0 < most < np.inf
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * most)
    np.testing.assert_allclose(found.temperature, wanted.temperature, rtol=1e-3)
    if name == "thretopk":
        np.testing.assert_allclose(found.k, wanted.k, rtol=1e-3)


def test_a_chunk_along_the_axis_may_be_empty(rng):
    """As it is where entries have been selected."""
    x = rng.normal(size=N)
    chunks = ((10 * std.PART, 0, N - 10 * std.PART),)
    for name in IN_CHUNKS:
        f, g, k = pair(name)
        same(g(da.from_array(x, chunks=chunks), *k), f(x, *k))


@pytest.mark.parametrize("k", [0, N])
@pytest.mark.parametrize("name", ["hardtopk", "thretopk", "gradtopk"])
def test_nothing_and_everything(name, k, rng):
    f, g, _ = pair(name)
    x = rng.normal(size=N)
    lazy = da.from_array(x, chunks=4 * std.PART)
    same(g(lazy, k), f(x, k))
    for verb in ("potential", "threshold"):
        if hasattr(g, verb):
            one, other = getattr(g, verb)(lazy, k), getattr(f, verb)(x, k)
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def _seen(monkeypatch):
    """The rounds in which chunks are asked, as they happen."""
    from softtopk_nb.dask import axis

    rounds, ask = [], axis.ask_all

    def ask_all(run, graph, tasks):
        rounds.append(len(tasks))
        return ask(run, graph, tasks)

    monkeypatch.setattr(axis, "ask_all", ask_all)
    return rounds


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("thretopk", {"curve": "laplace"}, 3),
        ("thretopk", {"curve": "exp"}, 3),
        ("thretopk", {"curve": "sigmoid"}, 3),
        ("thretopk", {"curve": "clip"}, 4),
        ("softmax", {}, 3),
        ("hardtopk", {}, 10),
    ],
)
def test_passes_over_the_data(name, options, most, rng, monkeypatch):
    """Rounds of the search, and one pass that writes."""
    _, g, k = pair(name)
    rounds = _seen(monkeypatch)
    x = rng.normal(size=40 * std.PART).astype(np.float32)
    g(da.from_array(x, chunks=8 * std.PART), *k, **options).compute()
    assert len(rounds) + 1 <= most


each = pytest.mark.parametrize("name", registry)


@each
def test_bad_input_at_once(name, rng):
    g = getattr(std, name)
    x = da.from_array(rng.normal(size=(4, 6)), chunks=(2, 6))
    for bad, words in (
        (np.ones((4, 6)), "x is a ndarray"),
        (x.astype(object), "x has dtype object"),
        (x[x[:, 0] > 0], "compute_chunk_sizes"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            g(bad, 2)
    for kw, words in (
        ({"temperature": -1.0}, "temperature is -1"),
        ({"axis": 2}, "axis"),
        ({"where": np.ones(6)}, "where"),
        ({"colour": 1}, "colour"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            g(x, 2, **kw)
    with pytest.raises(ValueError, match="k is 7"):
        g(x, 7)
    with pytest.raises(ValueError, match="k has the chunks"):
        g(x, da.from_array(np.ones(4, int), chunks=1))
    with pytest.raises(TypeError, match="k has dtype object"):
        g(x, da.from_array(np.ones(4, int), chunks=2).astype(object))


@each
def test_bad_numbers_when_computed(name, rng):
    g = getattr(std, name)
    x = da.from_array(rng.normal(size=(4, 6)), chunks=(2, 6))
    p = g(x, da.from_array(np.array([1, 2, 3, 7]), chunks=2))
    with pytest.raises(ValueError, match=r"k is 7 in row \(3,\); expected 0 <= k <= n = 6"):
        p.compute()
    p = g(x, 2, temperature=da.from_array(np.array([1.0, 2.0, 0.0, 1.0]), chunks=2))
    with pytest.raises(ValueError, match=r"temperature is 0.0 in row \(2,\)"):
        p.compute()


@pytest.mark.parametrize("name", ["itertopk", "wsoftmaxtopk"])
def test_iterations_say_why_the_axis_must_be_in_one_chunk(name, rng):
    x = da.from_array(rng.normal(size=(4, 6)), chunks=(2, 3))
    with pytest.raises(ValueError, match=r"each of its steps .* x.rechunk\({1: -1}\)"):
        getattr(std, name)(x, 2)


def test_clusters_threads_and_nested_calls_give_the_same_bits(client):
    x, lazy = made(N, 4 * std.PART)
    expected = stk.thretopk(x, 100.5)
    p = std.thretopk(lazy, 100.5)
    with dask.config.set(scheduler="threads"):
        same(p.compute(), expected)
    with dask.config.set(scheduler=client):
        same(p.compute(), expected)
        same(std.thretopk(lazy.persist(), 100.5).compute(), expected)
        nested = client.submit(lambda a: std.thretopk(a, 100.5).compute(), lazy)
        same(nested.result(timeout=60), expected)


@pytest.mark.parametrize(("shared", "most"), [(False, 4), (True, 18)])
def test_a_task_asks_several_chunks(shared, most, monkeypatch):
    """Unless a chunk is needed elsewhere too, so that a task would hold all of its own."""
    from softtopk_nb.dask import axis, rounds

    sizes = []

    def get(graph, keys):
        sizes.append(len(keys))
        return dask.local.get_sync(graph, keys)

    @contextlib.contextmanager
    def runner():
        yield rounds.Runner(get, 4)

    monkeypatch.setattr(axis, "runner", runner)
    x, lazy = made(N, std.PART, np.float64)
    if shared:
        x, lazy = x / abs(x).max(), lazy / abs(lazy).max()
    same(std.thretopk(lazy, 100.5).compute(), stk.thretopk(x, 100.5))
    assert max(sizes) == most


@pytest.mark.parametrize("beside", ["persisted", "lazy"])
def test_persisted_chunks_are_asked_where_they_are(beside, client):
    x, lazy = made(N, std.PART, np.float64)
    v, other = np.where(x > 0, 0.5, x), da.where(lazy > 0, 0.5, lazy)
    with dask.config.set(scheduler=client):
        lazy = lazy.persist()
        other = other.persist() if beside == "persisted" else other
        p, dp = std.thretopk.jvp(lazy, 100.5, other)
        same(p.compute(), stk.thretopk(x, 100.5))
        same(dp.compute(), stk.thretopk.jvp(x, 100.5, v)[1])


def test_one_worker_with_one_thread_is_enough():
    x, lazy = made(N, 4 * std.PART, np.float64)
    expected = stk.gradtopk(x, 100)
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    with cluster, distributed.Client(cluster) as alone:
        same(alone.compute(std.gradtopk(lazy, 100)).result(timeout=60), expected)
        nested = alone.submit(lambda a: std.gradtopk(a, 100).compute(), lazy)
        same(nested.result(timeout=60), expected)


def test_a_killed_worker_changes_nothing(client, rng):
    x, lazy = made(40 * std.PART, 2 * std.PART)
    for attempt, wait in enumerate(rng.uniform(0.0, 0.3, 5)):
        two_workers(client)
        k = 100.5 + attempt
        future = client.compute(std.thretopk(lazy, k, curve="clip"))
        time.sleep(wait)
        pids = client.run(os.getpid, on_error="return").values()
        os.kill(next(pid for pid in pids if isinstance(pid, int)), signal.SIGKILL)
        same(future.result(timeout=60), stk.thretopk(x, k, curve="clip"))


def test_a_fault_in_a_chunk_is_one_clear_error(client):
    _, x = made(N, 4 * std.PART)

    def fails(block, block_info=None):
        if block_info[0]["chunk-location"] == (2,):
            raise OSError("the disk is gone")
        return block

    broken = da.map_blocks(fails, x, dtype=x.dtype, meta=x._meta)
    future = client.compute(std.thretopk(broken, 100.5))
    with pytest.raises(OSError, match="the disk is gone"):
        future.result(timeout=60)
    slow = client.compute(std.thretopk(x.map_blocks(lambda b: (time.sleep(0.5), b)[1]), 100.5))
    slow.cancel()
    with pytest.raises(distributed.client.FutureCancelledError):
        slow.result(timeout=60)
    with dask.config.set(scheduler=client):
        assert std.thretopk(x, 100.5).sum().compute() == pytest.approx(100.5)


def test_tasks_use_one_thread(rng, monkeypatch):
    from softtopk_nb._threads import pool

    counts = []
    over = pool.over
    monkeypatch.setattr(
        pool, "over", lambda *args: (counts.append(pool.thread_count()), over(*args))
    )
    x = da.from_array(rng.normal(size=(8, 1 << 16)), chunks=(4, -1))
    with dask.config.set(scheduler="threads"):
        std.thretopk(x, 5).compute()
    assert set(counts) == {1}
    assert threading.current_thread() is threading.main_thread()
    assert pool.thread_count() >= 1


def test_every_worker_compiles_once(client):
    seconds = std.warm(client, std.thretopk, np.float32, curve="clip")
    assert set(seconds) == set(client.scheduler_info(n_workers=-1)["workers"])
    assert all(each > 0.0 for each in seconds.values())


def test_xarray_takes_the_operators_of_numpy(rng):
    xr = pytest.importorskip("xarray")
    x = xr.DataArray(rng.normal(size=(6, 40)), dims=("cell", "gene"), name="expression")
    p = xr.apply_ufunc(
        stk.thretopk,
        x.chunk({"cell": 2}),
        3,
        input_core_dims=[["gene"], []],
        output_core_dims=[["gene"]],
        dask="parallelized",
        output_dtypes=[x.dtype],
    )
    assert p.chunks is not None
    same(p.compute().values, stk.thretopk(x.values, 3))
