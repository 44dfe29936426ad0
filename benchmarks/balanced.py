"""Time balancedtopk against one thretopk of the same matrix and against alternating its budgets.

`python benchmarks/balanced.py`: medians of interleaved calls, and the columns' largest error. POT
has no solver for this problem, whose entries are at most 1: where it is installed its Sinkhorn
iteration is timed, which has both budgets, but not that bound.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import softtopk_nb as stk

try:
    import ot
except ImportError:
    ot = None

M, N, K = 16384, 64, 2
SWEEPS = 20  # of rows and columns


def alternated(x: Any, temperature: float) -> Any:
    """The mask after some sweeps, each of which solves all columns and all rows."""
    b, load = np.zeros(N, x.dtype), M * K / N
    for _ in range(SWEEPS):
        a = stk.thretopk.threshold(x - b, K, temperature=temperature)
        b = stk.thretopk.threshold(x - a[:, None], load, axis=0, temperature=temperature)
    return stk.thretopk(x - b, K, temperature=temperature)


def without_bound(x: Any, temperature: float) -> Any:
    """POT's plan with these sums, whose entries may be above 1."""
    total = M * K
    rows, columns = np.full(M, K / total, x.dtype), np.full(N, 1 / N, x.dtype)
    plan = ot.bregman.sinkhorn_log(rows, columns, -x, temperature, 200, 1e-6, warn=False)
    return total * plan


def main(rounds: int = 15) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(M, N)) + 1.5 * rng.normal(size=N)).astype(np.float32)
    g = rng.normal(size=x.shape).astype(np.float32)
    for tau in (1.0, 0.1):
        calls = {
            "thretopk": lambda tau=tau: stk.thretopk(x, K, temperature=tau),
            "balancedtopk": lambda tau=tau: stk.balancedtopk(x, K, temperature=tau).p,
            "with its vjp": lambda tau=tau: stk.balancedtopk.vjp(x, K, temperature=tau)[1](g).x,
            f"{SWEEPS} sweeps": lambda tau=tau: alternated(x, tau),
        }
        if ot is not None:
            calls["POT, no bound"] = lambda tau=tau: without_bound(x, tau)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
        one = statistics.median(times["thretopk"])
        for name, taken in times.items():
            off = ""
            if name not in ("thretopk", "with its vjp"):
                off = f", off by {abs(calls[name]().sum(0, np.float64) - M * K / N).max():.1e}"
            middle = statistics.median(taken)
            print(f"tau {tau}: {name} {1e3 * middle:.1f} ms, {middle / one:.1f} thretopk{off}")


if __name__ == "__main__":
    main()
