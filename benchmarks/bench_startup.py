"""What a user waits for before the first result: import, first call cold, first call warm.

The whole process is timed; `extra_info` holds the import, or the call, alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IMPORT = """
import time
start = time.perf_counter()
import {}
print(time.perf_counter() - start)
"""

FIRST_CALL = """
import numpy as np, softtopk_nb as stk, time
x = np.zeros((4, 64), np.float32)
start = time.perf_counter()
stk.{}(x, 3)
print(time.perf_counter() - start)
"""


def python(code: str, cache: str) -> float:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


@pytest.mark.parametrize("module", ["numba", "softtopk_nb"])
def bench_import(benchmark, tmp_path, module):
    benchmark.group = "import"
    seconds = []

    def load() -> None:
        seconds.append(python(IMPORT.format(module), str(tmp_path)))

    benchmark.pedantic(load, rounds=5, warmup_rounds=1)
    benchmark.extra_info.update(startup=f"import {module}", seconds=min(seconds))


@pytest.mark.parametrize("operator", ["thretopk", "gradtopk", "hardtopk", "itertopk"])
@pytest.mark.parametrize("cache", ["cold", "warm"])
def bench_first_call(benchmark, tmp_path, cache, operator):
    benchmark.group = "first call"
    code = FIRST_CALL.format(operator)
    if cache == "warm":
        python(code, str(tmp_path))
    seconds = []
    rounds = iter(range(10**6))

    def first_call() -> None:
        folder = tmp_path if cache == "warm" else tmp_path / str(next(rounds))
        seconds.append(python(code, str(folder)))

    benchmark.pedantic(first_call, rounds=3)
    startup = f"first call of {operator}, {cache} cache"
    benchmark.extra_info.update(startup=startup, seconds=min(seconds))
