"""The comparison table of README.md: what a smooth top-k costs here and elsewhere.

All take turns on the same rows, in one run; each figure is the median of a call divided by the
median of `torch.softmax` on the same tensor. What solves one row at a time is timed on `ROWS` rows
and scaled. LapSum and LML are written here from their papers (`lapsum.py`, `lml.py`).

    python benchmarks/alternatives.py [--small]
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import contenders
import numpy as np
import torch

import softtopk_nb as stk
import softtopk_nb.torch as front

REST = 6e-3  # seconds: threads that spin after a call have gone to sleep
ROWS = 4  # of those that are solved one at a time
UNIT = "`torch.softmax`"

Call = Callable[[], Any]


class Shape(NamedTuple):
    """A batch of rows, how many entries of each are wanted, and how often it is measured."""

    rows: int
    n: int
    k: int
    rounds: int


FULL, SMALL = Shape(1024, 1024, 32, 21), Shape(4, 64, 8, 2)


def by_transport(x: np.ndarray, k: int, reg: float = 0.5) -> np.ndarray:
    """Each row's share of k that entropic optimal transport to {0, 1} brings to 1."""
    import ot

    n = x.shape[1]
    weights, sizes = np.full(n, 1 / n), np.array([1 - k / n, k / n])
    costs = [(row[:, None] - np.array([0.0, 1.0])) ** 2 for row in x.astype(np.float64)]
    return np.stack([n * ot.sinkhorn(weights, sizes, cost, reg)[:, 1] for cost in costs])


def calls(x: np.ndarray, k: int) -> dict[str, tuple[Call, float]]:
    """What is timed, and how many times its rows the batch has."""
    tensor, few = torch.from_numpy(x), x[:ROWS]
    elsewhere = {
        "`torch.topk`, hard": "torch.topk",
        "entmax `budget_bisect`": "entmax budget_bisect",
        "LapSum": "LapSum (sort)",
        "LML": "LML (bracketing)",
    }
    return {
        UNIT: (functools.partial(torch.softmax, tensor, -1), 1.0),
        "`thretopk`": (functools.partial(stk.thretopk, x, k), 1.0),
        '`thretopk(curve="clip")`': (functools.partial(stk.thretopk, x, k, curve="clip"), 1.0),
        "`gradtopk`": (functools.partial(stk.gradtopk, x, k), 1.0),
        "`softtopk_nb.torch.thretopk`": (functools.partial(front.thretopk, tensor, k), 1.0),
        **{
            name: (functools.partial(contenders.ON_TENSORS[own], tensor, k), 1.0)
            for name, own in elsewhere.items()
        },
        "POT `sinkhorn`": (functools.partial(by_transport, few, k), len(x) / len(few)),
    }


def seconds(call: Call) -> float:
    """What one call takes, after one that is not timed."""
    time.sleep(REST)
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(shape: Shape) -> dict[str, float]:
    """The ratios to softmax."""
    x = np.random.default_rng(0).normal(size=(shape.rows, shape.n)).astype(np.float32)
    timed = calls(x, shape.k)
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(shape.rounds):
        for name, (call, times) in timed.items():
            taken[name].append(times * seconds(call))
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return {name: each / medians[UNIT] for name, each in medians.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The comparison table of README.md.")
    parser.add_argument(
        "--small", action="store_true", help="a few short rows, to see that it runs"
    )
    shape = SMALL if parser.parse_args().small else FULL
    print(f"{shape.rows} x {shape.n} float32, k = {shape.k}, {torch.get_num_threads()} threads\n")
    print("| | times `torch.softmax` |\n|---|---:|")
    for name, ratio in measure(shape).items():
        print(f"| {name} | {ratio:.1f} |" if ratio < 100 else f"| {name} | {ratio:.0f} |")


if __name__ == "__main__":
    main()
