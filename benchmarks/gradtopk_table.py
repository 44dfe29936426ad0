"""How much GradTopK costs: its methods, a dynamic program of logs, and what is promised.

    python benchmarks/gradtopk_table.py [--threads N] [--rounds N] [--dtype float32]

Needs PyTorch (the extra `torch`). As in `ratios.py`, every figure is a ratio of medians to
`torch.softmax` on the same array, the contenders called in turn, in brackets the quartiles of the
ratio from round to round. Methods of O(n k) are left out where they would take seconds. The last
column is the largest difference of p from that of contour: the recursion is shown because it is
fast, not because it is right.

The dynamic program of logs works in float64 on one thread; so do dp and recursion on a single row.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import log_domain
import numpy as np
import torch
from ratios import measure

import softtopk_nb as stk
from softtopk_nb import _schedule

SHAPES = (
    (1, 1000, 16),
    (1, 1000, 500),
    (1, 10_000, 16),
    (1, 100_000, 16),
    (1, 1_000_000, 16),
    (1, 1_000_000, 500_000),
    (1024, 1024, 32),
)
MOST = {"dp": 4 * 10**7, "recursion": 4 * 10**7, "log domain": 4 * 10**6}  # rows * n * k

# Promised of contour: (n, k) over (n, k) costs at most so much.
PROMISES = {
    "k = n/2 over k = 16, n = 1e6": ((1_000_000, 500_000), (1_000_000, 16), 1.3),
    "k = 16 over k = n/2, n = 1e6": ((1_000_000, 16), (1_000_000, 500_000), 1.3),
    "n = 1e6 over n = 1e5, k = 16": ((1_000_000, 16), (100_000, 16), 12.0),
    "n = 1e6 over n = 1e5, k = 5e4": ((1_000_000, 50_000), (100_000, 50_000), 12.0),
}

Calls = dict[str, Callable[[], object]]


def contenders(x: np.ndarray, k: int) -> Calls:
    """What is timed, each ready to be called."""
    tensor, work = torch.from_numpy(x), x.size * k
    leaf = tensor.clone().requires_grad_()
    p = torch.softmax(leaf, -1)
    calls: Calls = {
        "softmax": lambda: torch.softmax(tensor, -1),
        "softmax backward": lambda: torch.autograd.grad(p, leaf, tensor, retain_graph=True),
        "contour": lambda: stk.gradtopk(x, k, method="contour"),
    }
    for method in ("dp", "recursion"):
        if work <= MOST[method]:
            calls[method] = functools.partial(stk.gradtopk, x, k, method=method)
    if len(x) == 1 and work <= MOST["log domain"]:
        z = x[0].astype(np.float64)
        calls["log domain"] = lambda: log_domain.marginals(z, k)
    pullback = stk.gradtopk.vjp(x, k)[1]
    calls["contour pullback"] = lambda: pullback(x)
    return calls


def compare(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """The ratio of medians, and the quartiles of the ratio."""
    low, high = np.quantile(a / b, [0.25, 0.75])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def print_shape(x: np.ndarray, k: int, rounds: int) -> None:
    calls = contenders(x, k)
    exact = np.asarray(calls["contour"]())
    seconds = measure(calls, rounds)
    unit = {False: seconds["softmax"], True: seconds["softmax backward"]}
    rows, n = x.shape
    print(f"\n{rows} x {n}, k = {k}: torch.softmax takes {1e3 * np.median(unit[False]):.3f} ms")
    for name, s in seconds.items():
        if name.startswith("softmax"):
            continue
        ratio, low, high = compare(s, unit[name.endswith("pullback")])
        off = ""
        if name in MOST:
            difference = np.abs(np.asarray(calls[name]()) - exact).max()
            off = f"   off by {difference:.0e}" if np.isfinite(difference) else "   not finite"
        print(f"  {name:<18} {ratio:9.2f}  [{low:.2f}, {high:.2f}]{off}")


def print_promises(dtype: np.dtype, rounds: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=1_000_000).astype(dtype)
    sizes = {size for one, other, _ in PROMISES.values() for size in (one, other)}
    calls: Calls = {
        str(size): functools.partial(stk.gradtopk, x[: size[0]], size[1]) for size in sorted(sizes)
    }
    seconds = measure(calls, rounds)
    print("\npromised of contour")
    for name, (one, other, most) in PROMISES.items():
        ratio, low, high = compare(seconds[str(one)], seconds[str(other)])
        verdict = "met" if ratio <= most else "NOT MET"
        print(f"  {name:<32} {ratio:6.2f}  [{low:.2f}, {high:.2f}]  at most {most:g}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=_schedule.thread_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _schedule.thread_count = lambda: options.threads
    stk.show_versions()
    print(f"torch        {torch.__version__}")
    print(f"measured on  {options.threads} threads, {options.dtype}, N(0, 1), temperature 1")
    rng = np.random.default_rng(0)
    for rows, n, k in SHAPES:
        print_shape(rng.normal(size=(rows, n)).astype(options.dtype), k, options.rounds)
    print_promises(np.dtype(options.dtype), options.rounds)


if __name__ == "__main__":
    main()
