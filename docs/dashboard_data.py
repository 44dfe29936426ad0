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
#: No top-k, and so no rivals of one: softmaxes and the floor.
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
    if page != "dashboard":
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


def target_tables(content: dict[str, Any]) -> Iterator[str]:
    """Each target with how often it is met; below, folded, every figure that it speaks of."""
    groups: dict[str, list[targets.Verdict]] = {}
    for verdict in targets.judge(content):
        groups.setdefault(verdict.target, []).append(verdict)
    rows = []
    for name, verdicts in groups.items():
        worst = max(verdicts, key=_excess)
        far = f"{worst.case}: {worst.figure:.3g}, {_bound(worst)}"
        met = sum(verdict.met for verdict in verdicts)
        rows.append([name, str(met), f"**{len(verdicts) - met}**", far])
    yield from _table(["target", "met", "not met", "nearest to its limit, or furthest over"], rows)
    for name, verdicts in groups.items():
        yield from ("", f":::{{dropdown}} {name}: every figure")
        yield from _table(
            ["case", "figure", "target", ""],
            (
                [v.case, f"{v.figure:.3g}", _bound(v), "met" if v.met else "**not met**"]
                for v in sorted(verdicts, key=_excess, reverse=True)
            ),
        )
        yield ":::"


def _usual(result: dict[str, Any]) -> bool:
    """A value of a top-k, in the main type, on the main rows."""
    main = (result["what"], result["dtype"], result["data"]) == ("value", "float32", "normal")
    return main and result["operator"] not in NO_TOPK


def _name(result: dict[str, Any]) -> str:
    words = (result[field] for field in ("operator", "curve", "method"))
    return " ".join(word for word in words if word)


def losses(content: dict[str, Any]) -> Iterator[str]:
    """Where peers are faster: one row for each operator and shape, the fastest peer first."""
    usual = [result for result in content["results"] if _usual(result)]
    rows = []
    for ours in usual:
        if not is_ours(ours["operator"]) or ours["method"] not in targets.DEFAULTS:
            continue
        shape = [ours[field] for field in SHAPE]
        ahead = [
            peer
            for peer in usual
            if not is_ours(peer["operator"])
            and [peer[field] for field in SHAPE] == shape
            and peer["ratio"] < ours["ratio"]
        ]
        if ahead:
            ahead.sort(key=lambda peer: peer["ratio"])
            peers = ", ".join(
                f"{'△ ' * (peer['high'] >= ours['low'])}{_name(peer)} {peer['ratio']:.3g}"
                for peer in ahead
            )
            size = "{1} × {0}, {2}".format(*shape)
            rows.append([shape, size, _name(ours), f"{ours['ratio']:.3g}", peers])
    if rows:
        rows = [row for _, *row in sorted(rows)]
        yield from _table(["rows × n, k", "operator", "ratio", "faster peers"], rows)
    else:
        yield "None in this file."


class Results(SphinxDirective):
    """``{results} targets`` or ``{results} losses``: a table from the newest file of a CPU."""

    required_arguments = 1
    tables: ClassVar = {"targets": target_tables, "losses": losses}

    def run(self) -> list[nodes.Node]:
        folder = folder_of(self.env.app)
        for path in (folder, *folder.glob("*.json"), HERE.parent / "benchmarks" / "targets.py"):
            self.env.note_dependency(str(path))
        files = [c for c in load(folder) if c["machine"]["device"] == "cpu"]
        if not files:
            return self.parse_text_to_nodes(NOTHING)
        newest = files[-1]
        simd, versions = newest["machine"]["simd"], newest["versions"]
        where = f"{record.machine_name(newest)}, {simd}, {newest['threads']} threads"
        using = ", ".join(f"{name} {versions[name]}" for name in ("numba", "torch"))
        heading = f"*{where}; {using}; {newest['date']}*"
        lines = [heading, "", *self.tables[self.arguments[0]](newest)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.add_config_value("benchmark_results", "../benchmarks/results", "env")
    app.add_directive("results", Results)
    app.connect("builder-inited", write_data)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
