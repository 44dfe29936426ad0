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

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def field(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_contenders

    return gpu_contenders


@pytest.mark.parametrize(("T", "tolerance"), [(np.float64, 1e-11), (np.float32, 2e-5)])
@pytest.mark.parametrize("k", [0.25, 1, 7.5, 20, 39, 39.75])
def test_lapsum_is_thretopk_with_laplace(field, rng, T, tolerance, k):
    """id-lapsum."""
    for scale in (0.01, 1.0, 40.0):
        x = (scale * rng.normal(size=(20, 40)) + 5).astype(T)
        x[0] = 1.0
        leaf = torch.from_numpy(x).requires_grad_()
        p = field.lapsum.soft_topk(leaf, k, 0.5)
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
    units = field.units(xs)
    names = []
    for make in field.contenders(xs, 4):
        contender = make()
        names.append(contender.name)
        for i in range(3):
            contender.call(i)
            units[contender.unit](i)
    assert len(set(names)) == len(names)
    assert {"LapSum (PyTorch)", "laplace", "gradtopk pullback", "wsoftmaxtopk jvp"} <= set(names)


def test_targets_are_told_met_or_not(field):
    import gpu

    shape = {"rows": 1, "n": 4096, "k": 1, "bytes": 2**30, "softmax": [1.0, 1.0, 1.0]}
    line = {"name": "laplace", "unit": "softmax", "ratio": [1.2, 1.1, 1.3], "of_copy": 0.5}
    assert gpu.verdicts(line, shape) == ["at most 1.3: met", "70% of copy: NOT MET"]
    assert gpu.verdicts({**line, "name": "normal"}, shape) == []
    assert gpu.verdicts(line, {**shape, "n": 10**6}) == []
    record = {
        "versions": ["softtopk_nb 0"],
        "torch": "0",
        "date": "never",
        "copy_bandwidth": [1e9, 1e9, 1e9],
        "overhead": {"empty kernel": [1.0, 1.0, 1.0]},
        "shapes": [{**shape, "lines": [line]}],
    }
    text = gpu.table(record)
    for word in ("laplace", "1.20", "NOT MET", "empty kernel", "1 GB/s", "50%"):
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
