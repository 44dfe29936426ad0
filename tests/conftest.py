"""Shared fixtures, and what a test marked `device` or `ptx` needs."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import zlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from numba import config as numba_config

if numba_config.ENABLE_CUDASIM:
    import simulator

    simulator.install()

# The same examples in each run; the first of them compiles, for which there is no deadline.
hypothesis.settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name and on nothing else, not on its folder."""
    name = request.node.nodeid.rpartition("/")[2]
    return np.random.default_rng(zlib.crc32(f"tests/{name}".encode()))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds a driver without a device (`fake_driver`)."""
    import fake_driver

    if fake_driver.compiler() is None:
        pytest.fail("no C compiler was found: the driver that stands in for CUDA's is built by one")
    folder = tmp_path_factory.mktemp("driver")
    fake_driver.build(folder)
    return fake_driver.environment(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out tests by the kernels that they need, unless another way is asked for."""
    if config.getoption("dist") != "load":
        return None
    from families import ByFamily

    return ByFamily(config, log)


def _device_missing() -> str | None:
    """None, or why no kernel can run here."""
    if numba_config.ENABLE_CUDASIM:
        return None
    try:
        from numba import cuda

        if cuda.is_available():
            return None
    except Exception as error:
        return f"numba.cuda: {type(error).__name__}: {error}"
    return "no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set"


def _compiler_missing() -> str | None:
    import ptx

    return ptx.usable()


@functools.cache
def _reason_to_leave_out(marker: str) -> str | None:
    """Why tests with this marker cannot run here; an error where STK_REQUIRE names it."""
    reason = {"device": _device_missing, "ptx": _compiler_missing}[marker]()
    if reason and marker in os.environ.get("STK_REQUIRE", "").split(","):
        raise pytest.UsageError(f"tests marked {marker} must run, but: {reason}")
    return reason


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Leave out the files for a device, thousands of tests, where none of them can run."""
    if collection_path.parent.name != "device" or collection_path.suffix != ".py":
        return None
    of_device = collection_path.name.startswith(("test_device", "test_simulator"))
    marker = "device" if of_device else "ptx"
    return True if _reason_to_leave_out(marker) else None


_TESTS = pathlib.Path(__file__).parent
# Markers of tests that have a step of `.ci/run` of their own, and are in neither tier.
_OF_STEPS = "torch", "jax", "dask", "sklearn", "device", "ptx"


def _full_tier() -> re.Pattern[str]:
    """An expression for the names of the tests that are of the full tier alone."""
    lines = (_TESTS / "data" / "full.txt").read_text("utf-8").splitlines()
    return re.compile("|".join(f"(?:{line})" for line in lines if line and line[0] != "#"))


def _mark_full_tier(items: list[pytest.Item]) -> None:
    full = _full_tier()
    for item in items:
        if item.path.is_relative_to(_TESTS):
            folder = item.path.relative_to(_TESTS).parts[0]
            name = f"{folder}/{item.nodeid.rpartition(f'/{folder}/')[2]}"
            elsewhere = any(map(item.get_closest_marker, _OF_STEPS))
            if not elsewhere and full.search(name):
                item.add_marker("full")


# As early as other plugins that select by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tiers that are not asked for; skip what cannot run here, and say why."""
    _mark_full_tier(items)
    for tier in ("slow", "full"):
        if tier not in config.getoption("markexpr"):
            others = [item for item in items if item.get_closest_marker(tier)]
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item not in {*others}]
    for marker in ("device", "ptx"):
        for item in items:
            if item.get_closest_marker(marker) and (reason := _reason_to_leave_out(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which files were left out, and why."""
    for marker in ("device", "ptx"):
        if reason := _reason_to_leave_out(marker):
            terminalreporter.write_line(f"tests/device, marked {marker}, left out: {reason}")
