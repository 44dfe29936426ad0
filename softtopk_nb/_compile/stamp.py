"""What the machine code of a kernel depends on, as a digest: the *stamp* of its cached code.

Numba stamps cached code with the file that holds the kernel, and does not see that a function
inlined from another file has changed. Here the stamp covers the kernel's module and all that it
imports, the modules that define the types of its arguments (a curve chooses formulas by its type),
and the settings of the compiler. Comments, docstrings and line numbers do not count: each file is
compiled without them, and what is compared is the result. Nor does the package's Python side count,
which no kernel's module imports.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import os
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from numba import config

PACKAGE = __name__.partition(".")[0]
ROOT = pathlib.Path(__file__).parent.parent
# These keep, find and announce compiled code, and the last hands calls on to fronts: none of them
# changes machine code.
_NAMES = "_compile.announce", "_compile.cache", "_compile.precompiled", "_compile.stamp"
_BESIDE = tuple(f"{PACKAGE}.{name}" for name in (*_NAMES, "_api.fronts"))
# From Python 3.13 on a class knows its first line.
_LINES_IN_CLASSES = sys.version_info >= (3, 13)


class Source(NamedTuple):
    """What counts of one file."""

    digest: bytes
    imports: tuple[str, ...]  # of the package; some are names in a module


#: What counts of files, by a digest of their bytes; `cache` keeps it on disk.
known: dict[bytes, Source] = {}


def package_stamp() -> bytes:
    """Digest of every source file of the package, to the byte."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.digest()


def settings() -> tuple[Any, ...]:
    """The settings of Numba that change machine code, besides the processor and its features."""
    names = (
        *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT"),
        *("LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS", "USING_SVML", "NRT_STATS", "DEBUG_NRT"),
        *("EXTEND_VARIABLE_LIFETIMES", "MACHINE_BITS", "DEBUG_JIT"),
    )
    return tuple((name, repr(getattr(config, name, None))) for name in names)


def stamp(modules: Iterable[str] | None, root: pathlib.Path = ROOT) -> bytes:
    """The stamp of a kernel that is made from these modules and all that they import.

    None: from any file of the package.
    """
    files = _all_files(root) if modules is None else _closure(modules, root)
    counted = [(name, _source(path).digest) for name, path in sorted(files.items())]
    return hashlib.sha256(repr((counted, settings())).encode()).digest()


def modules_of_types(kinds: Iterable[Any]) -> Iterator[str]:
    """The modules of the package that define these Numba types, or the classes of their values."""
    for kind in kinds:
        for defined in (type(kind), getattr(kind, "instance_class", None)):
            if defined is not None and defined.__module__.partition(".")[0] == PACKAGE:
                yield defined.__module__
        inner = getattr(kind, "types", None) or getattr(kind, "dtype", None)
        if inner is not None and inner is not kind:
            yield from modules_of_types(inner if isinstance(inner, (tuple, list)) else (inner,))


def _path_of(module: str, root: pathlib.Path) -> pathlib.Path | None:
    """The file of a module of the package; None if there is no such module."""
    place = os.path.join(root, *module.split(".")[1:])
    files = f"{place}.py", os.path.join(place, "__init__.py")
    return next((pathlib.Path(file) for file in files if os.path.isfile(file)), None)


def _all_files(root: pathlib.Path) -> dict[str, pathlib.Path]:
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}


def _closure(modules: Iterable[str], root: pathlib.Path) -> dict[str, pathlib.Path]:
    """These modules and all that they import of the package, with their files."""
    found: dict[str, pathlib.Path] = {}
    waiting, seen = [*modules], set[str]()
    while waiting:
        name = waiting.pop()
        # From the package itself, which users import, kernels' modules import nothing.
        if name in seen or name in _BESIDE or name == PACKAGE:
            continue
        seen.add(name)
        path = _path_of(name, root)
        if path is not None:
            found[name] = path
            inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
            waiting += [_absolute(each, inside) for each in _source(path).imports]
    return found


def _absolute(name: str, inside: str) -> str:
    """The full name of what a module of the package `inside` imports by this name."""
    relative = name.lstrip(".")
    parts = inside.split(".")
    above = parts[: len(parts) + 1 - (len(name) - len(relative))] if relative != name else []
    return ".".join([*above, *filter(None, [relative])])


def _source(path: pathlib.Path) -> Source:
    """What counts of this file, and what it imports."""
    content = path.read_bytes()
    key = hashlib.sha256(content).digest()
    if key not in known:
        known[key] = read(content)
    return known[key]


def read(content: bytes) -> Source:
    """What counts of a file with this content, and what it imports."""
    source: Any = content
    if _LINES_IN_CLASSES:
        source = ast.parse(content)
        for node in ast.walk(source):
            if isinstance(node, ast.ClassDef):
                each: Any
                for each in (node, *node.decorator_list):
                    each.lineno = each.end_lineno = 1
    code = compile(source, "", "exec", dont_inherit=True, optimize=2)
    imports: set[str] = set()
    described = repr(_described(code, imports))
    return Source(hashlib.sha256(described.encode()).digest(), tuple(sorted(imports)))


# Attributes of a code object that do not change when its function moves to another line.
_COUNTED = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_exceptiontable"),
)


def _described(made: Any, imports: set[str]) -> Any:
    """A code object, or a constant, without line numbers and names of files; adds its imports."""
    if isinstance(made, types.CodeType):
        _add_imports(made, imports)
        constants = tuple(_described(each, imports) for each in made.co_consts)
        return *(getattr(made, name) for name in _COUNTED), constants
    if isinstance(made, tuple):
        return tuple(_described(each, imports) for each in made)
    if isinstance(made, frozenset):  # of which the order is another in each process
        return "set", *sorted(map(repr, made))
    return made


def _add_imports(code: types.CodeType, imports: set[str]) -> None:
    """Add what this code imports from the package: modules, and names that may be modules."""
    if dis.opmap["IMPORT_NAME"] not in code.co_code[::2]:
        return
    last: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level, names = last[-2:]
            base = "." * level + instruction.argval
            if level or base.partition(".")[0] == PACKAGE:
                dot = "." if instruction.argval else ""
                imports.update((base, *(f"{base}{dot}{name}" for name in names or ())))
        last.append(instruction.argval)
