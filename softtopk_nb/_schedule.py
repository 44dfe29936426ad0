"""Work over the cores of this machine: rows over threads, or the parts of one long row.

Kernels are serial and release the GIL; threads share out rows. So one compiled kernel serves any
number of threads, and a row's bits do not depend on it. No Numba threading layer is ever started:
OpenMP's kills a forked child, and the work queue aborts under two calling threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from numba import config

__all__ = ["over", "thread_count"]

_WORTH_A_THREAD = 1 << 16  # about so many nanoseconds of work; to hand it over takes about 40 us
_PIECES = 8  # of the work, at most, for each thread

# Which core the calling thread runs on, where that can be asked and threads can be told theirs.
_core: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    _core = getattr(ctypes.CDLL(None), "sched_getcpu", None)


class _Job:
    """Something to call, and what came of it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.error: BaseException | None = None
        self._taken, self._running = threading.Lock(), threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Call it, unless it has been taken back."""
        if self._taken.acquire(blocking=False):
            try:
                self._call()
            except BaseException as error:  # raised again in the thread that asked for it
                self.error = error

    def ended(self) -> None:
        self._running.release()

    def end(self) -> None:
        """Take it back, or wait for its end if it has begun.

        A helper that has not woken yet is not waited for: at the end of the process none wakes.
        """
        if not self._taken.acquire(blocking=False):
            self._running.acquire()


class _Helper:
    """A thread that sleeps until it is given a job.

    A lock to sleep on and one for each job, and nothing else: an executor's queue, future and
    condition cost as much as a pass over a million numbers.

    Before it is woken it is kept off the core that wakes it. The system often places it there, and
    moves it away a time slice later, when most calls are over.
    """

    def __init__(self, idle: deque[_Helper]) -> None:
        self._idle = idle
        self._wake = threading.Lock()
        self._wake.acquire()
        self._job: _Job | None = None
        self._cores: set[int] = set()
        thread = threading.Thread(target=self._live, name="softtopk_nb", daemon=True)
        thread.start()
        self._id = thread.native_id

    def _live(self) -> None:
        while True:
            self._wake.acquire()
            job, self._job = self._job, None
            if job is not None:
                job.run()
                # Before its caller goes on, which may want it again at once.
                self._idle.append(self)
                job.ended()
            del job  # and the arrays it holds

    def start(self, job: _Job, cores: set[int]) -> None:
        """Do the job on one of these cores; on any if there are none."""
        if cores and cores != self._cores and self._id is not None:
            self._cores = cores
            with contextlib.suppress(OSError):  # taken from this process meanwhile: any will do
                os.sched_setaffinity(self._id, cores)
        self._job = job
        self._wake.release()


class _Pool:
    """The helpers of this process: those that sleep, and how many there are."""

    def __init__(self) -> None:
        self.idle: deque[_Helper] = deque()
        self.made = 0
        self._making = threading.Lock()

    def helper(self, most: int) -> _Helper | None:
        """One that nobody else has, if there is one or there may be another."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        # Not waited for: a signal handler may ask for one while its thread is making one here.
        if not self._making.acquire(blocking=False):
            return None
        try:
            if self.made >= most:
                return None
            helper = _Helper(self.idle)
            self.made += 1
            return helper
        except RuntimeError:  # no new threads: the interpreter shuts down, or a limit is reached
            return None
        finally:
            self._making.release()


_pool = _Pool()


def _forget_helpers() -> None:
    """In a forked child: the threads stayed with the parent."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)


def _other_cores() -> set[int]:
    """Those that the calling thread may run on, but for the one that it does; none if unknown."""
    return os.sched_getaffinity(0) - {_core()} if _core else set()


def thread_count() -> int:
    """Threads a call may use: the cores given to this process, or NUMBA_NUM_THREADS if fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, int(config.NUMBA_NUM_THREADS)))


@functools.cache
def _shares(pieces: int) -> tuple[float, ...]:
    """Where pieces taken from both ends lie: ever smaller, so that threads end together."""
    sizes = [abs(2 * j + 1 - pieces) + 1 for j in range(pieces)]
    return tuple(end / sum(sizes) for end in itertools.accumulate(sizes, initial=0))


def over(count: int, work: int, kernel: Callable[..., Any], *args: Any) -> None:
    """Call ``kernel(lo, hi, *args)`` on ranges that cover 0 .. count.

    `work` is what all of them take, in nanoseconds, about: an entry of a solved row takes one.

    A sleeping thread takes its time to wake: it and the calling thread take ranges, one after the
    other, from the two ends, until none is left. Every range has ended on return, also when one
    of them raised.
    """
    pieces = min(count, 1 + work // _WORTH_A_THREAD)
    threads = thread_count() if pieces > 1 else 1  # asking takes longer than a short row
    if threads <= 1:
        if count:
            kernel(0, count, *args)
        return
    pieces = min(pieces, _PIECES * threads)
    few = pieces == count  # then each is a piece
    ends = range(count + 1) if few else [round(count * share) for share in _shares(pieces)]
    todo = deque(itertools.pairwise(ends))

    def take_part(take: Callable[[], tuple[int, int]]) -> None:
        while todo:
            try:
                lo, hi = take()
            except IndexError:  # another thread has just taken the last one
                return
            kernel(lo, hi, *args)

    jobs, cores = [], _other_cores()
    for _ in range(min(threads, pieces) - 1):
        helper = _pool.helper(threads - 1)
        if helper is None:
            break  # all are at work for other threads
        jobs.append(_Job(functools.partial(take_part, todo.pop)))
        helper.start(jobs[-1], cores)
    try:
        take_part(todo.popleft)
    finally:
        todo.clear()
        for job in jobs:
            job.end()
    for job in jobs:
        if job.error is not None:
            raise job.error
