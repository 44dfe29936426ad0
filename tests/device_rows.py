"""What tests for a device share: rows given to kernels directly, and fewer simulated cases."""

import numpy as np
from numba import config, cuda

from softtopk_nb._cuda.arrays import Argument, Rows
from softtopk_nb._cuda.interop import buffer_of, kind_of, nothing, view_of


def fewer(everything, enough):
    """All of it on a device, and what is enough in the simulator, which is slow.

    Enough is what still takes every path: what is left out differs in nothing that the code sees.
    """
    return enough if config.ENABLE_CUDASIM else everything


def rows_of(x, k=0.0, tau=1.0):
    """(`_cuda.arrays.Rows` of x, the list of arrays that a room allocates)."""
    there = cuda.to_device(x)
    allocated = []

    def empty(entries, dtype):
        allocated.append(cuda.device_array(entries, dtype))
        return buffer_of(view_of(allocated[-1], "scratch memory"))

    T, excluded = x.dtype.type, nothing(np.float64).pointer
    numbers = Argument(excluded, float(k), 0), Argument(excluded, float(tau), 0)
    values = buffer_of(view_of(there, "x"))
    stream = kind_of(there).stream
    return Rows(values, *numbers, *x.shape, T, stream, empty, nothing(T), there), allocated
