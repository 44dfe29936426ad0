"""Work over the cores of this machine: rows over threads, or the parts of one long row.

Kernels are serial and release the GIL; threads share out rows. So one compiled kernel serves any
number of threads, and a row's bits do not depend on it. No Numba threading layer is ever started:
OpenMP's kills a forked child, and the work queue aborts under two calling threads.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from numba import config

__all__ = ["over", "thread_count"]

_WORTH_A_THREAD = 1 << 16  # entries: about 50 us of work, against 30 us to hand it over

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """In a forked child: the pool's threads stayed with the parent."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def thread_count() -> int:
    """Threads a call may use: the cores given to this process, or NUMBA_NUM_THREADS if fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, int(config.NUMBA_NUM_THREADS)))


def _helpers(count: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool._max_workers < count:
            _pool = ThreadPoolExecutor(count, thread_name_prefix="softtopk_nb")
        return _pool


def over(count: int, entries: int, kernel: Callable[..., Any], *args: Any) -> None:
    """Call ``kernel(lo, hi, *args)`` on ranges that cover 0 .. count; `entries` is the work in all.

    The calling thread takes the first range itself. Every range has ended on return, also when
    one of them raised.
    """
    shares = min(count, 1 + entries // _WORTH_A_THREAD)
    if shares > 1:  # to ask how many threads there are takes longer than a short row
        shares = min(shares, thread_count())
    if shares <= 1:
        if count:
            kernel(0, count, *args)
        return
    cuts = [count * j // shares for j in range(shares + 1)]
    pool = _helpers(shares - 1)
    try:
        others = [pool.submit(kernel, lo, hi, *args) for lo, hi in itertools.pairwise(cuts[1:])]
    except RuntimeError:  # no new threads: the interpreter shuts down, or a limit is reached
        kernel(0, count, *args)
        return
    try:
        kernel(cuts[0], cuts[1], *args)
    finally:
        wait(others)
    for other in others:
        other.result()
