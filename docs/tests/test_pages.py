"""Pages of the documentation in a real browser: nothing is cut off, wide or narrow."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from chromium import visit

DOCS = pathlib.Path(__file__).parents[1]
PAGES = (
    "index",
    "start/quickstart",
    "guide/operators",
    "guide/migrating",
    "guide/gpu",
    "guide/nopython",
    "examples/index",
    "examples/plot_soft_knn",
    "math/thretopk",
    "math/gradtopk",
    "api/thretopk",
    "dev/architecture",
)
# Boxes that are for the whole page, or that hide what is too wide for them. Code, tables and
# formulas have boxes of their own, in which one scrolls to the side.
TOO_WIDE = """
const hides = (e) => ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
const boxes = document.querySelectorAll(".bd-article *:not(.math, .math *)");
return [document.documentElement, document.querySelector(".bd-article-container"),
        ...[...boxes].filter(hides)]
  .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
  .map((e) => e.outerHTML.slice(0, 200));
"""
BROKEN = (
    "return [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src);"
)
FORMULAS_SET = """
(window.MathJax?.startup?.promise ?? Promise.resolve()).then(arguments[0]);
"""
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages as they are built; what the examples draw, only where they have been run before."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-D", "plot_gallery=0"]
    subprocess.run([*command, str(DOCS), str(out)], check=True, timeout=900)
    return out


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_nothing_is_cut_off(window, site, tmp_path, page, width, theme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 1000}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    visit(window, (site / f"{page}.html").as_uri())
    window.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
    window.execute_async_script(FORMULAS_SET)
    assert window.save_screenshot(str(tmp_path / "page.png"))
    assert window.execute_script(TOO_WIDE) == []
    assert window.execute_script(BROKEN) == []


@pytest.mark.parametrize("style", ["width: 2000px", "overflow: hidden"])
def test_what_is_cut_off_is_noticed(window, site, style):
    visit(window, (site / "index.html").as_uri())
    window.execute_async_script(FORMULAS_SET)
    assert window.execute_script(TOO_WIDE) == []
    box = f'<div style="{style}"><p style="width: 2000px">wide</p></div>'
    window.execute_script("document.querySelector('.bd-article').innerHTML += arguments[0]", box)
    assert window.execute_script(TOO_WIDE) != []
