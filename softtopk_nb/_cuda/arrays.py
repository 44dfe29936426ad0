"""Device arrays in the form that kernels take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .target import WIDE


class Buffer(NamedTuple):
    """Memory on a device: the argument of a kernel, and the object that keeps it alive."""

    pointer: Any  # an address; in the simulator a flat array
    owner: Any
    address: int  # 0 where nothing is read or written


class Argument(NamedTuple):
    """One number for each row, or one for all, as three arguments of a kernel."""

    pointer: Any  # float64
    value: float
    per_row: int


class Rows(NamedTuple):
    """A checked problem on a device, as `_api.operator.Rows` is one on the host."""

    x: Buffer  # rows * n entries of dtype, one row after the other
    k: Argument
    temperature: Argument
    rows: int
    n: int
    dtype: Any  # np.float32 or np.float64
    stream: Any
    empty: Callable[[int, Any], Buffer]  # (entries, dtype) -> uninitialised memory from x's library
    nothing: Buffer  # the placeholder for an argument that is not given
    owners: Any  # keep the memory of k and the temperature alive

    def wide(self, *others: Buffer) -> int:
        """1 if rows of x and of the others can be read and written WIDE bytes at a time, else 0."""
        whole = self.n * np.dtype(self.dtype).itemsize % WIDE == 0
        return int(whole and all(b.address % WIDE == 0 for b in (self.x, *others)))
