"""Calls: which operator with which options, as one hashable word that a compiled program holds."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

from .._api.operator import registry
from .._compile import subnormals
from . import host

_made: dict[str, Call] = {}
_numbers = itertools.count()


class Call(NamedTuple):
    """An operator and its options; equal options make equal calls."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    word: str  # the same in every process, but for options that live in one

    @property
    def op(self) -> Any:
        """The operator of arrays."""
        return registry[self.name]

    @property
    def options(self) -> dict[str, Any]:
        """Its options by name."""
        return dict(self.settings)

    def compute(self, verb: str, *arrays: Any, **where: Any) -> tuple[Any, ...]:
        """What the primitive of this name does."""
        with subnormals.kept():  # of x, and of a temperature that is compared with 0
            given = host.nan_rows(*arrays)
            result: tuple[Any, ...] = getattr(host, verb)(self.op, self.options, *given, **where)
        return result


@functools.cache
def call(name: str, settings: tuple[tuple[str, Any], ...]) -> Call:
    """The call of an operator with these options."""
    words = [name]
    for key, option in settings:
        plain = isinstance(option, (str, int, float))
        # A curve of one's own ends with the process: its number is one that no other has.
        words.append(f"{key}={option!r}" if plain else f"{key}=<{id(option):x}.{next(_numbers)}>")
    made = Call(name, settings, " ".join(words))
    _made[made.word] = made
    return made


def find(word: str) -> Call:
    """The call of this word."""
    try:
        return _made[word]
    except KeyError:
        raise ValueError(
            f"the operator {word!r} was compiled in another process; call it once in this one first"
        ) from None
