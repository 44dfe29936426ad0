"""Options of the benchmarks, and what stands beside their figures."""

from __future__ import annotations

import io

import softtopk_nb


def pytest_addoption(parser):
    group = parser.getgroup("softtopk_nb")
    group.addoption("--selection", default="quick", choices=["quick", "full"], help="which cases")
    group.addoption("--only", default="", help="only cases with this word in their names")


def pytest_benchmark_update_machine_info(config, machine_info):
    text = io.StringIO()
    softtopk_nb.show_versions(text)
    machine_info["softtopk_nb"] = text.getvalue().splitlines()
