"""The benchmark for a GPU, as far as it can be tested without one: on the CPU."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import softtopk_nb as stk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BENCHMARKS = pathlib.Path(__file__).parents[1]


@pytest.fixture
def field(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_contenders

    return gpu_contenders


@pytest.mark.parametrize(("T", "tolerance"), [(np.float64, 1e-11), (np.float32, 2e-5)])
@pytest.mark.parametrize("k", [0.25, 1, 7.5, 20, 39, 39.75])
def test_lapsum_is_thretopk_with_laplace(field, rng, T, tolerance, k):
    """id-lapsum."""
    import lapsum

    for scale in (0.01, 1.0, 40.0):
        x = (scale * rng.normal(size=(20, 40)) + 5).astype(T)
        x[0] = 1.0
        leaf = torch.from_numpy(x).requires_grad_()
        p = lapsum.soft_topk(leaf, k, 0.5)
        expected, pullback = stk.thretopk.vjp(x, k, temperature=0.5)
        np.testing.assert_allclose(p.detach().numpy(), expected, atol=tolerance * (1 + scale))
        g = rng.normal(size=x.shape).astype(T)
        (gx,) = torch.autograd.grad(p, leaf, torch.from_numpy(g))
        # A row whose weights underflow in one type has no gradient there.
        np.testing.assert_allclose(
            gx.numpy(), pullback(g).x, atol=100 * tolerance * (1 + scale), rtol=1e-3
        )


def test_every_contender_can_be_called(field, rng):
    xs = [torch.from_numpy(rng.normal(size=(3, 50)).astype(np.float32)) for _ in range(2)]
    found = [case for case in field.cases(3, 50, 4) if case.operator != "cupy.sort"]
    for case in found:
        call, unit = field.rotating(case, xs), field.unit(case.what, xs)
        for i in range(3):
            call(i)
            unit(i)
    names = [case.name for case in found]
    assert len(set(names)) == len(names)
    operators = {(case.operator, case.what) for case in found}
    assert {
        ("LapSum (sort)", "value"),
        ("gradtopk", "pullback"),
        ("wsoftmaxtopk", "jvp"),
    } <= operators


def test_figures_of_a_device_are_a_record(field):
    import gpu
    import record

    made = record.head("cuda", "made up")
    for case in field.cases(65536, 4096, 64):
        taken = {"case": np.array([1.0, 2.0, 2.0]), "unit": np.array([1.0, 1.0, 1.0])}
        made["results"].append(gpu.result(case, taken, copy=0.001))
    record.check(made)
    made["copy_bandwidth"] = [1e9, 1e9, 1e9]
    made["overhead"] = {"empty kernel": [1.0, 1.0, 1.0]}
    text = gpu.table(made)
    for word in ("laplace", "2.00", "NOT MET", "empty kernel", "1 GB/s", "50%"):
        assert word in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to measure")
def test_without_a_device_nothing_is_written():
    before = sorted(BENCHMARKS.rglob("*.json"))
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "nothing measured" in done.stderr
    assert not done.stdout
    assert sorted(BENCHMARKS.rglob("*.json")) == before
