"""What a call inside PyTorch or JAX costs, as a multiple of that library's own softmax.

Eagerly in PyTorch, under `jit` in JAX: the value, and value and gradient together. Both take turns.
In JAX `jax.lax.top_k`, of up to 64 entries, is measured too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import cases
import numpy as np
import pytest
from bench_ordinary import take_turns

Call = Callable[[], Any]
MOST = 64  # entries that `lax.top_k` is asked for


class Shape(NamedTuple):
    """A batch of rows, and how many entries of each are wanted."""

    rows: int
    n: int
    k: int


SHAPES = [Shape(1, 64, 8), Shape(1024, 1024, 128), Shape(16, 64, 8), Shape(1, 10**6, 125_000)]
QUICK = 2  # of the shapes
OPERATORS = ["thretopk", "gradtopk"]
VERBS = ["value", "gradient"]


def _of_torch(verb: str, x: np.ndarray, function: str, k: int) -> Call:
    torch = pytest.importorskip("torch")
    import softtopk_nb.torch as front

    given = torch.from_numpy(x)
    g = torch.ones_like(given)
    if function == "softmax":
        value = functools.partial(torch.softmax, dim=-1)
    else:
        value = functools.partial(getattr(front, function), k=k)
    if verb == "value":
        return lambda: value(given)

    def gradient() -> Any:
        leaf = given.detach().requires_grad_()
        value(leaf).backward(g)
        return leaf.grad

    return gradient


def _of_jax(verb: str, x: np.ndarray, function: str, k: int) -> Call:
    jax = pytest.importorskip("jax")
    import softtopk_nb.jax as front

    given = jax.numpy.asarray(x)
    if function == "top_k":
        value = functools.partial(jax.lax.top_k, k=min(k, MOST))
    elif function == "softmax":
        value = jax.nn.softmax
    else:
        value = functools.partial(getattr(front, function), k=k)
    if verb == "gradient":
        value = jax.grad(lambda x, value=value: (value(x) * x).sum())
    compiled = jax.jit(value)
    return lambda: jax.block_until_ready(compiled(given))


FRONTS = {"torch": _of_torch, "jax": _of_jax}


def pytest_generate_tests(metafunc):
    full = metafunc.config.getoption("--selection") == "full"
    shapes = SHAPES if full else SHAPES[:QUICK]
    chosen = list(itertools.product(FRONTS, OPERATORS, VERBS, shapes))
    chosen += [("jax", "top_k", "value", shape) for shape in shapes]
    names = [f"{front} {name} {verb} {s.rows}x{s.n}" for front, name, verb, s in chosen]
    metafunc.parametrize(("front", "name", "verb", "shape"), chosen, ids=names)


def bench_front(benchmark, front, name, verb, shape, request):
    x = cases.scores(shape.rows, shape.n, "float32", "normal")
    used, plain = (FRONTS[front](verb, x, each, shape.k) for each in (name, "softmax"))
    fields = {"operator": f"{front} {name}", "what": verb, **shape._asdict()}
    group = f"{front} {verb} {shape.rows}x{shape.n}"
    take_turns(benchmark, request, used, plain, group, use="softmax's calls", **fields)
