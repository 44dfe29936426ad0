"""What a stamp of compiled code depends on: changes of files, of types and of settings."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest
from numba import config, typeof

import softtopk_nb
from softtopk_nb._compile import stamp
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold.methods import METHODS

# Kernels by their modules, and what they are compiled for.
LANES = "softtopk_nb._threshold.cpu.lanes"
SUBSETS = "softtopk_nb.gradtopk.cpu.rows"
SOFTMAX = "softtopk_nb.softmax.cpu.rows"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A copy of the package's files."""
    root = tmp_path_factory.mktemp("stamps") / "softtopk_nb"
    package = pathlib.Path(softtopk_nb.__file__).parent
    return shutil.copytree(package, root, ignore=shutil.ignore_patterns("__pycache__", "*.zip"))


def stamps(root) -> dict[str, bytes]:
    x = np.empty((1, 1))

    def of(module, *arguments):
        kinds = tuple(map(typeof, arguments))
        return stamp.stamp({module, *stamp.modules_of_types(kinds)}, root)

    return {
        "laplace": of(LANES, x, CURVES["laplace"], METHODS["newton"]),
        "sigmoid": of(LANES, x, CURVES["sigmoid"], METHODS["newton"]),
        "gradtopk": of(SUBSETS, x),
        "softmax": of(SOFTMAX, x),
        "closure": stamp.stamp(None, root),
    }


ALL = {"laplace", "sigmoid", "gradtopk", "softmax", "closure"}
SEARCHES = {"laplace", "sigmoid", "gradtopk", "closure"}
# A file, what stands there, what comes instead, and whose code is stale then.
CHANGES = {
    "docstring": ("_threshold/newton.py", '    """', '    """Words. ', set()),
    "comment": ("_curves/laplace.py", "import math", "import math  # words", set()),
    "lines that move": ("_threshold/methods.py", "class Newton", "\n\n\nclass Newton", set()),
    "front": ("torch/functions.py", "import torch", "import os\nimport torch", {"closure"}),
    "Python side": ("thretopk/operator.py", "import numpy", "import os\nimport numpy", {"closure"}),
    "what keeps code": ("_compile/cache.py", "_ABANDONED = 60", "_ABANDONED = 61", {"closure"}),
    "formula of all": ("_math/elementary.py", "import math", "import math\nCHANGED = 1", ALL),
    "formula of searches": ("_threshold/newton.py", "0.25", "0.26", SEARCHES),
    "formula of a curve": (
        "_curves/laplace.py",
        "math.log(2 * u)",
        "math.log(3 * u)",
        {"laplace", "closure"},
    ),
    "trait of a curve": (
        "_curves/sigmoid.py",
        "has_continuous_slope=True",
        "has_continuous_slope=False",
        {"sigmoid", "gradtopk", "closure"},
    ),
    "constant": ("_threshold/policy.py", "FAINT = 1e-24", "FAINT = 1e-25", SEARCHES),
    "flags": ("_compile/decorators.py", '"fastmath": False', '"fastmath": True', ALL),
    "name": ("_nonfinite.py", "def classify(", "def classified(", ALL),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_makes_stale(change, original, tmp_path):
    file, old, new, stale = CHANGES[change]
    before = stamps(original)
    root = shutil.copytree(original, tmp_path / "softtopk_nb")
    text = (root / file).read_text(encoding="utf-8")
    assert old in text
    (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    after = stamps(root)
    assert {name for name in before if before[name] != after[name]} == stale


def test_what_is_no_file_of_the_package_does_not_count(original):
    before = stamps(original)
    (original / "notes.md").write_text("words")
    assert stamps(original) == before


def test_kernels_do_not_depend_on_the_python_side():
    for module in (LANES, SUBSETS, SOFTMAX):
        made_of = stamp._closure({module}, stamp.ROOT)
        assert module in made_of
        assert not [name for name in made_of if "._api" in name or "operator" in name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPT", 1),
        ("LOOP_VECTORIZE", 0),
        ("SLP_VECTORIZE", 1),
        ("BOUNDSCHECK", 1),
        ("DEBUGINFO_DEFAULT", 1),
        ("LLVM_REFPRUNE_PASS", 0),
        ("LLVM_REFPRUNE_FLAGS", "per_bb"),
        ("USING_SVML", "another"),
        ("NRT_STATS", 2),
        ("DEBUG_NRT", 2),
        ("EXTEND_VARIABLE_LIFETIMES", 2),
    ],
)
def test_settings_of_the_compiler_count(name, value, monkeypatch):
    before = stamp.stamp({SOFTMAX})
    monkeypatch.setattr(config, name, value, raising=False)
    assert stamp.stamp({SOFTMAX}) != before
