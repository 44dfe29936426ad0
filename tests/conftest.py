"""Shared fixtures, and what a test marked `device`, `ptx` or `browser` needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import config as numba_config

if numba_config.ENABLE_CUDASIM:
    import simulator

    simulator.install()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name and on nothing else, not on its folder."""
    name = request.node.nodeid.rpartition("/")[2]
    return np.random.default_rng(zlib.crc32(f"tests/{name}".encode()))


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser's window, for tests marked `browser`."""
    from chromium import windows

    yield from windows(tmp_path_factory.mktemp("profile"))


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, and say why; an error instead where STK_REQUIRE names it."""
    required = os.environ.get("STK_REQUIRE", "").split(",")
    for marker, missing in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        if reason and marker in required:
            raise pytest.UsageError(f"tests marked {marker} must run, but: {reason}")
        for item in marked:
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _compiler_missing() -> str | None:
    import ptx

    return ptx.usable()


def _browser_missing() -> str | None:
    modules = ("selenium", "sphinx", "myst_parser", "pydata_sphinx_theme")
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (extras docs and browser)"
    return (
        None
        if shutil.which("chromium") and shutil.which("chromedriver")
        else ("no chromium and chromedriver on PATH")
    )


NEEDS = {"device": _device_missing, "ptx": _compiler_missing, "browser": _browser_missing}
