"""Copies of a few numbers between the host and a device, for which the host waits.

Operators of rows need none. What is solved by systems on the host copies the numbers of rows and
columns, and never a number for each entry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Buffer
from .copying import new_buffer
from .interop import Kind
from .launch import current_device, driver, retry
from .target import SIMULATED


class Room(NamedTuple):
    """Memory of a library on a device, and copies to and from it on the caller's stream."""

    kind: Kind

    def new(self, entries: int, dtype: Any) -> Buffer:
        """Uninitialised memory."""
        return new_buffer(self.kind, entries, dtype)

    def of(self, values: Any) -> Buffer:
        """Memory with these numbers."""
        made = self.new(values.size, values.dtype.type)
        self.write(values, made)
        return made

    def write(self, values: Any, target: Buffer) -> None:
        """Copy contiguous numbers to the device."""
        if SIMULATED:
            target.pointer[: values.size] = values.reshape(-1)
        elif values.size:
            given = target.address, values.ctypes.data, values.nbytes, self.kind.stream
            _ask("cuMemcpyHtoDAsync", *given)

    def read(self, source: Buffer, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
        """Contiguous numbers as an array on the host, once the stream has come to them."""
        found = np.empty(shape, dtype)
        if SIMULATED:
            found.reshape(-1)[:] = source.pointer[: found.size]
        elif found.size:
            stream = self.kind.stream
            _ask("cuMemcpyDtoHAsync", found.ctypes.data, source.address, found.nbytes, stream)
            _ask("cuStreamSynchronize", stream)
        return found


def _ask(name: str, *given: Any) -> None:
    """Call a function of the driver; raises if it fails."""
    function = getattr(driver(), name)
    if error := function(*given)[0]:
        retry(current_device(), error, lambda: function(*given)[0], f"{name} failed")
