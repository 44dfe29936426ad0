"""Options of the benchmarks, and what stands beside their figures."""

from __future__ import annotations

import functools
import io
import pathlib

import softtopk_nb


def pytest_addoption(parser):
    group = parser.getgroup("softtopk_nb")
    group.addoption("--selection", default="quick", choices=["quick", "full"], help="which cases")
    group.addoption("--only", default="", help="only cases with this word in their names")
    group.addoption("--rounds", default=15, type=int, help="rounds of a case on a GPU")
    group.addoption("--seconds", default=float("inf"), type=float, help="for all cases on a GPU")


@functools.cache
def _gpu_missing():
    """None, or why nothing can be measured on a GPU."""
    try:
        import gpu_clock
    except ImportError as error:
        return str(error)
    return gpu_clock.missing()


def pytest_ignore_collect(collection_path: pathlib.Path):
    return True if collection_path.name == "bench_gpu.py" and _gpu_missing() else None


def pytest_terminal_summary(terminalreporter):
    """Say that a file was left out, and why."""
    if reason := _gpu_missing():
        terminalreporter.write_line(f"benchmarks/bench_gpu.py left out: {reason}")


def pytest_benchmark_update_machine_info(config, machine_info):
    text = io.StringIO()
    softtopk_nb.show_versions(text)
    machine_info["softtopk_nb"] = text.getvalue().splitlines()
