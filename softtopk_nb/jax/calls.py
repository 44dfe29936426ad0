"""Calls: an operator and its options, as one hashable string that a compiled program holds."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

from .._api.front import named
from .._compile import subnormals
from . import host

_made: dict[str, Call] = {}
_numbers = itertools.count()


class Call(NamedTuple):
    """An operator and its options; equal options make equal calls."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    key: str  # the same in every process, except for options that exist in one process only

    @property
    def op(self) -> Any:
        """The operator of arrays."""
        return named(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """The operator's options by name."""
        return dict(self.settings)

    def compute(self, verb: str, *arrays: Any, **where: Any) -> tuple[Any, ...]:
        """The results of the primitive with this name, on arrays of NumPy."""
        with subnormals.kept():  # in x, and in a temperature that is compared with 0
            given = host.nan_rows(*arrays)
            result: tuple[Any, ...] = getattr(host, verb)(self.op, self.options, *given, **where)
        return result


@functools.cache
def call(name: str, settings: tuple[tuple[str, Any], ...]) -> Call:
    """The call of an operator with these options."""
    made = Call(name, settings, words(name, settings))
    _made[made.key] = made
    return made


def words(name: str, settings: tuple[tuple[str, Any], ...]) -> str:
    """A name and options as a string, of which a later one for the same options may differ."""
    found = [name]
    for key, option in settings:
        plain = option is None or isinstance(option, (str, int, float, tuple))
        # A user's curve exists in this process only: it gets a number that is never used again.
        found.append(f"{key}={option!r}" if plain else f"{key}=<{id(option):x}.{next(_numbers)}>")
    return " ".join(found)


def find(key: str) -> Call:
    """The call with this key."""
    try:
        return _made[key]
    except KeyError:
        raise ValueError(
            f"the operator {key!r} was compiled in another process; call it once in this one first"
        ) from None
