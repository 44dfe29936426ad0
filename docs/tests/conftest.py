"""A window for the tests marked `browser`, which are skipped where there is no browser."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

MODULES = ("selenium", "sphinx", "myst_parser", "pydata_sphinx_theme")
PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser's window."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    missing += [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (extras docs and browser)")
    from chromium import windows

    yield from windows(tmp_path_factory.mktemp("profile"))
