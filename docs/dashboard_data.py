"""Results of the benchmarks on these pages: the dashboard's data, and the table of the targets.

A Sphinx extension. The data are written as JavaScript beside the scripts that draw them: the page
works from a disk, where a browser lets no script read files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import softtopk_nb

HERE = Path(__file__).resolve().parent
SCHEMA = 1
SCRIPTS = ("dashboard_data.js", "dashboard_charts.js", "dashboard.js")
logger = logging.getLogger(__name__)


def load(folder: Path) -> list[dict[str, Any]]:
    """The files of results, oldest first, each with its name."""
    files = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("schema") == SCHEMA:
            files.append({"name": path.stem, **content})
        else:
            logger.warning("%s is not of schema %d: it is left out", path.name, SCHEMA)
    return sorted(files, key=lambda content: (content["date"], content["name"]))


def folder_of(app: Sphinx) -> Path:
    """Where the results lie: a path relative to the pages."""
    return Path(app.srcdir, app.config.benchmark_results)


def write_data(app: Sphinx) -> None:
    """Write the dashboard's data into what is built."""
    if app.builder.format != "html":
        return
    files = load(folder_of(app))
    operators = {result["operator"] for content in files for result in content["results"]}
    ours = sorted(name for name in operators if hasattr(softtopk_nb, name.split(".")[0]))
    data = json.dumps({"ours": ours, "files": files}, allow_nan=False, separators=(",", ":"))
    target = Path(app.outdir, "_static", SCRIPTS[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"window.softtopkResults = {data};\n", encoding="utf-8")


def add_scripts(app: Sphinx, page: str, _template: str, _context: object, _doctree: object) -> None:
    """Load the scripts on the page that they draw, and on no other."""
    if page != "dashboard":
        return
    app.add_css_file("dashboard.css")
    for script in SCRIPTS:
        app.add_js_file(script, loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.add_config_value("benchmark_results", "../benchmarks/results", "env")
    app.connect("builder-inited", write_data)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
