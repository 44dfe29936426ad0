"""Names that are imported when they are first used, so that a program loads only what it uses.

This is how SPEC 1 of Scientific Python does it. Python calls the function `__getattr__` of a module
for a name that is not there, and once the name was imported, it is there.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Held while a name is imported, so that no child is forked meanwhile. Modules of operators use no
# name of a package while they are imported and need no lock of Numba's: nobody who waits for this
# lock has another one that its holder needs.
_importing = threading.RLock()


def attach(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package with names from these modules.

    Some operators have the name of their module, as `thretopk` has. When Python first imports a
    module, it sets the package's attribute of that name to the module, which would hide the
    operator. Hence such modules are imported here, and these attributes removed.
    """
    where = {name: module for module, names in modules.items() for name in names}
    parent = sys.modules[package]
    for name, module in where.items():
        if module == f".{name}":
            importlib.import_module(module, package)
            vars(parent).pop(name, None)

    def get(name: str) -> Any:
        """Import the name from its module."""
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _importing:
            value = getattr(importlib.import_module(where[name], package), name)
        setattr(parent, name, value)
        return value

    def names() -> list[str]:
        """List the names, whether or not they have been used."""
        return sorted({*vars(parent), *where})

    return get, names


class Registry(Mapping[str, T]):
    """Objects of the package by name; each is imported when it is asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        found: T = getattr(sys.modules[__package__], name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# A child forked while another thread imports would inherit that module's lock, locked for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )
