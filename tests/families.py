"""Which worker of pytest-xdist runs which tests, so that few kernels are compiled twice.

Most of the time goes into compiling. Workers share a cache on disk, but two that come to a kernel
at the same time both compile it, and they nearly always do when tests are dealt out in turn. Here a
worker stays with the tests of one family, of one operator and curve, as long as there are
any; then it takes a family that no other worker has, and in the end it helps with another's.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from xdist.scheduler import LoadScopeScheduling

OPERATORS = "thretopk|gradtopk|itertopk|wsoftmaxtopk|hardtopk|gumbel|sinkhorn|softmax"
CURVES = r"laplace|sigmoid|exp\b|clip|normal|entmax|cauchy|algebraic"
# Folders whose tests are of an operator that they do not name.
FOLDERS = {"threshold": "thretopk", "curves": "entmax", "iterative": "itertopk"}
# The most expensive first. Those of `threads` start processes, which load what is compiled by then.
FIRST = ("gradtopk", "nopython", "compile", "api", "thretopk", "itertopk", "threads")


def family_of(nodeid: str) -> str:
    """The operator (or the folder) and the curve that a test's name tells.

    Not the type: many helpers are compiled for float64 in both.
    """
    path, _, name = nodeid.partition("::")
    parameters = name.partition("[")[2]
    folder = PurePosixPath(path).parent.name
    named, curve = re.search(OPERATORS, parameters), re.search(CURVES, parameters)
    operator = named[0] if named else "thretopk" if curve else FOLDERS.get(folder, folder)
    of = f"{operator} {curve[0] if curve else 'laplace'}" if operator == "thretopk" else operator
    return of


class ByFamily(LoadScopeScheduling):  # type: ignore[misc]
    """Units of work are the test functions of each family."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[Any, str] = {}  # each worker's family

    def _split_scope(self, nodeid: str) -> str:
        return f"{family_of(nodeid)}: {nodeid.partition('[')[0]}"

    def _assign_work_unit(self, node: Any) -> None:
        left: dict[str, list[str]] = {}
        for unit in self.workqueue:
            left.setdefault(unit.partition(":")[0], []).append(unit)
        family = self._held.get(node, "")
        if family not in left:
            free = [each for each in left if each not in self._held.values()]
            family = min(free, key=_rank) if free else max(left, key=lambda each: len(left[each]))
            self._held[node] = family
        units = left[family]
        # Who helps begins at the other end.
        alone = next(each for each, held in self._held.items() if held == family) is node
        self.workqueue.move_to_end(units[0] if alone else units[-1], last=False)
        super()._assign_work_unit(node)


def _rank(family: str) -> int:
    operator = family.partition(" ")[0]
    return FIRST.index(operator) if operator in FIRST else len(FIRST)
