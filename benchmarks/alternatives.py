"""The comparison table of README.md: what a smooth top-k can do and costs, here and elsewhere.

Each row takes turns with `torch.softmax` on the same scores (`clock.py`), all rows in every round;
a figure is the ratio of the medians. What solves one row at a time is timed on `FEW` rows and
scaled. LapSum and LML are written here from their papers (`lapsum.py`, `lml.py`). What is not
installed is not measured: take the extras `torch`, `jax` and `compare`.

    python benchmarks/alternatives.py [--small]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import contenders
import numpy as np
import torch
from cases import Case, scores
from clock import Turns, seconds
from run import KEEP_MEMORY

import softtopk_nb as stk
from softtopk_nb._threads import pool

__all__ = ["FULL", "ROWS", "SMALL", "Shape", "measure", "table"]

FEW = 4  # rows, for those that are solved one at a time
REG = 0.5  # of the transport problems: `thretopk` at temperature REG / 2
SHOWN = ("python", "numpy", "numba", "torch", "entmax", "POT", "ott-jax")

Call = Callable[[], Any]


class Shape(NamedTuple):
    """A batch of rows, how many entries of each are wanted, and how often it is measured."""

    rows: int
    n: int
    k: int
    rounds: int


FULL, SMALL = Shape(1024, 1024, 32, 15), Shape(8, 64, 8, 1)


class Row(NamedTuple):
    """A line of the table, and what makes the call that is timed, if anything does."""

    name: str
    weights: str
    k: str
    gradients: str
    second: str
    frameworks: str
    make: Callable[[np.ndarray, int], Call] | None = None
    needs: str = "torch"
    few: bool = False
    mark: str = ""


def _ours(operator: str) -> Callable[[np.ndarray, int], Call]:
    return lambda x, k: functools.partial(getattr(stk, operator), x, k)


def _on_tensors(name: str) -> Callable[[np.ndarray, int], Call]:
    def make(x: np.ndarray, k: int) -> Call:
        case = Case(name, None, None, "value", *x.shape, k, "float32", "normal")
        return contenders.call(case, x)

    return make


def _sparsemax(x: np.ndarray, k: int) -> Call:
    import entmax

    return functools.partial(entmax.sparsemax, torch.from_numpy(x), -1)


def _pot(x: np.ndarray, k: int) -> Call:
    import ot

    n = x.shape[1]
    start, target = np.full(n, 1 / n), np.array([1 - k / n, k / n])
    costs = [(row[:, None] - np.array([0.0, 1.0])) ** 2 for row in x.astype(np.float64)]
    return lambda: np.stack([n * ot.sinkhorn(start, target, cost, REG)[:, 1] for cost in costs])


def _ott(x: np.ndarray, k: int) -> Call:
    import jax
    from ott.tools import soft_sort

    mask = functools.partial(
        soft_sort.topk_mask, k=k, axis=-1, epsilon=REG, squashing_fun=lambda row: row
    )
    compiled, array = jax.jit(mask), jax.numpy.asarray(x)
    return lambda: compiled(array).block_until_ready()


ALL = "NumPy, PyTorch, JAX, Dask"
TRANSPORT = "`sigmoid`, to a tolerance"
ROWS = (
    Row(
        "**`thretopk`**",
        "every curve",
        "real, per row",
        "scores, k, temperature",
        "yes",
        ALL,
        _ours("thretopk"),
    ),
    Row(
        "**`gradtopk`**",
        "marginals",
        "integer, per row",
        "scores, temperature",
        "yes",
        ALL,
        _ours("gradtopk"),
    ),
    Row(
        "LapSum",
        "`laplace`",
        "real, per row",
        "scores, k, temperature",
        "no",
        "PyTorch",
        _on_tensors("LapSum (sort)"),
        mark="*",
    ),
    Row(
        "LML",
        "`sigmoid`",
        "integer",
        "scores",
        "yes",
        "PyTorch",
        _on_tensors("LML (bracketing)"),
        mark="*",
    ),
    Row(
        "entmax `budget_bisect`",
        "`clip`",
        "real, per row",
        "scores",
        "yes",
        "PyTorch",
        _on_tensors("entmax budget_bisect"),
        "entmax",
    ),
    Row("entmax `sparsemax`", "`clip`", "1", "scores", "yes", "PyTorch", _sparsemax, "entmax"),
    Row(
        "POT `sinkhorn`",
        TRANSPORT,
        "real, per row",
        "scores, k, temperature",
        "yes",
        "NumPy, PyTorch, JAX",
        _pot,
        "ot",
        few=True,
    ),
    Row(
        "OTT `topk_mask`",
        TRANSPORT,
        "real",
        "scores, k, temperature",
        "unrolled",
        "JAX",
        _ott,
        "ott",
    ),
    Row("SIMPLE", "`gradtopk`'s", "integer", "scores", "not checked", "PyTorch on CUDA"),
    Row(
        "`torch.topk`",
        "a hard choice",
        "integer",
        "none to the choice",
        "",
        "PyTorch",
        _on_tensors("torch.topk"),
    ),
)


def measure(shape: Shape) -> dict[str, dict[str, float]]:
    """The figures of each row that can be measured, by its name."""
    x = scores(shape.rows, shape.n, "float32", "normal")
    timed: dict[str, tuple[Turns, int]] = {}
    for row in ROWS:
        if row.make is None or importlib.util.find_spec(row.needs) is None:
            continue
        rows = min(FEW, len(x)) if row.few else len(x)
        call = row.make(x[:rows], shape.k)
        timed[row.name] = Turns(call, contenders.unit("value", x), 0.0), len(x) // rows
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(shape.rounds):
        for name, (turns, times) in timed.items():
            turns.time_others()
            taken[name].append(times * seconds(turns.take))
    return {name: turns.figures(np.array(taken[name])) for name, (turns, _) in timed.items()}


def table(figures: dict[str, dict[str, float]]) -> list[str]:
    """The lines of the table."""
    lines = [
        "| | weights as | k | gradients to | second derivatives | frameworks | time |",
        "|---|---|---|---|---|---|---:|",
    ]
    for row in ROWS:
        time = "not measured"
        if row.name in figures:
            ratio = figures[row.name]["ratio"]
            time = (f"{ratio:.1f}" if ratio < 10 else f"{float(f'{ratio:.2g}'):.0f}") + row.mark
        lines.append(f"| {' | '.join([*row[:6], time])} |".replace("|  |", "| |"))
    return lines


def versions() -> str:
    """What took part."""
    found = {"python": platform.python_version()}
    for name in SHOWN[1:]:
        try:
            found[name] = version(name)
        except ModuleNotFoundError:
            found[name] = "not installed"
    return ", ".join(f"{name} {number}" for name, number in found.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The comparison table of README.md.")
    parser.add_argument(
        "--small", action="store_true", help="a few short rows, to see that it runs"
    )
    shape = SMALL if parser.parse_args().small else FULL
    torch.set_num_threads(pool.thread_count())
    print(f"{shape.rows} x {shape.n} float32, k = {shape.k}, {torch.get_num_threads()} threads")
    print(f"{versions()}\n")
    figures = measure(shape)
    print("\n".join(table(figures)))
    print("\nratio and its quartiles, milliseconds:")
    for name, found in figures.items():
        low, high, ms = found["low"], found["high"], 1e3 * found["seconds"]
        print(f"{name:24} {found['ratio']:8.2f} [{low:.2f}, {high:.2f}] {ms:10.3f}")


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    main()
