"""An operator on rows of which some entries take no part: they are packed into rows without them.

It has the methods of a room, and what they get and write are whole rows. A few of them at a time
are packed, handed to the operator's own method, and unpacked, while all of it is in a near cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._threads.packing import chunks, count, gather, scatter

Array = npt.NDArray[Any]


class Part(NamedTuple):
    """Some rows, packed."""

    these: Array  # their indices, one after the other
    rows: Any  # of the operator's `rows_type`
    state: Any = None  # what `_linearize` has returned for them

    @property
    def some(self) -> slice:
        """The same indices."""
        return slice(int(self.these[0]), int(self.these[-1]) + 1)


class Masked:
    """The methods of an operator, for rows of which a mask says what takes part.

    The mask has one row for each of theirs, or one for all.
    """

    def __init__(self, operator: Any, present: Array) -> None:
        self._operator, self._present = operator, present
        self._sizes, _ = count(present, np.arange(len(present)))

    def _parts(self, rows: Any) -> Iterator[Part]:
        for these in chunks(np.arange(len(rows.x)), rows.x.shape[1]):
            part = Part(these, None)
            sizes = self._sizes if len(self._sizes) == 1 else self._sizes[part.some]
            x = self._packed(these, rows.x, int(max(1, sizes.max())), -np.inf)
            yield part._replace(rows=type(rows)(x, *(each[part.some] for each in rows[1:])))

    def _packed(self, these: Array, values: Array, width: int, behind: float) -> Array:
        packed = np.empty((len(these), width), values.dtype)
        gather(self._present, these, values, behind, packed)
        return packed

    def _like(self, part: Part, values: Array) -> Array:
        """Entries, or numbers of rows, as the part has them."""
        if values.ndim == 1:
            return values[part.some]
        return self._packed(part.these, values, part.rows.x.shape[1], 0.0)

    def _room(self, part: Part, out: Array) -> Array:
        """Where the operator writes the part of `out`."""
        return out[part.some] if out.ndim == 1 else np.empty_like(part.rows.x)

    def _write(self, part: Part, values: Array, absent: float, out: Array) -> None:
        if out.ndim > 1:
            scatter(self._present, part.these, values, absent, out)

    def _value(self, rows: Any, plan: Any, out: Array) -> None:
        for part in self._parts(rows):
            p = self._room(part, out)
            self._operator._value(part.rows, plan, p)
            self._write(part, p, 0.0, out)

    def _linearize(self, rows: Any, plan: Any, out: Array) -> list[Part]:
        parts = []
        for part in self._parts(rows):
            p = self._room(part, out)
            state = self._operator._linearize(part.rows, plan, p)
            parts.append(part._replace(state=state))
            self._write(part, p, 0.0, out)
        return parts

    def _push(self, rows: Any, plan: Any, state: list[Part], dx: Array, *numbers: Array) -> None:
        *directions, out = numbers
        for part in state:
            dp, moves = self._room(part, out), (each[part.some] for each in directions)
            problem = part.rows, plan, part.state
            self._operator._push(*problem, self._like(part, dx), *moves, dp)
            self._write(part, dp, 0.0, out)

    def _pull(
        self, rows: Any, plan: Any, state: list[Part], g: Array, gx: Array, *gradients: Array
    ) -> None:
        for part in state:
            gradient, numbers = np.empty_like(part.rows.x), (each[part.some] for each in gradients)
            problem = part.rows, plan, part.state
            self._operator._pull(*problem, self._like(part, g), gradient, *numbers)
            self._write(part, gradient, 0.0, gx)
