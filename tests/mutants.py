"""Faults put into the package on purpose: does a test notice each?

    python tests/mutants.py                  every mutant, two at a time: an hour or two
    python tests/mutants.py solver cache     those of some groups
    python tests/mutants.py --only 3,7 -j 1  those of these numbers, one at a time
    python tests/mutants.py --tier fast      with the tests that `pytest` runs
    python tests/mutants.py --show           what each changes; runs nothing

A mutant is one change of one function, described so that it outlives renamed variables and moved
files: a pattern in the function's text as `ast.unparse` writes it, in one line a statement. It is
made in a temporary copy of the working tree, where its test files are run until one fails. They
are listed in data/mutants.txt. Kernels that the change cannot reach are not compiled again if the
working tree has them compiled, as it has after its tests.
A mutant that survives is a test that is missing. One whose function or pattern is gone is reported
as loudly: describe it anew.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import copy
import difflib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT = 1200  # seconds for the tests of a mutant: one that runs on is noticed too
NO_TESTS = 5  # what pytest returns if the tier has no test in the files
# All that needs nothing but the package, slow or not.
WITHOUT_FRONTS = "not torch and not jax and not dask and not ptx and not device"
TIERS = {
    "all": f"(slow or not slow) and (full or not full) and {WITHOUT_FRONTS}",
    "fast": f"not slow and not full and {WITHOUT_FRONTS}",
}


class Mutant(NamedTuple):
    """`place`: file:function, file:Class.method or file:CONSTANT; the file only if it is there."""

    group: str
    place: str
    pattern: str
    new: str
    tests: str  # files below tests/, and options of pytest


def read() -> list[Mutant]:
    """The mutants of the file, in its order."""
    mutants, group, usual = [], "", ""
    for line in (ROOT / "tests" / "data" / "mutants.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("=="):
            group, usual = (part.strip() for part in line.strip("= ").split("::"))
        elif line and not line.startswith("#"):
            place, pattern, new, *tests = (part.strip() for part in line.split("::"))
            mutants.append(Mutant(group, place, pattern, new, tests[0] if tests else usual))
    return mutants


class NotFound(Exception):
    """The mutant's function or pattern is not there, or not alone."""


def definitions(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The functions, methods and assignments of a module that have this name."""
    *outer, last = name.split(".")
    bodies = [tree.body]
    for each in outer:
        bodies = [
            n.body for b in bodies for n in b if isinstance(n, ast.ClassDef) and n.name == each
        ]
    found: list[ast.stmt] = []
    for node in (n for body in bodies for n in body):
        if isinstance(node, ast.FunctionDef) and node.name == last:
            found.append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            found += [node] * (last in names)
    return found


def find(package: Path, place: str) -> tuple[Path, ast.stmt]:
    """The file and the statement; in another file if that one is gone, or has no such name."""
    file, _, name = place.partition(":")
    for paths in ([package / file], sorted(package.rglob("*.py"))):
        found = [
            (path, node)
            for path in paths
            if path.exists()
            for node in definitions(ast.parse(path.read_text(encoding="utf-8")), name)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise NotFound(f"{name} is defined {len(found)} times")
    raise NotFound(f"no {name}")


def without_documentation(node: ast.stmt) -> tuple[str | None, str]:
    """A statement's docstring, and its text without that."""
    if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
        return None, ast.unparse(node)
    kept = copy.copy(node)
    kept.body = node.body[1:]
    return ast.get_docstring(node, clean=False), ast.unparse(kept)


def changed(text: str, node: ast.stmt, pattern: str, new: str) -> str:
    """The module's text with the change in this statement, whose docstring is not searched."""
    documentation, before = without_documentation(node)
    after, count = re.subn(pattern, new, before, count=1)
    if not count or after == before:
        raise NotFound(f"no {pattern!r}")
    try:
        tree = ast.parse(after).body[0]
    except SyntaxError as error:
        raise NotFound(f"{pattern!r} became no Python: {error.msg}") from None
    if documentation is not None and isinstance(tree, ast.FunctionDef):
        tree.body.insert(0, ast.Expr(ast.Constant(documentation)))
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    lines = text.splitlines(keepends=True)
    indent = re.match(r" *", lines[first])[0]
    written = "".join(f"{indent}{line}\n" for line in ast.unparse(tree).splitlines())
    return "".join(lines[:first]) + written + "".join(lines[node.end_lineno :])


def copy_tree(target: Path) -> None:
    """The working tree without what git ignores."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def give_compiled_code(tree: Path) -> None:
    """Copy what the working tree has compiled."""
    for file in (ROOT / "softtopk_nb").rglob("*.nb[ci]"):
        (tree / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, tree / file.relative_to(ROOT))


def mutate(mutant: Mutant, tree: Path) -> str:
    """Make the change there; what it changes, as lines of a difference."""
    path, node = find(tree / "softtopk_nb", mutant.place)
    text = path.read_text(encoding="utf-8")
    after = changed(text, node, mutant.pattern, mutant.new)
    path.write_text(after, encoding="utf-8")
    now = definitions(ast.parse(after), mutant.place.partition(":")[2])[0]
    texts = [without_documentation(n)[1].splitlines() for n in (node, now)]
    lines = difflib.unified_diff(*texts, lineterm="", n=0)
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def outcome(tree: Path, words: list[str], tier: str) -> tuple[int, list[str], str]:
    """What pytest returns there, which tests failed, and all that it said."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", TIERS[tier], "--tb=line"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return -signal.SIGKILL, [], ""
    failed = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
    return process.returncode, failed, output


@functools.cache
def fails_anyway(test: str) -> bool:
    """Whether a test fails without any mutant."""
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        give_compiled_code(Path(folder))
        return outcome(Path(folder), [test], "all")[0] != 0


def run(mutant: Mutant, tier: str) -> tuple[str, str]:
    """(verdict, more): killed, SURVIVED, NOT FOUND or BROKEN."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        give_compiled_code(tree)  # what the change cannot reach is not compiled again
        try:
            mutate(mutant, tree)
        except NotFound as error:
            return "NOT FOUND", str(error)
        words = shlex.split(mutant.tests)
        words = [f"tests/{w}" if (ROOT / "tests" / w).exists() else w for w in words]
        code, failed, output = outcome(tree, words, tier)
    took = f"{time.monotonic() - began:.0f} s"
    if code in (0, NO_TESTS):
        return "SURVIVED", took
    if code < 0 or "Fatal Python" in output:
        return "killed", f"{took}, the process ended or had to be ended"
    if code == 1 and failed:
        if fails_anyway(failed[0].partition("[")[0]):
            return "BROKEN", f"{failed[0]} fails without the mutant, too"
        return "killed", f"{took}, {failed[0]}"
    return "BROKEN", output[-2000:]


def main() -> int:
    mutants = read()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("groups", nargs="*", help="solver, formulas, arguments, nonfinite, ...")
    parser.add_argument("--tier", default="all", choices=TIERS, help="which tests are run")
    parser.add_argument("--only", default="", help="numbers, with commas between")
    parser.add_argument("--show", action="store_true", help="what each changes; run nothing")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="how many at a time")
    given = parser.parse_args()
    numbers = {int(n) for n in given.only.split(",") if n}
    unknown = set(given.groups) - {mutant.group for mutant in mutants}
    if unknown or not numbers <= set(range(len(mutants))):
        parser.error(f"no such mutants: {unknown or numbers}")
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(mutants)
        if (number in numbers or not numbers) and (mutant.group in given.groups or not given.groups)
    ]
    verdicts = []
    if given.show:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            for number, mutant in chosen:
                shutil.copytree(ROOT / "softtopk_nb", tree / "softtopk_nb", dirs_exist_ok=True)
                try:
                    text = mutate(mutant, tree)
                except NotFound as error:
                    text = f"NOT FOUND: {error}"
                    verdicts.append("NOT FOUND")
                print(f"{number} {mutant.group} {mutant.place}\n{text}")
    else:
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            runs = {pool.submit(run, each[1], given.tier): each for each in chosen}
            for future in concurrent.futures.as_completed(runs):
                number, mutant = runs[future]
                verdict, more = future.result()
                verdicts.append(verdict)
                print(f"{number} {mutant.group} {mutant.place}: {verdict} ({more})", flush=True)
    for verdict in sorted(set(verdicts)):
        print(f"{verdicts.count(verdict)} {verdict}")
    return int(any(verdict != "killed" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
