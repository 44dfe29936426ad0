"""How much a smooth top-k costs on a GPU, as a ratio to torch.softmax on the same array.

    python benchmarks/gpu.py [--rounds N] [--only WORD ...]

Needs a CUDA device, one of the extras `cuda12` and `cuda13`, and a PyTorch built for CUDA; CuPy's
sort is timed as well where CuPy is installed. Every figure is a ratio of medians, an operator and
its unit timed in turn. Inputs rotate among arrays that together do not fit in the L2 cache. Writes
`benchmarks/results/<gpu>-<date>.json`, in the schema of `README.md`, and prints what was measured
beside the targets.
`--only` takes the cases with one of the words in their names; Ctrl-C keeps what was measured.
Without a device it says so, writes nothing, and ends with code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gpu_contenders as field
import numpy as np
import record
import targets
import torch
from cases import Case
from clock import figures, quartiles

import softtopk_nb as stk


def missing() -> str | None:
    """None, or why nothing can be measured here."""
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    from numba import cuda

    if cuda.implementation != "NVIDIA" or not cuda.is_available():
        return "numba-cuda finds no CUDA device; is one of the extras cuda12, cuda13 installed?"
    return None


def check(xs: list[torch.Tensor], k: int) -> None:
    """A wrong answer is not timed: a few rows against the CPU."""
    x = xs[0][:2]
    for curve in field.CURVES:
        got = stk.thretopk(x, k, curve=curve).cpu().numpy()
        expected = stk.thretopk(x.cpu().numpy(), k, curve=curve)
        spread = float(x.max() - x.min())
        if not np.allclose(got, expected, rtol=0, atol=2e-6 + 8 * 2.0**-23 * spread):
            sys.exit(f"thretopk with curve={curve!r} is wrong on this device: nothing measured")


def result(case: Case, taken: dict[str, np.ndarray], copy: float) -> dict[str, Any]:
    """An entry of the record, from milliseconds and the seconds that a copy takes."""
    found = figures(1e-3 * taken["case"], 1e-3 * taken["unit"])
    return {**case._asdict(), "device": "cuda", **found, "of_copy": copy / found["seconds"]}


def measure_shape(
    clock: Any, cases: list[Case], copies: int, bandwidth: float
) -> Iterator[dict[str, Any]]:
    """The results of cases that have one shape."""
    rows, n, k = cases[0].rows, cases[0].n, cases[0].k
    generator = torch.Generator(device="cuda").manual_seed(0)
    xs = [torch.randn(rows, n, device="cuda", generator=generator) for _ in range(copies)]
    check(xs, k)
    units = {what: field.unit(what, xs) for what in ("value", "pullback")}
    units["jvp"] = units["pullback"]
    for case in cases:
        try:
            calls = {"unit": units[case.what], "case": field.rotating(case, xs)}
            taken = clock.measure(calls)
        except torch.cuda.OutOfMemoryError:
            continue
        finally:
            calls = {}
            torch.cuda.empty_cache()
        yield result(case, taken, 2 * xs[0].nbytes / bandwidth)


def overhead(clock: Any) -> dict[str, list[float]]:
    """Microseconds on the host: an empty kernel, and one row of 64."""
    from numba import int32

    from softtopk_nb._cuda.launch import Kernel

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


def table(made: dict[str, Any]) -> str:
    """All that was measured, then the targets."""
    copy = made["copy_bandwidth"][0] / 1e9
    text = [f"{made['machine']['gpu']}, copy from device to device: {copy:.0f} GB/s"]
    for line in made["results"]:
        ratio = f"{line['ratio']:8.2f}  [{line['low']:.2f}, {line['high']:.2f}]"
        text.append(f"  {targets.name(line):<72} {ratio:<28} {line['of_copy']:5.0%}")
    text += ["", "microseconds of the host for one call"]
    for name, (median, low, high) in made["overhead"].items():
        text.append(f"  {name:<34} {median:8.1f}  [{low:.1f}, {high:.1f}]")
    return "\n".join([*text, "", targets.table(made)])


def measure(rounds: int, words: list[str]) -> tuple[dict[str, Any], bool]:
    """The record, and whether it was measured to its end."""
    from gpu_clock import Clock, copies

    clock = Clock(rounds)
    made = record.head("cuda", torch.cuda.get_device_name())
    made["versions"]["cuda"] = torch.version.cuda
    made["copy_bandwidth"] = quartiles(clock.copy_bandwidth())
    made["overhead"] = overhead(clock)
    bandwidth = made["copy_bandwidth"][0]
    try:
        for rows, n, k in field.SHAPES:
            cases = [c for c in field.cases(rows, n, k) if any(word in c.name for word in words)]
            if cases:
                made["results"] += measure_shape(clock, cases, copies(4 * rows * n), bandwidth)
    except KeyboardInterrupt:
        return made, False
    return made, True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD")
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        sys.exit(f"nothing measured: {reason}")
    made, whole = measure(options.rounds, options.only)
    print(table(made))
    part = "" if whole and options.only == [""] else "part"
    target = record.RESULTS / record.file_name(made, part)
    record.write(made, target)
    print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
