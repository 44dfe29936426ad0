"""Row functions for use inside one's own ``@njit`` code.

Each works on one row: 1-D arrays of float32 or float64 and numbers, results written to arrays
that the caller gives, no Python objects and no threads. They follow the same rules for
non-finite entries as the operators. They cannot raise: a k outside [0, n] or a temperature that
is not positive and finite makes the row NaN.

A curve is a value: that of this module whose name `thretopk` has for it, as `laplace` or `exp`;
``entmax(alpha)``; or the ``compiled`` attribute of a `softtopk_nb.Curve`.

Examples
--------
>>> import numpy as np
>>> from numba import njit, prange
>>> from softtopk_nb import nopython as stkn
>>> @njit(parallel=True)
... def masses(x, k, out):
...     total = 0.0
...     for i in prange(x.shape[0]):
...         stkn.thretopk(x[i], k, 0.5, stkn.laplace, out[i])
...         total += out[i].sum()
...     return total
>>> x = np.random.default_rng(0).normal(size=(100, 30))
>>> round(masses(x, 3, np.empty_like(x)), 9)
300.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from .._api.operator import Name
from .._curves.registry import CURVES
from .cpu import (
    entmax,
    gradtopk,
    gradtopk_jvp,
    gradtopk_vjp,
    hardtopk,
    itertopk,
    thretopk,
    thretopk_jvp,
    thretopk_vjp,
    wsoftmaxtopk,
)

__all__ = [
    *CURVES,
    "SHARED",
    "device",
    "entmax",
    "gradtopk",
    "gradtopk_jvp",
    "gradtopk_vjp",
    "hardtopk",
    "itertopk",
    "thretopk",
    "thretopk_jvp",
    "thretopk_vjp",
    "wsoftmaxtopk",
]


def __getattr__(name: str) -> Any:
    """The curves of this module, by their names in `thretopk`."""
    if name in CURVES:
        return CURVES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *CURVES})


#: float64 entries of shared memory that a group needs inside a kernel (`device`; gradtopk more).
SHARED = 160


def device(
    name: Name, dtype: npt.DTypeLike, *, curve: Any = CURVES["laplace"], lanes: int = 32
) -> Callable[..., None]:
    """Make a device function for one's own ``@cuda.jit`` kernels.

    Parameters
    ----------
    name : {'thretopk', 'gradtopk', 'hardtopk', 'itertopk', 'wsoftmaxtopk'}
        The operator.
    dtype : float32 or float64
        Type of the rows.
    curve : curve value, default=laplace
        The curve of thretopk.
    lanes : int, default=32
        How many threads work on a row together: a power of 2 up to 1024; gradtopk: at least 32.

    Returns
    -------
    function : device function
        By `name`,

        - ``lam = thretopk(x, k, temperature, out, shared)``
        - ``gradtopk(x, k, temperature, out, shared)``
        - ``hardtopk(x, k, out, shared)``
        - ``itertopk(x, k, temperature, out, shared, work)``, and wsoftmaxtopk likewise

        x, out : 1-D device arrays of `dtype`, rows of any length, not overlapping.
        k, temperature : numbers; an invalid one makes the row NaN.
        shared : 1-D shared array of `SHARED` float64, of this group alone; gradtopk:
        of ``SHARED + 64 + 2 * lanes``.
        work : 1-D array of at least 3 n float64, of this group alone.

    Raises
    ------
    ImportError
        numba.cuda cannot be imported.
    TypeError, ValueError
        An unknown name, another dtype, lanes that are not a power of 2 or too few.

    Notes
    -----
    The kernel runs on blocks of one dimension. If a group is a warp or part of one, its threads
    follow each other from a multiple of `lanes` on, and a block may hold several groups; a group of
    more than 32 threads is a whole block. All threads of the group call the function, with the
    same arguments. When it returns, all of them see `out`, and `shared` is free again. What a
    thread has written to x, the others must see before the call (``cuda.syncwarp`` or
    ``cuda.syncthreads``).

    Rules for non-finite entries and accuracy are those of the operators. Rows are read again in
    each pass, so that x is best kept in shared memory if the row is short.

    Tell the compiler how large your blocks are: ``@cuda.jit(launch_bounds=(threads, 1))``. With
    1024 lanes a thread has 64 registers, too few for gradtopk: some of it lies in local memory.

    Examples
    --------
    ``examples/inside_cuda.py`` is a kernel that calls such a function.
    """
    from . import cuda

    made: Callable[..., None] = cuda.make(name, dtype, curve, lanes)
    return made
