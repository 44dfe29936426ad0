"""``python -m softtopk_nb``: print versions and hardware, or compile ahead of time."""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from . import fenchel_young, hardtopk, log_softmax, logsumexp, softmax, thretopk
from ._api.operator import Differentiable, registry
from ._compile import announce
from ._compile.cache import WRITTEN
from ._compile.progress import Progress
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
# Rows for one vector each and rows for blocks, in batches for one thread and for several, and rows
# that are sampled; and for `gradtopk` one length between.
BATCHES = (8, 64), (256, 1024), (8, 5000)
BETWEEN = (256, 300)
ALPHA = 1.5  # any value gives the same code
DTYPES = "float32", "float64"

Call = tuple[str, Callable[[], Any]]
#: Calls an operator: with arrays, its k or none, and its options.
Verbs = Callable[[Any, Any, Any, Any, tuple[int, ...], dict[str, Any]], None]


class Wanted(NamedTuple):
    """What to compile: what the command line names, else what its preset names, else everything."""

    operators: list[str]
    curves: list[str]
    methods: list[str]
    dtypes: list[str]
    verbs: Verbs | None = None  # for batches; None calls every method, for long rows too


class Preset(NamedTuple):
    """What is needed for one thing that users do, with default options."""

    help: str
    operators: tuple[str, ...]
    dtypes: tuple[str, ...]


_COMMON = "thretopk", "gradtopk", "hardtopk"
PRESETS = {
    "torch-training": Preset("values, gradients and losses", (*_COMMON, "softmax"), ("float32",)),
    "jax-training": Preset("values, gradients and losses", (*_COMMON, "softmax"), ("float32",)),
    "numpy": Preset("everything", (*_COMMON, *WITHOUT_K), DTYPES),
}
CURVE = signature(thretopk).parameters["curve"].default


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


def _operands(shape: tuple[int, int], dtype: str) -> tuple[Any, Any, Any]:
    """Scores, a direction and a mask; the first rows of several hold -inf, NaN, large entries."""
    x, v = np.random.default_rng(0).normal(size=(2, *shape)).astype(dtype)
    if len(x) > 1:  # with an entry left out, a NaN, and entries far apart
        x[0, 0], x[1, 1] = -np.inf, np.nan
        x[2] **= 7
        x[3] *= 1e4
    return x, v, np.arange(x.shape[1]) % 5 > 0


def _gradients(
    op: Any, x: Any, v: Any, there: Any, k: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Call the operator as in training, to compile it."""
    op(x, *k, where=there, **options)
    op(x, *k, **options)
    if isinstance(op, Differentiable) or not k:
        p, vjp_function = op.vjp(x, *k, **options)
        vjp_function(v if p.shape == v.shape else v[:, 0])
    if getattr(op, "has_potential", False):
        loss, vjp_function = fenchel_young.vjp(op, x, hardtopk(v, *k), *k, **options)
        vjp_function(loss)


def _verbs(
    op: Any, x: Any, v: Any, there: Any, k: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Call every method of the operator, to compile it."""
    _gradients(op, x, v, there, k, options)
    op(np.ascontiguousarray(x.T), *k, axis=0, **options)
    if x.dtype == np.float32:
        op(x.astype(np.float16), *k, **options)
    if isinstance(op, Differentiable) or not k:
        op.jvp(x, *k, v, where=there, dtemperature=1.0, **options)
    if getattr(op, "has_second", False):
        op.hvp(x, *k, v, v, **options)
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            getattr(op, verb)(x, *k, **options)


def _call(
    verbs: Verbs, name: str, shape: tuple[int, int], dtype: str, options: dict[str, Any]
) -> None:
    k = () if name in WITHOUT_K else (3,)
    verbs(OPERATORS[name], *_operands(shape, dtype), k, options)


def _calls(wanted: Wanted) -> Iterator[Call]:
    verbs, shapes = (wanted.verbs, BATCHES) if wanted.verbs else (_verbs, (*BATCHES, (1, LONG)))
    for name in wanted.operators:
        of_operator = (*shapes, BETWEEN) if name == "gradtopk" else shapes
        for options in _options(name, wanted):
            for dtype in wanted.dtypes:
                label = " ".join([name, *map(str, options.values()), dtype])
                for shape in of_operator:
                    yield label, functools.partial(_call, verbs, name, shape, dtype, options)


def compile_ahead(wanted: Wanted, more: list[Call]) -> None:
    """Call these operators, and `more`, so that their compiled code is cached on disk."""
    # Run in a clone, `-m` imports the clone's package and not the installed one.
    print(f"compiling for the package in {pathlib.Path(__file__).parent}", flush=True)
    calls = [*_calls(wanted), *more]
    begun = time.perf_counter()
    progress = Progress([label for label, _ in calls])
    with announce.followed_by(progress.compiled):
        for label, call in calls:
            progress.begin(label)
            call()
    progress.end()
    took = time.perf_counter() - begun
    if not WRITTEN:
        print(f"nothing to write: all was compiled already, or cannot be kept ({took:.0f} s)")
        return
    folder = os.path.commonpath([os.path.dirname(path) for path in WRITTEN])
    size = sum(WRITTEN.values()) / 2**20
    print(f"wrote {len(WRITTEN)} files, {size:.1f} MB, to {folder} and below in {took:.0f} s")


def _each_once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _wanted(given: argparse.Namespace) -> tuple[Wanted, list[Call]]:
    """(what to compile, the calls of JAX): what is named, else the preset's, else all there is.

    ImportError says that a front's library is missing.
    """
    operators, curves, dtypes = list(OPERATORS), list(NAMES), list(DTYPES)
    methods: list[str] = []
    verbs: Verbs | None = None
    if given.preset:
        preset = PRESETS[given.preset]
        operators, curves, dtypes = list(preset.operators), [CURVE], list(preset.dtypes)
        methods = ["auto"]
    if given.preset == "torch-training":
        from .torch.ahead import gradients as verbs
    elif given.preset == "jax-training":
        verbs = _gradients  # XLA calls Python where a handler cannot do a call
    wanted = Wanted(
        _each_once(given.operator or operators),
        _each_once(given.curve or curves),
        _each_once(given.method or methods),
        _each_once(given.dtype or dtypes),
        verbs,
    )
    if not given.jax and given.preset != "jax-training":
        return wanted, []
    from .jax import ahead as of_jax

    return wanted, list(of_jax.calls(wanted.operators, wanted.curves, wanted.dtypes, ALPHA))


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m softtopk_nb",
        description="Without a command: what this installation runs on.",
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    ahead = commands.add_parser("compile", help="compile operators now and keep them on disk")
    ahead.add_argument("operator", nargs="*", help=f"of {', '.join(OPERATORS)}; all by default")
    presets = (
        f"{name} ({each.help} of {', '.join(each.operators)} in {' and '.join(each.dtypes)})"
        for name, each in PRESETS.items()
    )
    ahead.add_argument(
        "--for",
        dest="preset",
        choices=PRESETS,
        help=f"with default options: {'; '.join(presets)}; what else is named replaces its part",
    )
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
    try:
        wanted, of_jax = _wanted(given)
    except ImportError as error:
        ahead.error(str(error))
    compile_ahead(wanted, of_jax)


if __name__ == "__main__":
    main()
