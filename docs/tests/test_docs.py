"""Pages: theorems name tests, links lead somewhere, words are those of the field."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
import sys

import pytest

import softtopk_nb
from softtopk_nb._curves.registry import NAMES

ROOT = pathlib.Path(__file__).parents[2]
LABEL = re.compile(r"^:label: ((?:thm|prop|id)-[\w-]+)$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def theorems():
    """(label, [(file, test), ...]) for every labelled statement, in the order of the pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        labels = list(LABEL.finditer(text))
        for match, following in zip(labels, [*labels[1:], None], strict=False):
            end = following.start() if following else len(text)
            yield match[1], TEST.findall(text[match.start() : end])


@functools.cache
def docstrings(file: str) -> dict[str, str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


STATEMENTS = list(theorems())


def test_there_are_theorems():
    assert len(STATEMENTS) >= 25
    assert len({label for label, _ in STATEMENTS}) == len(STATEMENTS)


@pytest.mark.parametrize(("label", "tests"), STATEMENTS, ids=[label for label, _ in STATEMENTS])
def test_theorem_and_test_name_each_other(label, tests):
    assert tests, f"{label} names no test"
    for file, name in tests:
        known = docstrings(file)
        assert name in known, f"{label} names {file}::{name}, which does not exist"
    assert any(label in docstrings(file)[name] for file, name in tests), (
        f"none of {tests} names {label}"
    )


def math_of(page: str) -> str:
    """What a page of docs/math writes between dollars, and in displays."""
    text = (ROOT / "docs/math" / page).read_text(encoding="utf-8")
    return " ".join(re.findall(r"\$+([^$]+)\$+", text))


def occurs(symbol: str, math: str) -> bool:
    """Whether a letter, with or without an index, occurs in formulas, and not within a word."""
    return re.search(rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z])", math) is not None


def test_letters_are_those_in_use():
    """Tables of docs/math/notation.md: each letter is used where it says, each name in the code."""
    text = (ROOT / "docs/math/notation.md").read_text(encoding="utf-8")
    first, _, second = text.partition("Where a letter has another meaning")
    used = " ".join(math_of(p.name) for p in (ROOT / "docs/math").glob("[!n]*.md"))
    code = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "softtopk_nb").rglob("*.py"))
    rows = [line.split("|")[1:-1] for line in first.splitlines() if line.startswith("| $")]
    assert len(rows) >= 20
    for symbols, names, _ in rows:
        for symbol in re.findall(r"\$(\\?[A-Za-z]+(?:_[A-Za-z])?)", symbols):
            assert occurs(symbol, used), symbol
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", code), name
    rows = [line[1:-1].split('", "') for line in second.splitlines() if line.startswith('"$')]
    assert len(rows) >= 15
    for letter, meanings in rows:
        symbol = letter.strip("$")
        pages = re.findall(r"\]\((\w+\.md)\)", meanings)
        assert all(occurs(symbol, math_of(page)) for page in pages), symbol


def test_each_statement_of_the_sources_is_treated():
    """The table of docs/math/source.md: each row has labels, all of statements on the pages."""
    page = (ROOT / "docs/math/source.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Where each statement is treated")
    rows = [line[1:-1].split('", "') for line in table.splitlines() if line.startswith('"')][1:]
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs/math").glob("*.md"))
    known = set(re.findall(r"^:label: ([\w-]+)$", text, re.MULTILINE))
    assert len(rows) >= 30
    assert {source for source, _, _ in rows} == {
        "",
        "discussion",
        *(f"{{cite}}`{name}`" for name in ("su2024topk", "stock2021softmax", "gradual2021")),
    }
    for _, statement, treated in rows:
        labels = re.findall(r"\{prf:ref\}`([\w-]+)`", treated)
        assert labels, statement
        assert set(labels) <= known, statement


# Terms of the project's own, of earlier releases, for which the field has a word: distribution,
# Bernoulli variable, tied maxima, excluded, VJP function, baseline, expensive, ...
OLD_WORDS = {
    *("abreast", "abridged", "absent", "bends", "brief", "coin", "coins", "cornered", "dear"),
    *("dearest", "harden", "hardened", "hardening", "hardens", "hopeful", "law", "laws", "leader"),
    *("leaders", "narrowness", "patient", "peers", "pullback", "pullbacks", "rarer", "slide"),
    *("softmaxes", "swing", "toss", "tossed", "tosses", "twin", "twins", "unslide", "witness"),
    "yardstick",
}
OLD_PHRASES = ("front door", "one of many", "top-1 family")


@pytest.mark.parametrize("folder", ["softtopk_nb", "docs", "examples", "."])
def test_words_are_those_of_the_field(folder):
    """None of OLD_WORDS in names, comments, docstrings and pages."""
    found = (ROOT / folder).glob("*" if folder == "." else "**/*")
    files = [file for file in found if file.suffix in {".py", ".md", ".rst"}]
    assert len(files) >= 3
    for file in files:
        if {"_build", "tests"} & {*file.parts}:
            continue
        text = " ".join(file.read_text(encoding="utf-8").lower().split())
        text = text.replace("law of total cumulance", "")
        assert not OLD_WORDS & set(re.findall(r"[a-z]+", text)), file
        assert not [phrase for phrase in OLD_PHRASES if phrase in text], file


# Names of earlier releases in the package: jvp and vjp, UNSOLVED, newton_step, potential, ... now.
OLD_NAMES = {
    *("push", "pull", "pulls", "push_mixed", "pull_mixed", "push_finite", "pull_finite"),
    *("push_sum", "pull_sum", "push_twice", "pull_push", "mixed", "MIXED", "MISLED", "OPEN"),
    *("UNSEEN", "heights", "judge", "admit", "conclude", "is_wanted", "row_in_pieces"),
}


def test_names_are_those_of_the_field():
    """None of OLD_NAMES is a name in the package."""
    for file in (ROOT / "softtopk_nb").rglob("*.py"):
        names = {file.stem}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names |= {getattr(node, key, None) for key in ("id", "attr", "name", "arg")}
        assert not OLD_NAMES & names, file


def readme_block(module: str) -> str:
    """The Python block of README.md that imports a front's library."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        rf"```python\n(import {module}, softtopk_nb as stk\n.*?)```", text, re.DOTALL
    )
    return block


@pytest.mark.parametrize(
    "front",
    [pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)],
)
def test_first_lines_of_the_fronts_in_the_readme(front):
    pytest.importorskip(front)
    names: dict[str, object] = {}
    exec(readme_block(front), names)
    assert any(name in names for name in ("mask", "slope"))


@pytest.mark.parametrize(
    "page",
    [pytest.param("pytorch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)],
)
def test_code_on_the_page_of_a_front(page):
    pytest.importorskip({"pytorch": "torch"}.get(page, page))
    text = (ROOT / f"docs/guide/{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize(
    "front",
    [pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)],
)
def test_code_on_the_first_page(front):
    pytest.importorskip(front)
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```python\n(import {front}\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(block, {})


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_the_readme_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", text) if ":" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert page != "README.md" or len(text.splitlines()) <= 150


def test_quick_start_is_written_once():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/start/quickstart.md").read_text(encoding="utf-8")
    for marker in re.findall(r':(?:start-after|end-before): "(.*)"', page):
        assert readme.count(marker) == 1
    assert ">>>" not in page
    assert "```python" not in page


def test_version_is_the_same_everywhere():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == softtopk_nb.__version__
    assert re.search(r"^version: (\S+)", citation, re.MULTILINE)[1] == softtopk_nb.__version__


@pytest.mark.parametrize("module", ["", ".nopython", ".torch", ".jax", ".dask"])
def test_every_public_name_is_on_a_page_of_the_reference(module):
    """In a directive or in the text of the module's own page."""
    source = (ROOT / "softtopk_nb" / module.strip(".") / "__init__.py").read_text(encoding="utf-8")
    (listed,) = re.findall(r"__all__ = \[(.*?)\]", source, re.DOTALL)
    names = set(re.findall(r'"(\w+)"', listed)) - {"__version__"}
    assert names
    pages = (ROOT / "docs/api").glob(f"{module.strip('.') or '*'}.rst")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for name in names:
        assert re.search(rf"softtopk_nb{module}\.{name}$|``{name}``|^.. data:: {name}$", text, re.M)


def test_old_addresses_lead_to_pages():
    conf = (ROOT / "docs/conf.py").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^redirects = \{(.*?)^\}", conf, re.DOTALL | re.MULTILINE)
    targets = re.findall(r': "(\S+)\.html"', listed)
    assert len(targets) >= 20
    for target in targets:
        folder, _, name = target.partition("/")
        source = ROOT / ("examples/gallery" if folder == "examples" else f"docs/{folder}")
        assert list(source.glob(f"{name}.*")), target


def test_user_guide_is_short():
    """At most 1200 words a page, with something to copy before the second heading."""
    for page in (ROOT / "docs/guide").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert len(text.split()) <= 1200, page.name
        if page.stem != "index":
            assert "```" in text[: text.index("\n## ")], page.name


def test_recipes_are_short_and_say_what_came_out():
    """At most 30 lines each, all on the page, with a figure in the text that follows."""
    page = (ROOT / "docs/guide/recipes.md").read_text(encoding="utf-8")
    recipes = sorted((ROOT / "examples/recipes").glob("*.py"))
    assert len(recipes) >= 12
    for recipe in recipes:
        assert len(recipe.read_text(encoding="utf-8").splitlines()) <= 30, recipe.name
        _, _, after = page.partition(f"examples/recipes/{recipe.name}\n:language: python\n```\n")
        assert re.search(r"\d", after.split("```")[0]), recipe.name


def test_pages_can_be_read_in_a_day():
    """At most 44,000 words in all, code and formulas not counted."""
    apart = re.compile(r"^(`{3,}).*?^\1|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL | re.MULTILINE)
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    words = [len(apart.sub("", page.read_text(encoding="utf-8")).split()) for page in pages]
    assert 10_000 < sum(words) <= 44_000


def tables(page: str) -> list[str]:
    """The first columns of a page's tables."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = [re.match(r" *\| *(.*?) *\|", line) for line in text.splitlines()]
    return "".join(f"{row[1]}\n" if row else "\n" for row in rows).split("\n\n")


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/math/thretopk.md", "`curve`"),
        ("docs/math/thretopk.md", "curve"),
        ("docs/guide/operators.md", "`curve`"),
    ],
)
def test_tables_of_curves_have_them_all(page, heading):
    """What a curve is, how fast it converges, and how to choose: of every curve of the registry."""
    found = [table for table in tables(page) if table.strip().startswith(f"{heading}\n")]
    assert found
    for table in found:
        assert [name for name in NAMES if not re.search(rf"`\"?{name}\"?`", table)] == []


def test_pages_that_cannot_be_built_say_what_to_install(monkeypatch):
    """In one line, where Sphinx would end in a traceback of the first import that fails."""
    pytest.importorskip("sphinx")
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs/conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    monkeypatch.setattr(conf, "find_spec", {"dask": spec, "sklearn": spec}.get)
    with pytest.raises(SystemExit, match=re.escape("pip install '.[docs,torch,jax]'")):
        conf.setup(None)
