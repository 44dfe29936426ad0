"""The device functions in a user's own kernels, beside the row functions on the CPU."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from numba import config, cuda, float64

import softtopk_nb as stk
from softtopk_nb import nopython as stkn

pytestmark = pytest.mark.device

SHARED = stkn.SHARED
groups = pytest.mark.parametrize(
    ("lanes", "dtype"), [(8, np.float64), (64, np.float64), (32, np.float32)], ids=str
)


def run(call, x, k, tau, lanes, threads=None):
    """(out, what `call` returned) of rows, one group each; call(x, k, tau, out, shared, work)."""
    threads = threads or max(lanes, 32)
    per_block = threads // lanes

    size = SHARED + 64 + 2 * lanes  # what gradtopk needs, the others less

    @cuda.jit
    def kernel(x, k, tau, out, returned, work):
        shared = cuda.shared.array((per_block, size), float64)
        slot, rank = cuda.threadIdx.x // lanes, cuda.threadIdx.x % lanes
        i = cuda.blockIdx.x * per_block + slot
        if i < x.shape[0]:
            lam = call(x[i], k[i], tau[i], out[i], shared[slot], work[i])
            if rank == 0:
                returned[i] = lam

    rows, n = x.shape
    given = [cuda.to_device(np.broadcast_to(a, rows).astype(float)) for a in (k, tau)]
    out = cuda.to_device(np.full_like(x, 7))
    returned, work = cuda.to_device(np.full(rows, 7.0)), cuda.to_device(np.full((rows, 3 * n), 7.0))
    blocks = -(-rows // per_block)
    kernel[blocks, threads](cuda.to_device(x), *given, out, returned, work)
    return out.copy_to_host(), returned.copy_to_host()


def caller(name, dtype, lanes, **options):
    """The device function with the arguments of all of them."""
    f = stkn.device(name, dtype, lanes=lanes, **options)
    if name == "thretopk":

        def call(x, k, tau, out, shared, work):
            return f(x, k, tau, out, shared)

    elif name == "hardtopk":

        def call(x, k, tau, out, shared, work):
            f(x, k, out, shared)
            return 0.0

    elif name == "gradtopk":

        def call(x, k, tau, out, shared, work):
            f(x, k, tau, out, shared)
            return 0.0

    else:

        def call(x, k, tau, out, shared, work):
            f(x, k, tau, out, shared, work)
            return 0.0

    return call if config.ENABLE_CUDASIM else cuda.jit(device=True)(call)


def rows_of(n, dtype, rng):
    x = rng.normal(size=(5, n)).astype(dtype)
    if n > 5:
        x[1, 2], x[1, 3] = -np.inf, np.inf
        x[2, 4] = np.nan
        x[3] = np.round(x[3])
    return x


@groups
@pytest.mark.parametrize("name", ["thretopk", "hardtopk", "itertopk", "wsoftmaxtopk"])
def test_in_a_kernel(name, dtype, lanes, rng):
    for n in (1, 45):
        x, k = rows_of(n, dtype, rng), min(3, n)
        out, _ = run(caller(name, dtype, lanes), x, k, 0.7, lanes)
        expected = getattr(stk, name)(x, k, temperature=np.full(5, 0.7))
        atol = 0 if name == "hardtopk" else 1e-13 if dtype is np.float64 else 1e-6
        np.testing.assert_allclose(out, expected, rtol=0, atol=40 * atol)


@pytest.mark.parametrize(
    ("lanes", "threads", "dtype"), [(32, 64, np.float64), (64, 64, np.float32)], ids=str
)
def test_gradtopk(lanes, threads, dtype, rng):
    for n in (1, 45):
        x, k = rows_of(n, dtype, rng), min(3, n)
        out, _ = run(caller("gradtopk", dtype, lanes), x, k, 0.7, lanes, threads)
        expected = stk.gradtopk(x, k, temperature=np.full(5, 0.7))
        atol = 1e-13 if dtype is np.float64 else 1e-6
        np.testing.assert_allclose(out, expected, rtol=0, atol=40 * atol)


@pytest.mark.parametrize("curve", ["exp", "sigmoid", "clip", "normal", "entmax", "own"])
def test_curves_and_thresholds(curve, rng):
    x = rows_of(40, np.float64, rng)
    own = stk.Curve(lambda t: 0.5 + math.atan(t) / math.pi, lambda t: 1 / (math.pi * (1 + t * t)))
    value = {"entmax": stkn.entmax(1.5), "own": own.compiled}
    value = value[curve] if curve in value else getattr(stkn, curve)
    options = {"entmax": {"alpha": 1.5, "curve": "entmax"}, "own": {"curve": own}}
    options = {"temperature": np.full(5, 0.7), **options.get(curve, {"curve": curve})}
    out, lam = run(caller("thretopk", np.float64, 32, curve=value), x, 2.5, 0.7, 32, threads=64)
    np.testing.assert_allclose(out, stk.thretopk(x, 2.5, **options), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lam, stk.thretopk.threshold(x, 2.5, **options), rtol=1e-12)


@pytest.mark.parametrize("name", ["thretopk", "gradtopk", "hardtopk", "itertopk", "wsoftmaxtopk"])
def test_what_cannot_be_is_nan(name):
    x = np.tile(np.arange(4.0), (6, 1))
    k = np.array([2, -1, 5, np.nan, 2, 2])
    tau = np.array([1, 1, 1, 1, 0, np.nan])
    lanes = 32 if name == "gradtopk" else 8
    out, _ = run(caller(name, np.float64, lanes), x, k, tau, lanes)
    bad = [False, True, True, True, name != "hardtopk", name != "hardtopk"]
    assert np.isnan(out).all(axis=1).tolist() == bad
    assert np.isnan(out).any(axis=1).tolist() == bad


def test_ends_of_k(rng):
    x = rng.normal(size=(3, 20))
    out, lam = run(caller("thretopk", np.float64, 32), x, [0, 20, 0.5], 0.7, 32)
    np.testing.assert_array_equal(out[:2], [np.zeros(20), np.ones(20)])
    assert lam[:2].tolist() == [np.inf, -np.inf]
    assert abs(out[2].sum() - 0.5) < 1e-12


def test_scratch_is_large_enough():
    from softtopk_nb._cuda.thread_groups import SHARED_SUMS
    from softtopk_nb._threshold.cuda.rows import RECORD
    from softtopk_nb.gradtopk.cuda.contour import shared_by

    assert RECORD + SHARED_SUMS <= SHARED
    for lanes in (32, 64, 1024):
        assert shared_by(lanes) <= SHARED + 64 + 2 * lanes


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("topk", np.float32), ValueError, "name is 'topk'"),
        (("thretopk", np.float16), TypeError, "expected float32 or float64"),
        (("thretopk", np.float32, 48), ValueError, "lanes is 48"),
        (("gradtopk", np.float32, 16), ValueError, "gradtopk takes whole warps"),
    ],
)
def test_mistakes(arguments, error, words):
    with pytest.raises(error, match=words):
        stkn.device(*arguments[:2], lanes=arguments[2] if len(arguments) > 2 else 32)


def test_the_example_runs(capsys):
    path = Path(__file__).parents[2] / "examples" / "inside_cuda.py"
    runpy.run_path(str(path), run_name="__main__")
    assert "largest difference" in capsys.readouterr().out
