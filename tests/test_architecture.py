"""The layout of the house: who may import whom, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import softtopk_nb
from softtopk_nb import _versions
from softtopk_nb._api import engine, operator, without_k

PACKAGE = pathlib.Path(softtopk_nb.__file__).parent
ROOT = pathlib.Path(__file__).parents[1]
# The one rule: a folder imports what stands before it, or itself. Folders of operators never import
# each other; above them is whatever else is public.
RULE = (
    "_lazy < _compile < _math < _nonfinite < _threads _cuda _curves < _threshold _api"
    " < operators < fronts"
)
FLOORS = [names.split() for names in RULE.split(" < ")]
OPERATORS = sorted(
    p.parent.name for p in PACKAGE.glob("*/cpu/") if not p.parent.name.startswith("_")
)
FRONTS = "torch", "jax", "dask", "sklearn"
MODULES = {p.relative_to(PACKAGE).with_suffix("").as_posix(): p for p in PACKAGE.rglob("*.py")}


def floor(top: str) -> int:
    """How far up a module or folder of the package lies."""
    kind = "operators" if top in OPERATORS else top
    return next((i for i, names in enumerate(FLOORS) if kind in names), len(FLOORS) - 1)


def imports(path: pathlib.Path) -> set[str]:
    """Modules of the package that a file imports, by their path within the package."""
    here = path.relative_to(PACKAGE).with_suffix("").parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + 1]
            target = (*base, *(node.module.split(".") if node.module else ()))
            found |= {".".join((*target, a.name)) for a in node.names} | {".".join(target)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            assert not any(n.startswith("softtopk_nb") for n in names), f"{path}: absolute import"
    return {f for f in found if f}


def test_there_are_operators():
    assert {"hardtopk", "thretopk"} <= set(OPERATORS)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_data_flows_one_way(name):
    """Every import leads to a lower floor, or stays in its folder.

    In a folder `cpu` and `cuda` know what stands beside them, and not each other.
    """
    here = name.split("/")
    for found in imports(MODULES[name]):
        there = found.split(".")
        if name == "_api/fronts" and there[0] in FRONTS:
            continue  # hands calls on, and imports a front when it is first asked for
        above = floor(here[0]) == len(FLOORS) - 1
        assert above or there[0] == here[0] or floor(there[0]) < floor(here[0]), f"{name}: {found}"
        apart = {*here[:-1]} & {"cpu", "cuda"}
        assert not apart or not {*there} & ({"cpu", "cuda"} - apart), f"{name}: {found}"


def test_every_folder_has_its_place():
    """A new private folder at the top takes its place in the rule, and the rule names no other."""
    private = {n.split("/")[0].removesuffix(".py") for n in MODULES if n.startswith("_")}
    ranked = {name for names in FLOORS[:-2] for name in names}
    assert private - {"__init__", "__main__", "_versions"} == ranked


PROTOCOL = PACKAGE / "_api" / "engine.py"
CHUNKED = sorted(PACKAGE.glob("*/cpu/chunks.py"))
ON_DEVICE = {
    op.cpu.__name__.split(".")[1]
    for op in (*operator.registry.values(), *without_k.registry.values())
    if op.has_device_side
}
ENGINES = [
    PACKAGE / name / side / "__init__.py"
    for name in OPERATORS
    for side in ("cpu", *(["cuda"] if name in ON_DEVICE else []))
]


def functions(tree: ast.Module | ast.ClassDef) -> dict[str, list[str]]:
    """The public functions that are defined there, and their parameters."""
    return {
        node.name: [a.arg for a in (*node.args.args, node.args.vararg) if a and a.arg != "self"]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def functions_of(path: pathlib.Path, protocol: str = "") -> dict[str, list[str]]:
    """Those of a module, or of a class in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [each for each in tree.body if getattr(each, "name", "") == protocol]
    return functions(found[0] if protocol else tree)


def follows(given: list[str], expected: list[str]) -> bool:
    """Whether parameters are those of the protocol, as an operator with or without a k has them."""
    without_k = [name for name in expected if name not in ("dk", "gk")]
    spelled_out = [name for name in expected if name != "numbers"]
    return given in (expected, without_k, [*spelled_out, "k", "tau"])


@pytest.mark.parametrize("path", ENGINES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_an_engine_has_the_functions_of_the_protocol(path):
    """In its order; the device's has all that do not work in memory alone."""
    found, protocol = functions_of(path), functions_of(PROTOCOL, "Engine")
    assert [*found] == [name for name in protocol if name in found]
    assert [name for name in found if not follows(found[name], protocol[name])] == []
    if path.parent.name == "cuda":
        both = functions_of(path.parents[1] / "cpu" / "__init__.py")
        assert [*found] == [name for name in both if name not in engine.IN_MEMORY]


@pytest.mark.parametrize("path", CHUNKED, ids=lambda path: path.parts[-3])
def test_a_chunked_engine_has_the_functions_of_the_protocol(path):
    found, protocol = functions_of(path), functions_of(PROTOCOL, "ChunkedEngine")
    assert [*found] == [name for name in protocol if name in found]
    assert [name for name in found if not follows(found[name], protocol[name])] == []


def test_functions_fit_a_screen():
    """At most 60 lines without the docstring, unless a comment above it says why it is longer."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[0]
            told = ast.get_docstring(node) is not None
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            apart = [*inner, first] if told else inner
            long = sum((n.end_lineno or 0) - n.lineno + 1 for n in apart)
            long = (node.end_lineno or 0) - node.lineno + 1 - long
            above = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            while above and lines[above - 1].startswith("#"):
                above -= 1
            excused = lines[above].startswith("# Longer than a screen: ")
            assert long <= 60 or excused, f"{path.name}: {node.name} has {long} lines"


def test_functions_of_a_device_take_few_arguments():
    """At most ten: what belongs together goes as one tuple, into kernels too."""
    for name, path in MODULES.items():
        if {"cuda", "_cuda"} & set(name.split("/")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    assert len(given) <= 10, f"{name}: {node.name} takes {len(given)} arguments"


def python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_compiles_nothing_and_loads_no_array_library():
    code = """
import sys
from numba.core import event
compiled = []
class Listener(event.Listener):
    def on_start(self, e): compiled.append(e)
    def on_end(self, e): pass
event.register("numba:compile", Listener())
import softtopk_nb, softtopk_nb.nopython
others = ("torch", "jax", "cupy", "numba.cuda", "dask")
print(len(compiled), [m for m in others if m in sys.modules])
"""
    assert python(code) == "0 []"


def test_a_call_on_the_cpu_loads_nothing_of_a_device():
    code = """
import sys
import numpy as np
import softtopk_nb as stk
p, pullback = stk.thretopk.vjp(np.array([[3.0, 1.0, 2.0]]), [1.5], where=[True, True, True])
pullback(p)
stk.softmax([1.0, 2.0])
stk.gradtopk([1.0, 2.0, 3.0], 2)
of_a_device = ("cuda", "_cuda", "device_call")
print([m for m in sys.modules if m.startswith(("numba.cuda", "cuda", "numba_cuda"))])
ours = [m.split(".") for m in sys.modules if m.startswith("softtopk_nb.")]
print([m for m in ours if set(m) & set(of_a_device)])
"""
    assert python(code) == "[]\n[]"


def test_a_first_call_that_compiles_nothing_takes_no_declarations_of_numba():
    """In a second process: what it needs to compile would take three quarters of that call."""
    code = """
import sys
import softtopk_nb as stk
stk.hardtopk([1.0, 2.0], 1)
print("numba.cpython.setobj" in sys.modules)
"""
    python(code)
    assert python(code) == "False"


def test_without_the_compiler_the_import_says_so():
    """A setting of Numba's that leaves nothing to run is named by the import, in one sentence."""
    code = """
try:
    import softtopk_nb
except ImportError as error:
    print(error)
"""
    said = python(code, NUMBA_DISABLE_JIT="1")
    assert said.endswith("cannot run without it: unset NUMBA_DISABLE_JIT")


def test_show_versions():
    import io

    text = io.StringIO()
    softtopk_nb.show_versions(text)
    for word in ("softtopk_nb", "numba", "jaxlib", "torch", "threads", "SIMD", "GPU", "numba.cuda"):
        assert word in text.getvalue()
    shown = subprocess.run(
        [sys.executable, "-m", "softtopk_nb"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[:2] == ["softtopk_nb", softtopk_nb.__version__]


@pytest.mark.parametrize("running", [True, False])
def test_the_garbage_collector_is_left_as_it_was(running):
    """Whoever compiles: a kernel of the package, one for a user's curve, a user's function."""
    code = f"""
import gc
import numpy as np
import softtopk_nb as stk
from softtopk_nb._compile.decorators import in_memory, kernel, own
from numba.core import event
seen = []
class Listener(event.Listener):
    def on_start(self, e): seen.append(gc.isenabled())
    def on_end(self, e): pass
event.register("numba:compile", Listener())
if not {running}: gc.disable()
def twice(x): return x + x
compiled = kernel(twice)
for function in (compiled, in_memory(compiled), own(twice)):
    before = len(seen)
    function(1.0)
    assert len(seen) > before and gc.isenabled() == {running}
stk.hardtopk(np.ones(2, np.float32), 1)
assert gc.isenabled() == {running}
try:
    own(lambda t: no_such_name)(1.0)
except Exception as error:
    print(type(error).__name__, end=" ")
print(gc.isenabled(), len(seen) > 3, any(seen))
"""
    assert python(code) == f"TypingError {running} True False"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in FRONTS]
)
def test_a_front_lists_its_public_names(name):
    pytest.importorskip(name)
    front = importlib.import_module(f"softtopk_nb.{name}")
    assert dir(front) == sorted(front.__all__)


def parameters_of(doc: str | None) -> dict[str, tuple[str, str]]:
    """(type, description) of each parameter that a docstring describes."""
    found = re.search(r"^Parameters\n-+\n(.*?)(\n\n|\Z)", inspect.cleandoc(doc or ""), re.M | re.S)
    described = {}
    for entry in re.split(r"\n(?=\S)", found[1] if found else ""):
        head, _, text = entry.partition("\n")
        names, _, kind = head.partition(" : ")
        described |= {name.strip(" *"): (kind, text.strip()) for name in names.split(",")}
    return described


def with_defaults(module: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, what can be called, what its arguments may be like) of all that is public."""
    for name in module.__all__:
        each = getattr(module, name)
        if not callable(each):
            continue
        yield name, each, getattr(module, "thretopk", each)
        kind = each if inspect.isclass(each) else type(each)
        for method in dir(kind):
            found = inspect.getattr_static(kind, method)
            ours = (getattr(found, "__module__", None) or "").startswith("softtopk_nb.")
            if ours and callable(found) and not method.startswith("_"):
                like = getattr(module, "thretopk", each) if inspect.isclass(each) else each
                yield f"{name}.{method}", getattr(each, method), like


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".nopython",
        *(pytest.param(f".{name}", marks=getattr(pytest.mark, name)) for name in FRONTS),
    ],
)
def test_every_default_is_spelled_in_the_docstring(name):
    """As ``default=...``, or by "As in", if it is the default of what is named there."""
    pytest.importorskip(name.strip(".") if name.strip(".") in FRONTS else "numpy")
    module = importlib.import_module(f"softtopk_nb{name}")
    known = {**vars(np), **{each: getattr(module, each) for each in dir(module)}}
    seen, wrong = 0, []
    for label, each, like in with_defaults(module):
        described = parameters_of(each.__doc__)
        for parameter in inspect.signature(each).parameters.values():
            if parameter.default is parameter.empty or parameter.name.startswith("_"):
                continue
            seen += 1
            kind, text = described.get(parameter.name, ("", ""))
            spelled = re.search(r"default=(.+)$", kind)
            named = re.match(r"As in (?:a call|`(\w+)`)", text)
            default = known  # which is none
            if spelled:
                default = eval(spelled[1], known)
            elif named:
                other = inspect.signature(getattr(module, named[1]) if named[1] else like)
                default = other.parameters[parameter.name].default
            if default != parameter.default:
                wrong.append(f"{label}: {parameter}")
    assert seen
    assert wrong == []


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_says_which_version_it_needs(front, monkeypatch):
    floor = _versions.FLOORS[front]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for declared in project["project"]["optional-dependencies"][front]:
        assert declared.endswith(f">={floor}")
    for version in (floor, f"{floor}.1+cpu", "3000.0.dev1"):
        monkeypatch.setitem(sys.modules, front, SimpleNamespace(__version__=version))
        _versions.require(front, "it")
    monkeypatch.setitem(sys.modules, front, SimpleNamespace(__version__="0.1.9"))
    with pytest.raises(ImportError, match=f"needs it {floor} or newer, found 0.1.9: pip install"):
        _versions.require(front, "it")
