"""Every case on a GPU, as a ratio to `torch.softmax` or to its backward pass; the host's share.

    pytest benchmarks/bench_gpu.py                        # measure everything
    pytest benchmarks/bench_gpu.py --only laplace         # cases with the word in their names

Needs a CUDA device, one of the extras `cuda12` and `cuda13`, and a PyTorch built for CUDA; CuPy's
sort and JAX are timed as well where they are installed. `gpu.py` calls it and writes a results
file. pytest-benchmark's own columns are the seconds that measuring took; the figures that count are
in `extra_info`, and are the device's own.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pytest
from clock import figures, quartiles

torch = pytest.importorskip("torch", reason="the unit is torch.softmax: needs the extra torch")

import gpu_clock  # noqa: E402
import gpu_contenders as field  # noqa: E402
import gpu_host  # noqa: E402

pytestmark = pytest.mark.gpu


def pytest_generate_tests(metafunc: Any) -> None:
    only = metafunc.config.getoption("--only")
    if "case" in metafunc.fixturenames:
        found = [case for shape in field.SHAPES for case in field.cases(*shape)]
        chosen = [case for case in found if only in case.name]
        metafunc.parametrize("case", chosen, ids=[case.name for case in chosen])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", [name for name in gpu_host.calls() if only in name])


_started = time.monotonic()


@pytest.fixture(autouse=True)
def within_the_time(request: pytest.FixtureRequest) -> None:
    """Leave out what comes after the time that is given."""
    seconds = request.config.getoption("--seconds")
    if time.monotonic() - _started > seconds:
        pytest.skip(f"the {seconds:.0f} seconds are over")


@pytest.fixture(scope="module")
def clock(request: pytest.FixtureRequest) -> gpu_clock.Clock:
    return gpu_clock.Clock(request.config.getoption("--rounds"))


class Inputs:
    """The arrays of one shape, which a run holds until the next shape's turn."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._held: list[Any] = []

    def __call__(self, rows: int, n: int, k: int) -> list[Any]:
        if self._shape != (rows, n, k):
            self._held, self._shape = [], (rows, n, k)
            torch.cuda.empty_cache()
            random = torch.Generator(device="cuda").manual_seed(0)
            count = gpu_clock.copies(4 * rows * n)
            self._held = [
                torch.randn(rows, n, device="cuda", generator=random) for _ in range(count)
            ]
            field.check(self._held, k)
        return self._held


_inputs = Inputs()


@functools.cache
def _bandwidth(clock: gpu_clock.Clock) -> np.ndarray:
    return clock.copy_bandwidth()


def bench_copy(benchmark, clock):
    benchmark.pedantic(_bandwidth, args=(clock,), rounds=1)
    benchmark.extra_info["copy_bandwidth"] = quartiles(_bandwidth(clock))


def bench_host(benchmark, clock, name):
    call, wait = gpu_host.calls()[name]()
    benchmark.group = "the host's share"
    benchmark.pedantic(call, rounds=1, warmup_rounds=5)  # compiles
    own = [quartiles(clock.host_time(call)), quartiles(clock.round_trip(call, wait))]
    benchmark.extra_info["overhead"] = dict(zip((name, f"{name}, waited for"), own, strict=True))


def bench_case(benchmark, clock, case):
    xs, unit = _inputs(case.rows, case.n, case.k), "value" if case.what == "value" else "pullback"
    benchmark.group = f"{case.what} {case.rows}x{case.n} k={case.k}"
    try:
        calls = {"unit": field.unit(unit, xs), "case": field.rotating(case, xs)}
        taken = benchmark.pedantic(clock.measure, args=(calls,), rounds=1)
    except torch.cuda.OutOfMemoryError:
        pytest.skip("the device has no room for its scratch memory")
    ours, of_unit = 1e-3 * taken["case"], 1e-3 * taken["unit"]
    copy = 2 * xs[0].nbytes / float(np.median(_bandwidth(clock)))
    found = figures(ours, of_unit)
    own = {"device": "cuda", **found, "of_copy": copy / found["seconds"]}
    benchmark.extra_info["result"] = {**case._asdict(), **own}
