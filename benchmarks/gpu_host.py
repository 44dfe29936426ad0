"""What a call costs the host beside a device: eager, in a graph, compiled, and by JAX.

All on one row of 64, where the device has nothing to do. The makers of calls are listed by name;
each returns the call and a function that waits for its result.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

import softtopk_nb as stk
import softtopk_nb.torch as stt

__all__ = ["calls"]

SHAPE, K = (1, 64), 8
Call = Callable[..., Any]
Maker = Callable[[], tuple[Call, Call]]

FUNCTIONS: dict[str, Call] = {
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "torch.topk": lambda x: torch.topk(x, K, -1).values,
    "softmax": stk.softmax,
    "hardtopk": lambda x: stt.hardtopk(x, K),
    "thretopk": lambda x: stt.thretopk(x, K),
    "gradtopk": lambda x: stt.gradtopk(x, K),
}
COMPILED = "torch.softmax", "torch.topk", "thretopk", "gradtopk"
DIFFERENTIATED = "torch.softmax", "thretopk", "gradtopk"


def _row(*, leaf: bool = False) -> torch.Tensor:
    return torch.randn(*SHAPE, device="cuda", requires_grad=leaf)


def _empty_kernel() -> tuple[Call, Call]:
    """A launch of a kernel that does nothing, as the package launches its own."""
    from numba import int32

    from softtopk_nb._cuda.launch import Kernel

    def nothing(a: Any) -> None:
        return

    kernel = Kernel(nothing, (int32,), 32)
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: kernel(1, stream, 0), torch.cuda.synchronize


def _eager(function: Call) -> tuple[Call, Call]:
    return functools.partial(function, _row()), torch.cuda.synchronize


def _both_passes(function: Call) -> tuple[Call, Call]:
    x, g = _row(leaf=True), _row()
    return lambda: torch.autograd.grad(function(x), x, g), torch.cuda.synchronize


def _graph(function: Call) -> tuple[Call, Call]:
    """A replay of what was captured."""
    x, side = _row(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(x)  # loads its kernels, which cannot be done in a capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(x)
    return graph.replay, torch.cuda.synchronize


def _compiled(function: Call) -> tuple[Call, Call]:
    compiled = torch.compile(function, mode="reduce-overhead")
    return functools.partial(compiled, _row()), torch.cuda.synchronize


def _jax(name: str) -> tuple[Call, Call]:
    import jax

    import softtopk_nb.jax as stj

    functions: dict[str, Call] = {
        "jax.nn.softmax": jax.nn.softmax,
        "jax.lax.top_k": lambda x: jax.lax.top_k(x, K)[0],
        "thretopk": lambda x: stj.thretopk(x, K),
        "gradtopk": lambda x: stj.gradtopk(x, K),
    }
    x = jax.device_put(jax.numpy.ones(SHAPE), jax.devices("cuda")[0])
    call = functools.partial(jax.jit(functions[name]), x)
    return call, lambda: call().block_until_ready()


@functools.cache
def calls() -> dict[str, Maker]:
    """The makers of calls, by name."""
    found: dict[str, Maker] = {"empty kernel": _empty_kernel}
    for name, function in FUNCTIONS.items():
        found[name] = functools.partial(_eager, function)
    for name in DIFFERENTIATED:
        found[f"{name}, both passes"] = functools.partial(_both_passes, FUNCTIONS[name])
    for name in COMPILED:
        found[f"{name}, CUDA graph"] = functools.partial(_graph, FUNCTIONS[name])
        found[f"{name}, reduce-overhead"] = functools.partial(_compiled, FUNCTIONS[name])
    if importlib.util.find_spec("jax") is not None:
        for name in ("jax.nn.softmax", "jax.lax.top_k", "thretopk", "gradtopk"):
            found[f"{name}, jax.jit"] = functools.partial(_jax, name)
    return found
