"""``python -m softtopk_nb``: print versions and hardware, or compile ahead of time."""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import fenchel_young, hardtopk, log_softmax, logsumexp, softmax
from ._api.operator import Differentiable, registry
from ._compile.cache import WRITTEN
from ._curves.registry import CURVES, FAMILIES, NAMES
from ._threads.long_rows import LONG
from ._threshold.cpu.scan import SCANNED
from ._threshold.methods import METHODS
from ._versions import show_versions
from .gradtopk.operator import METHODS as OF_GRADTOPK

WITHOUT_K: dict[str, Any] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
}
OPERATORS: dict[str, Any] = {**registry, **WITHOUT_K}
# Rows for one vector each and rows for blocks, in batches for one thread and for several, rows that
# are sampled, and one that threads share; and for `gradtopk` one length between.
SHAPES = (8, 64), (256, 1024), (8, 5000), (1, LONG)
BETWEEN = (256, 300)
ALPHA = 1.5  # any value gives the same code
DTYPES = "float32", "float64"

Call = tuple[str, Callable[[], Any]]


class Wanted(NamedTuple):
    """What to compile: the names given, or all there are."""

    operators: list[str]
    curves: list[str]
    methods: list[str]
    dtypes: list[str]


def _options(name: str, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Yield each set of the operator's own options that has compiled code of its own."""
    methods = wanted.methods
    if name == "gradtopk":
        yield from ({"method": each} for each in OF_GRADTOPK if each in (methods or OF_GRADTOPK))
    elif name == "thretopk":
        for curve in wanted.curves:
            alpha = {"alpha": ALPHA} if curve in FAMILIES else {}
            scanned = isinstance(CURVES.get(curve), SCANNED)
            for each in methods or METHODS:  # "auto" is "newton"
                if each in ("auto", "newton", "bisect", *["scan"] * scanned):
                    yield {"curve": curve, **alpha, "method": each}
    else:
        yield {}


def _operands(shape: tuple[int, int], dtype: Any) -> tuple[Any, Any, Any]:
    """Scores, a direction and a mask; the first rows of several hold -inf, NaN, large entries."""
    x, v = np.random.default_rng(0).normal(size=(2, *shape)).astype(dtype)
    if len(x) > 1:  # with an entry left out, a NaN, and entries far apart
        x[0, 0], x[1, 1] = -np.inf, np.nan
        x[2] **= 7
    return x, v, np.arange(x.shape[1]) % 5 > 0


def _verbs(
    op: Any, shape: tuple[int, int], dtype: Any, k: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Call every method of the operator once, to compile it."""
    x, v, there = _operands(shape, dtype)
    op(x, *k, where=there, **options)
    op(x, *k, **options)
    op(np.ascontiguousarray(x.T), *k, axis=0, **options)
    if dtype is np.float32:
        op(x.astype(np.float16), *k, **options)
    if isinstance(op, Differentiable) or not k:
        op.jvp(x, *k, v, where=there, dtemperature=1.0, **options)
        p, vjp_function = op.vjp(x, *k, **options)
        vjp_function(v if p.shape == v.shape else v[:, 0])
    if getattr(op, "has_second", False):
        op.hvp(x, *k, v, v, **options)
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            getattr(op, verb)(x, *k, **options)
    if getattr(op, "has_potential", False):
        loss, vjp_function = fenchel_young.vjp(op, v, hardtopk(v, *k), *k, **options)
        vjp_function(loss)


def _calls(wanted: Wanted) -> Iterator[Call]:
    for name in wanted.operators:
        op, k = OPERATORS[name], () if name in WITHOUT_K else (3,)
        shapes = (*SHAPES, BETWEEN) if name == "gradtopk" else SHAPES
        for options in _options(name, wanted):
            for dtype in wanted.dtypes:
                label, kind = " ".join([name, *map(str, options.values()), dtype]), np.dtype(dtype)
                for shape in shapes:
                    yield label, functools.partial(_verbs, op, shape, kind.type, k, options)


def _progress(done: int, total: int, label: str) -> None:
    if sys.stderr.isatty():
        bar = "#" * (20 * done // total)
        print(f"\r[{bar:<20}] {done}/{total} {label:<40.40}", end="", file=sys.stderr, flush=True)


def compile_ahead(wanted: Wanted, more: list[Call]) -> None:
    """Call these operators, and `more`, so that their compiled code is cached on disk."""
    # Run in a clone, `-m` imports the clone's package and not the installed one.
    print(f"compiling for the package in {pathlib.Path(__file__).parent}", flush=True)
    calls = [*_calls(wanted), *more]
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
    ahead.add_argument(
        "--method",
        action="append",
        choices=tuple(dict.fromkeys((*OF_GRADTOPK, *METHODS))),
        help="of thretopk and gradtopk; may be repeated; all if not; auto is what calls take",
    )
    ahead.add_argument("--dtype", action="append", choices=DTYPES, help="both if not given")
    ahead.add_argument("--jax", action="store_true", help="also what softtopk_nb.jax needs")
    given = parser.parse_args(arguments)
    if given.command is None:
        show_versions()
        return
    for name in given.operator:
        if name not in OPERATORS:
            ahead.error(f"operator is {name!r}; expected some of {', '.join(OPERATORS)}")
    wanted = Wanted(
        given.operator or list(OPERATORS),
        given.curve or list(NAMES),
        given.method or [],
        given.dtype or list(DTYPES),
    )
    more = []
    if given.jax:
        try:
            from .jax import ahead as of_jax
        except ImportError as error:
            ahead.error(str(error))
        more = list(of_jax.calls(wanted.operators, wanted.curves, wanted.dtypes, ALPHA))
    compile_ahead(wanted, more)


if __name__ == "__main__":
    main()
