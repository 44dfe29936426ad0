"""What is timed on a GPU: the operators of the package and what they are compared with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lapsum
import torch

import softtopk_nb as stk

__all__ = ["MOST_OF_COPY", "SHAPES", "Contender", "contenders", "target"]

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
CURVES = ("laplace", "exp", "clip", "sigmoid", "normal")
PROMISED = ("laplace", "exp", "clip")
STEPS = 32  # the iterations cost k softmaxes: not timed above

#: At least this part of the bandwidth of a copy, where a row of 1 GiB is read and written once.
MOST_OF_COPY = 0.7
AT_ONCE = 16384  # the longest row that is read once


class Contender(NamedTuple):
    """A call for timing: told which of the inputs to take. `unit` is what it is compared with."""

    name: str
    unit: str  # "softmax" or "softmax backward"
    call: Callable[[int], Any]


def target(name: str, n: int) -> float | None:
    """At most so many softmaxes are promised."""
    if n > AT_ONCE:
        return None
    if name in PROMISED:
        return 1.3
    return 4.0 if name == "gradtopk" else None


def units(xs: list[torch.Tensor]) -> dict[str, Callable[[int], Any]]:
    """Softmax and its backward pass."""
    leaves = [x.clone().requires_grad_() for x in xs]
    ps = [torch.softmax(leaf, -1) for leaf in leaves]
    count = len(xs)
    return {
        "softmax": lambda i: torch.softmax(xs[i % count], -1),
        "softmax backward": lambda i: torch.autograd.grad(
            ps[i % count], leaves[i % count], xs[i % count], retain_graph=True
        ),
    }


def _operators(k: int) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for curve in CURVES:
        yield curve, stk.thretopk, {"curve": curve}
    yield "gradtopk", stk.gradtopk, {}
    if k <= STEPS:
        yield "itertopk", stk.itertopk, {}
        yield "wsoftmaxtopk", stk.wsoftmaxtopk, {}


def _backward(xs: list[torch.Tensor], k: int) -> Callable[[int], Any]:
    leaves = [x.clone().requires_grad_() for x in xs]
    ps = [lapsum.soft_topk(leaf, k) for leaf in leaves]
    return lambda i: torch.autograd.grad(
        ps[i % len(xs)], leaves[i % len(xs)], xs[i % len(xs)], retain_graph=True
    )


def contenders(xs: list[torch.Tensor], k: int) -> Iterator[Callable[[], Contender]]:
    """Each made when its turn comes, since a pullback keeps memory for each of the inputs."""
    count = len(xs)

    def each(name: str, call: Callable[[torch.Tensor], Any]) -> Callable[[], Contender]:
        return lambda: Contender(name, "softmax", lambda i: call(xs[i % count]))

    yield each("torch.topk", lambda x: torch.topk(x, k, -1))
    yield each("torch.sort", lambda x: torch.sort(x, -1))
    sort = _cupy_sort()
    if sort is not None and xs[0].is_cuda:
        yield each("cupy.sort", sort)
    yield each("LapSum (PyTorch)", lambda x: lapsum.soft_topk(x, k))
    yield lambda: Contender("LapSum backward", "softmax backward", _backward(xs, k))
    yield each("stk.softmax", stk.softmax)
    yield each("hardtopk", lambda x: stk.hardtopk(x, k))
    for name, op, options in _operators(k):
        given = {"k": k, **options}
        yield each(name, functools.partial(op, **given))
        yield each(f"{name} jvp", functools.partial(_along_itself, op.jvp, given))
        vjp = functools.partial(op.vjp, **given)
        yield functools.partial(_pullback, f"{name} pullback", xs, vjp)


def _along_itself(jvp: Callable[..., Any], given: dict[str, Any], x: torch.Tensor) -> Any:
    return jvp(x, dx=x, **given)


def _pullback(name: str, xs: list[torch.Tensor], vjp: Callable[[Any], Any]) -> Contender:
    made = [vjp(x)[1] for x in xs]
    return Contender(name, "softmax backward", lambda i: made[i % len(made)](xs[i % len(made)]))


def _cupy_sort() -> Callable[[torch.Tensor], Any] | None:
    """cupy.sort on a tensor's memory, if CuPy is installed."""
    try:
        import cupy
    except ImportError:
        return None
    return lambda x: cupy.sort(cupy.from_dlpack(x), -1)
