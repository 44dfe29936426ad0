"""A chromium without a screen, for tests of pages."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any


def windows(profile: pathlib.Path) -> Iterator[Any]:
    """One window, closed afterwards; for a fixture."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for switch in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1300,1100",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    window = webdriver.Chrome(options=options, service=service)
    # A window that nobody has clicked into has no focus, and its pages are told of none.
    window.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    yield window
    window.quit()


def visit(window: Any, address: str) -> None:
    """Open a page and wait until its scripts have run.

    The driver may come back early from a page to the same page; from a blank one it can be told.
    """
    from selenium.webdriver.support.ui import WebDriverWait

    window.get("about:blank")
    window.get(address)
    state = "return [location.href, document.readyState]"
    WebDriverWait(window, 60).until(lambda w: w.execute_script(state) == [address, "complete"])
