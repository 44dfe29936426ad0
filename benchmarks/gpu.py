"""How much a smooth top-k costs on a GPU, as a ratio to torch.softmax on the same array.

    python benchmarks/gpu.py [--rounds N] [--only WORD] [--seconds S] [--output FILE]

Needs a CUDA device, one of the extras `cuda12` and `cuda13`, and a PyTorch built for CUDA; CuPy's
sort and JAX's calls are timed as well where these are installed. Runs `bench_gpu.py`: every figure
is a ratio of medians, an operator and its unit timed in turn, on inputs that rotate among arrays
that together do not fit in the L2 cache. Writes `benchmarks/results/<gpu>-<date>.json`, in the
schema of `README.md`, and prints what was measured beside the targets.
`--only` takes the cases with this word in their names; Ctrl-C keeps what was measured, and so does
the end of the seconds that are given.
Without a device it says so, writes nothing, and ends with code 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gpu_clock
import record
import targets
import torch
from run import pytest_benchmarks


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


def measure(rounds: int, only: str, seconds: float) -> tuple[dict[str, Any], int]:
    """The record, without results if none came, and 0 if nothing failed."""
    options = f"--rounds={rounds}", f"--only={only}", f"--seconds={seconds}"
    found, status = pytest_benchmarks(["bench_gpu.py"], *options)
    made = record.head("cuda", torch.cuda.get_device_name())
    made["versions"]["cuda"] = torch.version.cuda
    for entry in found:
        made["results"] += [entry["result"]] if "result" in entry else []
        if "copy_bandwidth" in entry:
            made["copy_bandwidth"] = entry["copy_bandwidth"]
        made.setdefault("overhead", {}).update(entry.get("overhead", {}))
    return made, status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all cases")
    parser.add_argument("--output", type=Path, help="instead of a file in benchmarks/results")
    options = parser.parse_args()
    reason = gpu_clock.missing()
    if reason is not None:
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    made, status = measure(options.rounds, options.only, options.seconds)
    if "copy_bandwidth" not in made:
        print("nothing measured", file=sys.stderr)
        return status or 1
    print(table(made))
    ended = status or options.seconds < float("inf")
    part = f"{options.only} {'part' if ended else ''}"
    target = options.output or record.RESULTS / record.file_name(made, part)
    record.write(made, target)
    print(f"\nwritten to {target}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
