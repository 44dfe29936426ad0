"""The kernels of the package: what to compile, and what is asked of it. One line each."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import ptx

from softtopk_nb._cuda import copying, launch, sorting
from softtopk_nb._cuda.launch import Kernel
from softtopk_nb._cuda.target import cuda
from softtopk_nb._cuda.thread_groups import Team
from softtopk_nb._curves.entmax import Entmax
from softtopk_nb._curves.registry import CURVES, NAMES
from softtopk_nb._curves.user import UserCurve
from softtopk_nb._threshold.cuda import long as long_threshold
from softtopk_nb._threshold.cuda import long_start
from softtopk_nb._threshold.cuda import rows as threshold
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb.gradtopk import cuda as gradtopk
from softtopk_nb.gradtopk.cuda import long as long_gradtopk
from softtopk_nb.gradtopk.cuda import long_tangent
from softtopk_nb.gradtopk.cuda import nodes as cuda_nodes
from softtopk_nb.gradtopk.cuda import rows as cuda_rows
from softtopk_nb.gradtopk.cuda import tangent as cuda_tangent
from softtopk_nb.hardtopk import cuda as hardtopk
from softtopk_nb.hardtopk.cuda import long as long_hardtopk
from softtopk_nb.iterative import cuda as iterative
from softtopk_nb.iterative.cuda import long as long_iterated
from softtopk_nb.iterative.cuda import long_slopes as iterated_slopes
from softtopk_nb.iterative.cuda import long_start as iterated_start
from softtopk_nb.iterative.cuda import rows as iterated
from softtopk_nb.iterative.operator import IterTopK, WSoftmaxTopK
from softtopk_nb.softmax.cuda import long as long_softmax
from softtopk_nb.softmax.cuda import long_noise, long_slopes, noise, slopes
from softtopk_nb.softmax.cuda import rows as softmax
from softtopk_nb.thretopk.cuda import long as long_thretopk
from softtopk_nb.thretopk.cuda import rows as thretopk

NEWEST = ptx.CAPABILITIES[-1]
REALS = (np.float32, np.float64)

Teams = list[Team | None]  # None where a kernel has no team


def teams_of(
    chosen: Callable[[int, Any], Team], shortest: int = 1, longest: int = 10**6
) -> Callable[[Any], Teams]:
    """All the teams that a function of n and T can choose for rows of such lengths."""
    sizes = [n // half for n, _ in launch._TEAMS for half in (1, 2)]
    lengths = sorted({shortest, *(n for n in sizes if shortest <= n <= longest), longest})
    return lambda T: list(dict.fromkeys(chosen(n, T) for n in lengths))


class Entry(NamedTuple):
    """A kernel for any type and team; how many arrays it reads and writes 16 bytes at a time."""

    factory: Any  # what makes it, or several of which it is one
    make: Callable[[Any, Team | None], Kernel]
    reads: int = 1
    writes: int = 1
    often: bool = False  # what most calls run: every team, on every kind of device
    in_float64: bool = False  # arithmetic for each entry is in float64, on purpose
    teams: Callable[[Any], Teams] = teams_of(launch.choose)


def made(factory: Any, *arguments: Any, part: str = "", **asked: Any) -> Entry:
    """The kernel of a factory that takes a type, a team, and these arguments."""

    def make(T: Any, team: Team | None) -> Kernel:
        kernel = factory(T, team, *arguments)
        return getattr(kernel, part) if part else kernel

    return Entry(factory, make, **asked)


def without_team(factory: Any, *arguments: Any) -> Entry:
    """The kernel of a factory that takes these arguments; None stands for the type."""

    def make(T: Any, team: Team | None) -> Kernel:
        return factory(*(T if value is None else value for value in arguments))

    return Entry(factory, make, reads=0, writes=0, teams=lambda T: [None])


@cuda.jit(device=True)
def _cauchy_integral(t: Any) -> Any:
    return t * (0.5 + math.atan(t) / math.pi) - math.log1p(t * t) / (2 * math.pi)


# So long that loops over the entries held are not unrolled, as a user's curve can be.
MIXTURE = UserCurve(
    lambda t: 0.5 + (math.atan(t - 1) + math.atan(t) + math.atan(t + 1)) / (3 * math.pi),
    lambda t: (1 / (1 + (t - 1) ** 2) + 1 / (1 + t**2) + 1 / (1 + (t + 1) ** 2)) / (3 * math.pi),
    lambda t: (_cauchy_integral(t - 1) + _cauchy_integral(t) + _cauchy_integral(t + 1)) / 3,
)
OTHERS: dict[str, Any] = {"entmax": Entmax(1.5), "entmax 1.3": Entmax(1.3), "user": MIXTURE}


def curve_of(name: str) -> Any:
    return OTHERS.get(name) or CURVES[name]


def solve(
    name: str, writes: bool = True, keeps: bool = False, method: str = "newton", **asked: Any
) -> Entry:
    by, writing = METHODS[method], int(writes)
    return made(threshold.make_solve, curve_of(name), by, writes, keeps, writes=writing, **asked)


LAPLACE, NEWTON, SCAN = CURVES["laplace"], METHODS["newton"], METHODS["scan"]

# Which teams a kernel gets, what it reads, and what it does in float64.
LONG: Any = {"teams": lambda T: [launch.streaming(T)]}
SUMS: Any = {"reads": 0, "writes": 0, **LONG}  # of the sums over parts
TWO_ROWS: Any = {"reads": 2, "teams": teams_of(launch.choose_for_two)}
HEIGHTS: Any = {"writes": 0, "in_float64": True}
WHOLE_WARPS: Any = {"teams": teams_of(cuda_nodes.choose_whole)}
MOVING: Any = {
    "reads": 2,
    "teams": teams_of(lambda n, T: cuda_nodes.choose_whole(n, T, gradtopk.MOVERS)),
}
LONG_MOVING: Any = {
    "reads": 2,
    "teams": lambda T: [cuda_nodes.choose_whole(10**6, T, gradtopk.MOVERS)],
}
# Iterations keep their vectors in memory, in float64, and read a row once.
ITERATED: Any = {
    "reads": 0,
    "writes": 0,
    "in_float64": True,
    "teams": teams_of(lambda n, T: iterative.choose(n)),
}
ITERATED_MOVING: Any = {
    **ITERATED,
    "teams": teams_of(lambda n, T: iterative.choose(n, iterative.MOVERS)),
}
LONG_ITERATED: Any = {**ITERATED, **LONG}
SORTED: Any = {"teams": teams_of(launch.choose, longest=hardtopk.SORTED)}
COUNTED: Any = {"teams": teams_of(launch.choose, shortest=hardtopk.SORTED + 1)}
NOISY: Any = {"teams": teams_of(noise.team_for)}


def one_warp(T: Any) -> Teams:
    """The teams that sort a row in registers."""
    return [team for team in teams_of(launch.choose)(T) if team and team.lanes <= 32]


KERNELS = {
    "solve laplace": solve("laplace", often=True),
    "solve laplace, keep": solve("laplace", keeps=True),
    "solve laplace, keep only": solve("laplace", False, True),
    "solve laplace, bisect": solve("laplace", method="bisect"),
    "solve laplace, scan": solve("laplace", method="scan"),
    **{f"solve {name}": solve(name) for name in NAMES if name != "laplace"},
    "solve exp, scan": solve("exp", method="scan"),
    "solve clip, scan": solve("clip", method="scan"),
    "solve entmax 1.3": solve("entmax 1.3"),
    "solve user": solve("user", in_float64=True, teams=TWO_ROWS["teams"]),
    **{
        f"solve long, {part}": made(
            long_threshold._make_launches, LAPLACE, NEWTON, part=part, writes=0, **LONG
        )
        for part in ("survey", "begin", "open", "turn")
    },
    **{
        f"solve long {curve}, scan, {part}": made(
            long_threshold._make_launches, CURVES[curve], SCAN, part=part, writes=0, **LONG
        )
        for curve in ("laplace", "exp", "clip")
        for part in ("begin", "open")
    },
    **{
        f"solve long {curve}, scan, halve": made(
            long_start.make_halve, CURVES[curve], SCAN, writes=0, **LONG
        )
        for curve in ("laplace", "exp", "clip")
    },
    "solve long, finish": made(
        long_threshold._make_finish, LAPLACE, NEWTON, True, writes=0, **LONG
    ),
    "solve long, fill": made(long_threshold._make_fill, LAPLACE, NEWTON, **LONG),
    "solve long, user, fill": made(
        long_threshold._make_fill, MIXTURE, NEWTON, in_float64=True, **LONG
    ),
    "thretopk push": made(thretopk.make_push, LAPLACE, **TWO_ROWS),
    "thretopk pull": made(thretopk.make_pull, LAPLACE, **TWO_ROWS),
    "thretopk potential": made(
        thretopk.make_potential, LAPLACE, teams=TWO_ROWS["teams"], **HEIGHTS
    ),
    "thretopk potential, user": made(
        thretopk.make_potential, MIXTURE, teams=TWO_ROWS["teams"], **HEIGHTS
    ),
    "thretopk push, user": made(thretopk.make_push, MIXTURE, in_float64=True, **TWO_ROWS),
    "thretopk pull, user": made(thretopk.make_pull, MIXTURE, in_float64=True, **TWO_ROWS),
    "thretopk threshold": without_team(thretopk.make_threshold),
    "thretopk long, moments": made(long_thretopk._make_moments, LAPLACE, reads=2, writes=0, **LONG),
    "thretopk long, push": made(long_thretopk._make_push, LAPLACE, reads=2, **LONG),
    "thretopk long, push, user": made(
        long_thretopk._make_push, MIXTURE, reads=2, in_float64=True, **LONG
    ),
    "thretopk long, pull": made(long_thretopk._make_pull, LAPLACE, reads=2, **LONG),
    "thretopk long, heights": made(long_thretopk._make_heights, LAPLACE, **HEIGHTS, **LONG),
    "thretopk long, potential": made(long_thretopk._make_potential, LAPLACE, **SUMS),
    "gradtopk": made(cuda_rows.make_solve, 0.02, True, False, **WHOLE_WARPS),
    "gradtopk, keep": made(cuda_rows.make_solve, 0.02, True, True, **WHOLE_WARPS),
    "gradtopk potential": made(cuda_rows.make_solve, 0.02, False, False, writes=0, **WHOLE_WARPS),
    "gradtopk push": made(cuda_tangent.make_push, False, **MOVING),
    "gradtopk pull": made(cuda_tangent.make_push, True, **MOVING),
    **{
        f"gradtopk long, {part}": made(
            long_gradtopk._make_launches, 0.01, part=part, writes=0, **LONG
        )
        for part in ("gather", "multiply")
    },
    "gradtopk long, fill": made(long_gradtopk._make_fill, 0.01, True, **LONG),
    "gradtopk long, heights": made(
        long_gradtopk._make_heights, reads=0, writes=0, in_float64=True, **LONG
    ),
    "gradtopk long, potential": made(long_gradtopk._make_potential, 0.01, **SUMS),
    "gradtopk long, weigh": made(long_tangent._make_weigh, writes=0, **LONG_MOVING),
    "gradtopk long, push": made(long_tangent._make_spread, False, **LONG_MOVING),
    "gradtopk long, pull": made(long_tangent._make_spread, True, **LONG_MOVING),
    "gradtopk long, pull total": made(long_tangent._make_pair, **SUMS),
    "hardtopk, sorted": made(hardtopk.make_hard, True, **SORTED),
    "hardtopk": made(hardtopk.make_hard, False, **COUNTED),
    **{
        f"hardtopk long, {part}": made(long_hardtopk._make_launches, part=part, writes=0, **LONG)
        for part in ("survey", "open", "turn", "settle")
    },
    "hardtopk long, mark": made(long_hardtopk._make_mark, **LONG),
    "softmax": made(softmax.make_value, "softmax", False),
    "softmax, keep": made(softmax.make_value, "softmax", True),
    "softmax push": made(slopes.make_push, "softmax", **TWO_ROWS),
    "softmax pull": made(slopes.make_pull, "softmax", **TWO_ROWS),
    "log_softmax": made(softmax.make_value, "log_softmax", False),
    "log_softmax push": made(slopes.make_push, "log_softmax", **TWO_ROWS),
    "log_softmax pull": made(slopes.make_pull, "log_softmax", **TWO_ROWS),
    "logsumexp": made(softmax.make_value, "logsumexp", False, writes=0),
    "logsumexp push": made(slopes.make_push_sum, writes=0, **TWO_ROWS),
    "logsumexp pull": made(slopes.make_pull_sum, teams=TWO_ROWS["teams"]),
    "softmax long, look": made(long_softmax.make_look, False, writes=0, **LONG),
    "softmax long, gather": made(long_softmax._make_gather, writes=0, **LONG),
    "softmax long, fill": made(long_softmax._make_fill, "softmax", True, **LONG),
    "softmax long, push add": made(
        long_slopes._make_push_add, "softmax", reads=2, writes=0, **LONG
    ),
    "softmax long, push": made(long_slopes._make_push, "softmax", reads=2, **LONG),
    "softmax long, pull add": made(
        long_slopes._make_pull_add, "softmax", reads=2, writes=0, **LONG
    ),
    "softmax long, pull": made(long_slopes._make_pull, "softmax", reads=2, **LONG),
    "softmax long, pull total": made(long_slopes._make_pull_total, **SUMS),
    "log_softmax long, fill": made(long_softmax._make_fill, "log_softmax", True, **LONG),
    "log_softmax long, push": made(long_slopes._make_push, "log_softmax", reads=2, **LONG),
    "log_softmax long, pull": made(long_slopes._make_pull, "log_softmax", reads=2, **LONG),
    "logsumexp long, fill": made(long_softmax._make_fill, "logsumexp", True, **SUMS),
    "logsumexp long, push add": made(long_slopes._make_push_sum_add, reads=2, writes=0, **LONG),
    "logsumexp long, push": made(long_slopes._make_push_sum, **SUMS),
    "logsumexp long, pull": made(long_slopes._make_pull_sum, **LONG),
    "logsumexp long, pull total": made(long_slopes._make_pull_sum_total, **SUMS),
    "noise": made(noise.make_perturb, False, **NOISY),
    "noise, on finite entries": made(noise.make_perturb, True, **NOISY),
    "draw": made(noise.make_draw, writes=0, **NOISY),
    "noise long, look": made(long_softmax.make_look, True, writes=0, **LONG),
    "noise long": made(long_noise._make_perturb, False, **LONG),
    "noise long, on finite entries": made(long_noise._make_perturb, True, **LONG),
    "draw long": made(long_noise._make_pick, writes=0, **LONG),
    "itertopk": made(iterated.make_solve, IterTopK._kind, **ITERATED),
    "itertopk push": made(iterated.make_push, IterTopK._kind, **ITERATED_MOVING),
    "itertopk pull": made(iterated.make_pull, IterTopK._kind, **ITERATED_MOVING),
    "wsoftmaxtopk": made(iterated.make_solve, WSoftmaxTopK._kind, **ITERATED),
    "wsoftmaxtopk push": made(iterated.make_push, WSoftmaxTopK._kind, **ITERATED_MOVING),
    "wsoftmaxtopk pull": made(iterated.make_pull, WSoftmaxTopK._kind, **ITERATED_MOVING),
    **{
        f"{name} long, {part.replace('_', ' ')}": made(
            getattr(module, f"make_{part}"), kind, **LONG_ITERATED
        )
        for name, kind in (("itertopk", IterTopK._kind), ("wsoftmaxtopk", WSoftmaxTopK._kind))
        for module, parts in (
            (iterated_start, "survey open start"),
            (long_iterated, "look weigh fill"),
            (iterated_slopes, "push_base push_turn push_look push_swing push_fill"),
            (iterated_slopes, "pull_receive pull_centre pull_back pull_gather pull_fill"),
        )
        for part in parts.split()
    },
    "wsoftmaxtopk long, pull led": made(
        iterated_slopes.make_pull_led, WSoftmaxTopK._kind, **LONG_ITERATED
    ),
    "sort, short": made(sorting.make_short, writes=0, teams=one_warp),
    "sort, chunks": without_team(sorting.make_chunks, None, sorting.CHUNK, False),
    "sort, merge": without_team(sorting.make_chunks, None, sorting.CHUNK, True),
    "sort, step": without_team(sorting.make_step, None),
    "copy": without_team(copying.make_copy, None, None),
    "copy, from float16": without_team(copying.make_copy, np.float16, None),
    "copy, to float16": without_team(copying.make_copy, None, np.float16),
    "copy, from int64": without_team(copying.make_copy, np.int64, None),
    "sum": without_team(copying.make_sum, None),
}


class Case(NamedTuple):
    """One compilation."""

    label: str
    T: Any
    team: Team | None
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        major, minor = self.capability
        held = ""
        if self.team:
            streams = ", streams" if self.team.streams else ""
            held = f", {self.team.lanes} x {self.team.held}{streams}"
        return f"{np.dtype(self.T).name}{held}, sm_{major}{minor}"

    @property
    def kernel(self) -> Kernel:
        return KERNELS[self.label].make(self.T, self.team)


def few(teams: Teams) -> Teams:
    """Of those that hold most of a row, the smallest and the largest team; and the last."""
    holding = [team for team in teams if team and not team.streams]
    most = [team for team in holding if team.held == max(team.held for team in holding)]
    return list(dict.fromkeys((*most[:1], *most[-1:], teams[-1])))


def cases() -> Iterator[Case]:
    """All of what runs often; else a few teams, and now one kind of device, now the other."""
    for label, entry in KERNELS.items():
        if entry.often:
            yield from (
                Case(label, T, team, c)
                for T in REALS
                for c in ptx.CAPABILITIES
                for team in entry.teams(T)
            )
        else:
            for T, devices in zip(REALS, (ptx.CAPABILITIES, ptx.CAPABILITIES[::-1]), strict=True):
                chosen = zip(few(entry.teams(T)), itertools.cycle(devices), strict=False)
                yield from (Case(label, T, team, c) for team, c in chosen)


def compiled(case: Case) -> ptx.Report:
    return ptx.report(case.kernel, case.capability)


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
