"""The disk cache of compiled code: its folders and files, and when one is trusted or out of date.

Numba decides the folders and their order; what one user has compiled serves all who can read it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pathlib
import pickle
import pkgutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

from . import precompiled, stamp

# Libraries whose code becomes part of a kernel, or writes and reads it.
_LIBRARIES = numba.__version__, llvmlite.__version__, np.__version__
#: The sizes of the files of compiled code that this process has written, by their paths.
WRITTEN: dict[str, int] = {}
# Seconds after which an unfinished file counts as abandoned: writing takes far less.
_ABANDONED = 60
# The name of the file that tells what counts of each source file, for this version of Python.
_SOURCES = f"{sys.implementation.cache_tag}.sources"
# Versions of source files that are remembered, several times as many as there are files.
_MOST_SOURCES = 2000


# Numba has no type hints: to mypy its classes could be anything.
class CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Compiled code of a function on disk, safe when several processes read and write at a time.

    Numba numbers the files of machine code, and writes the index before the file. Two processes
    can choose the same number, and a third can read before the file is written, and get that of an
    older version: each would run code for other arguments. Here a file's name is a digest of its
    key, and the index is written after the file. Only an index entry can be lost; then the code is
    compiled again.

    Each file begins with a digest of the rest, of its name and of what wrote it. Where that does
    not match, or the file cannot be read, it counts as missing: damaged machine code would end the
    process.
    """

    def __init__(self, folder: str, base: str, stamp: bytes) -> None:
        self._base, self._version_base = base, f"{base}.{stamp.hex()[:16]}"
        super().__init__(folder, self._version_base, stamp)

    def save(self, key: Any, data: Any) -> None:
        os.makedirs(self._cache_path, exist_ok=True)
        self._remove_unfinished()
        if not self._load_index():
            self._remove_older()
        name = f"{self._version_base}-{hashlib.sha256(self._dump(key)).hexdigest()[:16]}.nbc"
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})

    def _remove_unfinished(self) -> None:
        """Remove the temporary files of writers that were killed."""
        for path in pathlib.Path(self._cache_path).glob(f"{self._base}.*.tmp.*"):
            with contextlib.suppress(OSError):  # another process may have removed it
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()

    def _remove_older(self) -> None:
        """Remove the files of other versions of the package."""
        for path in pathlib.Path(self._cache_path).glob(f"{self._base}.*.nb[ci]"):
            if not path.name.startswith(self._version_base):
                with contextlib.suppress(OSError):  # another process may have removed it
                    path.unlink()

    def _load_index(self) -> Any:
        return self._read(self._index_name) or {}

    def _save_index(self, overloads: Any) -> None:
        self._save_data(self._index_name, overloads)

    def _load_data(self, name: str) -> Any:
        return self._read(name)

    def _save_data(self, name: str, data: Any) -> None:
        WRITTEN[self._data_path(name)] = self._write(name, data)

    def _read(self, name: str) -> Any:
        """The object under this name; None if the file is missing or its digest is wrong."""
        try:
            content = pathlib.Path(self._data_path(name)).read_bytes()
        except OSError:
            return None
        payload = content[hashlib.sha256().digest_size :]
        return pickle.loads(payload) if content.startswith(self._digest(name, payload)) else None

    def _write(self, name: str, value: Any) -> int:
        """Write a file in one step: a reader finds all of it, or what was there before.

        Returns the size of the file in bytes.
        """
        payload = self._dump(value)
        content = self._digest(name, payload) + payload
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content)
        return len(content)

    def _digest(self, name: str, payload: bytes) -> bytes:
        written_by = repr((name, self._source_stamp, _LIBRARIES)).encode()
        return hashlib.sha256(written_by + payload).digest()


@functools.cache
def _stamp(modules: frozenset[str] | None) -> bytes:
    """The stamp of code that is made from these modules, by what is known of their files."""
    _read_sources()
    return stamp.stamp(modules)


@functools.cache
def _read_sources() -> None:
    """Read what earlier processes found in the files of the package, which takes time to find."""
    for file in _source_files():
        stamp.known.update(file._read(_SOURCES) or {})


def _write_sources() -> None:
    """Write what this process has found in the files of the package."""
    for file in _source_files():
        kept = file._read(_SOURCES) or {}
        if stamp.known.keys() - kept.keys():
            newest = [*{**kept, **stamp.known}.items()][-_MOST_SOURCES:]
            with contextlib.suppress(OSError):  # then the next process finds it again
                os.makedirs(file._cache_path, exist_ok=True)
                file._write(_SOURCES, dict(newest))
                return


def _source_files() -> Iterator[CacheFile]:
    """The files that hold `stamp.known`, in each folder that is trusted."""
    for locator in _locators(stamp.read):
        place = Place(stamp.read, locator)
        if not place.distrusted():
            yield CacheFile(place.folder, place.filename_base, b"")


@functools.cache
def _unchecked(locator: Any) -> Any:
    """A subclass of Numba's locator that accepts folders which cannot be written."""
    return type(locator.__name__, (locator,), {"ensure_cache_path": lambda self: None})


def _locators(function: Callable[..., Any]) -> list[Any]:
    """A locator for each folder that Numba would try for a function's code, in its order."""
    named = getattr(config, "CACHE_LOCATOR_CLASSES", "")  # not every supported Numba has it
    names = [name.strip() for name in named.split(",")] if named else []
    classes = [
        pkgutil.resolve_name(name if "." in name else f"numba.core.caching.{name}")
        for name in names
    ] or CompileResultCacheImpl._locator_classes
    source = inspect.getfile(function)
    found = [_unchecked(each).from_function(function, source) for each in classes]
    return [locator for locator in found if locator is not None]


class Place(CompileResultCacheImpl):  # type: ignore[misc]
    """A folder for the compiled code of a function, whether or not it can be written."""

    def __init__(self, function: Callable[..., Any], locator: Any) -> None:
        self._locator, self._lineno = locator, 0  # where a function stands changes no code
        self._source = pathlib.Path(inspect.getfile(function))
        name = f"{self._source.stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))
        self.folder = locator.get_cache_path()

    def file(self, modules: frozenset[str] | None) -> CacheFile:
        """The file for code that is made from these modules, as in `stamp.stamp`.

        Code of other modules, such as another curve's, has a file of its own: it may be up to date
        when this is not.
        """
        of = hashlib.sha256(repr(sorted(modules or ())).encode()).hexdigest()[:8]
        return CacheFile(self.folder, f"{self.filename_base}.{of}", _stamp(modules))

    def named_by_user(self) -> bool:
        """Whether the folder is below the one that NUMBA_CACHE_DIR names."""
        named = config.CACHE_DIR
        return bool(named) and pathlib.Path(self.folder).is_relative_to(named)

    def distrusted(self) -> str:
        """The reason not to trust code in this folder: who else may have written it; or "".

        Compiled code is trusted as the source is: from root, from the user of the process and from
        the source's owner. A group may write: with a group for each user all folders allow that.
        """
        if self.named_by_user():
            return ""
        if not os.path.isabs(self.folder):  # "~" of a user without a home, in the working folder
            return "no home folder"
        try:
            status = os.stat(self.folder)
        except OSError:  # then nothing can be read there either
            return ""
        if not hasattr(os, "geteuid"):
            return ""
        if status.st_mode & stat.S_IWOTH:
            return "everybody may write to it"
        owners = {0, os.geteuid()}
        if self._source.exists():
            owners.add(self._source.stat().st_uid)
        return "" if status.st_uid in owners else f"it belongs to user {status.st_uid}"

    def closed(self) -> str:
        """The reason why nothing can be written to this folder, or ""."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            return _reason(error)
        return ""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class Cache(FunctionCache):  # type: ignore[misc]
    """The disk cache of a kernel: what one user has compiled serves all who can read it.

    Code is read from each folder in turn, and kept in the first that can be written; those after it
    are not read, so that a folder is either filled or not used. Where no folder can be written,
    code is kept in memory alone. Nothing is looked up before the kernel is called.

    Numba identifies a closure by a digest of the objects it holds, which depends on what was
    imported before; with `label`, whoever makes the closure identifies it instead.

    With `shipped` a kernel that came with the package is used before any folder is looked at.
    """

    _warned = False  # a full disk is reported once, not by each kernel

    def __init__(self, function: Callable[..., Any], label: str = "", shipped: bool = True) -> None:
        self._name, self._py_func, self._label = repr(function), function, label
        self._shipped = shipped
        self._cache_path: str | None = None
        self.enable()

    @functools.cached_property
    def _places(self) -> list[Place]:
        return [Place(self._py_func, locator) for locator in _locators(self._py_func)]

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        if self._label:
            return sig, codegen.magic_tuple(), self._label
        return super()._index_key(sig, codegen)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for these types: the package's, or that of the first folder that has it."""
        found: Any = None
        if self._shipped:
            found = precompiled.load(self._py_func, self._label, sig, target_context)
        if found is not None:
            return found
        passed: dict[Place, str] = {}
        modules = self._modules(sig)
        for place in self._places:
            obstacle = place.distrusted()
            if not obstacle:
                self._impl, self._cache_file = place, place.file(modules)
                self._cache_path = place.folder
                found = self._load_overload(sig, target_context)
                obstacle = "" if found is not None else place.closed()
            if not obstacle:
                break
            passed[place] = obstacle
        else:
            self._cache_path = None
        self._tell(passed)
        return found

    def _modules(self, sig: Any) -> frozenset[str] | None:
        """The modules that code for these types is made from, besides what they import.

        None: any. A closure holds functions that are chosen while the process runs.
        """
        module = self._py_func.__module__
        if self._label or self._py_func.__closure__ or not module.startswith(f"{stamp.PACKAGE}."):
            return None
        return frozenset({module, *stamp.modules_of_types(sig)})

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        """The cached code, read without Numba's declarations of all that can be compiled.

        Making them takes three quarters of a first call, and running compiled code needs none.
        """
        with self._guard_against_spurious_io_errors():
            data = self._cache_file.load(self._index_key(sig, target_context.codegen()))
            if data is None:
                return None
            rtsys.initialize(target_context)  # sets up memory allocation
            return self._impl.rebuild(target_context, data)

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._cache_path is None:
            return
        try:
            super().save_overload(sig, data)
            _write_sources()
        except OSError as error:
            self._cache_path = None
            self._tell({self._impl: _reason(error)})

    def _tell(self, passed: dict[Place, str]) -> None:
        """Warn, once in a process, of folders that were unexpectedly skipped."""
        named = [place for place in passed if place.named_by_user()]
        if Cache._warned or (self._cache_path and not named):
            return
        Cache._warned = True
        folders = "; ".join(f"{place.folder}: {why}" for place, why in passed.items())
        if self._cache_path:
            label = (
                f"NUMBA_CACHE_DIR is {config.CACHE_DIR!r}, expected a folder that can be written "
                f"({folders}); compiled code is kept in {self._cache_path}"
            )
        else:
            label = (
                f"compiled code cannot be kept on disk ({folders or 'no folder is known'}); it is "
                "compiled again in each process. The environment variable NUMBA_CACHE_DIR names "
                "another folder"
            )
        warnings.warn(label, RuntimeWarning, stacklevel=2)
