"""The kernels of the package: what to compile, and what is asked of it. One line each."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import ptx

from softtopk_nb import _launch
from softtopk_nb._launch import Kernel
from softtopk_nb._team import Team
from softtopk_nb._threshold import cuda as threshold
from softtopk_nb._threshold.curves import CURVES, Entmax
from softtopk_nb._threshold.rows import METHODS
from softtopk_nb.gradtopk import cuda as gradtopk
from softtopk_nb.gradtopk import cuda_nodes, cuda_tangent, cuda_value
from softtopk_nb.hardtopk import cuda as hardtopk
from softtopk_nb.iterative import IterTopK, WSoftmaxTopK
from softtopk_nb.iterative import cuda as iterative
from softtopk_nb.iterative import cuda_rows as iterated
from softtopk_nb.softmax import cuda_rows as softmax
from softtopk_nb.softmax import cuda_slopes as slopes
from softtopk_nb.thretopk import cuda_rows as thretopk

NEWEST = ptx.CAPABILITIES[-1]


def teams_of(chosen: Callable[[int, Any], Team]) -> Callable[[Any], list[Team]]:
    """All the teams that a function of n and T can choose."""
    sizes = [most // half for most, _ in _launch._TEAMS for half in (1, 2)]
    return lambda T: list(dict.fromkeys(chosen(n, T) for n in (*sizes, 10**6)))


class Entry(NamedTuple):
    """A kernel for any type and team; how many arrays it reads and writes 16 bytes at a time."""

    make: Callable[[Any, Team], Kernel]
    reads: int = 1
    writes: int = 1
    often: bool = False  # what most calls run: every team, on every kind of device
    in_float64: bool = False  # arithmetic for each entry is in float64, on purpose
    teams: Callable[[Any], list[Team]] = teams_of(_launch.choose)


def made(factory: Callable[..., Kernel], *arguments: Any, **asked: Any) -> Entry:
    """The kernel of a factory that takes a type, a team, and these arguments."""
    return Entry(lambda T, team: factory(T, team, *arguments), **asked)


def solve(name: str, writes: bool = True, keeps: bool = False, **asked: Any) -> Entry:
    curve = CURVES.get(name) or Entmax(1.5)
    method = METHODS["newton"]
    return made(threshold.make_solve, curve, method, writes, keeps, writes=int(writes), **asked)


# Iterations keep their vectors in memory, in float64, and read a row once.
ITERATED: Any = {
    "reads": 0,
    "writes": 0,
    "in_float64": True,
    "teams": teams_of(lambda n, T: iterative.choose(n)),
}

WHOLE_WARPS: Any = {"teams": teams_of(cuda_nodes.choose_whole)}
MOVING: Any = {
    "reads": 2,
    "teams": teams_of(lambda n, T: cuda_nodes.choose_whole(n, T, gradtopk.MOVERS)),
}

KERNELS = {
    "solve laplace": solve("laplace", often=True),
    "solve laplace, keep": solve("laplace", keeps=True),
    "solve laplace, keep only": solve("laplace", False, True),
    "solve sigmoid": solve("sigmoid"),
    "solve exp": solve("exp"),
    "solve clip": solve("clip"),
    "solve normal": solve("normal"),
    "solve entmax": solve("entmax"),
    "thretopk push": made(thretopk.make_push, CURVES["laplace"], reads=2),
    "thretopk pull": made(thretopk.make_pull, CURVES["laplace"], reads=2),
    "gradtopk": made(cuda_value.make_solve, 0.02, True, False, **WHOLE_WARPS),
    "gradtopk, keep": made(cuda_value.make_solve, 0.02, True, True, **WHOLE_WARPS),
    "gradtopk potential": made(cuda_value.make_solve, 0.02, False, False, writes=0, **WHOLE_WARPS),
    "gradtopk push": made(cuda_tangent.make_push, False, **MOVING),
    "gradtopk pull": made(cuda_tangent.make_push, True, **MOVING),
    "hardtopk": made(hardtopk.make_hard, False),
    "softmax": made(softmax.make_value, "softmax", False),
    "softmax, keep": made(softmax.make_value, "softmax", True),
    "log_softmax": made(softmax.make_value, "log_softmax", False),
    "softmax push": made(slopes.make_push, "softmax", reads=2),
    "softmax pull": made(slopes.make_pull, "softmax", reads=2),
    "logsumexp push": made(slopes.make_push_sum, reads=2, writes=0),
    "logsumexp pull": made(slopes.make_pull_sum),
    "itertopk": made(iterated.make_solve, IterTopK._kind, **ITERATED),
    "itertopk push": made(iterated.make_push, IterTopK._kind, **ITERATED),
    "wsoftmaxtopk": made(iterated.make_solve, WSoftmaxTopK._kind, **ITERATED),
    "wsoftmaxtopk pull": made(iterated.make_pull, WSoftmaxTopK._kind, **ITERATED),
}

#: Bytes of stack that ptxas may use in each thread of any kernel: a few words of the search, laid
#: aside once in a pass even where registers are left.
ASIDE = 32

#: Where it takes more, by kernel and type: the most of any team, and why.
STACK: dict[tuple[str, Any], int] = {
    # Two rows of 32 words each, held by a block that leaves 128 registers to a thread.
    ("thretopk push", np.float32): 216,
    ("thretopk push", np.float64): 472,
    ("softmax pull", np.float64): 312,
    # The steering of a step, in float64, where two blocks share a multiprocessor.
    ("wsoftmaxtopk", np.float32): 40,
}


class Case(NamedTuple):
    """One compilation."""

    label: str
    T: Any
    team: Team
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        streams = ", streams" if self.team.streams else ""
        major, minor = self.capability
        held = f"{self.team.lanes} x {self.team.held}{streams}"
        return f"{np.dtype(self.T).name}, {held}, sm_{major}{minor}"


def cases() -> Iterator[Case]:
    """All of what runs often; else the smallest team, the one that holds most, the last."""
    for label, entry in KERNELS.items():
        for T in (np.float32, np.float64):
            those = entry.teams(T)
            most = max(those, key=lambda team: team.held)
            if entry.often:
                yield from (Case(label, T, t, c) for c in ptx.CAPABILITIES for t in those)
            else:
                few = (those[0], most, those[-1]) if T is np.float32 else (most, those[-1])
                yield from (Case(label, T, t, NEWEST) for t in dict.fromkeys(few))


def compiled(case: Case) -> ptx.Report:
    return ptx.report(KERNELS[case.label].make(case.T, case.team), case.capability)


def doubles(label: str, team: Team) -> int:
    """Instructions on float64 in a kernel for float32 rows."""
    return ptx.doubles(ptx.compile_for(KERNELS[label].make(np.float32, team), NEWEST))


class Ahead:
    """Compiles in other processes what the tests will ask for, in the order of the tests."""

    def __init__(self, wanted: list[tuple[Any, ...]]):
        context = multiprocessing.get_context("spawn")
        self._pool = concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context)
        self._results = {job: self._pool.submit(*job) for job in dict.fromkeys(wanted)}

    def result(self, *job: Any) -> Any:
        return self._results[job].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def main() -> None:
    """Print what the kernels use whose names contain a word."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [case for case in cases() if word in case.label]
    ahead = Ahead([(compiled, case) for case in chosen])
    for case in chosen:
        report = ahead.result(compiled, case)
        print(
            f"{case.label:<26} {case.name:<36} {report.registers:3} registers, "
            f"{report.stack:4} bytes of stack, {report.spilled:4} moved by spilling",
            flush=True,
        )
    ahead.close()


if __name__ == "__main__":
    main()
