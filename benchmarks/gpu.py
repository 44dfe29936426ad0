"""How much a smooth top-k costs on a GPU, as a ratio to torch.softmax on the same array.

    python benchmarks/gpu.py [--rounds N]

Needs a CUDA device, one of the extras `cuda12` and `cuda13`, and a PyTorch built for CUDA; CuPy's
sort is timed as well where CuPy is installed. Every figure is a ratio of medians, an operator and
its unit timed in turn, in brackets the quartiles of the ratio from round to round. Inputs rotate
among arrays that together do not fit in the L2 cache. Writes `benchmarks/results/<gpu>.json`.
Without a device it says so, writes nothing, and ends with code 1.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_contenders as field
import numpy as np
import torch

import softtopk_nb as stk

RESULTS = Path(__file__).parent / "results"


def missing() -> str | None:
    """None, or why nothing can be measured here."""
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    from numba import cuda

    if cuda.implementation != "NVIDIA" or not cuda.is_available():
        return "numba-cuda finds no CUDA device; is one of the extras cuda12, cuda13 installed?"
    return None


def quartiles(values: np.ndarray) -> list[float]:
    """Median, lower and upper quartile."""
    return [float(q) for q in np.quantile(values, [0.5, 0.25, 0.75])]


def check(xs: list[torch.Tensor], k: int) -> None:
    """A wrong answer is not timed: a few rows against the CPU."""
    x = xs[0][:2]
    for curve in field.CURVES:
        got = stk.thretopk(x, k, curve=curve).cpu().numpy()
        expected = stk.thretopk(x.cpu().numpy(), k, curve=curve)
        spread = float(x.max() - x.min())
        if not np.allclose(got, expected, rtol=0, atol=2e-6 + 8 * 2.0**-23 * spread):
            sys.exit(f"thretopk with curve={curve!r} is wrong on this device: nothing measured")


def measure_shape(clock: Any, rows: int, n: int, k: int, copies: int, bandwidth: float) -> Any:
    """One entry of the record."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    xs = [torch.randn(rows, n, device="cuda", generator=generator) for _ in range(copies)]
    check(xs, k)
    units = field.units(xs)
    moved = 2 * xs[0].nbytes
    lines = []
    for make in field.contenders(xs, k):
        try:
            contender = make()
            unit = units[contender.unit]
            taken = clock.measure({"unit": unit, contender.name: contender.call})
        except torch.cuda.OutOfMemoryError:
            continue
        finally:
            torch.cuda.empty_cache()
        milliseconds = taken[contender.name]
        lines.append(
            {
                "name": contender.name,
                "unit": contender.unit,
                "milliseconds": quartiles(milliseconds),
                "ratio": [
                    float(np.median(milliseconds) / np.median(taken["unit"])),
                    *quartiles(milliseconds / taken["unit"])[1:],
                ],
                "of_copy": moved / (1e-3 * float(np.median(milliseconds))) / bandwidth,
            }
        )
    softmax = quartiles(clock.measure({"softmax": units["softmax"]})["softmax"])
    return {"rows": rows, "n": n, "k": k, "bytes": moved // 2, "softmax": softmax, "lines": lines}


def overhead(clock: Any) -> dict[str, list[float]]:
    """Microseconds on the host: an empty kernel, and one row of 64."""
    from numba import int32

    from softtopk_nb._launch import Kernel

    def nothing(a: Any) -> None:
        return

    empty = Kernel(nothing, (int32,), 32)
    x = torch.randn(1, 64, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "empty kernel": lambda: empty(1, 0, 0),
        "torch.softmax, 1 x 64": lambda: torch.softmax(x, -1),
        "torch.topk, 1 x 64": lambda: torch.topk(x, 8, -1),
        "thretopk, 1 x 64": lambda: stk.thretopk(x, 8),
    }
    taken = {name: quartiles(clock.host_time(call)) for name, call in calls.items()}
    waiting = {f"{name}, waited for": clock.round_trip(call) for name, call in calls.items()}
    return {**taken, **{name: quartiles(values) for name, values in waiting.items()}}


def verdicts(line: dict[str, Any], shape: dict[str, Any]) -> list[str]:
    """The targets of a line, each met or not."""
    most = field.target(line["name"], shape["n"])
    if most is None:
        return []
    met = {True: "met", False: "NOT MET"}
    found = [f"at most {most:g}: {met[line['ratio'][0] <= most]}"]
    if line["name"] in field.PROMISED and shape["bytes"] >= 2**30:
        enough = line["of_copy"] >= field.MOST_OF_COPY
        found.append(f"{field.MOST_OF_COPY:.0%} of copy: {met[enough]}")
    return found


def table(record: dict[str, Any]) -> str:
    """The record as it is printed."""
    text = [*record["versions"], f"torch {record['torch']}, {record['date']}, float32, N(0, 1)"]
    copy = record["copy_bandwidth"]
    text.append(f"copy from device to device: {copy[0] / 1e9:.0f} GB/s")
    for shape in record["shapes"]:
        text += ["", f"{shape['rows']} x {shape['n']}, k = {shape['k']}: "]
        text[-1] += f"torch.softmax takes {shape['softmax'][0]:.4f} ms"
        for line in shape["lines"]:
            ratio, low, high = line["ratio"]
            shown = f"  {line['name']:<22} {ratio:8.2f}  [{low:.2f}, {high:.2f}]"
            text.append("  ".join([f"{shown:<52} {line['of_copy']:5.0%}", *verdicts(line, shape)]))
    text += ["", "microseconds of the host for one call"]
    for name, (median, low, high) in record["overhead"].items():
        text.append(f"  {name:<34} {median:8.1f}  [{low:.1f}, {high:.1f}]")
    return "\n".join(text)


def measure(rounds: int) -> dict[str, Any]:
    from gpu_clock import Clock, copies

    clock = Clock(rounds)
    versions = io.StringIO()
    stk.show_versions(versions)
    bandwidth = quartiles(clock.copy_bandwidth())
    return {
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "versions": versions.getvalue().splitlines(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rounds": rounds,
        "copy_bandwidth": bandwidth,
        "overhead": overhead(clock),
        "shapes": [
            measure_shape(clock, rows, n, k, copies(4 * rows * n), bandwidth[0])
            for rows, n, k in field.SHAPES
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        sys.exit(f"nothing measured: {reason}")
    record = measure(options.rounds)
    print(table(record))
    name = re.sub(r"[^a-z0-9]+", "-", record["gpu"].lower()).strip("-")
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
