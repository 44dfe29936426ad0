"""How the time of one row grows with n and with k: each pair of sizes takes turns.

Softmax is no unit here: its own time on a tenth of the entries depends on which cache holds them,
and so does the ratio to it.
"""

from __future__ import annotations

import cases
import numpy as np
import pytest
from clock import Turns

# Nothing of PyTorch is timed here, but `contenders`, which makes every call that is, imports it.
pytest.importorskip("torch", reason="contenders.py imports torch: needs the extra torch")

import contenders

BUDGET = {"quick": 0.1, "full": 2.0}  # seconds a pair, if it can be measured in that


def pytest_generate_tests(metafunc):
    pairs = cases.growth(metafunc.config.getoption("--selection"))
    names = [f"{case.name}, over {other.n} k={other.k}" for case, other in pairs]
    metafunc.parametrize(("case", "other"), pairs, ids=names)


def bench_growth(benchmark, case, other, request):
    rows = [cases.scores(c.rows, c.n, c.dtype, c.data) for c in (case, other)]
    calls = [contenders.call(*pair) for pair in zip((case, other), rows, strict=True)]
    turns = Turns(*calls, BUDGET[request.config.getoption("--selection")])
    benchmark.group = f"growth {case.operator} {case.curve} {case.dtype}"
    benchmark.pedantic(turns.take, setup=turns.time_others, rounds=turns.rounds)
    if benchmark.stats is not None:
        taken = np.array(benchmark.stats.stats.data)
        benchmark.extra_info["growth"] = {
            **case._asdict(),
            "over_n": other.n,
            "over_k": other.k,
            **turns.figures(taken),
        }
