"""Compiling ahead of time, and being told when a call compiles."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

import softtopk_nb
from softtopk_nb import __main__ as ahead
from softtopk_nb._compile.progress import Progress
from softtopk_nb._curves.registry import NAMES

LOGGED = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import numpy as np
import softtopk_nb as stk
for _ in range(2):
    stk.hardtopk(np.array([[3.0, 1.0, 2.0]]), 1)
"""


# A kernel asks the disk cache before it compiles: what is asked for again was not compiled ahead.
EVERYTHING = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import numpy as np
import softtopk_nb as stk
from softtopk_nb.__main__ import main
from softtopk_nb._compile.cache import Cache

asked, look_up = [], Cache.load_overload

def note(cache, signature, context):
    asked.append((cache._name, signature))
    return look_up(cache, signature, context)

Cache.load_overload = note
main(["compile", "thretopk", "--curve", "clip"])
assert len(asked) > 50, asked
asked.clear()
rng, clip = np.random.default_rng(0), {"curve": "clip"}
for dtype in (np.float32, np.float64):
    for shape in ((5, 16), (200, 300), (17, 3000), (1, 1_000_001)):
        x, v = rng.normal(size=(2, *shape)).astype(dtype)
        there, odd, undefined = rng.random(shape) < 0.9, x.copy(), x.copy()
        odd[0, 0], odd[-1, 2], undefined[0, 1] = -np.inf, np.inf, np.nan
        for rows in (x, odd, undefined):
            for options in (clip, {**clip, "method": "bisect"}, {**clip, "method": "scan"}):
                stk.thretopk(rows, 2.5, **options)
            stk.thretopk(rows, 2.5, where=there, temperature=0.1, **clip)
            stk.thretopk.jvp(rows, 2, v, dk=1.0, **clip)
            stk.thretopk.vjp(rows, 2, where=there, **clip)[1](v)
            stk.thretopk.hvp(rows, 2, v, v, **clip)
            stk.thretopk.potential(rows, 2, **clip)
            stk.thretopk.threshold(rows, 2, **clip)
        stk.thretopk(x.T.copy(), 2, axis=0, largest=False, **clip)
        stk.thretopk(x.astype(np.float16), 2, **clip)
        stk.fenchel_young.vjp(stk.thretopk, x, stk.hardtopk(x, 2), 2, **clip)[1](np.ones(shape[0]))
assert not asked, asked
"""


WITH_JAX = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger().setLevel(logging.WARNING)
logging.getLogger("softtopk_nb").setLevel(logging.INFO)
import sys
import jax
import jax.numpy as jnp
import softtopk_nb.jax as stj
jax.config.update("jax_enable_x64", True)
op, options = getattr(stj, sys.argv[1]), {"curve": "clip"} if sys.argv[1] == "thretopk" else {}
for dtype in (jnp.float32, jnp.float64, jnp.bfloat16):
    for shape in ((5, 16), (8, 200), (300, 300), (9, 700), (17, 3000), (100, 3000)):
        def value(x, **more):
            return op(x, 2, temperature=0.5, **options, **more)
        def every(x, v):
            p, pullback = jax.vjp(value, x)
            along = jax.jvp(value, (x,), (v,))[1]
            return p, along, pullback(v), value(x, hard=True), value(x, where=x < 1)
        def hessian_times(x, v):
            return jax.jvp(jax.grad(lambda x: (value(x) * v).sum()), (x,), (v,))[1]
        x, v = jax.random.normal(jax.random.key(0), (2, *shape), dtype)
        odd = x.at[0, 3].set(-jnp.inf).at[1, 5].set(jnp.nan).at[2].multiply(1e4)
        for rows in (x, odd):
            jax.block_until_ready(jax.jit(every)(rows, v))
            if op.__name__ != "hardtopk":
                jax.block_until_ready(jax.jit(hessian_times)(rows, v))
"""


TRAINING = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
import sys
import torch
import softtopk_nb.torch as stt
torch.manual_seed(0)
op, k = getattr(stt, sys.argv[1]), () if sys.argv[1] == "softmax" else (3,)
for shape in ((5, 16), (300, 200), (9, 700), (300, 3000)):
    for dtype in (torch.float32, torch.bfloat16):
        x, odd = torch.randn(2, *shape, dtype=dtype)
        odd[0, 0], odd[1, 1] = -torch.inf, torch.nan
        odd[2] *= 1e4
        for scores in (x, odd):
            scores.requires_grad_()
            temperature = torch.tensor(0.5, requires_grad=True)
            op(scores, *k, where=x < 1, temperature=temperature).square().sum().backward()
            op(scores, *k).square().sum().backward()
            if k:
                op(scores, *k, hard=True).sum().backward()
                stt.fenchel_young(op, scores, stt.hardtopk(x, *k), *k).sum().backward()
"""
SOFT = "thretopk", "gradtopk"


def run(*arguments: str, folder: pathlib.Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python; with a folder of its own for compiled code, if one is given, it compiles."""
    own = {"NUMBA_CACHE_DIR": str(folder), "SOFTTOPK_NB_LEVEL": "native"} if folder else {}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, **own},
        check=False,
    )


def test_what_is_compiled_ahead_is_not_compiled_again(tmp_path):
    first = run("-c", LOGGED, folder=tmp_path / "other")
    lines = [line for line in first.stderr.splitlines() if line.startswith("softtopk_nb INFO")]
    assert lines
    assert len(set(lines)) == len(lines)
    assert re.match(r".* compiling hardtopk\.cpu\.\S+ for float64; kept in .*other", lines[0])

    done = run("-m", "softtopk_nb", "compile", "hardtopk", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert told[0] == "0 functions compiled, ? left; now hardtopk float32"
    assert re.fullmatch(r"(\d+) functions compiled, about \1 left; now hardtopk float64", told[1])
    assert re.fullmatch(r"(?!0 )\d+ functions compiled, about 0 left", told[2])
    package, wrote = done.stdout.splitlines()
    assert package == f"compiling for the package in {pathlib.Path(softtopk_nb.__file__).parent}"
    count, size, folder = re.match(
        r"wrote (\d+) files, ([\d.]+) MB, to (.+) and below in \d+ s$", wrote
    ).groups()
    written = [path for path in tmp_path.rglob("*.nb[ci]") if "other" not in path.parts]
    assert len(written) == int(count) >= 4
    assert abs(sum(path.stat().st_size for path in written) / 2**20 - float(size)) < 0.06
    assert all(path.is_relative_to(folder) for path in written)

    assert run("-c", LOGGED, folder=tmp_path).stderr == ""
    again = run("-m", "softtopk_nb", "compile", "hardtopk", folder=tmp_path)
    assert "\nnothing to write: all was compiled already" in again.stdout


@pytest.mark.slow
def test_nothing_that_an_operator_computes_compiles_afterwards():
    """Whatever the type, the length, the verb, the method, and what is not finite."""
    done = run("-c", EVERYTHING)
    assert done.returncode == 0, done.stderr
    assert "kept by this process alone" not in done.stderr


@pytest.mark.jax
@pytest.mark.parametrize(
    "name",
    [
        "hardtopk",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("thretopk", "gradtopk")),
    ],
)
def test_nothing_that_jax_calls_compiles_afterwards(name, tmp_path):
    """Of any type and length, for one thread and for several, and whatever is not finite."""
    pytest.importorskip("jax")
    done = run("-m", "softtopk_nb", "compile", name, "--curve", "clip", "--jax", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    called = run("-c", WITH_JAX, name, folder=tmp_path)
    assert called.returncode == 0, called.stderr
    assert called.stderr == ""


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        ("jax", "JAX", ["--jax"]),
        ("jax", "JAX", ["--for", "jax-training"]),
        ("torch", "PyTorch", ["--for", "torch-training"]),
    ],
)
def test_without_a_library_the_command_says_what_to_install(
    monkeypatch, capsys, module, name, options
):
    monkeypatch.setitem(sys.modules, module, None)
    for part in ("ahead", "operators"):
        monkeypatch.delitem(sys.modules, f"softtopk_nb.{module}.{part}", raising=False)
    monkeypatch.delitem(sys.modules, f"softtopk_nb.{module}", raising=False)
    with pytest.raises(SystemExit):
        ahead.main(["compile", "hardtopk", *options])
    stderr = capsys.readouterr().err
    assert re.search(rf"error: .*{name}.*: pip install softtopk_nb\[{module}\]", stderr)


def test_unknown_names_are_refused(tmp_path):
    wrong = run("-m", "softtopk_nb", "compile", "topk", folder=tmp_path)
    assert wrong.returncode == 2
    assert "operator is 'topk'; expected some of " in wrong.stderr
    for name in ("thretopk", "gradtopk", "softmax"):
        assert name in wrong.stderr


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("--curve", NAMES), ("--dtype", ahead.DTYPES), ("--for", ahead.PRESETS)],
)
def test_unknown_choices_are_refused(capsys, argument, expected):
    with pytest.raises(SystemExit) as refused:
        ahead.main(["compile", argument, "gauss"])
    assert refused.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {argument}: invalid choice: 'gauss'" in message
    assert all(name in message for name in expected)


def labels_of(monkeypatch, *arguments):
    """What the command would compile, and whether it calls every method."""
    found = []
    monkeypatch.setattr(ahead, "compile_ahead", lambda wanted, more: found.append(wanted))
    ahead.main(["compile", *arguments])
    (wanted,) = found
    return {label for label, _ in ahead._calls(wanted)}, wanted.verbs is None


def test_a_preset_is_what_a_user_needs(monkeypatch):
    labels, everything = labels_of(monkeypatch, "--for", "numpy")
    assert everything
    kinds = "thretopk laplace auto", "gradtopk auto", "hardtopk", *ahead.WITHOUT_K
    assert labels == {f"{kind} {dtype}" for kind in kinds for dtype in ahead.DTYPES}
    named = "gradtopk", "thretopk", "--curve", "clip", "--dtype", "float32", "--for", "numpy"
    labels, _ = labels_of(monkeypatch, *named)
    assert labels == {"thretopk clip auto float32", "gradtopk auto float32"}


def test_what_is_named_twice_is_compiled_once(monkeypatch):
    found = []
    monkeypatch.setattr(ahead, "compile_ahead", lambda wanted, more: found.append(wanted))
    ahead.main(["compile", "hardtopk", "softmax", "hardtopk", *["--dtype", "float32"] * 2])
    labels = [label for label, _ in ahead._calls(found[0])]
    assert labels == ["hardtopk float32"] * 4 + ["softmax float32"] * 4  # a label for each shape


@pytest.mark.torch
def test_a_preset_of_training_leaves_other_methods_out(monkeypatch):
    pytest.importorskip("torch")
    labels, everything = labels_of(monkeypatch, "--for", "torch-training")
    assert not everything
    assert labels == {
        *("thretopk laplace auto float32", "gradtopk auto float32"),
        *("hardtopk float32", "softmax float32"),
    }


def test_what_is_named_is_compiled_alone():
    wanted = ahead.Wanted(["thretopk", "gradtopk"], ["clip"], ["auto", "scan"], ["float32"])
    labels = {label for label, _ in ahead._calls(wanted)}
    kinds = "thretopk clip auto", "thretopk clip scan", "gradtopk auto"
    assert labels == {f"{kind} float32" for kind in kinds}
    wanted = ahead.Wanted(["thretopk"], ["sigmoid"], ["scan", "recursion"], ["float64"])
    assert list(ahead._calls(wanted)) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["softmax", *(pytest.param(each, marks=pytest.mark.slow) for each in SOFT)]
)
def test_nothing_that_training_calls_compiles_afterwards(name, tmp_path):
    """Of any length, with a mask and without, and whatever is not finite."""
    pytest.importorskip("torch")
    command = "-m", "softtopk_nb", "compile", name, "--for", "torch-training"
    done = run(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    called = run("-c", TRAINING, name, folder=tmp_path)
    assert called.returncode == 0, called.stderr
    assert called.stderr == ""


class Bar:
    """As tqdm's."""

    def __init__(self, **options):
        self.n, self.total, self.texts = 0, None, []
        bars.append(self)

    def update(self):
        self.n += 1

    def set_description(self, label):
        self.label = label

    def set_postfix_str(self, text):
        self.texts.append((self.label, self.n, self.total, text))

    def close(self):
        self.closed = True


bars: list[Bar] = []


@pytest.mark.parametrize("installed", [True, False])
def test_progress_says_how_many_functions_are_left(monkeypatch, capsys, installed):
    """A bar on a terminal where there is tqdm, and otherwise lines."""
    bars.clear()
    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar) if installed else None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(["a x float32"] * 2 + ["b x float32", "a y float32"])
    for label, count in (("a x float32", 4), ("a x float32", 1), ("b x float32", 2)):
        progress.begin(label)
        for _ in range(count):
            progress.compiled("a.kernel")
    progress.begin("a y float32")
    progress.end()
    written = capsys.readouterr().err
    if not installed:
        assert written.splitlines() == [
            "0 functions compiled, ? left; now a x float32",
            "5 functions compiled, about 10 left; now b x float32",
            "7 functions compiled, about 5 left; now a y float32",
            "7 functions compiled, about 0 left",
        ]
        return
    (bar,) = bars
    assert written == ""
    assert bar.closed
    assert bar.texts[0] == ("a x float32", 0, None, "")
    assert ("b x float32", 6, 15, "about 9 functions left") in bar.texts
    assert bar.texts[-1] == ("a y float32", 7, 7, "about 0 functions left")


def test_without_a_command_it_shows_versions(tmp_path):
    shown = run("-m", "softtopk_nb", folder=tmp_path).stdout
    assert shown.split()[:2] == ["softtopk_nb", softtopk_nb.__version__]
