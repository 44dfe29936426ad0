"""Measure the suite, write a results file, and print it beside the targets.

    python benchmarks/run.py [--quick | --full] [--threads N] [--only WORD] [--output FILE]

Needs the extras `bench` and `torch`. A quick run takes a minute or two, a full one the better part
of an hour; ended by Ctrl-C, it keeps what it has. A run of a part of the suite says so in the name
of its file. `--only` takes the cases with that word in their names, and nothing but ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# What a call frees, the process keeps for the next one. Otherwise the C library gives a large
# result back to the system or not, depending on what else has been allocated, and a figure says how
# fast the system clears new pages. PyTorch and NumPy ask the same library. Read at process start.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_MAX_": "0"}


def pytest_benchmarks(files: list[str], *options: str) -> tuple[list[dict[str, Any]], int]:
    """What the benchmarks of these files left in `extra_info`, and pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "benchmark.json"
        command = [sys.executable, "-m", "pytest", "-q", *(str(HERE / name) for name in files)]
        command += [*options, f"--benchmark-json={target}", "--benchmark-quiet"]
        # Ctrl-C ends pytest, which writes what it has; here it is only noted.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            status = subprocess.run(command, check=False, cwd=HERE.parent).returncode
        finally:
            signal.signal(signal.SIGINT, before)
        if not target.exists() or not target.stat().st_size:
            return [], status or 1
        found = json.loads(target.read_text(encoding="utf-8"))
    return [entry["extra_info"] for entry in found["benchmarks"]], status


def measure(selection: str, only: str) -> tuple[dict[str, Any], int]:
    """A record, and 0 if nothing failed."""
    import footprint
    import record

    files = ["bench_suite.py"]
    files += [] if only else ["bench_growth.py", "bench_ordinary.py", "bench_startup.py"]
    found, status = pytest_benchmarks(files, f"--selection={selection}", f"--only={only}")
    made = record.head()
    made["results"] = [entry["result"] for entry in found if "result" in entry]
    if not only:
        made["growth"] = [entry["growth"] for entry in found if "growth" in entry]
        made["ordinary"] = [entry["ordinary"] for entry in found if "ordinary" in entry]
        seconds = {e["startup"]: e["seconds"] for e in found if "startup" in e}
        if {"import softtopk_nb", "import numba"} <= set(seconds):  # else the run was ended early
            over = seconds["import softtopk_nb"] - seconds["import numba"]
            seconds["import softtopk_nb over numba"] = over
        made["startup"] = seconds
        made["footprint"] = [footprint.measure(*case) for case in footprint.CASES]
    return made, status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="selection", action="store_const", const="quick")
    size.add_argument("--full", dest="selection", action="store_const", const="full")
    parser.add_argument("--threads", type=int, help="as many as there are cores, if not given")
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--output", type=Path, help="instead of a file in benchmarks/results")
    parser.set_defaults(selection="quick")
    options = parser.parse_args()
    os.environ.update(KEEP_MEMORY)
    if options.threads is not None:
        # Read when Numba is imported, here and in every process that is started from here.
        os.environ["NUMBA_NUM_THREADS"] = str(options.threads)
    import record
    import targets

    made, status = measure(options.selection, options.only)
    if not made["results"]:
        print("nothing measured", file=sys.stderr)
        return status or 1
    quick, ended = options.selection == "quick", status != 0
    part = f"{'quick' if quick else ''} {options.only} {'part' if ended else ''}"
    target = options.output or record.RESULTS / record.file_name(made, part)
    record.write(made, target)
    print(targets.table(made))
    print(f"\nwritten to {target}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
