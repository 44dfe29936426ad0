"""Call what a user calls, of an installed wheel with machine code: nothing may compile.

    try_wheel.py [--readme README.md] [--operators NAME ..] [--emulated]
    try_wheel.py --load LEVEL

Prints the level, and what a first call takes beside `import numba`, but not of an emulated
processor, which cannot start the processes to be timed. The second form is for a level that this
processor may lack: each kernel of it is loaded, and none is run.
"""

from __future__ import annotations

import argparse
import doctest
import logging
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import llvmlite.binding as llvm
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

import softtopk_nb as stk
from softtopk_nb._compile import precompiled
from softtopk_nb._compile.cache import WRITTEN

SHARE = 0.35  # of `import numba`, that a first call may take
FIRST = """
import time
begun = time.perf_counter()
import numba
imported = time.perf_counter()
import numpy as np, softtopk_nb as stk
x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
ready = time.perf_counter()
{call}
print(imported - begun, time.perf_counter() - ready)
"""
OPTIONS = {
    "thretopk": [{}, *({"curve": c} for c in ("exp", "sigmoid", "clip", "normal", "cauchy"))]
}
WITHOUT_K = "softmax", "log_softmax", "logsumexp"
SHAPES = (8, 64), (300, 500), (3, 4097), (1, 1_000_000)


class Compiled(logging.Handler):
    """Keeps what the package says of compiling."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def calls(names: list[str]) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    rng = np.random.default_rng(1)
    for name in names:
        for options in OPTIONS.get(name, [{}]):
            for dtype in (np.float32, np.float64):
                for shape in SHAPES:
                    x = rng.normal(size=shape).astype(dtype)
                    yield name, x, rng.normal(size=shape).astype(dtype), options


def use(name: str, x: Any, v: Any, options: dict[str, Any]) -> None:
    """Every verb of the operator, with and without a mask."""
    op: Any = getattr(stk, name)
    k = () if name in WITHOUT_K else (5,)
    p = op(x, *k, **options)
    op(x, *k, where=v > -1, **options)
    op(x, *k, temperature=0.1, **options)
    if hasattr(op, "vjp"):
        _, pull = op.vjp(x, *k, **options)
        pull(v if np.shape(p) == v.shape else v[:, 0])
        op.jvp(x, *k, v, **options)
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            getattr(op, verb)(x, *k, **options)
    if name in ("thretopk", "gradtopk"):
        op.hvp(x, *k, v, v, **options)
        loss, pull = stk.fenchel_young.vjp(op, x, stk.hardtopk(v, 5), 5, **options)
        pull(np.ones_like(loss))


def first_call(call: str) -> tuple[float, float]:
    """Seconds for `import numba` and for this first call, each the median of five processes."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", FIRST.format(call=call)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(5)
    ]
    imports, firsts = zip(*[map(float, run) for run in runs], strict=True)
    return statistics.median(imports), statistics.median(firsts)


def load(level: str) -> int:
    """Load each kernel of the level, chosen as a processor that has it would; how many there are.

    LLVM ends the process where machine code uses something that nobody defines.
    """
    context = cpu_target.target_context
    rtsys.initialize(context)  # for this processor
    has = dict.fromkeys(precompiled.LEVELS[level][2], True)
    with mock.patch.object(llvm, "get_host_cpu_features", return_value=has):
        found, why = precompiled.chosen()
    if found is None or found.level != level:
        raise SystemExit(f"a processor with {level} would not use it: {why}")
    names = [name for name in found.kernels.namelist() if name != precompiled.STAMP]
    for name in names:
        with precompiled.compiling():
            CompileResult._rebuild(context, *found.load(name))
    return len(names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme")
    parser.add_argument("--operators", nargs="*")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--load", metavar="LEVEL", choices=precompiled.LEVELS)
    given = parser.parse_args()
    if given.load:
        loaded = load(given.load)
        print(f"{given.load}: {loaded} kernels were loaded and not run: this processor lacks it")
        return 0
    log = Compiled()
    logging.getLogger("softtopk_nb").addHandler(log)
    logging.getLogger("softtopk_nb").setLevel(logging.INFO)
    names = given.operators or [
        *("hardtopk", "thretopk", "gradtopk", "itertopk", "wsoftmaxtopk", *WITHOUT_K)
    ]
    for call in calls(names):
        use(*call)
    if given.readme and doctest.testfile(given.readme, module_relative=False).failed:
        return 1
    print("kernels:", precompiled.describe())
    if log.said or WRITTEN:
        print("something was compiled:", *log.said, *WRITTEN, sep="\n  ")
        return 1
    for name in () if given.emulated else names:
        options = "".join(f", {key}={value!r}" for key, value in OPTIONS.get(name, [{}])[0].items())
        numba, first = first_call(f"stk.{name}(x{'' if name in WITHOUT_K else ', 5'}{options})")
        print(f"first {name}: {first:.3f} s, {first / numba:.2f} of `import numba` ({numba:.2f} s)")
        if first > SHARE * numba:
            print(f"at most {SHARE} of it is wanted")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
