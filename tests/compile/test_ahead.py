"""Compiling ahead of time, and being told when a call compiles."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import softtopk_nb
from softtopk_nb import __main__ as ahead
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
    assert done.stderr == ""  # no terminal, no bar
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


def test_without_jax_the_command_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['jax'] = None; from softtopk_nb.__main__ import main; "
    wrong = run("-c", f"{code}main(['compile', 'hardtopk', '--jax'])", folder=tmp_path)
    assert wrong.returncode == 2
    assert re.search(r"error: .*JAX.*: pip install softtopk_nb\[jax\]", wrong.stderr)


def test_unknown_names_are_refused(tmp_path):
    wrong = run("-m", "softtopk_nb", "compile", "topk", folder=tmp_path)
    assert wrong.returncode == 2
    assert "operator is 'topk'; expected some of " in wrong.stderr
    for name in ("thretopk", "gradtopk", "softmax"):
        assert name in wrong.stderr
    wrong = run("-m", "softtopk_nb", "compile", "thretopk", "--curve", "gauss", folder=tmp_path)
    assert wrong.returncode == 2
    assert all(name in wrong.stderr for name in NAMES)


def test_what_is_named_is_compiled_alone():
    wanted = ahead.Wanted(["thretopk", "gradtopk"], ["clip"], ["auto", "scan"], ["float32"])
    labels = {label for label, _ in ahead._calls(wanted)}
    kinds = "thretopk clip auto", "thretopk clip scan", "gradtopk auto"
    assert labels == {f"{kind} float32" for kind in kinds}
    wanted = ahead.Wanted(["thretopk"], ["sigmoid"], ["scan", "recursion"], ["float64"])
    assert list(ahead._calls(wanted)) == []


def test_without_a_command_it_shows_versions(tmp_path):
    shown = run("-m", "softtopk_nb", folder=tmp_path).stdout
    assert shown.split()[:2] == ["softtopk_nb", softtopk_nb.__version__]
