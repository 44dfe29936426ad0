"""How much a smooth top-k costs, as a ratio to torch.softmax on the same array.

    python benchmarks/ratios.py [--threads N] [--rounds N]

Needs PyTorch (the extra `torch`). Every figure is a ratio of medians taken in one run, the
contenders called in turn so that whatever the machine does meets all of them alike; in brackets
the spread of the ratio from round to round (its quartiles).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import softtopk_nb as stk
from softtopk_nb import _schedule

# (rows, n, k), and what this release promises there: value at most so many softmaxes.
SHAPES = {
    (65536, 64, 8): None,
    (1024, 1024, 32): None,
    (1024, 4096, 64): 3.0,
    (64, 65536, 64): None,
    (1, 1_000_000, 1000): None,
}
PROMISED = ("laplace", "exp", "clip")
CURVES = (*PROMISED, "sigmoid", "normal")


def contenders(x: np.ndarray, k: int) -> dict[str, Callable[[], object]]:
    """What is timed, each ready to be called."""
    tensor, out = torch.from_numpy(x), np.empty_like(x)
    calls: dict[str, Callable[[], object]] = {"softmax": lambda: torch.softmax(tensor, -1)}
    leaf = tensor.clone().requires_grad_()
    p = torch.softmax(leaf, -1)
    calls["softmax backward"] = lambda: torch.autograd.grad(p, leaf, tensor, retain_graph=True)
    calls["torch.topk"] = lambda: torch.topk(tensor, k, -1)
    calls["np.partition"] = lambda: np.partition(x, x.shape[1] - k, -1)
    calls["hardtopk"] = lambda: stk.hardtopk(x, k, out=out)
    for curve in CURVES:
        calls[curve] = lambda curve=curve: stk.thretopk(x, k, curve=curve, out=out)
    for curve in CURVES:
        pullback = stk.thretopk.vjp(x, k, curve=curve)[1]
        calls[f"{curve} pullback"] = lambda pullback=pullback: pullback(x)
    return calls


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(s) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=_schedule.thread_count())
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _schedule.thread_count = lambda: options.threads
    stk.show_versions()
    print(f"torch        {torch.__version__}\nmeasured on  {options.threads} threads, float32")
    rng = np.random.default_rng(0)
    for (rows, n, k), most in SHAPES.items():
        x = rng.normal(size=(rows, n)).astype(np.float32)
        seconds = measure(contenders(x, k), options.rounds)
        unit = {False: seconds["softmax"], True: seconds["softmax backward"]}
        print(f"\n{rows} x {n}, k = {k}: torch.softmax takes {1e3 * np.median(unit[False]):.2f} ms")
        for name, s in seconds.items():
            if name.startswith("softmax"):
                continue
            per = unit[name.endswith("pullback")]
            low, high = np.quantile(s / per, [0.25, 0.75])
            ratio = np.median(s) / np.median(per)
            verdict = ""
            if most is not None and name in PROMISED:
                verdict = f"  target {most:g}: " + ("met" if ratio <= most else "NOT MET")
            print(f"  {name:<18} {ratio:7.2f}  [{low:.2f}, {high:.2f}]{verdict}")


if __name__ == "__main__":
    main()
