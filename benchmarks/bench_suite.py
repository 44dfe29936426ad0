"""Every case of the suite, as a ratio to `torch.softmax` or to its backward pass.

    pytest benchmarks/bench_suite.py                          # measure a quick selection
    pytest benchmarks/bench_suite.py --selection full         # measure everything
    pytest benchmarks/bench_suite.py --benchmark-disable      # run everything once

`run.py` calls it and writes a results file. pytest-benchmark's own columns are seconds of a round,
in which short calls are repeated; the figures that count are in `extra_info`.
"""

from __future__ import annotations

import cases
import numpy as np
import pytest
from clock import Turns

from softtopk_nb._threads import pool

torch = pytest.importorskip("torch", reason="the unit is torch.softmax: needs the extra torch")

import contenders  # noqa: E402

BUDGET = {"quick": 0.1, "full": 0.5}  # seconds a case, if it can be measured in that


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        option = metafunc.config.getoption
        chosen = cases.select(option("--selection"), option("--only"))
        metafunc.parametrize("case", chosen, ids=[case.name for case in chosen])


@pytest.fixture(autouse=True)
def same_threads():
    """PyTorch gets as many threads as the package takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(pool.thread_count())
    yield
    torch.set_num_threads(before)


def bench_case(benchmark, case, request):
    x = cases.scores(case.rows, case.n, case.dtype, case.data)
    budget = BUDGET[request.config.getoption("--selection")]
    value = None if case.what != "jvp" else contenders.call(case._replace(what="value"), x)
    turns = Turns(contenders.call(case, x), contenders.unit(case.what, x), budget, value)
    benchmark.group = f"{case.what} {case.rows}x{case.n} k={case.k} {case.dtype} {case.data}"
    benchmark.pedantic(turns.take, setup=turns.time_others, rounds=turns.rounds)
    if benchmark.stats is not None:
        taken = np.array(benchmark.stats.stats.data)
        benchmark.extra_info["result"] = {
            **case._asdict(),
            "device": "cpu",
            **turns.figures(taken),
        }
