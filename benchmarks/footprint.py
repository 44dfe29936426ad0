"""Memory beyond input and output, and how much faster one call is with all threads than with one.

    python benchmarks/footprint.py OPERATOR WHAT ROWS N K

Each case has a process of its own, since the peak of a process never falls. The call is made once
before, so that compiling does not count; then what the process has free is filled up, so that
whatever the call needs raises the peak.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from clock import seconds

__all__ = ["CASES", "measure"]

# (operator, what, rows, n, k), float32
CASES = [
    (operator, what, *shape)
    for shape in ((64, 65536, 64), (1, 10**7, 1000))
    for operator in ("thretopk", "gradtopk")
    for what in ("value", "pullback")
]
TURNS = 15  # with one thread and with all


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def fill() -> list[np.ndarray]:
    """Arrays that bring the process to its peak."""
    start, ballast = peak(), []
    while peak() <= start:
        ballast.append(np.ones(1 << 18, np.uint8))
    return ballast


def speedup(call: Callable[[], Any]) -> float:
    """Time with one thread over time with all, in turns. What threads merely wait is no gain."""
    from softtopk_nb._threads import pool

    every = pool.thread_count
    taken: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for times, count in zip(taken, (lambda: 1, every), strict=True):
            pool.thread_count = count
            times.append(seconds(call))
    one, all_of_them = map(statistics.median, taken)
    return one / all_of_them


def child(operator: str, what: str, rows: int, n: int, k: int) -> dict[str, Any]:
    import cases

    import softtopk_nb as stk

    x = cases.scores(rows, n, "float32", "normal")
    function = getattr(stk, operator)
    outputs = 1 if what == "value" else 2  # p, or p and the gradient in x

    def call() -> Any:
        if what == "value":
            return function(x, k)
        p, pullback = function.vjp(x, k)
        return p, pullback(x)

    call()
    ballast, before = fill(), peak()
    call()
    extra = peak() - before - outputs * x.nbytes
    del ballast
    return {
        "operator": operator,
        "what": what,
        "rows": rows,
        "n": n,
        "k": k,
        "itemsize": x.itemsize,
        "extra_bytes": max(0, extra),
        "speedup": speedup(call),
    }


def measure(*case: Any) -> dict[str, Any]:
    """The case in a process of its own."""
    command = [sys.executable, __file__, *map(str, case)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    name, kind, *size = sys.argv[1:]
    print(json.dumps(child(name, kind, *map(int, size))))
