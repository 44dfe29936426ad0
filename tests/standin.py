"""An array library that stands in for CuPy in the simulator, where the device is the host's memory.

Its arrays say where they lie through ``__cuda_array_interface__`` and offer nothing else, so that
what works with them works with any library that speaks this protocol.
"""

import sys
import types

import numpy as np


class Array:
    """A device array over NumPy's memory."""

    def __init__(self, array):
        self.array = array
        self.device = _Device()

    @property
    def __cuda_array_interface__(self):
        interface = dict(self.array.__array_interface__)
        return {
            "shape": interface["shape"],
            "typestr": interface["typestr"],
            "data": interface["data"],
            "strides": interface["strides"],
            "version": 3,
            "stream": 1,
        }

    def get(self):
        return self.array.copy()


class _Device:
    id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class NamelessArray(Array):
    """The same from a library that nobody has heard of, which has the array API's namespace."""

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda made: NamelessArray(made._ary))


Array.__module__ = "cupy"
NamelessArray.__module__ = "nobody_knows"


def install(monkeypatch):
    """Make ``sys.modules["cupy"]`` the stand-in, and return the streams that it is asked for."""
    asked = []

    def get_current_stream(device_id=None):
        asked.append(device_id)
        return types.SimpleNamespace(ptr=7)

    library = types.ModuleType("cupy")
    library.ndarray = Array
    library.empty = lambda shape, dtype: Array(np.empty(shape, dtype))
    library.cuda = types.SimpleNamespace(get_current_stream=get_current_stream)
    monkeypatch.setitem(sys.modules, "cupy", library)
    return asked
