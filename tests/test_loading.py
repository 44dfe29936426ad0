"""What an import of the package loads, and what the first use of a name loads then."""

from __future__ import annotations

import ast
import importlib
import os
import pathlib
import pickle
import subprocess
import sys

import pytest

import softtopk_nb as stk
from softtopk_nb._api import operator, without_k
from softtopk_nb._api.operator import Operator
from softtopk_nb._api.without_k import WithoutK

PACKAGE = pathlib.Path(stk.__file__).parent
LAZY = [
    path.parent
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if "attach(" in path.read_text(encoding="utf-8")
]
OPERATORS = (
    "import softtopk_nb as stk\nprint(type(stk.thretopk).__name__, stk.gradtopk, stk.softmax)"
)


def python(code: str, *arguments: str) -> list[str]:
    """Run code in a fresh interpreter; returns the lines that it prints."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()


def test_a_name_loads_its_own_operator_alone():
    """Nor does a lookup by name load the operators that have other names."""
    code = """
import sys
def tell():
    ours = [m.split(".")[1:] for m in sys.modules if m.startswith("softtopk_nb.")]
    empty = "thretopk", "gradtopk", "hardtopk", "softmax"
    used = {m[0] for m in ours if m[0][0] != "_" and (m[1:] or m[0] not in empty)}
    print(*sorted(used), *{"scipy.linalg"} & {*sys.modules})
import softtopk_nb as stk
from softtopk_nb._api.operator import chosen, registry
tell()
stk.thretopk; "gradtopk" in registry
tell()
stk.softmax
tell()
chosen("itertopk")
tell()
stk.fenchel_young
tell()
stk.KSubset, stk.sinkhorn, stk.sample_categorical, stk.gradual, stk.gumbel_topk
[*registry.values()]
tell()
stk.balancedtopk
tell()
"""
    below = ["hardtopk", "iterative", "losses", "selection", "softmax", "thretopk"]
    assert [line.split() for line in python(code)] == [
        [],
        ["thretopk"],
        ["softmax", "thretopk"],
        ["iterative", "softmax", "thretopk"],
        sorted(["gradtopk", *below]),
        sorted(["gradtopk", *below]),
        ["balanced", "gradtopk", *below, "scipy.linalg"],
    ]


@pytest.mark.parametrize("folder", LAZY, ids=lambda folder: folder.name)
def test_names_are_loaded_from_where_type_checkers_see_them(folder):
    """Those that follow `if TYPE_CHECKING` and those of `__all__` are the same, in one place."""
    package = importlib.import_module(".".join(folder.relative_to(PACKAGE.parent).parts))
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (n.body for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    seen = {name.name: f".{each.module}" for each in block for name in each.names}
    assert {*package.__all__} - {"__version__"} == {*seen}
    for name, module in seen.items():
        where = importlib.import_module(module, package.__name__)
        assert getattr(package, name) is getattr(where, name)


def test_every_operator_is_in_its_registry():
    for kind, registry in (Operator, operator.registry), (WithoutK, without_k.registry):
        assert {*registry} == {n for n in stk.__all__ if isinstance(getattr(stk, n), kind)}
        assert all(op.__name__ == name for name, op in registry.items())


def test_the_package_lists_its_names():
    """For completion and `help`, and for a star; without loading what was not used."""
    code = """
import sys, pydoc
import softtopk_nb as stk
print({*stk.__all__} <= {*dir(stk)}, "softtopk_nb.softmax.operator" in sys.modules)
star = {}
exec("from softtopk_nb import *", star)
print({*stk.__all__} - {*star}, star["topk"] is stk.topk)
print("sample_categorical(" in pydoc.render_doc(stk), hasattr(stk, "no_such_name"))
"""
    assert python(code) == ["True False", "set() True", "True False"]


@pytest.mark.parametrize(
    "first",
    [
        "import softtopk_nb.thretopk.operator, softtopk_nb.softmax.cpu",
        "from softtopk_nb.gradtopk import KSubset",
        pytest.param("import softtopk_nb.torch", marks=pytest.mark.torch),
    ],
)
def test_a_subpackage_hides_no_operator_of_its_name(first):
    if "torch" in first:
        pytest.importorskip("torch")
    (said,) = python(f"{first}\n{OPERATORS}")
    assert said == (
        "ThreTopK <operator 'gradtopk' of softtopk_nb> <operator 'softmax' of softtopk_nb>"
    )


def test_what_is_pickled_is_loaded_where_nothing_was_used():
    """And several threads that use a name first at the same time get one object."""
    pickled = pickle.dumps((stk.thretopk, stk.Balanced(1, 2, 3), stk.Gradients, stk.sinkhorn))
    code = """
import copy, pickle, sys, threading
op, result, kind, function = pickle.loads(bytes.fromhex(sys.argv[1]))
import softtopk_nb as stk
print(op is stk.thretopk is copy.deepcopy(op), result == stk.Balanced(1, 2, 3),
      kind is stk.Gradients, function is stk.sinkhorn)
together, found = threading.Barrier(8), []
def use():
    together.wait()
    found.append(stk.KSubset)
threads = [threading.Thread(target=use) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(found.count(stk.KSubset))
"""
    assert python(code, pickled.hex()) == ["True True True True", "8"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_child_forked_while_a_thread_loads_can_load():
    """It would wait for ever for a thread that only its parent has."""
    code = """
import os, signal, threading
import softtopk_nb as stk
from softtopk_nb import _lazy
inside, load = threading.Event(), _lazy.importlib.import_module
def slowly(*names):
    inside.set()
    threading.Event().wait(0.3)
    return load(*names)
_lazy.importlib.import_module = slowly
thread = threading.Thread(target=lambda: stk.hardtopk)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    stk.hardtopk
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code) == ["0"]
