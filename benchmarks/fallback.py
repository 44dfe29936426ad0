"""Print how many rows the fast search leaves to the robust one, by kind of row, length and curve.

    python benchmarks/fallback.py

Counts, not times: they depend on the seed and hardly on the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold import records
from softtopk_nb._threshold.cpu import batch, long
from softtopk_nb._threshold.methods import METHODS

NEWTON = METHODS["newton"]
TEMPERATURES = (0.01, 0.1, 1.0)
NAMES = ("normal", "clusters", "ties", "Cauchy", "skewed", "outlier")  # kinds of rows
SHAPES = ((4096, 64), (512, 1024), (16, 65536))


def kinds(rng: np.random.Generator, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Rows of every kind, in float32."""
    normal = rng.normal(size=shape)
    rows = {
        "normal": normal,
        "clusters": rng.choice([-3.0, 0.0, 4.0], shape) + 0.01 * normal,
        "ties": np.round(normal, 1),
        "Cauchy": rng.standard_cauchy(shape),
        "skewed": rng.exponential(size=shape) ** 3,
        "outlier": np.where(np.arange(shape[1]) == shape[1] // 2, 1e6, normal),
    }
    return {name: x.astype(np.float32) for name, x in rows.items()}


@contextlib.contextmanager
def no_robust_search() -> Iterator[list[object]]:
    """What the fast search leaves stays as it is; what it was is noted."""
    left: list[object] = []
    solve_open, batch.solve_open = batch.solve_open, lambda *problem: left.append(problem)
    try:
        yield left
    finally:
        batch.solve_open = solve_open


def share_left_open(x: np.ndarray, curve: object, temperature: float) -> float:
    """The share of rows whose threshold the fast search does not find, at k = n/16."""
    rows, n = x.shape
    solution = np.zeros((rows, records.SOLUTION))
    k, tau = np.full(rows, n / 16), np.full(rows, temperature)
    with no_robust_search():
        batch.solve(x, k, tau, curve, NEWTON, np.empty_like(x), solution)
    return float(np.mean(solution[:, records.CODE] == records.OPEN))


def is_left_open(x: np.ndarray, curve: object, temperature: float) -> bool:
    """The same of one row in parts."""
    solution = np.zeros(records.SOLUTION)
    with no_robust_search() as left:
        long.solve(x, len(x) / 16, temperature, curve, NEWTON, np.empty_like(x), solution)
    return bool(left) and solution[records.CODE] == records.OPEN


def main() -> None:
    print("share of rows left to the robust search, temperature 0.01/0.1/1, k = n/16, float32")
    print(f"{'':24}" + "".join(f"{name:>18}" for name in CURVES))
    for shape in SHAPES:
        for kind, x in kinds(np.random.default_rng(0), shape).items():
            line = ""
            for curve in CURVES.values():
                shares = [share_left_open(x, curve, t) for t in TEMPERATURES]
                line += f"{'/'.join(f'{100 * share:.0f}' for share in shares):>18}"
            print(f"{kind:10} {shape[0]:5} x {shape[1]:6}{line}", flush=True)
    for kind, (x,) in kinds(np.random.default_rng(0), (1, 1_000_000)).items():
        line = ""
        for curve in CURVES.values():
            line += f"{'/'.join(str(int(is_left_open(x, curve, t))) for t in TEMPERATURES):>18}"
        print(f"{kind:10}     1 x {10**6:6}{line}", flush=True)


if __name__ == "__main__":
    main()
