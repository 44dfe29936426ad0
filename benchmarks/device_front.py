"""What a call with a device array costs the host before anything is launched.

    NUMBA_ENABLE_CUDASIM=1 python benchmarks/device_front.py

Needs numba-cuda and no device: the simulator's arrays stand for those of a device, and launches are
replaced by nothing. What a launch itself costs, only a device can tell: `gpu.py` measures it there.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numba import config, cuda

import softtopk_nb as stk


def microseconds(call: Callable[[], object], rounds: int = 21, calls: int = 500) -> float:
    """Median over rounds of the mean time of a call."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return 1e6 * statistics.median(times)


def main() -> None:
    if not config.ENABLE_CUDASIM:
        sys.exit("device_front.py: set NUMBA_ENABLE_CUDASIM=1")
    from softtopk_nb._cuda import launch

    launches = 0

    def launch_nothing(self: object, *arguments: object) -> None:
        nonlocal launches
        launches += 1

    launch.Kernel.__call__ = launch_nothing  # type: ignore[method-assign]
    x = cuda.to_device(np.zeros((64, 64), np.float32))
    out, k = cuda.to_device(np.zeros((64, 64), np.float32)), cuda.to_device(np.full(64, 4))
    pullback = stk.thretopk.vjp(x, 4)[1]
    cases = {
        "thretopk, k a number": lambda: stk.thretopk(x, 4),
        "thretopk, k on the device": lambda: stk.thretopk(x, k),
        "thretopk, out given": lambda: stk.thretopk(x, 4, out=out),
        "thretopk, pullback": lambda: pullback(x),
        "gradtopk": lambda: stk.gradtopk(x, 4),
        "softmax": lambda: stk.softmax(x),
    }
    for name, call in cases.items():
        launches = 0
        call()
        per_call = launches
        print(f"{name:<28} {microseconds(call):6.1f} us, {per_call} launches")


if __name__ == "__main__":
    main()
