"""Machine code that comes with the package: which is used, and what stands in its place."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import zipfile

import pytest

from softtopk_nb._compile import precompiled, stamp

V3, V4, ARM = "x86-64-v3", "x86-64-v4", "armv8-a"
NAME = precompiled.entry("a.module", "kernel", "", "(float64,)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An installation with stores of all levels, on a processor that has two."""
    place = tmp_path / precompiled.tag()
    place.mkdir()
    for level in (V3, V4, ARM):
        with zipfile.ZipFile(place / f"{level}.zip", "w", zipfile.ZIP_LZMA) as store:
            store.writestr(precompiled.STAMP, stamp.package_stamp())
            store.writestr(NAME, pickle.dumps((level, "kernel" * 100)))
    monkeypatch.setattr(precompiled, "FOLDER", tmp_path)
    monkeypatch.setattr(precompiled, "supported", lambda: (V4, V3))
    monkeypatch.setattr(precompiled.config, "CPU_NAME", None)
    monkeypatch.setattr(precompiled.config, "CPU_FEATURES", None)
    monkeypatch.delenv(precompiled.VARIABLE, raising=False)
    precompiled.chosen.cache_clear()
    yield place
    precompiled.chosen.cache_clear()


def test_the_best_level_that_the_processor_has_is_used(folder, monkeypatch):
    store = precompiled.store()
    assert store.level == V4
    assert store.codegen._get_host_cpu_name() == V4
    assert store.load(NAME)[0] == V4
    assert store.load(NAME[::-1]) is None
    precompiled.chosen.cache_clear()
    monkeypatch.setattr(precompiled, "supported", lambda: (V3,))
    assert precompiled.store().level == V3
    assert precompiled.describe() == f"{V3} ({folder / V3}.zip)"


def test_arm_has_a_level(folder, monkeypatch):
    store = precompiled.Store.open(ARM, folder / f"{ARM}.zip", stamp.package_stamp())
    assert store.codegen._get_host_cpu_name() == "generic"
    monkeypatch.undo()
    monkeypatch.setattr(precompiled.llvm, "get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    assert precompiled.supported.__wrapped__() == (ARM,)


@pytest.mark.parametrize("level", [precompiled.NATIVE, V3, V4])
def test_a_level_can_be_asked_for(level, folder, monkeypatch):
    monkeypatch.setenv(precompiled.VARIABLE, level)
    store = precompiled.store()
    assert (store.level if store else precompiled.NATIVE) == level


def test_a_processor_that_numba_is_told_is_kept(folder, monkeypatch):
    monkeypatch.setattr(precompiled.config, "CPU_NAME", "haswell")
    assert precompiled.store() is None
    assert "names the processor" in precompiled.describe()


def test_a_processor_without_the_levels_compiles_for_itself(folder, monkeypatch, caplog):
    monkeypatch.setattr(precompiled, "supported", lambda: ())
    with caplog.at_level(logging.INFO, "softtopk_nb"):
        assert precompiled.store() is None
        assert precompiled.store() is None
    (line,) = caplog.messages
    assert line.startswith("compiling kernels for this processor: no compiled code came")


def _cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def _of_other_sources(path):
    with zipfile.ZipFile(path, "w") as store:
        store.writestr(precompiled.STAMP, b"0" * 32)


@pytest.mark.parametrize(
    ("spoil", "why"), [(_cut, "cannot be read"), (_of_other_sources, "compiled from other sources")]
)
def test_a_spoilt_store_is_left_alone(spoil, why, folder, caplog):
    spoil(folder / f"{V4}.zip")
    with caplog.at_level(logging.INFO, "softtopk_nb"):
        assert precompiled.store() is None
    (line,) = caplog.messages
    assert why in line
    assert why in precompiled.describe()


def test_a_level_that_was_asked_for_and_is_missing_is_warned_of(folder, monkeypatch):
    (folder / f"{V3}.zip").unlink()
    monkeypatch.setenv(precompiled.VARIABLE, V3)
    with pytest.warns(UserWarning, match=r"SOFTTOPK_NB_LEVEL is 'x86-64-v3' and has no effect"):
        assert precompiled.store() is None


def test_a_damaged_kernel_is_compiled(folder, caplog):
    path = folder / f"{V4}.zip"
    with zipfile.ZipFile(path) as store:
        start = store.getinfo(NAME).header_offset + 30 + len(NAME)
    content = bytearray(path.read_bytes())
    content[start + 4] ^= 255
    path.write_bytes(content)
    with caplog.at_level(logging.INFO, "softtopk_nb"):
        assert precompiled.store().load(NAME) is None
    (line,) = caplog.messages
    assert "damaged" in line


def test_a_wrong_level_is_an_error_at_import():
    done = subprocess.run(
        [sys.executable, "-c", "import softtopk_nb"],
        capture_output=True,
        text=True,
        env={**os.environ, precompiled.VARIABLE: "v3"},
        check=False,
    )
    assert done.returncode != 0
    expected = "SOFTTOPK_NB_LEVEL is 'v3'; expected native, x86-64-v4, x86-64-v3, armv8-a"
    assert expected in done.stderr


def test_a_level_that_the_processor_lacks_is_an_error(monkeypatch):
    monkeypatch.setenv(precompiled.VARIABLE, V4)
    monkeypatch.setattr(precompiled, "supported", lambda: (V3,))
    with pytest.raises(ValueError, match=r"is 'x86-64-v4'; this processor .* has levels x86-64-v3"):
        precompiled.chosen.__wrapped__()
