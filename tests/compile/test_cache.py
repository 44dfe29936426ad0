"""Compiled code on disk: how old it may be, who may write and read it, and accidents.

An accident costs time and nothing else: what cannot be read is compiled again, what cannot be
written is told once, and every result is right.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import types

import numpy as np
import pytest
from numba import config
from numba.core.caching import CacheImpl

import softtopk_nb
from softtopk_nb._compile import cache as disk
from softtopk_nb._compile.cache import Cache, CacheFile
from softtopk_nb._compile.decorators import kernel

PACKAGE = pathlib.Path(softtopk_nb.__file__).parent
LIMIT = 120  # seconds; each process takes a few

NOBODY = 65534

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act for another user"
)


def start(code: str, folder: pathlib.Path, **environment: str) -> subprocess.Popen[str]:
    """Run a script in a fresh interpreter whose cache lies in this folder, and which compiles."""
    own = {"NUMBA_CACHE_DIR": str(folder), "SOFTTOPK_NB_LEVEL": "native"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, **own},
    )


def output(process: subprocess.Popen[str]) -> str:
    """What the script prints; it raises nothing."""
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    return out.strip()


# How old it may be


def test_a_kernel_is_compiled_again_when_what_it_is_made_from_has_changed(tmp_path):
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

    def run(old="", new=""):
        rows = copy / "_nonfinite.py"
        text = rows.read_text(encoding="utf-8")
        assert old in text
        rows.write_text(text.replace(old, new, 1), encoding="utf-8")
        return output(start(code, tmp_path / "cache", PYTHONPATH=str(tmp_path)))

    assert run() == "0.0 0"
    assert run("import numpy", "# A comment.\nimport numpy") == "0.0 1"
    assert run("import numpy", "CHANGED = True\nimport numpy") == "0.0 0"


# Who may write it


def test_processes_may_write_to_the_cache_at_a_time(tmp_path):
    """In the order that would give one key the code of another if the files were numbered."""

    def cache(stamp=b"new"):
        return CacheFile(str(tmp_path), "solve", stamp)

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


def test_no_place_to_write_is_one_warning_when_a_kernel_is_compiled(tmp_path):
    code = """
        import warnings
        import numba.core.caching as caching
        for locator in caching.CacheImpl._locator_classes:
            locator.from_function = classmethod(lambda cls, py_func, py_file: None)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import softtopk_nb as stk
            print(len(told))
            print(stk.hardtopk([1.0, 2.0], 1), stk.hardtopk([3.0, 2.0], 1, where=[True, False]))
            print(["cannot be kept on disk" in str(w.message) for w in told])
        """
    assert output(start(code, tmp_path)) == "0\n[0. 1.] [1. 0.]\n[True]"


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
    monkeypatch.setattr(Cache, "_warned", False)
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


# Who may read it


def imported(path, monkeypatch):
    """The function in this file, of a module that is found by the name in its compiled code."""
    module = types.ModuleType("module_of_test_cache")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(path.read_text("utf-8"), str(path), "exec"), module.__dict__)
    return module.double


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function in a module as it may be installed, where NUMBA_CACHE_DIR is not set."""
    (tmp_path / "site").mkdir()
    module = tmp_path / "site" / "module.py"
    module.write_text("def double(x):\n    for i in range(x.size):\n        x[i] *= 2\n")
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Cache, "_warned", False)
    return imported(module, monkeypatch)


@pytest.fixture
def closed(monkeypatch):
    """Folders that cannot be written, not even by root; a list to add to."""
    open_file, folders = tempfile.TemporaryFile, []

    def opened(*args, dir=None, **options):
        if any(pathlib.Path(dir).is_relative_to(folder) for folder in folders):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(*args, dir=dir, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    return folders


def kept(folder) -> int:
    """The number of files of compiled code in and below this folder."""
    return len(list(folder.rglob("*.nbc")))


@contextlib.contextmanager
def acting_for_nobody():
    """Have another user's rights for a while; root's own python may be closed to them."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@needs_root
@pytest.mark.parametrize("home", ["/nonexistent", None])
@pytest.mark.parametrize("named", [False, True], ids=["__pycache__", "NUMBA_CACHE_DIR"])
def test_what_one_user_has_compiled_serves_another(named, home, installed, tmp_path, monkeypatch):
    """As in an image that root has filled: the other user can write nowhere and has no home."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", home) if home else monkeypatch.delenv("HOME")
    with tempfile.TemporaryDirectory() as folder:  # the parents of tmp_path are root's alone
        root = pathlib.Path(
            shutil.copytree(tmp_path / "site", pathlib.Path(folder) / "site")
        ).parent
        if named:
            monkeypatch.setattr(config, "CACHE_DIR", str(root / "named"))
        double = imported(root / "site" / "module.py", monkeypatch)
        assert not loaded(double)
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with acting_for_nobody():
            assert loaded(double)
            with pytest.warns(RuntimeWarning, match=r"cannot be kept.*Permission denied"):
                assert not loaded(double, np.float32)


def test_a_cache_that_cannot_be_written_is_read(installed, closed, tmp_path):
    """What is not in it is kept in the user's own cache folder, and read from there."""
    assert not loaded(installed)
    closed.append(tmp_path / "site")
    assert loaded(installed)
    assert not loaded(installed, np.float32)
    assert loaded(installed, np.float32)
    assert [kept(tmp_path / name) for name in ("site", "home")] == [1, 1]


def test_the_first_folder_that_can_be_written_is_filled(installed, closed, tmp_path):
    """Else who fills it for others would find a copy of their own, and the others nothing."""
    closed.append(tmp_path / "site")
    assert not loaded(installed)
    closed.clear()
    assert not loaded(installed)
    assert [kept(tmp_path / name) for name in ("site", "home")] == [1, 1]


def test_where_nothing_can_be_kept_one_warning_names_the_folders(installed, closed, tmp_path):
    closed.append(tmp_path)
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as told:
        assert not loaded(installed)
    assert not loaded(installed, np.float32)
    assert len(told) == 1
    message = str(told[0].message)
    assert f"{tmp_path / 'site' / '__pycache__'}: Permission denied" in message
    assert str(tmp_path / "home") in message
    assert kept(tmp_path) == 0


@pytest.mark.parametrize("obstacle", ["a file", "cannot be written"])
def test_a_folder_named_in_vain_is_one_warning(installed, closed, tmp_path, obstacle, monkeypatch):
    """The code is kept elsewhere; each process that has to look there says so."""
    named = tmp_path / "named"
    named.touch() if obstacle == "a file" else closed.append(named)
    monkeypatch.setattr(config, "CACHE_DIR", str(named))
    for hit in (False, True):
        monkeypatch.setattr(Cache, "_warned", False)
        with pytest.warns(RuntimeWarning, match=f"NUMBA_CACHE_DIR is '{named}'") as told:
            assert loaded(installed) == hit
        assert len(told) == 1
        assert f"kept in {tmp_path / 'site' / '__pycache__'}" in str(told[0].message)
        assert loaded(installed)


def test_a_named_folder_that_holds_all_needs_no_writing(cache, closed):
    assert not loaded()
    closed.append(cache)
    assert loaded()


@pytest.mark.skipif(os.name != "posix", reason="access is a matter of mode bits on POSIX alone")
@pytest.mark.parametrize("mode", [0o755, 0o775, 0o777, 0o1777], ids=oct)
def test_a_folder_that_everybody_may_write_to_is_not_read(installed, tmp_path, mode):
    """Compiled code runs when it is read. A group may write: many users have one for themselves."""
    assert not loaded(installed)
    folder = tmp_path / "site" / "__pycache__"
    folder.chmod(mode)
    assert loaded(installed) == (mode & 0o002 == 0)
    assert kept(folder) == 1
    assert loaded(installed)


@needs_root
def test_a_folder_of_another_user_is_not_read(installed, closed, tmp_path):
    """Unless the source is theirs too, which has run by then."""
    assert not loaded(installed)
    folder = tmp_path / "site" / "__pycache__"
    os.chown(folder, NOBODY, NOBODY)
    closed.append(tmp_path / "home")
    with pytest.warns(RuntimeWarning, match=f"belongs to user {NOBODY}"):
        assert not loaded(installed)
    os.chown(tmp_path / "site" / "module.py", NOBODY, NOBODY)
    assert loaded(installed)


@pytest.mark.skipif(os.name != "posix", reason="access is a matter of mode bits on POSIX alone")
def test_a_folder_that_the_user_named_is_read_whosever_it_is(cache):
    assert not loaded()
    for folder in (cache, *cache.iterdir()):
        folder.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
    assert loaded()


def test_without_a_home_nothing_is_kept_in_the_working_folder(
    installed, closed, tmp_path, monkeypatch
):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    closed.append(tmp_path / "site")
    with pytest.warns(RuntimeWarning, match="no home folder"):
        assert not loaded(installed)
    assert not (tmp_path / "~").exists()


# Accidents


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
    others = list(disk._LIBRARIES)
    others[library] += ".post1"
    with monkeypatch.context() as upgraded:
        upgraded.setattr(disk, "_LIBRARIES", tuple(others))
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


def test_a_folder_that_cannot_be_written_is_one_warning(cache, monkeypatch):
    """A read-only folder, tried so that root may not write to it either: it became a file."""
    classes = CacheImpl._locator_classes
    monkeypatch.setattr(CacheImpl, "_locator_classes", classes[:1])  # NUMBA_CACHE_DIR alone
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
        from softtopk_nb._compile.cache import CacheFile
        random.seed(20)
        data = [random.randbytes(1 << 21) for _ in range(2)]
        def cache():
            return CacheFile({str(tmp_path)!r}, "solve", b"stamp")
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
    cache = CacheFile(str(tmp_path), "solve", b"stamp")

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
