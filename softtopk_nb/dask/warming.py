"""Compiling on every worker before the first task, since each process compiles for itself."""

from __future__ import annotations

import time
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from .._api.front import named
from .._threads import pool
from .._threads.long_rows import LONG
from ..selection import Own
from .operators import Operator

_NAME = "softtopk_nb-{}"


def _plugin(calls: tuple[tuple[str, str, dict[str, Any]], ...]) -> Any:
    from distributed import WorkerPlugin

    class Warming(WorkerPlugin):  # type: ignore[misc, unused-ignore]
        """Compile what these calls need, on all present and future workers."""

        name = _NAME.format(abs(hash(repr(calls))))
        seconds: float

        def setup(self, worker: Any) -> None:
            """Make the calls, on a few rows and on one that is searched in parts."""
            start = time.perf_counter()
            for name, dtype, options in calls:
                op = named(name)
                k = () if op.names[0] != "k" else (3,)
                with pool.one_thread():
                    for shape in ((2, 64), (1, LONG)):
                        x = np.linspace(-1.0, 1.0, shape[0] * shape[1], dtype=dtype).reshape(shape)
                        if shape[1] == 64 or op.chunks is not None:
                            op(x, *k, **options)
            self.seconds = time.perf_counter() - start

    return Warming()


def warm(
    client: Any,
    operator: Operator[Any, Any, Any, Any, Any],
    dtype: npt.DTypeLike = np.float32,
    **options: Unpack[Own],
) -> dict[str, float]:
    """Compile an operator on every worker of a cluster, and on those that join it later.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    operator : operator
        One of `softtopk_nb.dask`.
    dtype : dtype, default=float32
        float32 or float64, the type of the scores.
    **options
        The operator's own, such as ``curve="clip"``.

    Returns
    -------
    seconds : dict
        For each worker what it took: tenths of a second where the disk cache has the code.

    Notes
    -----
    Without it the first task of each worker takes as much longer. What is compiled is the value, of
    short rows and, where the axis may be in chunks, of rows of a million entries; not derivatives,
    `potential`, `where`, or the way of `gradtopk` for lengths between.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> import softtopk_nb.dask as std
    >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
    ...     with Client(cluster) as client:
    ...         seconds = std.warm(client, std.softmax)
    >>> len(seconds)
    1
    """
    plugin = _plugin(((operator.__name__, np.dtype(dtype).name, {**options}),))
    client.register_plugin(plugin)
    name = plugin.name

    def seconds(dask_worker: Any) -> float:
        return float(dask_worker.plugins[name].seconds)

    result: dict[str, float] = client.run(seconds)
    return result
