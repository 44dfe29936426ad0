"""What is timed on a GPU: the operators of the package and what they are compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import contenders
import numpy as np
import torch
from cases import Case

import softtopk_nb as stk
from softtopk_nb._curves.registry import CURVES as PLAIN

__all__ = ["CURVES", "SHAPES", "cases", "check", "rotating", "unit"]

# (rows, n, k). The third and fourth hold 1 GiB of float32; a device without room for the scratch
# memory of a contender leaves it out.
SHAPES = (
    (65536, 64, 8),
    (16384, 1024, 32),
    (65536, 4096, 64),
    (16384, 16384, 64),
    (64, 1_000_000, 1000),
    (1, 10_000_000, 1000),
)
CURVES = tuple(PLAIN)
STEPS = 32  # the iterations cost k calls of softmax: not timed above

Call = Callable[[int], Any]  # told which of the inputs to take


def cases(rows: int, n: int, k: int) -> Iterator[Case]:
    """What is timed at a shape."""
    value, every = ("value",), ("value", "jvp", "pullback")
    kinds: list[tuple[str, str | None, str | None, tuple[str, ...]]] = [
        ("torch.topk", None, None, value),
        ("torch.sort", None, None, value),
        ("LapSum (sort)", "laplace", None, ("value", "pullback")),
        ("softmax", None, None, value),
        ("hardtopk", None, None, value),
        *(("thretopk", curve, "newton", every) for curve in CURVES),
        ("gradtopk", None, "auto", every),
    ]
    if importlib.util.find_spec("cupy") is not None:
        kinds.append(("cupy.sort", None, None, value))
    if k <= STEPS:
        kinds += [("itertopk", None, None, every), ("wsoftmaxtopk", None, None, every)]
    for *kind, whats in kinds:
        for what in whats:
            yield Case(*kind, what, rows, n, k)


def _in_turn(calls: list[Callable[[], Any]]) -> Call:
    return lambda i: calls[i % len(calls)]()


def rotating(case: Case, xs: list[torch.Tensor]) -> Call:
    """The case on each of the inputs in turn. Made when its turn comes: a pullback keeps memory."""
    return _in_turn([contenders.call(case, x) for x in xs])


def unit(what: str, xs: list[torch.Tensor]) -> Call:
    """What it is divided by, on the same inputs."""
    return _in_turn([contenders.unit(what, x) for x in xs])


def check(xs: list[torch.Tensor], k: int) -> None:
    """A wrong answer is not timed: a few rows against the CPU."""
    x = xs[0][:2]
    for curve in CURVES:
        got = stk.thretopk(x, k, curve=curve).cpu().numpy()
        expected = stk.thretopk(x.cpu().numpy(), k, curve=curve)
        spread = float(x.max() - x.min())
        if not np.allclose(got, expected, rtol=0, atol=2e-6 + 8 * 2.0**-23 * spread):
            raise RuntimeError(f"thretopk with curve={curve!r} is wrong on this device: not timed")
