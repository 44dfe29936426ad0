"""Results of the benchmarks on these pages: the dashboard's data, and tables made from a file.

A Sphinx extension. The data are written as JavaScript beside the scripts that draw them: the page
works from a disk, where a browser lets no script read files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "benchmarks"))

import record  # noqa: E402
import targets  # noqa: E402
from cases import is_ours  # noqa: E402

SCRIPTS = ("dashboard_data.js", "dashboard_charts.js", "dashboard.js")
#: No top-k, and so not compared with one: softmax functions, and a copy of the array.
NO_TOPK = ("torch.softmax", "scipy softmax", "softmax", "np.copyto")
SHAPE = ("n", "rows", "k")
NOTHING = "*No file of results of a CPU lay in `benchmarks/results/` when this page was built.*"
logger = logging.getLogger(__name__)


def folder_of(app: Sphinx) -> Path:
    """Where the results lie: a path relative to the pages."""
    return Path(app.srcdir, app.config.benchmark_results).resolve()


def load(folder: Path) -> list[dict[str, Any]]:
    """The files of results, each with its name, oldest first; the fullest of a day last."""
    files = []
    for path in sorted(folder.glob("*.json")):
        try:
            files.append({"name": path.stem, **record.read(path)})
        except ValueError as error:
            logger.warning("%s is left out: %s", path.name, error)
    return sorted(files, key=record.age)


def write_data(app: Sphinx) -> None:
    """Write the dashboard's data into what is built."""
    if app.builder.format != "html":
        return
    files = load(folder_of(app))
    operators = {result["operator"] for content in files for result in content["results"]}
    content = {"ours": sorted(filter(is_ours, operators)), "noTopk": NO_TOPK, "files": files}
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    target = Path(app.outdir, "_static", SCRIPTS[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"window.softtopkResults = {data};\n", encoding="utf-8")


def add_scripts(app: Sphinx, page: str, _template: str, _context: object, _doctree: object) -> None:
    """Load the scripts on the page that they draw, and on no other."""
    if page.rpartition("/")[2] != "dashboard":
        return
    app.add_css_file("dashboard.css")
    for script in SCRIPTS:
        app.add_js_file(script, loading_method="defer")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    yield from ("| " + " | ".join(line) + " |" for line in lines)


def _excess(verdict: targets.Verdict) -> float:
    """How many times over its limit a figure is; at most 1 if the target is met."""
    ratio = verdict.figure / verdict.limit
    return ratio if verdict.at_most else 1 / ratio


def _bound(verdict: targets.Verdict) -> str:
    return f"{'at most' if verdict.at_most else 'at least'} {verdict.limit:.3g}"


def _machine(content: dict[str, Any]) -> str:
    return f"{record.machine_name(content)}, {content['threads']} threads"


def target_tables(files: list[dict[str, Any]]) -> Iterator[str]:
    """How often each target is met on each machine; below, folded, every figure that misses."""
    judged = [targets.judge(content) for content in files]
    names = dict.fromkeys(verdict.target for verdicts in judged for verdict in verdicts)

    def tally(verdicts: list[targets.Verdict]) -> str:
        return f"{sum(v.met for v in verdicts)} of {len(verdicts)}" if verdicts else ""

    rows = [
        [name, *(tally([v for v in js if v.target == name]) for js in judged)] for name in names
    ]
    rows.append(["all", *map(tally, judged)])
    yield from _table(["targets met", *map(_machine, files)], rows)
    for content, verdicts in zip(files, judged, strict=True):
        missed = sorted((v for v in verdicts if not v.met), key=_excess, reverse=True)
        yield from ("", f":::{{dropdown}} {_machine(content)}: the {len(missed)} that are not met")
        found = ([v.target, v.case, f"{v.figure:.3g}", _bound(v)] for v in missed)
        yield from _table(["target", "case", "measured", "aimed at"], found)
        yield ":::"


def _usual(result: dict[str, Any]) -> bool:
    """A value of a top-k, in the main type, on the main rows."""
    main = (result["what"], result["dtype"], result["data"]) == ("value", "float32", "normal")
    return main and result["operator"] not in NO_TOPK


def _name(result: dict[str, Any]) -> str:
    words = (result[field] for field in ("operator", "curve", "method"))
    return " ".join(word for word in words if word)


def _losses(content: dict[str, Any]) -> Iterator[str]:
    usual = [result for result in content["results"] if _usual(result)]
    rows = []
    for ours in usual:
        if not is_ours(ours["operator"]) or ours["method"] not in targets.DEFAULTS:
            continue
        shape = [ours[field] for field in SHAPE]
        ahead = [
            other
            for other in usual
            if not is_ours(other["operator"])
            and [other[field] for field in SHAPE] == shape
            and other["ratio"] < ours["ratio"]
        ]
        if ahead:
            ahead.sort(key=lambda other: other["ratio"])
            named = ", ".join(
                f"{'△ ' * (other['high'] >= ours['low'])}{_name(other)} {other['ratio']:.3g}"
                for other in ahead
            )
            size = "{1} × {0}, {2}".format(*shape)
            rows.append([shape, size, _name(ours), f"{ours['ratio']:.3g}", named])
    if rows:
        rows = [row for _, *row in sorted(rows)]
        yield from _table(["rows × n, k", "operator", "ratio", "faster"], rows)
    else:
        yield "None in this file."


def losses(files: list[dict[str, Any]]) -> Iterator[str]:
    """Where other libraries are faster: by machine, a row for each operator and shape."""
    yield "::::{tab-set}"
    for content in files:
        yield f":::{{tab-item}} {_machine(content)}"
        yield from _losses(content)
        yield ":::"
    yield "::::"


class Results(SphinxDirective):
    """``{results} targets`` or ``{results} losses``: tables from the newest file of each CPU."""

    required_arguments = 1
    tables: ClassVar = {"targets": target_tables, "losses": losses}

    def run(self) -> list[nodes.Node]:
        folder = folder_of(self.env.app)
        for path in (folder, *folder.glob("*.json"), HERE.parent / "benchmarks" / "targets.py"):
            self.env.note_dependency(str(path))
        files = [c for c in load(folder) if c["machine"]["device"] == "cpu"]
        if not files:
            return self.parse_text_to_nodes(NOTHING)
        newest = list({record.machine_name(content): content for content in files}.values())
        lines = []
        for content in newest:
            versions = (f"{name} {content['versions'][name]}" for name in ("numba", "torch"))
            simd, date = content["machine"]["simd"], content["date"]
            lines.append(f"- {_machine(content)}: {simd}; {', '.join(versions)}; {date}")
        lines += ["", *self.tables[self.arguments[0]](newest)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.add_config_value("benchmark_results", "../benchmarks/results", "env")
    app.add_directive("results", Results)
    app.connect("builder-inited", write_data)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
