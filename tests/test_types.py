"""What a type checker says of lines that a user writes: which array comes out, which is a mistake.

mypy reads them in one run, those of a front where its library is there. `.ci/run types` skips none.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import typing

import pytest

from softtopk_nb._api import operator, typed
from softtopk_nb._curves import registry
from softtopk_nb._threshold import methods

ROOT = pathlib.Path(__file__).resolve().parents[1]

# What stands above the lines of each library.
OPENING = {
    "numpy": """
from typing import Any, assert_type
import numpy as np
import numpy.typing as npt
import softtopk_nb as stk
from softtopk_nb import nopython

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Some = npt.NDArray[Any]
x32, x = np.zeros((2, 4), np.float32), np.zeros((2, 4))
mask = x > 0.0
curve = stk.Curve(lambda t: 0.5, lambda t: 0.0)
""",
    "torch": """
from typing import assert_type
import torch
from torch import Tensor
import softtopk_nb as stk
import softtopk_nb.torch as stt

t, weights = torch.zeros(2, 4), torch.nn.Parameter(torch.zeros(2, 4))
layer, gate, subsets = stt.SoftTopK(2), stt.TopKGate(4, 8, 2), stt.KSubset(t, 2)
""",
    "jax": """
from typing import assert_type
import jax
import jax.numpy as jnp
import softtopk_nb as stk
import softtopk_nb.jax as stj

j = jnp.zeros((2, 4))
key, subsets = jax.random.key(0), stj.KSubset(j, 2)
""",
    "dask": """
from typing import assert_type
import dask.array as da
import softtopk_nb as stk
import softtopk_nb.dask as std

lazy: da.Array = da.zeros((2, 4), chunks=(1, 4))
""",
}

# A line, and the type of its result.
LINES = {
    "numpy": {
        "stk.thretopk(x32, 2)": "F32",
        'stk.thretopk(x, 1.5, curve="exp", temperature=0.1)': "F64",
        "stk.thretopk([3.0, 2.0, 1.0], 2)": "Some",
        "stk.thretopk(((3, 2), (1, 0)), 1, curve=curve)": "Some",
        "stk.thretopk(np.arange(4), np.array(2), where=[True, True, True, False])": "Some",
        'stk.thretopk(x, k=2, curve="entmax", alpha=1.5, method="newton")': "F64",
        'stk.gradtopk(x32, [1, 2], method="dp", largest=False)': "F32",
        "stk.hardtopk(x, 2, axis=0, out=np.empty_like(x))": "F64",
        "stk.itertopk(x, 2, where=mask, clamp_k=True)": "F64",
        "stk.thretopk.potential(x32, 2)": "F32",
        'stk.thretopk.threshold([3.0, 2.0], 1, curve="clip")': "Some",
        "stk.thretopk.jvp(x, 2, np.ones(4), dk=1.0)": "tuple[F64, F64]",
        'stk.thretopk.vjp(x, 2, curve="normal")[1](1.0)': "stk.Gradients[F64]",
        "stk.gradtopk.vjp(x32, 2)[0]": "F32",
        "stk.gradtopk.hvp(x, 2, x, x)": "stk.Gradients[F64]",
        "stk.gradtopk.hvp([3.0, 2.0], 1, [1.0, 0.0], [0.0, 1.0]).temperature": "Some",
        "stk.topk(x, 2)": "stk.TopK[Some]",
        'stk.topk(x, 2, op=stk.gradtopk, temperature=0.1, method="auto").indices': "Some",
        "stk.softmax(x32, temperature=np.array([0.1, 1.0]))": "F32",
        "stk.logsumexp.vjp(x)[1](np.ones(2)).x": "F64",
        'stk.fenchel_young("gradtopk", x, [[0, 3], [2, -1]], [2, 1])': "F64",
        "stk.fenchel_young.vjp(stk.thretopk, x, mask, 2)[1](1.0).x": "F64",
        "stk.KSubset(x32, 2).marginals()": "F32",
        "stk.KSubset([3.0, 2.0, 1.0], 2).sample(5, rng=0)": "npt.NDArray[np.bool_]",
        "stk.gumbel_topk(x, 2, size=(3,), rng=np.random.default_rng(0))": "Some",
        "stk.sample_categorical([0.1, 0.2], 3)": "Some",
        "stk.sinkhorn(x32, temperature=0.5)": "F32",
        "stk.gradual.vjp(x, 2.0)[1](x).power": "F64",
    },
    "torch": {
        "stk.thretopk(t, 2, dim=0, hard=True)": "Tensor",
        "stk.gradtopk(weights, torch.tensor([1, 2]))": "Tensor",
        "stk.topk(t, 2).values": "Tensor",
        "stk.softmax(t)": "Tensor",
        'stk.fenchel_young("thretopk", t, t, 2)': "Tensor",
        "stk.thretopk.vjp(t, 2)[1](t)": "stk.Gradients[Tensor]",
        "stk.KSubset(t, 2).marginals()": "Tensor",
        'stt.thretopk(t, 2, temperature=weights, curve="clip", dim=0)': "Tensor",
        "stt.topk(t, 2)": "stk.TopK[Tensor]",
        "stt.gradtopk.potential(t, 2)": "Tensor",
        'stt.fenchel_young(stt.gradtopk, t, t, 2, reduction="mean")': "Tensor",
        "layer.temperature": "Tensor",
        "layer(t)": "Tensor",
        "gate(t)": "stk.TopK[Tensor]",
        "subsets.rsample((3,))": "Tensor",
    },
    "jax": {
        "stk.thretopk(j, 1.5, temperature=j[0, 0])": "jax.Array",
        "stk.topk(j, 2)": "stk.TopK[jax.Array]",
        "stk.gradtopk.jvp(j, 2, j)": "tuple[jax.Array, jax.Array]",
        "stj.thretopk(j, 2, hard=True)": "jax.Array",
        "stj.topk(j, 2, op=stj.thretopk).indices": "jax.Array",
        "stj.logsumexp(j, axis=0)": "jax.Array",
        "stj.gumbel_softmax(key, j)": "jax.Array",
        "subsets.sample(key, (3,))": "jax.Array",
    },
    "dask": {
        "stk.thretopk(lazy, 2)": "da.Array",
        "stk.logsumexp(lazy)": "da.Array",
        'std.thretopk(lazy, 2, curve="exp")': "da.Array",
        "std.gradtopk.jvp(lazy, 2, lazy)": "tuple[da.Array, da.Array]",
        "std.softmax.vjp(lazy)[1](lazy)": "stk.Gradients[da.Array]",
    },
}

# A line that is wrong, and a word of what mypy says of it.
MISTAKES = {
    "numpy": {
        'stk.thretopk(x, "two")': "str",
        "stk.thretopk(x, 2, temp=0.1)": "keyword argument",
        'stk.thretopk(x, 2, curve="lapalce")': "str",
        'stk.thretopk("scores", 2)': "str",
        'stk.thretopk({"a": 3.0}, 2)': "dict",
        'stk.gradtopk(x, 2, curve="exp")': "str",
        "stk.gradtopk(x, 2.5)": "float",
        'stk.gradtopk(x, 2, method="newton")': "str",
        "stk.hardtopk.vjp(x, 2)": "vjp",
        'stk.topk(x, 2, op="topk")': "str",
        "stk.softmax(x, 2)": "overload",
        "stk.thretopk.vjp(x, 2)[1](1.0).y": '"y"',
        'nopython.device("softmax", np.float32)': "Literal",
    },
    "torch": {
        "stt.thretopk([3.0, 2.0], 2)": "list",
        'stt.SoftTopK("two")': "str",
        'stt.SoftTopK(2, curve="lapalce")': "Literal",
        'stt.fenchel_young("gradtopk", t, t, 2, reduction="max")': "Literal",
    },
    "jax": {
        'stj.thretopk(j, 2, curve="lapalce")': "Literal",
        "stj.gradtopk(j, 2, alpha=1.5)": 'expected "None"',
    },
    "dask": {
        'std.thretopk(lazy, 2, curve="lapalce")': "Literal",
    },
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """For each library that is installed: what mypy says of the lines, by their number."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip('mypy is not installed: pip install -e ".[dev]"')
    folder = tmp_path_factory.mktemp("types")
    present = [library for library in OPENING if importlib.util.find_spec(library) is not None]
    for library in present:
        text = "\n".join(lines_of(library)) + "\n"
        (folder / f"of_{library}.py").write_text(text, encoding="utf-8")
    said = subprocess.run(  # as mypy runs on the package, whose cache it shares
        [sys.executable, "-m", "mypy", *map(str, folder.iterdir())],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": "."},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert said.returncode == 1, said.stdout + said.stderr  # it has found the mistakes
    found: dict[str, dict[int, str]] = {library: {} for library in present}
    for library, number, text in re.findall(r"\bof_(\w+)\.py:(\d+): error: (.*)", said.stdout):
        found[library][int(number)] = found[library].get(int(number), "") + text
    return found


def lines_of(library: str) -> list[str]:
    asserted = [f"assert_type({line}, {kind})" for line, kind in LINES[library].items()]
    return [*OPENING[library].splitlines(), *asserted, *MISTAKES[library]]


# One test, so that one process runs mypy.
@pytest.mark.parametrize("library", OPENING)
def test_what_mypy_says_of_lines_that_users_write(messages, library):
    """All types are as expected, and each mistake is found, and nothing else."""
    if library not in messages:
        pytest.skip(f"{library} is not installed")
    lines, mistakes = lines_of(library), MISTAKES[library]
    by_line = {lines[number - 1]: text for number, text in messages[library].items()}
    assert {line: text for line, text in by_line.items() if line not in mistakes} == {}
    assert {
        line: by_line.get(line)
        for line, word in mistakes.items()
        if word not in by_line.get(line, "")
    } == {}


def test_names_for_editors_are_those_that_are_taken():
    assert typing.get_args(registry.Name) == registry.NAMES
    assert {*typing.get_args(operator.Name)} == {*operator.registry}
    assert typing.get_args(methods.Name) == ("auto", *methods.METHODS)


@pytest.mark.parametrize("name", ["value", "jvp", "hvp", "vjp", "power_vjp", "function"])
def test_a_decorator_returns_the_function_itself(name):
    def function(self, x):
        return x

    assert getattr(typed, name)(function) is function
