"""``python -m softtopk_nb``: what this installation runs on; and compiling ahead of time."""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import log_softmax, logsumexp, softmax
from ._api.operator import Differentiable, registry
from ._compile.decorators import WRITTEN
from ._curves.registry import FAMILIES, NAMES
from ._versions import show_versions

WITHOUT_K: dict[str, Any] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
}
OPERATORS: dict[str, Any] = {**registry, **WITHOUT_K}
# Rows for one vector each and rows for blocks, in batches for one thread and for several.
SHAPES = (8, 64), (256, 1024)
ALPHA = 1.5  # any serves: the code is the same

Call = tuple[str, Callable[[], Any]]


def _operands(shape: tuple[int, int], dtype: Any) -> tuple[Any, Any]:
    """Scores, some of them excluded, and a direction."""
    x, v = np.random.default_rng(0).normal(size=(2, *shape)).astype(dtype)
    x[0, 0] = -np.inf  # such rows are solved on their own
    return x, v


def _verbs(op: Any, x: Any, v: Any, k: tuple[int, ...], options: dict[str, Any]) -> None:
    """Everything that the operator computes, once."""
    op(x, *k, **options)
    if isinstance(op, Differentiable) or not k:
        op.jvp(x, *k, v, **options)
        p, vjp_function = op.vjp(x, *k, **options)
        vjp_function(v if p.shape == v.shape else v[:, 0])
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            getattr(op, verb)(x, *k, **options)


def _calls(operators: list[str], curves: list[str]) -> Iterator[Call]:
    for name in operators:
        kinds: list[dict[str, Any]] = [{}]
        if name == "thretopk":
            kinds = [
                {"curve": c, **({"alpha": ALPHA} if c in FAMILIES else {})} for c in curves or NAMES
            ]
        for options in kinds:
            for dtype in (np.float32, np.float64):
                for shape in SHAPES:
                    operands = *_operands(shape, dtype), () if name in WITHOUT_K else (3,), options
                    label = " ".join([name, *map(str, options.values()), dtype.__name__])
                    op = OPERATORS[name]
                    yield label, functools.partial(_verbs, op, *operands)


def _progress(done: int, total: int, label: str) -> None:
    if sys.stderr.isatty():
        bar = "#" * (20 * done // total)
        print(f"\r[{bar:<20}] {done}/{total} {label:<40.40}", end="", file=sys.stderr, flush=True)


def compile_ahead(operators: list[str], curves: list[str]) -> None:
    """Call every operator of these names, so that its compiled code lies on the disk."""
    # Run in a clone, `-m` takes the clone's package and not the one that is installed.
    print(f"compiling for the package in {pathlib.Path(__file__).parent}", flush=True)
    calls = list(_calls(operators or list(OPERATORS), curves))
    begun = time.perf_counter()
    for done, (label, call) in enumerate(calls):
        _progress(done, len(calls), label)
        call()
    _progress(len(calls), len(calls), "")
    if sys.stderr.isatty():
        print(file=sys.stderr)
    took = time.perf_counter() - begun
    if not WRITTEN:
        print(f"nothing to write: all was compiled already, or cannot be kept ({took:.0f} s)")
        return
    folder = os.path.commonpath([os.path.dirname(path) for path in WRITTEN])
    size = sum(WRITTEN.values()) / 2**20
    print(f"wrote {len(WRITTEN)} files, {size:.1f} MB, to {folder} and below in {took:.0f} s")


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m softtopk_nb",
        description="Without a command: what this installation runs on.",
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    ahead = commands.add_parser("compile", help="compile operators now and keep them on disk")
    ahead.add_argument("operator", nargs="*", help=f"of {', '.join(OPERATORS)}; all by default")
    ahead.add_argument(
        "--curve", action="append", choices=NAMES, help="of thretopk; may be repeated; all if not"
    )
    given = parser.parse_args(arguments)
    if given.command is None:
        show_versions()
        return
    for name in given.operator:
        if name not in OPERATORS:
            ahead.error(f"operator is {name!r}; expected some of {', '.join(OPERATORS)}")
    compile_ahead(given.operator, given.curve or [])


if __name__ == "__main__":
    main()
