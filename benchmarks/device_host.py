"""The host's share of calls on a device: what they take where kernels and the driver take nothing.

    python benchmarks/device_host.py [CASE ...]

Needs a C compiler, numba-cuda with its compilers, and PyTorch; no device. It prints a line for each
case: NAME MICROSECONDS RATIO, the ratio to an empty `torch.autograd.Function` on the same tensor
(its forward pass, or both passes, as the case has). Medians of processor time, in turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fake_driver

ROUNDS, CALLS = 40, 20


def cases() -> dict[str, tuple[Callable[[], Any], bool]]:
    """(a call, whether it has a backward pass) by name."""
    import torch

    import softtopk_nb as stk
    import softtopk_nb.torch as stt

    fake_driver.pretend_cuda(torch)
    found: dict[str, tuple[Callable[[], Any], bool]] = {}

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    def both(function: Callable[[Any], Any], x: Any, g: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(x), x, g)

    for rows in (1, 64):
        x, g = torch.randn(rows, 64), torch.randn(rows, 64)
        leaf, label = torch.randn(rows, 64, requires_grad=True), f"{rows} x 64"
        k, tau = torch.full((rows,), 8.0, dtype=torch.float64), torch.ones(rows)
        found[f"empty value {label}"] = (lambda x=x: Empty.apply(x)), False
        found[f"empty forward backward {label}"] = both(Empty.apply, leaf, g), True
        for name, arguments in {
            "thretopk": (8,),
            "gradtopk": (8,),
            "hardtopk": (8,),
            "softmax": (),
        }.items():
            op = getattr(stk, name)
            found[f"{name} value {label}"] = (
                (lambda op=op, x=x, given=arguments: op(x, *given)),
                False,
            )
        for name in ("thretopk", "gradtopk"):
            front = getattr(stt, name)
            found[f"{name} forward backward {label}"] = (
                both(lambda x, front=front: front(x, 8), leaf, g),
                True,
            )
        found[f"thretopk value, per row {label}"] = (
            (lambda x=x, k=k, tau=tau: stk.thretopk(x, k, temperature=tau)),
            False,
        )
    return found


def measure(chosen: list[str]) -> None:
    """Print the lines."""
    every = cases()
    wanted = [name for name in every if name.startswith("empty") or not chosen or name in chosen]
    times: dict[str, list[float]] = {name: [] for name in wanted}
    for name in wanted:
        every[name][0]()  # compiles
    for _ in range(ROUNDS):
        for name in wanted:
            call = every[name][0]
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            times[name].append((time.thread_time() - start) / CALLS)
    middle = {name: 1e6 * statistics.median(each) for name, each in times.items()}
    for name in wanted:
        verb = "forward backward" if every[name][1] else "value"
        unit = middle[f"empty {verb} {' '.join(name.split()[-3:])}"]
        print(f"{name} {middle[name]:.1f} {middle[name] / unit:.2f}", flush=True)


def main() -> int:
    if os.environ.get("SOFTTOPK_NB_FAKE_DRIVER"):
        measure(sys.argv[1:])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fake_driver.build(folder)
        known = {**fake_driver.environment(folder), "SOFTTOPK_NB_FAKE_DRIVER": "1"}
        command = [sys.executable, "-W", "ignore", *sys.argv]
        return os.spawnve(os.P_WAIT, sys.executable, command, known)


if __name__ == "__main__":
    sys.exit(main())
