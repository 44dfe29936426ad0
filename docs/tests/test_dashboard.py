"""The dashboard in a real browser, opened from a disk, with results that are made up."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import made_up_results
import pytest
from chromium import visit

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONF = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(DOCS)!r}]
project = "made up"
extensions = ["myst_parser", "sphinx_design", "dashboard_data"]
myst_enable_extensions = ["colon_fence"]
root_doc = "dashboard"
html_theme = "pydata_sphinx_theme"
html_static_path = [{str(DOCS / "_static")!r}]
html_css_files = ["custom.css"]
html_context = {{"default_mode": "auto"}}
html_sidebars = {{"*": []}}
html_theme_options = {{"navbar_end": ["theme-switcher"]}}
suppress_warnings = ["myst.xref_missing", "toc.not_included"]
benchmark_results = "results"
"""
CHARTS = ("n", "k", "baselines", "machines")
pytestmark = pytest.mark.browser


def build(folder: pathlib.Path) -> str:
    """The address of the page, built on its own from the results in the folder."""
    (folder / "conf.py").write_text(CONF, encoding="utf-8")
    for name in ("dashboard.md", "speed.md"):
        shutil.copy(DOCS / "dev" / name, folder)
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(folder), str(folder / "out")]
    subprocess.run(command, check=True, timeout=300)
    return (folder / "out" / "dashboard.html").as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard")
    made_up_results.write(folder / "results")
    return build(folder)


@pytest.fixture
def browser(window, page):
    """The page just opened; afterwards, whatever was done, no error on the console."""
    visit(window, page)
    yield window
    errors = [entry for entry in window.get_log("browser") if entry["level"] != "INFO"]
    assert not errors


def found(browser, selector: str) -> list:
    return browser.find_elements("css selector", selector)


def texts(browser, selector: str) -> list[str]:
    return [node.text for node in found(browser, selector)]


def marks(browser, chart: str) -> list[str]:
    """What the marks of a chart say."""
    nodes = found(browser, f"#stk-chart-{chart} .stk-mark")
    return [node.get_attribute("data-text") for node in nodes]


def spoken(node) -> str:
    """The text with what is there for screen readers alone."""
    return node.get_attribute("textContent")


def choose(browser, name: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", f"stk-{name}")).select_by_value(value)


def test_charts_have_marks_and_named_axes(browser):
    for chart in CHARTS:
        assert len(marks(browser, chart)) >= 10
        names = texts(browser, f"#stk-chart-{chart} .stk-axis-name")
        assert all(names)
        assert len(names) == (1 if chart == "baselines" else 2)
        for text in marks(browser, chart):
            assert "made-up" in text
            assert "NaN" not in text
    paths = [n.get_attribute("d") for n in found(browser, "#stk-dashboard svg path")]
    assert not any("NaN" in d or "Infinity" in d for d in paths)


def test_made_up_data_say_so(browser):
    assert "made-up" in browser.find_element("id", "stk-machine").text


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("device", "cuda", "made-up GPU"),
        ("dtype", "float64", "float64"),
        ("what", "pullback", "pullback"),
        ("data", "heavy", "heavy"),
        ("file", "made-up-cpu-old", "2001-01-01"),
    ],
)
def test_a_filter_changes_table_and_charts(browser, name, value, word):
    before = {chart: marks(browser, chart) for chart in CHARTS}
    table = texts(browser, "#stk-table td")
    choose(browser, name, value)
    for chart in CHARTS:
        after = marks(browser, chart)
        assert after
        if (chart, name) != ("machines", "file"):  # this chart has all machines
            assert after != before[chart]
            assert all(word in text for text in after)
    if name in ("data", "file"):
        assert texts(browser, "#stk-table td") != table


def test_machines_of_one_name_are_told_apart(browser):
    named = texts(browser, "#stk-file option")
    assert len(set(named)) == len(named) == 3
    both = marks(browser, "machines")
    assert {"newer-core" in text for text in both} == {True, False}
    assert {"older-core" in text for text in both} == {True, False}
    assert not any("2001-01-01" in text for text in both if "newer-core" in text)
    choose(browser, "file", "made-up-cpu-other")
    assert "older-core" in browser.find_element("id", "stk-machine").text
    assert marks(browser, "machines") == both


def test_one_sentence_answers(browser):
    answer = browser.find_element("id", "stk-answer")
    assert "thretopk laplace newton takes 2.3 × the time of torch.softmax" in answer.text
    assert "and 0.19 × the time of torch.topk (5.33 times as fast)" in answer.text
    assert "made-up CPU" in answer.text
    choose(browser, "size", "65536 × 64")
    assert "3.09 × the time of torch.softmax" in answer.text
    assert "65536 × 64 float32 numbers, k = 8" in answer.text
    choose(browser, "mine", "gradtopk auto")
    choose(browser, "today", "np.partition")
    assert "gradtopk auto takes" in answer.text
    assert "1.76 × the time of np.partition." in answer.text
    choose(browser, "size", "1024 × 4096")
    choose(browser, "k", "16")
    assert "k = 16, normal rows" in answer.text


def test_the_answer_is_given_for_each_machine(browser):
    rows = texts(browser, "#stk-machines tbody tr")
    assert len(rows) == 2
    assert {"newer-core" in row for row in rows} == {True, False}
    choose(browser, "device", "cuda")
    assert len(texts(browser, "#stk-machines tbody tr")) == 1


def test_the_answer_is_on_the_first_screen_of_a_phone(browser):
    size = browser.get_window_size()
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        answer = browser.find_element("id", "stk-answer").rect
        width = browser.execute_script("return document.documentElement.scrollWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_window_size() == size
    assert width <= 390
    assert answer["y"] + answer["height"] <= 844


def test_first_calls_are_told_apart(browser):
    text = browser.find_element("id", "stk-startup").text
    assert "first call of thretopk, cold cache 2.5 s" in text
    assert "import softtopk_nb over numba 50 ms" in text


def test_operator_and_shape(browser):
    choose(browser, "operator", "hardtopk")
    for chart in CHARTS:
        assert any("hardtopk" in text for text in marks(browser, chart))
        assert not any("thretopk" in text for text in marks(browser, chart))
    assert "thretopk laplace newton" not in texts(browser, "#stk-table th")
    choose(browser, "shape", "1024 × 1024, k = 32")
    assert "quartiles" in texts(browser, "#stk-table th")
    for chart in ("k", "baselines", "machines"):
        assert all("1024 × 1024, k = 32" in text for text in marks(browser, chart))


def test_losses_are_marked(browser):
    row = next(n for n in found(browser, "#stk-table tr") if n.text.startswith("hardtopk"))
    assert "△ level with np.partition" in spoken(row)
    row = next(n for n in found(browser, "#stk-table tr") if n.text.startswith("gradtopk"))
    assert "▲ slower than np.partition" in spoken(row)
    assert not re.search("copyto|softmax", " ".join(texts(browser, ".stk-loss, .stk-draw")))


def test_the_legend_switches_series(browser):
    button = next(b for b in found(browser, "#stk-legend button") if "exp newton" in b.text)
    assert any("thretopk exp newton" in text for text in marks(browser, "n"))
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any("thretopk exp newton" in text for text in marks(browser, "n"))


def test_by_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    tip = browser.find_element("id", "stk-tip")
    first, second = found(browser, "#stk-chart-n .stk-mark")[:2]
    browser.execute_script("arguments[0].focus()", first)
    assert tip.text == first.get_attribute("data-text")
    first.send_keys(Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == second
    assert tip.text == second.get_attribute("data-text")
    second.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it, of `rgb(r, g, b)`."""
    channels = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_stand_out(browser, theme, tmp_path):
    browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    page = luminance(found(browser, "body")[0].value_of_css_property("background-color"))
    parts = [*found(browser, ".stk-bar"), *found(browser, ".stk-chart text")]
    assert len(parts) > 30
    for part in parts:
        colour = luminance(part.value_of_css_property("fill"))
        high, low = max(colour, page), min(colour, page)
        assert (high + 0.05) / (low + 0.05) >= 3  # what WCAG asks of graphics
    picture = tmp_path / f"{theme}.png"
    assert browser.save_screenshot(str(picture))
    assert picture.stat().st_size > 20_000


def test_without_results(window, tmp_path):
    visit(window, build(tmp_path))
    assert "There are no results yet" in window.find_element("id", "stk-empty").text
    assert not window.find_element("id", "stk-dashboard").is_displayed()
    assert not [entry for entry in window.get_log("browser") if entry["level"] != "INFO"]


def test_targets_and_losses_are_read_from_a_file(browser, page):
    visit(browser, page.replace("dashboard.html", "speed.html"))
    text = browser.find_element("tag name", "body").get_attribute("textContent")
    assert "value, times torch.softmax" in text
    assert "thretopk laplace newton value 1024x1024 k=32 float32 normal" in text
    assert "not met" in text
    row = next(
        n for n in found(browser, "#where-other-libraries-are-faster tr") if "gradtopk" in n.text
    )
    assert "np.partition" in row.text
