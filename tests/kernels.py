"""The kernels of the package: what to compile, and what is asked of it. One line each."""

from __future__ import annotations

import concurrent.futures
import gc
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
from softtopk_nb._cuda.row_kernels import Staged
from softtopk_nb._cuda.target import cuda
from softtopk_nb._cuda.thread_groups import ThreadGroup
from softtopk_nb._curves.entmax import Entmax
from softtopk_nb._curves.registry import CURVES, NAMES
from softtopk_nb._curves.user import UserCurve
from softtopk_nb._curves.user_math import vectorised
from softtopk_nb._threshold.cuda import long as long_threshold
from softtopk_nb._threshold.cuda import long_start
from softtopk_nb._threshold.cuda import rows as threshold
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb.balanced.cuda import rows as balanced_rows
from softtopk_nb.balanced.cuda import tables as balanced
from softtopk_nb.gradtopk import cuda as gradtopk
from softtopk_nb.gradtopk.cuda import cumulant as cuda_cumulant
from softtopk_nb.gradtopk.cuda import long as long_gradtopk
from softtopk_nb.gradtopk.cuda import long_tangent
from softtopk_nb.gradtopk.cuda import loss as gradtopk_loss
from softtopk_nb.gradtopk.cuda import nodes as cuda_nodes
from softtopk_nb.gradtopk.cuda import rows as cuda_rows
from softtopk_nb.gradtopk.cuda import tangent as cuda_tangent
from softtopk_nb.hardtopk import cuda as hardtopk
from softtopk_nb.hardtopk.cuda import long as long_hardtopk
from softtopk_nb.hardtopk.cuda import selection
from softtopk_nb.hardtopk.cuda import solve as hard_rows
from softtopk_nb.iterative import cuda as iterative
from softtopk_nb.iterative.cuda import long as long_iterated
from softtopk_nb.iterative.cuda import long_slopes as iterated_slopes
from softtopk_nb.iterative.cuda import rows as iterated
from softtopk_nb.iterative.operator import IterTopK, WSoftmaxTopK
from softtopk_nb.softmax.cuda import long_noise, noise, slopes
from softtopk_nb.softmax.cuda import rows as softmax
from softtopk_nb.thretopk.cuda import loss as thretopk_loss
from softtopk_nb.thretopk.cuda import rows as thretopk

NEWEST = ptx.CAPABILITIES[-1]
REALS = (np.float32, np.float64)

ThreadGroups = list[ThreadGroup | None]  # None where a kernel has no group


def groups_of(
    chosen: Callable[[int, Any], ThreadGroup], shortest: int = 1, longest: int = 10**6
) -> Callable[[Any], ThreadGroups]:
    """All the groups that a function of n and T can choose for rows of such lengths."""
    sizes = [n // half for n, _ in launch._GROUPS for half in (1, 2)]
    lengths = sorted({shortest, *(n for n in sizes if shortest <= n <= longest), longest})
    return lambda T: list(dict.fromkeys(chosen(n, T) for n in lengths))


class Entry(NamedTuple):
    """A kernel for any type and group; how many arrays it reads and writes 16 bytes at a time."""

    factory: Any  # what makes it, or several of which it is one
    make: Callable[[Any, ThreadGroup | None], Kernel]
    reads: int = 1
    writes: int = 1
    often: bool = False  # what most calls run: every kind of group
    in_float64: bool = False  # arithmetic for each entry is in float64, on purpose
    groups: Callable[[Any], ThreadGroups] = groups_of(launch.choose)


def made(factory: Any, *arguments: Any, part: str | int = "", **asked: Any) -> Entry:
    """The kernel of a factory that takes a type, a group, and these arguments.

    Of passes that follow from each other's sums, the kernel of all, or the `part`-th one's.
    """

    def make(T: Any, group: ThreadGroup | None) -> Kernel:
        kernel = factory(T, group, *arguments)
        if isinstance(kernel, Staged):
            return kernel.in_parts[part] if isinstance(part, int) else kernel.in_one_launch
        return getattr(kernel, part) if part else kernel

    return Entry(factory, make, **asked)


def without_group(factory: Any, *arguments: Any) -> Entry:
    """The kernel of a factory that takes these arguments; None stands for the type."""

    def make(T: Any, group: ThreadGroup | None) -> Kernel:
        return factory(*(T if value is None else value for value in arguments))

    return Entry(factory, make, reads=0, writes=0, groups=lambda T: [None])


@cuda.jit(device=True)
def _cauchy_integral(t: Any) -> Any:
    return t * (0.5 + math.atan(t) / math.pi) - math.log1p(t * t) / (2 * math.pi)


# So long that loops over the entries held are not unrolled, as a user's curve can be.
MIXTURE = UserCurve(
    vectorised(
        lambda t: 0.5 + (math.atan(t - 1) + math.atan(t) + math.atan(t + 1)) / (3 * math.pi)
    ),
    lambda t: (1 / (1 + (t - 1) ** 2) + 1 / (1 + t**2) + 1 / (1 + (t + 1) ** 2)) / (3 * math.pi),
    lambda t: (_cauchy_integral(t - 1) + _cauchy_integral(t) + _cauchy_integral(t + 1)) / 3,
    slope=lambda t: -2 * t / (math.pi * (1 + t * t) ** 2),
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

# Which groups a kernel gets, what it reads, and what it does in float64.
LONG: Any = {"groups": lambda T: [launch.streaming(T)]}
SUMS: Any = {"reads": 0, "writes": 0, **LONG}  # of the sums over parts
TWO_ROWS: Any = {"reads": 2, "groups": groups_of(launch.choose_for_two)}
ONE_OF_TWO: Any = {**TWO_ROWS, "reads": 1}
HEIGHTS: Any = {"writes": 0, "in_float64": True}
LOSS: Any = {"reads": 0, "writes": 0, "in_float64": True}  # read entry by entry
WHOLE_WARPS: Any = {"groups": groups_of(cuda_nodes.choose_whole)}
MOVING: Any = {
    "reads": 2,
    "groups": groups_of(lambda n, T: cuda_nodes.choose_whole(n, T, gradtopk.MOVERS)),
}
LONG_MOVING: Any = {
    "reads": 2,
    "groups": lambda T: [cuda_nodes.choose_whole(10**6, T, gradtopk.MOVERS)],
}
# Iterations keep their vectors in memory, in float64, and read a row once.
ITERATED: Any = {
    "reads": 0,
    "writes": 0,
    "in_float64": True,
    "groups": groups_of(lambda n, T: iterative._choose(n)),
}
ITERATED_MOVING: Any = {
    **ITERATED,
    "groups": groups_of(lambda n, T: iterative._choose(n, iterative.MOVERS)),
}
LONG_ITERATED: Any = {**ITERATED, **LONG}
SORTED: Any = {"groups": groups_of(launch.choose, longest=hardtopk.SORTED)}
COUNTED: Any = {"groups": groups_of(launch.choose, shortest=hardtopk.SORTED + 1)}
NOISY: Any = {"groups": groups_of(noise.group_for)}


def one_warp(T: Any) -> ThreadGroups:
    """The groups that sort a row in registers."""
    return [group for group in groups_of(launch.choose)(T) if group and group.lanes <= 32]


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
    "solve user": solve("user", in_float64=True, groups=TWO_ROWS["groups"]),
    **{
        f"solve long, {part}": made(
            long_threshold._make_launches, LAPLACE, NEWTON, 0.0, True, part=part, writes=0, **LONG
        )
        for part in ("survey", "begin", "open", "step", "finish")
    },
    **{
        f"solve long {curve}, scan, {part}": made(
            long_threshold._make_launches,
            CURVES[curve],
            SCAN,
            0.0,
            True,
            part=part,
            writes=0,
            **LONG,
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
    "solve long, fill": made(long_threshold._make_fill, LAPLACE, NEWTON, **LONG),
    "solve long, user, fill": made(
        long_threshold._make_fill, MIXTURE, NEWTON, in_float64=True, **LONG
    ),
    "thretopk push": made(thretopk.make_jvp, LAPLACE, **TWO_ROWS),
    "thretopk pull": made(thretopk.make_vjp, LAPLACE, **TWO_ROWS),
    "thretopk potential": made(
        thretopk.make_potential, LAPLACE, groups=TWO_ROWS["groups"], **HEIGHTS
    ),
    "thretopk potential, user": made(
        thretopk.make_potential, MIXTURE, groups=TWO_ROWS["groups"], **HEIGHTS
    ),
    "thretopk push, user": made(thretopk.make_jvp, MIXTURE, in_float64=True, **TWO_ROWS),
    "thretopk pull, user": made(thretopk.make_vjp, MIXTURE, in_float64=True, **TWO_ROWS),
    "thretopk second": made(thretopk.make_second, LAPLACE, **TWO_ROWS),
    "thretopk second, user": made(thretopk.make_second, MIXTURE, in_float64=True, **TWO_ROWS),
    **{
        f"thretopk long, second {part}": made(
            thretopk.make_second, LAPLACE, part=part, reads=2, writes=int(part > 0), **LONG
        )
        for part in (0, 1, 2)
    },
    "thretopk threshold": without_group(thretopk.make_threshold),
    "thretopk long, moments": made(thretopk.make_jvp, LAPLACE, part=0, reads=2, writes=0, **LONG),
    "thretopk long, push": made(thretopk.make_jvp, LAPLACE, part=1, reads=2, **LONG),
    "thretopk long, push, user": made(
        thretopk.make_jvp, MIXTURE, part=1, reads=2, in_float64=True, **LONG
    ),
    "thretopk long, pull": made(thretopk.make_vjp, LAPLACE, part=1, reads=2, **LONG),
    "thretopk long, heights": made(thretopk.make_potential, LAPLACE, part=0, **HEIGHTS, **LONG),
    "thretopk long, potential": made(thretopk.make_potential, LAPLACE, part=1, **SUMS),
    "thretopk loss": made(thretopk_loss.make_losses, LAPLACE, True, **LOSS),
    "thretopk loss, user": made(thretopk_loss.make_losses, MIXTURE, True, **LOSS),
    "thretopk long, loss": made(thretopk_loss.make_losses, LAPLACE, True, part=0, **LOSS, **LONG),
    "gradtopk": made(cuda_rows.make_solve, 0.02, True, False, **WHOLE_WARPS),
    "gradtopk, keep": made(cuda_rows.make_solve, 0.02, True, True, **WHOLE_WARPS),
    "gradtopk potential": made(cuda_rows.make_solve, 0.02, False, False, writes=0, **WHOLE_WARPS),
    "gradtopk loss": made(gradtopk_loss.make_losses, True, **LOSS),
    "gradtopk push": made(cuda_tangent.make_jvp, False, **MOVING),
    "gradtopk pull": made(cuda_tangent.make_jvp, True, **MOVING),
    "gradtopk second": made(
        cuda_cumulant.make_second,
        **{**MOVING, "reads": 0, "writes": 0, "in_float64": True},
    ),
    **{
        f"gradtopk long, {part}": made(
            long_gradtopk._make_launches, 0.01, part=part, writes=0, **LONG
        )
        for part in ("gather", "multiply")
    },
    "gradtopk long, fill": made(long_gradtopk._make_fill, 0.01, True, **LONG),
    "gradtopk long, heights": made(
        long_gradtopk._make_log_sums, reads=0, writes=0, in_float64=True, **LONG
    ),
    "gradtopk long, potential": made(long_gradtopk._make_potential, 0.01, **SUMS),
    "gradtopk long, weigh": made(long_tangent._make_weigh, writes=0, **LONG_MOVING),
    "gradtopk long, push": made(long_tangent._make_spread, False, **LONG_MOVING),
    "gradtopk long, pull": made(long_tangent._make_spread, True, **LONG_MOVING),
    "gradtopk long, pull total": made(long_tangent._make_pair, **SUMS),
    "hardtopk, sorted": made(hard_rows.make_hard, True, **SORTED),
    "hardtopk": made(hard_rows.make_hard, False, **COUNTED),
    **{
        f"hardtopk long, {part}": made(long_hardtopk._make_launches, part=part, writes=0, **LONG)
        for part in ("survey", "open", "step", "settle")
    },
    "hardtopk long, mark": made(long_hardtopk._make_mark, **LONG),
    "softmax": made(softmax.make_value, "softmax", False),
    "softmax, keep": made(softmax.make_value, "softmax", True),
    "softmax push": made(slopes.make_jvp, "softmax", **TWO_ROWS),
    "softmax pull": made(slopes.make_vjp, "softmax", **TWO_ROWS),
    "log_softmax": made(softmax.make_value, "log_softmax", False),
    "log_softmax push": made(slopes.make_jvp, "log_softmax", **TWO_ROWS),
    "log_softmax pull": made(slopes.make_vjp, "log_softmax", **TWO_ROWS),
    "logsumexp": made(softmax.make_value, "logsumexp", False, writes=0),
    "logsumexp push": made(slopes.make_jvp_logsumexp, writes=0, **TWO_ROWS),
    "logsumexp pull": made(slopes.make_vjp_logsumexp, groups=TWO_ROWS["groups"]),
    "softmax long, look": made(softmax.make_value, "softmax", True, part=0, writes=0, **LONG),
    "softmax long, gather": made(softmax.make_value, "softmax", True, part=1, writes=0, **LONG),
    **{
        f"{f} long, fill": made(softmax.make_value, f, True, part=2, **LONG)
        for f in ("softmax", "log_softmax")
    },
    **{
        f"{f} long, {name} {part}": made(make, f, part=part, reads=2, writes=int(part == 1), **LONG)
        for f in ("softmax", "log_softmax")
        for name, make in (("push", slopes.make_jvp), ("pull", slopes.make_vjp))
        for part in (0, 1)
    },
    "softmax long, pull total": made(slopes.make_vjp, "softmax", part=2, **SUMS),
    "logsumexp long, fill": made(softmax.make_value, "logsumexp", True, part=2, **SUMS),
    "logsumexp long, push add": made(slopes.make_jvp_logsumexp, part=0, reads=2, writes=0, **LONG),
    "logsumexp long, push": made(slopes.make_jvp_logsumexp, part=1, **SUMS),
    "logsumexp long, pull": made(slopes.make_vjp_logsumexp, part=0, **LONG),
    "logsumexp long, pull total": made(slopes.make_vjp_logsumexp, part=1, **SUMS),
    "noise": made(noise.make_perturb, False, **NOISY),
    "noise, on finite entries": made(noise.make_perturb, True, **NOISY),
    "draw": made(noise.make_draw, writes=0, **NOISY),
    "noise long, look": made(long_noise.make_look, True, writes=0, **LONG),
    "noise long": made(long_noise._make_perturb, False, **LONG),
    "noise long, on finite entries": made(long_noise._make_perturb, True, **LONG),
    "draw long": made(long_noise._make_pick, writes=0, **LONG),
    "itertopk": made(iterated.make_solve, IterTopK._kind, **ITERATED),
    "itertopk push": made(iterated.make_jvp, IterTopK._kind, **ITERATED_MOVING),
    "itertopk pull": made(iterated.make_vjp, IterTopK._kind, **ITERATED_MOVING),
    "wsoftmaxtopk": made(iterated.make_solve, WSoftmaxTopK._kind, **ITERATED),
    "wsoftmaxtopk push": made(iterated.make_jvp, WSoftmaxTopK._kind, **ITERATED_MOVING),
    "wsoftmaxtopk pull": made(iterated.make_vjp, WSoftmaxTopK._kind, **ITERATED_MOVING),
    **{
        f"{name} long, {step}{part}": made(make, kind, part=part, **LONG_ITERATED)
        for name, kind in (("itertopk", IterTopK._kind), ("wsoftmaxtopk", WSoftmaxTopK._kind))
        for step, make, parts in (
            ("", long_iterated.opening, long_iterated.Opening._fields),
            ("", long_iterated.stepping, long_iterated.Stepping._fields),
            ("push ", iterated_slopes.jvp_passes, iterated_slopes.JvpPasses._fields),
            ("pull ", iterated_slopes.vjp_passes, iterated_slopes.VjpPasses._fields),
        )
        for part in parts
    },
    "balancedtopk, less of rows": without_group(balanced.make_less, None, 0),
    "balancedtopk, less": without_group(balanced.make_less, None, 1),
    **{
        f"balancedtopk, sums of {term.__name__}": without_group(
            balanced.make_column_sums, None, term
        )
        for term in (balanced.entry, balanced.square, balanced.finite)
    },
    "balancedtopk, products": without_group(balanced.make_products, None),
    "balancedtopk, survey": without_group(balanced.make_survey, None),
    "balancedtopk, gather": without_group(balanced.make_gather, None, True),
    "balancedtopk, spread out": without_group(balanced.make_spread_out, None, True),
    "balancedtopk, weigh": made(balanced_rows.make_weigh, LAPLACE, **ONE_OF_TWO),
    "balancedtopk, weigh, user": made(
        balanced_rows.make_weigh, MIXTURE, in_float64=True, **ONE_OF_TWO
    ),
    "balancedtopk, project": made(balanced_rows.make_project, **{**TWO_ROWS, "reads": 3}),
    "balancedtopk, spread": made(balanced_rows.make_spread, **TWO_ROWS),
    "balancedtopk, along t": made(balanced_rows.make_along_t, writes=0, **TWO_ROWS),
    "sort, short": made(sorting.make_short, writes=0, groups=one_warp),
    "sort, chunks": without_group(sorting.make_chunks, None, sorting.CHUNK, False),
    "sort, merge": without_group(sorting.make_chunks, None, sorting.CHUNK, True),
    "sort, step": without_group(sorting.make_step, None),
    "copy": without_group(copying.make_copy, None, None),
    "copy, from float16": without_group(copying.make_copy, np.float16, None),
    "copy, to float16": without_group(copying.make_copy, None, np.float16),
    "copy, from int64": without_group(copying.make_copy, np.int64, None),
    "sum": without_group(copying.make_sum, None),
    "list of the chosen": without_group(selection.make_list, None),
    "weights of the chosen": without_group(selection.make_weights, None),
    "clamp k": without_group(copying.make_clamped, None),
}


class Case(NamedTuple):
    """One compilation."""

    label: str
    T: Any
    group: ThreadGroup | None
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        major, minor = self.capability
        held = ""
        if self.group:
            streams = ", streams" if self.group.streams else ""
            held = f", {self.group.lanes} x {self.group.held}{streams}"
        return f"{np.dtype(self.T).name}{held}, sm_{major}{minor}"

    @property
    def kernel(self) -> Kernel:
        return KERNELS[self.label].make(self.T, self.group)


def largest(groups: ThreadGroups) -> ThreadGroup | None:
    """Of the groups that hold most of a row, the one that leaves a thread the fewest registers."""
    holding = [group for group in groups if group and not group.streams]
    return max(holding or groups, key=lambda group: group and (group.held, group.lanes))


def kinds(groups: ThreadGroups) -> ThreadGroups:
    """Of blocks that only differ in how many warps they have, the one with most of them.

    Its threads have the fewest registers to choose from, and hold and do the same.
    """
    found = {}
    for group in groups:
        found[group and (group.held, min(group.lanes, 64), group.streams)] = group
    return list(found.values())


def cases() -> Iterator[Case]:
    """Each kernel once: for float32, rows held, and 9.0, or in float64, the longest rows, and 8.0.

    What runs often is compiled for both, and for all kinds of groups.
    """
    for label, entry in KERNELS.items():
        held, last = largest(entry.groups(np.float32)), entry.groups(np.float64)[-1]
        chosen = {np.float32: [held], np.float64: [last]}
        for T, capability in zip(REALS, ptx.CAPABILITIES[::-1], strict=True):
            if entry.often or entry.in_float64 == (T is np.float64):
                groups = kinds(entry.groups(T)) if entry.often else chosen[T]
                yield from (Case(label, T, group, capability) for group in groups)


def checked_for_float64() -> list[Case]:
    """Of each kernel whose arithmetic is in float32, a case for every kind of code for an entry.

    Code depends on whether a group is part of a warp, a warp, or a block, and on whether it
    streams; of groups that only differ otherwise, the one that holds most.
    """
    found = {}
    for case in cases():
        group = case.group
        if group and case.T is np.float32 and not KERNELS[case.label].in_float64:
            found[case.label, min(group.lanes, 64), group.streams] = case
    return list(found.values())


MORE = 4  # times as many entries: the compiler's own choices move a count by a few


def count_doubles(
    make: Callable[[int], Kernel], held: int, code: str, capability: tuple[int, int] = NEWEST
) -> dict[int, int]:
    """Instructions on float64, by how many entries a thread holds.

    `code` is the PTX of make(held). The kernel is made again, to hold a fourth as many entries or
    four times as many, unless its PTX alone shows that this brings none.
    """
    counts, other = {held: ptx.doubles(code)}, held // MORE if held >= 4 * MORE else held * MORE
    # Loops over entries unroll, so what is done for each entry stands there once for each of them,
    # or for a few less: what occurs less often than that is not done for each entry.
    if ptx.doubles_alike(code) >= held - held // MORE:
        # It need not fit a device.
        counts[other] = ptx.doubles(ptx.compile_for(make(other), capability))
    return counts


def leaks(counts: dict[int, int]) -> bool:
    """Whether each further entry brings an instruction on float64."""
    fewest, most = min(counts), max(counts)
    return most > fewest and counts[most] - counts[fewest] >= most - fewest


class Compiled(NamedTuple):
    """What has come of a case."""

    report: ptx.Report
    doubles: dict[int, int]  # as `count_doubles` returns them; empty if not asked for


def compiled(case: Case, counted: bool) -> Compiled:
    """The case as compiled, and its instructions on float64 if they are to be counted."""
    report, group = ptx.report(case.kernel, case.capability), case.group
    if group is None or not counted:
        return Compiled(report, {})

    def make(held: int) -> Kernel:
        return case._replace(group=group._replace(held=held)).kernel

    return Compiled(report, count_doubles(make, group.held, report.ptx, case.capability))


class Ahead:
    """Compiles cases in other processes, in their order, counting float64 where it says so."""

    def __init__(self, wanted: dict[Case, bool]):
        context = multiprocessing.get_context("spawn")
        # A compilation makes many objects that live until it ends, and each collection walks them.
        rarely = {"initializer": gc.set_threshold, "initargs": (200_000,)}
        self._pool = concurrent.futures.ProcessPoolExecutor(os.cpu_count(), context, **rarely)
        self._results = {each: self._pool.submit(compiled, each, wanted[each]) for each in wanted}

    def result(self, case: Case) -> Compiled:
        return self._results[case].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def main() -> None:
    """Print what the kernels use whose names contain a word."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [case for case in cases() if word in case.label]
    ahead = Ahead(dict.fromkeys(chosen, False))
    for case in chosen:
        report = ahead.result(case).report
        print(
            f"{case.label:<26} {case.name:<36} {report.registers:3} registers, "
            f"{report.stack:4} bytes of stack, {report.spilled:4} moved by spilling",
            flush=True,
        )
    ahead.close()


if __name__ == "__main__":
    main()
