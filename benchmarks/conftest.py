"""Benchmarks are read by people: the versions they ran on belong beside the figures."""

from __future__ import annotations

import io

import softtopk_nb


def pytest_benchmark_update_machine_info(config, machine_info):
    text = io.StringIO()
    softtopk_nb.show_versions(text)
    machine_info["softtopk_nb"] = text.getvalue().splitlines()
