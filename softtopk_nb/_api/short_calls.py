"""The short way of a call on few entries in memory: what does not depend on them is looked up.

It serves contiguous arrays of float32 and float64 with the scores along the last axis, and Python's
numbers for k and the temperature. Every other call goes the long way, `call`, which gives the same
bits and raises what there is to raise.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._compile import subnormals
from . import call, scaling

Array = npt.NDArray[Any]

MOST = 1 << 12  # entries: with more of them Python's part is small, and threads may be woken


class Known:
    """What is known of calls that differ in their entries, k and temperature alone."""

    def __init__(self, op: Any, layout: call.Layout, shape: tuple[int, ...], largest: bool) -> None:
        self._op, self._options, self._shape, self._largest = op, layout.options, shape, largest
        self._table, self._dtype = layout.table, layout.dtype
        self._least, self._most = scaling.MODERATE[layout.compute]
        self._kinds_of_k = (int, float) if op.real_k else (int,)
        self._type_of_k = np.float64 if op.real_k else np.int64
        numbers = [0, 1.0][-len(op.names) :]
        self._sample = op.rows_type(*self.rows(np.empty(shape, self._dtype), numbers))
        few = getattr(op.cpu, "few", None)
        self._solve: Any = few and few(self._sample, self._options)

    def __bool__(self) -> bool:
        """Whether there is a short way."""
        return self._solve is not None

    @functools.cached_property
    def _vjp(self) -> Any:
        """Compiled, or read from disk, when the first gradient is wanted."""
        few_vjp = getattr(self._op.cpu, "few_vjp", None)
        return few_vjp and few_vjp(self._sample, self._options)

    def rows(self, x: Array, numbers: list[Any]) -> Any:
        """The rows as an engine's `few` takes them; None if the numbers are unusual or wrong."""
        temperature = numbers[-1]
        if type(temperature) not in (float, int) or not self._least <= temperature <= self._most:
            return None
        count, n = self._table
        rows = x if x.ndim == 2 else x.reshape(self._table)
        rows = rows if self._largest else -rows
        width = np.empty(count)
        width.fill(temperature)
        if len(numbers) == 1:
            return rows, width
        k = numbers[0]
        if type(k) not in self._kinds_of_k or not 0 <= k <= n:
            return None
        of_k = np.empty(count, self._type_of_k)
        of_k.fill(k)
        return rows, of_k, width

    def solved(self, rows: Any) -> tuple[Any, Any]:
        """(the value, the packed state), which is None if the rows need the long way."""
        p = np.empty(self._table, self._dtype)
        state = self._solve(rows, p)
        return p if len(self._shape) == 2 else p.reshape(self._shape), state

    def gradient(self, rows: Any, state: Any, g: Any) -> Any:
        """The gradient of <g, value> in x; None if g is unusual or wrong, or by the long way."""
        vjp, usual = self._vjp, type(g) is np.ndarray and g.dtype == self._dtype
        if vjp is None or not usual or g.shape != self._shape or subnormals.LEAST / 2 == 0.0:
            return None
        g = g if g.flags.carray else g.copy()
        gx = np.empty(self._table, self._dtype)
        vjp(rows, state, g.reshape(self._table), gx)
        if not self._largest:
            np.negative(gx, out=gx)
        return gx.reshape(self._shape)


def _know(
    op: Any, dtype: np.dtype[Any], shape: tuple[int, ...], axis: Any, largest: Any, **options: Any
) -> Known | None:
    """What is known of such calls; None if they go the long way."""
    layout = call.layout_of(op, dtype, shape, axis, options)
    rows, n = layout.table
    as_it_is = layout.dtype == dtype and layout.compute is dtype.type
    plain = as_it_is and layout.axis == len(shape) - 1 and type(largest) is bool
    if not plain or not 0 < rows * n <= MOST or op.check_rows is not None:
        return None
    return Known(op, layout, shape, largest) or None


# By type too: 1 is not True.
_known = functools.lru_cache(maxsize=2048, typed=True)(_know)


def _begun(op: Any, x: Array, arguments: tuple[Any, ...]) -> tuple[Known | None, Any]:
    """(what is known of the call, its rows); these are None if it goes the long way."""
    *numbers, axis, largest, where, out, options = arguments
    if where is not None or out is not None or not x.flags.carray or subnormals.LEAST / 2 == 0.0:
        return None, None
    try:
        known = _known(op, x.dtype, x.shape, axis, largest, **options)
    except (TypeError, ValueError):
        return None, None  # an argument is wrong, or has no hash
    return known, None if known is None else known.rows(x, numbers)


def value(op: Any, x: Array, *arguments: Any) -> Any:
    """The value, or None if the call goes the long way."""
    known, rows = _begun(op, x, arguments)
    if known is None or rows is None:
        return None
    p, state = known.solved(rows)
    return None if state is None else p


class ShortCall(NamedTuple):
    """A call that has gone the short way, with verbs of `call.Call` after `solve`."""

    known: Known
    rows: Any
    given: tuple[Any, ...]  # the operator, x and the arguments

    def vjp_in_x(self, state: Array, g: Any) -> Any:
        """The gradient of <g, value> in x alone."""
        gx = self.known.gradient(self.rows, state, g)
        if gx is not None:
            return gx
        checked = call.check(*self.given)
        return checked.vjp_in_x(checked.op.cpu.unpack(checked.rows, checked.options, state), g)

    def packed(self, state: Array) -> Array:
        """The state as an array, shape (*batch, `state_width`)."""
        return state.reshape(*self.given[1].shape[:-1], -1)


def solve(op: Any, x: Array, *arguments: Any) -> tuple[Any, ShortCall, Any] | None:
    """(the value, the call, its state), or None if the call goes the long way."""
    known, rows = _begun(op, x, arguments)
    if known is None or rows is None:
        return None
    p, state = known.solved(rows)
    return None if state is None else (p, ShortCall(known, rows, (op, x, *arguments)), state)
