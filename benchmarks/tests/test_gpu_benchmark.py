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


# What Python runs first in each process of the run below: no array is large, none is right.
PRETENDED = """
import fake_driver, torch
fake_driver.pretend_gpu(torch)
import gpu_clock, gpu_contenders
gpu_clock.GIB, gpu_contenders.SHAPES = 2**16, ((8, 64, 8), (4, 64, 40))
gpu_contenders.check = lambda xs, k: None
try:
    import jax
    cpus = jax.devices("cpu")
    jax.devices = lambda name=None: cpus
except ImportError:
    pass
"""


@pytest.mark.ptx
def test_a_run_on_a_device_writes_a_record(tmp_path, monkeypatch):
    """With a driver that launches nothing: every case runs, and no figure means anything."""
    pytest.importorskip("numba_cuda", reason="needs the extra 'ptx'")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "tests"))
    import fake_driver
    import record

    fake_driver.build(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(PRETENDED, encoding="utf-8")
    folders = tmp_path, BENCHMARKS, BENCHMARKS.parent / "tests", BENCHMARKS.parent
    target = tmp_path / "made.json"
    # In a process that shares tests with others, pytest-benchmark measures nothing.
    environment = fake_driver.environment(tmp_path)
    environment = {name: environment[name] for name in environment if "XDIST" not in name}
    command = [sys.executable, "-W", "ignore", BENCHMARKS / "gpu.py", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--output", target],
        env={**environment, "PYTHONPATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = record.read(target)
    measured = {(line["operator"], line["what"], line["n"]) for line in made["results"]}
    assert {("gradtopk", "pullback", 64), ("thretopk", "jvp", 64)} <= measured
    assert {"empty kernel", "thretopk, CUDA graph", "gradtopk, both passes"} <= {*made["overhead"]}
    for word in ("laplace", "no device", "GB/s", "of the host"):
        assert word in done.stdout


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
