"""GradTopK on a device: every group, the core and the rest, against the CPU and the vectors.

What holds for all operators is in test_device_contract.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import softtopk_nb as stk

pytestmark = pytest.mark.device

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])

# (lanes, held, streams), and a length that it takes.
GROUPS = [
    ((32, 4, False), 1),
    ((32, 4, False), 31),
    ((32, 4, False), 32),
    ((32, 8, False), 133),
    ((64, 4, False), 33),
    ((64, 4, False), 256),
    ((32, 4, True), 300),
    ((64, 4, True), 400),
]
groups = pytest.mark.parametrize(("group", "n"), GROUPS, ids=str)

PUBLIC = json.loads(
    (Path(__file__).parents[1] / "data" / "public.json").read_text(encoding="utf-8")
)
VECTORS = [case for case in PUBLIC if case["op"] == "gradtopk" and len(case["x"]) <= 33]
vectors = pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])


@pytest.fixture
def use(monkeypatch):
    """Force a group on all rows."""

    def force(group):
        from softtopk_nb._cuda.thread_groups import ThreadGroup
        from softtopk_nb.gradtopk import cuda as room

        monkeypatch.setattr(room, "choose_whole", lambda n, T, most=512: ThreadGroup(*group))

    return force


@pytest.fixture
def in_parts(monkeypatch, use):
    """Cut every row into parts of 256 entries, or into at most `most`."""

    def cut(most=1024):
        from softtopk_nb._cuda import long_rows as parts
        from softtopk_nb._cuda.thread_groups import ThreadGroup
        from softtopk_nb._threshold.cuda import long as search
        from softtopk_nb.gradtopk.cuda import long as cuda_long

        group = ThreadGroup(64, 4, True)
        use(group)
        monkeypatch.setattr(parts, "choose", lambda n, T: group)
        monkeypatch.setattr(cuda_long, "choose_whole", lambda n, T: group)
        for name, value in {"LONG": 1, "PIECES": 1, "MOST": most}.items():
            monkeypatch.setattr(parts, name, value)
        monkeypatch.setattr(search, "rounds_of", lambda n, method: 3)

    return cut


def on(a):
    return cuda.to_device(np.ascontiguousarray(a))


def all_of(x, k, tau, v=None, to=lambda a: a, back=lambda a: a):
    """Everything that the operator computes, by name; without a direction, p and phi."""
    there, more = to(x), {"temperature": to(tau)}
    k = to(k)
    found = {"p": stk.gradtopk(there, k, **more), "phi": stk.gradtopk.potential(there, k, **more)}
    if v is not None:
        u = to(v)
        _, found["dp"] = stk.gradtopk.jvp(there, k, u, dtemperature=-0.2, **more)
        found["q"], pullback = stk.gradtopk.vjp(there, k, **more)
        found["gx"], gk, found["gtau"] = pullback(u)
        assert gk is None
        found["hx"], _, found["htau"] = stk.gradtopk.hvp(
            there, k, u, to(np.roll(v, 1, axis=1)), dtemperature=-0.2, **more
        )
    return {name: np.asarray(back(value)) for name, value in found.items()}


def check(x, k, tau, v=None):
    """A device's results against those of float64 on the CPU, to the contract's accuracy."""
    k, tau = np.broadcast_to(k, len(x)), np.broadcast_to(np.float64(tau), len(x))
    got = all_of(x, k, tau, v, on, lambda d: d.copy_to_host())
    wide = None if v is None else v.astype(np.float64)
    expected = all_of(x.astype(np.float64), k, tau, wide)
    double = x.dtype == np.float64
    finite = np.where(np.isfinite(x), x, 0)
    rounding = 4 * np.finfo(x.dtype).eps * float((finite.max() - finite.min()) / tau.min())
    bounds = {
        "p": 2 * ((1e-13 if double else 1e-6) + rounding),
        "dp": 4 * ((1e-12 if double else 2e-6) + 4 * rounding),
    }
    for name, value in got.items():
        other = expected[name]
        assert value.dtype == x.dtype
        assert value.shape == other.shape
        scale = 1.0 if name in ("p", "q") else np.abs(other[np.isfinite(other)]).max(initial=1.0)
        if name.startswith("h"):  # cumulants of sums of v, over tau^2
            scale = max(scale, np.abs(v).max() ** 2 / tau.min() ** 2)
        atol = bounds["p" if name in ("p", "q") else "dp"] * scale
        np.testing.assert_allclose(value, other, rtol=0, atol=atol, err_msg=name)
    np.testing.assert_array_equal(got["p"], got.get("q", got["p"]))
    mass, solved = got["p"].astype(np.float64).sum(axis=1), np.isfinite(expected["p"][:, 0])
    least = 1e-12 if double else 1e-6
    assert np.all(np.abs(mass - k)[solved] <= least * np.maximum(1, k)[solved])
    return got


@both_dtypes
@groups
def test_groups(group, n, dtype, use, rng):
    use(group)
    x, v = rng.normal(size=(2, 4, n)).astype(dtype)
    k = np.array([0, 1, (n + 1) // 2, n])
    check(x, k, [0.05, 1.0, 0.3, 2.0], v)


@both_dtypes
@pytest.mark.parametrize("group", [(32, 8, False), (64, 4, True)], ids=str)
def test_no_core_and_nothing_but_a_core(group, dtype, use, rng):
    use(group)
    x = np.stack([rng.normal(size=150), 1e-3 * rng.normal(size=150), np.zeros(150)]).astype(dtype)
    v = rng.normal(size=x.shape).astype(dtype)
    check(x, [75, 3, 120], [0.01, 1.0, 1.0], v)


def without_a_core(dtype, rng):
    """All its nodes are close to 1: the variance is above 675, or 1312 in float64."""
    x = rng.uniform(-0.5, 0.5, size=(1, 2800 if dtype is np.float32 else 5500)).astype(dtype)
    p = stk.gradtopk(on(x), x.size // 2).copy_to_host()
    expected = stk.gradtopk(x.astype(np.float64), x.size // 2)
    np.testing.assert_allclose(p, expected, rtol=0, atol=2e-6 if dtype is np.float32 else 2e-13)


@both_dtypes
def test_a_row_without_a_core(dtype, rng):
    without_a_core(dtype, rng)


@both_dtypes
@pytest.mark.parametrize("group", [(32, 4, False), (32, 4, True)], ids=str)
def test_infinities_nan_and_what_is_left(group, dtype, use, rng):
    use(group)
    x, v = rng.normal(size=(2, 9, 40)).astype(dtype)
    inf = np.inf
    x[0, 3] = -inf
    x[1, :2], v[1, :2] = (inf, -inf), np.nan  # what is not finite does not move
    x[2, :4] = inf  # more than k: they share
    x[3, :3] = inf  # all of k
    x[4, :] = -inf
    x[5, 5] = np.nan
    x[6, :37] = -inf  # as many as k are left
    x[7, :38] = -inf  # fewer
    v[8, 7] = np.nan
    with np.errstate(invalid="ignore"):
        got = check(x, 3, 0.5, v)
    assert np.isnan(got["p"][[4, 5, 7]]).all()
    assert np.isnan(got["dp"][8]).all()
    assert got["p"][1, 0] == 1
    assert got["p"][1, 1] == got["dp"][1, 1] == 0


def test_k_and_temperature_from_the_device_make_no_error_but_nan(rng):
    x, v = rng.normal(size=(2, 6, 20))
    k = on(np.array([-1, 21, 3, 3, 3, 3]))
    tau = on(np.array([1.0, 1.0, 0.0, np.inf, np.nan, 1.0]))
    p, pullback = stk.gradtopk.vjp(on(x), k, temperature=tau)
    phi = stk.gradtopk.potential(on(x), k, temperature=tau)
    for d in (p, pullback(on(v)).x, phi):
        assert np.isnan(d.copy_to_host()[:5]).all()
    np.testing.assert_allclose(p.copy_to_host()[5], stk.gradtopk(x[5], 3), rtol=0, atol=1e-13)


@both_dtypes
@pytest.mark.parametrize(("n", "most"), [(256, 1024), (257, 1024), (600, 2)])
def test_rows_in_parts(n, most, dtype, in_parts, rng):
    """One part and two, a last one of a single entry, parts of several pieces."""
    in_parts(most)
    x, v = rng.normal(size=(2, 1, n)).astype(dtype)
    check(x, n // 5, 0.2, v)


@both_dtypes
def test_what_is_not_solved_and_what_is_left_in_parts(dtype, in_parts, rng):
    in_parts()
    x, v = rng.normal(size=(2, 5, 300)).astype(dtype)
    x[1, [3, 290]], x[1, [5, 291]] = np.inf, -np.inf
    x[2, 299] = np.nan
    x[3, :295] = -np.inf  # all that is left of it lies in the second part
    x[4, :4] = np.inf  # more than k
    v[1, [3, 290]] = np.nan
    with np.errstate(invalid="ignore"):
        got = check(x, 3, 0.3, v)
        check(x[:2], [0, 300], 0.3, v[:2])
    assert np.isnan(got["p"][2]).all()


@both_dtypes
def test_no_core_and_nothing_but_a_core_in_parts(dtype, in_parts, rng):
    in_parts()
    x = np.stack([rng.normal(size=300), 1e-3 * rng.normal(size=300)]).astype(dtype)
    check(x, [75, 3], [0.001, 1.0], rng.normal(size=x.shape).astype(dtype))


def test_a_row_without_a_core_in_parts(in_parts, rng):
    in_parts(4)
    without_a_core(np.float32, rng)


@both_dtypes
def test_ties_and_offsets(dtype, rng):
    x = rng.integers(0, 3, size=(2, 64)).astype(dtype)
    x[1] += dtype(2.0**20)
    p = check(x, 20, 0.5)["p"]
    for row, values in zip(p, x, strict=True):
        assert len(set(row)) == len(set(values)) == 3


@both_dtypes
def test_small_p_keep_their_digits(dtype):
    """Down to the smallest normal number, where r itself underflows (GradTopK's notes)."""
    tiny = np.finfo(dtype).tiny
    x = np.concatenate([np.zeros(30), np.linspace(0.9, 1.0, 30) * np.log(float(tiny))])
    x = x.astype(dtype)[None]
    p = stk.gradtopk(on(x), 2).copy_to_host()[0, 30:].astype(np.float64)
    exact = stk.gradtopk(x.astype(np.float64), 2)[0, 30:]
    normal = exact > 1.1 * tiny
    assert normal.sum() > 10
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(p[normal], exact[normal], rtol=800 * eps)


@both_dtypes
@pytest.mark.parametrize("cut", [False, True], ids=["one block", "parts"])
def test_rows_do_not_depend_on_the_batch(cut, dtype, in_parts, rng):
    if cut:
        in_parts()
    x = rng.normal(size=(2, 300) if cut else (5, 100)).astype(dtype)
    together = stk.gradtopk(on(x), 30, temperature=0.2).copy_to_host()
    for row, p in zip(x, together, strict=True):
        alone = stk.gradtopk(on(row), 30, temperature=0.2).copy_to_host()
        np.testing.assert_array_equal(alone, p)


@vectors
def test_vectors(case):
    x, v, tau = np.array(case["x"]), np.array(case["tangent"]), case["temperature"]
    got = check(x[None], case["k"], tau, v[None])
    spread = 4 * np.finfo(np.float64).eps * (x.max() - x.min()) / tau
    np.testing.assert_allclose(got["p"][0], case["p"], rtol=0, atol=1e-13 + spread)
    scale = max(1.0, abs(case["potential"]), case["k"] * np.abs(x).max())
    assert abs(got["phi"][0] - case["potential"]) <= 1e-13 * scale


@pytest.mark.parametrize("method", ["dp", "recursion"])
def test_methods_of_the_cpu_only(method):
    x = on(np.zeros((2, 5)))
    for call in (stk.gradtopk, stk.gradtopk.vjp):
        with pytest.raises(ValueError, match=f"'{method}' runs on the CPU only"):
            call(x, 2, method=method)
    assert stk.gradtopk.potential(x, 2, method=method).shape == (2,)


def test_groups_are_whole_warps():
    from softtopk_nb.gradtopk.cuda.nodes import choose_whole

    for T, size in ((np.float32, 4), (np.float64, 8)):
        for n in (1, 32, 33, 100, 1024, 4096, 8192, 16384, 10**6):
            for most in (256, 512):
                group = choose_whole(n, T, most)
                assert 32 <= group.lanes <= most
                assert group.held * size <= 64
                assert group.streams or group.lanes * group.held >= n
