"""Compiled code on disk: how old it may be, who may write it, and what is left after an accident.

An accident costs time and nothing else: what cannot be read is compiled again, what cannot be
written is told once, and every result is right.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from numba import config

import softtopk_nb
from softtopk_nb._compile import decorators
from softtopk_nb._compile.decorators import _Cache, _CacheFile, kernel

PACKAGE = pathlib.Path(softtopk_nb.__file__).parent
LIMIT = 120  # seconds; each process takes a few

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")


def start(code: str, folder: pathlib.Path, **environment: str) -> subprocess.Popen[str]:
    """Run a script in a fresh interpreter whose cache lies in this folder."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "NUMBA_CACHE_DIR": str(folder)},
    )


def output(process: subprocess.Popen[str]) -> str:
    """What the script prints; it raises nothing."""
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    return out.strip()


# How old it may be


def test_a_change_in_any_file_makes_the_cache_stale(tmp_path):
    """Numba's own stamp would serve the old code: the kernel's file does not change here."""
    copy = tmp_path / "softtopk_nb"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import softtopk_nb as stk
        from softtopk_nb.hardtopk.cpu.rows import solve
        assert stk.__file__.startswith({str(tmp_path)!r})
        print(stk.hardtopk([1.0, 2.0], 0)[0], sum(solve.stats.cache_hits.values()))
        """

    def run():
        return output(start(code, tmp_path / "cache", PYTHONPATH=str(tmp_path)))

    assert run() == "0.0 0"
    assert run() == "0.0 1"
    rows = copy / "_nonfinite.py"
    rows.write_text(rows.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert run() == "0.0 0"


# Who may write it


def test_processes_may_write_to_the_cache_at_a_time(tmp_path):
    """In the order that would give one key the code of another if the files were numbered."""

    def cache(stamp=b"new"):
        return _CacheFile(str(tmp_path), "solve", stamp)

    cache(b"old").save("a", "an older version's code")
    one, other = cache(), cache()
    one._load_index = dict  # read before the other wrote
    save_data = other._save_data

    def interrupted(name, data):
        one.save("a", "code of a")
        assert cache().load("a") == "code of a"
        save_data(name, data)

    other._save_data = interrupted
    other.save("b", "code of b")
    assert [cache().load(key) for key in "ab"] == ["code of a", "code of b"]
    assert cache(b"old").load("a") is None
    assert len(list(tmp_path.glob("*.nbc"))) == 2  # what is stale is cleared away


def test_processes_that_fill_a_cold_cache_together(tmp_path):
    code = """
        import numpy as np
        import softtopk_nb as stk
        print([stk.hardtopk(np.arange(4).astype(T), 2).sum() for T in ("f4", "f8")])
        """
    together = [start(code, tmp_path) for _ in range(2)]
    expected = str([np.float32(2), np.float64(2)])
    assert [output(process) for process in together] == [expected, expected]
    assert output(start(code, tmp_path)) == expected


def test_no_place_to_write_is_no_obstacle(tmp_path):
    code = """
        import numba.core.caching as caching
        for locator in caching.CacheImpl._locator_classes:
            locator.from_function = classmethod(lambda cls, py_func, py_file: None)
        import softtopk_nb as stk
        print(stk.hardtopk([1.0, 2.0], 1))
        """
    assert output(start(code, tmp_path)) == "[0. 1.]"


# Accidents


def _double(x):
    for i in range(x.size):
        x[i] *= 2


def _negate(x):
    for i in range(x.size):
        x[i] = -x[i]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of its own for kernels made in this process, which has not warned yet."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_Cache, "_warned", False)
    return tmp_path


def loaded(function=_double, dtype=np.float64) -> bool:
    """Call a kernel as a new process would; whether its code came from the disk."""
    compiled = kernel(function)
    x = np.arange(5).astype(dtype)
    expected = x.copy()
    function(expected)
    compiled(x)
    np.testing.assert_array_equal(x, expected)
    return bool(compiled.stats.cache_hits)


def _cut(part):
    return lambda old, rng: old[: int(part * len(old))]


def _flipped(old, rng):
    new = bytearray(old)
    new[rng.integers(len(old))] ^= 1 << rng.integers(8)
    return bytes(new)


DAMAGE = {
    "empty": _cut(0),
    **{f"cut-{part}": _cut(part) for part in (0.001, 0.1, 0.5, 0.9, 0.999)},
    "noise": lambda old, rng: rng.bytes(len(old)),
    "zeros": lambda old, rng: bytes(len(old)),
    "start-is-noise": lambda old, rng: rng.bytes(len(old) // 3) + old[len(old) // 3 :],
    "end-is-zeros": lambda old, rng: old[: len(old) // 2] + bytes(len(old) - len(old) // 2),
    "more": lambda old, rng: old + rng.bytes(7),
    **{f"flipped-{i}": _flipped for i in range(5)},
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_a_miss(cache, suffix, damage, rng):
    """Power cuts, full disks and killed copies: D4. Damaged machine code would end the process."""
    assert not loaded()
    assert loaded()
    (file,) = cache.rglob("*" + suffix)
    file.write_bytes(damage(file.read_bytes(), rng))
    assert not loaded()
    assert loaded()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_file_that_is_not_what_its_name_says_is_a_miss(cache, suffix):
    """Whole files in the wrong place: another kernel's would compute something else."""
    assert not loaded(_negate)
    (other,) = cache.rglob("*" + suffix)
    assert not loaded()
    (file,) = set(cache.rglob("*" + suffix)) - {other}
    shutil.copy(other, file)
    assert not loaded()
    assert loaded()


@pytest.mark.parametrize("library", range(3), ids=["numba", "llvmlite", "numpy"])
def test_what_another_version_wrote_is_a_miss(cache, library, monkeypatch):
    others = list(decorators._LIBRARIES)
    others[library] += ".post1"
    with monkeypatch.context() as upgraded:
        upgraded.setattr(decorators, "_LIBRARIES", tuple(others))
        assert not loaded()
    assert not loaded()
    assert loaded()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_file_that_is_none_is_a_miss_and_one_warning(cache, suffix):
    """Neither readable nor writable, not even by root."""
    assert not loaded()
    (file,) = cache.rglob("*" + suffix)
    file.unlink()
    file.mkdir()
    with pytest.warns(RuntimeWarning, match="cannot be kept on disk") as told:
        assert not loaded()
    assert len(told) == 1
    assert not loaded()


def test_a_folder_that_is_removed_is_made_again(cache):
    compiled = kernel(_double)
    x = np.arange(5.0)
    compiled(x)
    shutil.rmtree(cache)
    compiled(x.astype(np.float32))
    assert not loaded()
    assert loaded(dtype=np.float32)


def test_a_folder_that_cannot_be_written_is_one_warning(cache):
    """A read-only folder, tried so that root may not write to it either: it became a file."""
    one, other = kernel(_double), kernel(_negate)
    shutil.rmtree(cache)
    cache.touch()
    x = np.arange(5.0)
    with pytest.warns(RuntimeWarning, match="cannot be kept on disk") as told:
        one(x)
    assert len(told) == 1
    other(x)
    one(x.astype(np.float32))
    np.testing.assert_array_equal(x, -2 * np.arange(5.0))


def test_a_full_disk_is_one_warning(tmp_path):
    """Here no file may be longer than 5000 bytes: machine code does not fit."""
    pytest.importorskip("resource", reason="this platform has no limits for processes")
    code = """
        import resource, warnings
        import numpy as np
        import softtopk_nb as stk
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            print([stk.hardtopk(np.arange(4).astype(T), 2).sum() for T in ("f4", "f8")])
        print([(w.category.__name__, "File too large" in str(w.message)) for w in told])
        """
    expected = str([np.float32(2), np.float64(2)])
    assert output(start(code, tmp_path)) == f"{expected}\n[('RuntimeWarning', True)]"
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@needs_fork
def test_writers_that_are_killed(tmp_path):
    """Twenty times, at any moment of writing: a reader finds all of what was written."""
    code = f"""
        import os, random, signal, time
        from softtopk_nb._compile.decorators import _CacheFile
        random.seed(20)
        data = [random.randbytes(1 << 21) for _ in range(2)]
        def cache():
            return _CacheFile({str(tmp_path)!r}, "solve", b"stamp")
        for key in range(2):
            cache().save(key, data[key])
        for _ in range(20):
            child = os.fork()
            if child == 0:
                while True:
                    for key in range(2):
                        cache().save(key, data[key])
            time.sleep(random.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for key in range(2):
                assert cache().load(key) == data[key]
        """
    output(start(code, tmp_path))


def test_what_killed_writers_leave_is_cleared_away(tmp_path, monkeypatch):
    cache = _CacheFile(str(tmp_path), "solve", b"stamp")

    def killed(*names):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(os, "replace", killed)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                cache.save("key", "data")
    young, *old = tmp_path.iterdir()
    assert len(old) == 2
    for file in old:
        os.utime(file, (time.time() - 3600,) * 2)
    cache.save("key", "data")
    assert {file for file in tmp_path.iterdir() if ".tmp." in file.name} == {young}
