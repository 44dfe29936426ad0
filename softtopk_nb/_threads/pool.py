"""Work over the cores of this machine: rows over threads, or the parts of one long row.

Kernels are serial and release the GIL; threads share out rows. So one compiled kernel serves any
number of threads, and a row's bits do not depend on it. No Numba threading layer is ever started:
OpenMP's kills a forked child, and the work queue aborts under two calling threads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import _dispatcher, config, int64, typeof

from .._compile import subnormals
from .._compile.decorators import in_memory
from .jobs import BOX, NEXT, WORD, serve, shared

WORTH_A_THREAD = 1 << 16  # about so many nanoseconds of work; to wake a thread takes about 40 us
UNIT = 1 << 14  # nanoseconds of work that are worth asking for
# And between two looks for signals; some rows take 30 times as long as others.
_SLICE = 1 << 23
LANES = 16  # kernels work on up to 8, 16 or 32 rows side by side: units are multiples of this
_PATIENCE = 1 << 12  # pauses, some 100 us: how long a helper keeps a core that it has no use for

# Which core the calling thread runs on, where that can be asked and threads can be told theirs.
_core: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    _core = getattr(ctypes.CDLL(None), "sched_getcpu", None)


class _Helper:
    """A thread that looks out for work for a while after each call, and sleeps until the next.

    Before it is woken it is kept off the core that wakes it. The system often places it there, and
    moves it away a time slice later, when most calls are over.
    """

    def __init__(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()
        self._asleep, self._wanted = True, False
        self._cores: set[int] = set()
        room = np.zeros(2 * BOX, np.int64)
        self._room = room[-room.ctypes.data // WORD % BOX :]  # so that no two share a cache line
        self.box = self._room.ctypes.data
        thread = threading.Thread(target=self._live, name="softtopk_nb", daemon=True)
        thread.start()
        self._id = thread.native_id

    def _live(self) -> None:
        while True:
            self._wake.acquire()
            self._wanted = True
            while self._wanted:
                self._wanted = False
                serve(self.box, _PATIENCE)
            self._asleep = True  # the lock is held: it may be released once

    def call(self, following: int, cores: set[int]) -> int:
        """See that it looks into its box, on one of these cores; on any if there are none.

        `following`: the box of the helper that was called before.
        """
        self._room[NEXT // WORD] = following
        self._wanted = True
        # Between looking out and sleeping it may miss this, and then has no part in the work.
        if self._asleep:
            self._asleep = False
            if cores and cores != self._cores and self._id is not None:
                self._cores = cores
                with contextlib.suppress(OSError):  # taken from this process meanwhile: any will do
                    os.sched_setaffinity(self._id, cores)
            self._wake.release()
        return self.box

    def settle(self) -> None:
        """Wait until it sleeps."""
        for _ in range(1000):  # a tenth of a second; it takes a thousandth of that
            if self._asleep:
                break
            time.sleep(1e-4)


class _Pool:
    """The helpers of this process: those that nobody has, and how many there are."""

    def __init__(self) -> None:
        self.idle: deque[_Helper] = deque()
        self.made = 0
        self._closed = False
        self._making = threading.Lock()

    def helper(self, most: int) -> _Helper | None:
        """One that nobody else has, if there is one or there may be another."""
        if self._closed:
            return None
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
            helper = _Helper()
            self.made += 1
            return helper
        except RuntimeError:  # no new threads: the interpreter shuts down, or a limit is reached
            return None
        finally:
            self._making.release()

    def close(self) -> None:
        """Give out none any more, and see them all asleep."""
        self._closed = True
        for helper in self.idle:
            helper.settle()


_pool = _Pool()
# The machine code goes with the interpreter: no thread may be in it then.
atexit.register(lambda: _pool.close())


def _forget_helpers() -> None:
    """In a forked child: the threads stayed with the parent."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)


def _other_cores() -> set[int]:
    """Those that the calling thread may run on, but for the one that it does; none if unknown."""
    return os.sched_getaffinity(0) - {_core()} if _core else set()


_limits = threading.local()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Calls of this thread use no other: where each thread has work of its own."""
    before = getattr(_limits, "alone", False)
    _limits.alone = True
    try:
        yield
    finally:
        _limits.alone = before


def thread_count() -> int:
    """Threads a call may use: the cores given to this process, or NUMBA_NUM_THREADS if fewer.

    One alone under `one_thread`.
    """
    if getattr(_limits, "alone", False):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, int(config.NUMBA_NUM_THREADS)))


_addresses: dict[tuple[Any, ...], int] = {}


def address_of(kernel: Any, args: tuple[Any, ...]) -> int:
    """Where the kernel's machine code for these arguments is; compiled, if it is not yet."""
    try:  # `typeof` takes 5 us for each argument, a fingerprint 0.1
        key = (kernel, *map(_dispatcher.compute_fingerprint, args))
    except NotImplementedError:  # of a user's own functions
        key = (kernel, *map(typeof, args))
    address = _addresses.get(key)
    if address is None:
        kinds = (int64, int64, *map(typeof, args))
        kernel.compile(kinds)
        compiled = kernel.overloads[kinds]
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        _addresses[key] = address
    return address


def is_compiled(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Whether this process has the kernel's machine code for these arguments already."""
    return (int64, int64, *map(typeof, args)) in kernel.overloads


def over(count: int, work: int, kernel: Any, *args: Any) -> None:
    """Call ``kernel(lo, hi, *args)`` on ranges that cover 0 .. count.

    `work` is what all of them take, in nanoseconds, about: an entry of a solved row takes one.

    A sleeping thread takes its time to wake: it and the calling thread take ranges, one after the
    other, until none is left. Every range has ended on return, also when one of them raised.

    Python handles signals between slices of the work: who presses Ctrl-C need not wait for the end.
    """
    if not count:
        return
    # This thread takes subnormal numbers for 0, helpers do not: bits would depend on which of them
    # has a row. To ask takes 60 ns.
    if subnormals.LEAST / 2 == 0.0:
        with subnormals.kept():
            over(count, work, kernel, *args)
        return
    pieces = min(count, 1 + work // WORTH_A_THREAD)
    threads = thread_count() if pieces > 1 else 1  # asking takes longer than a short row
    if threads <= 1 and work <= _SLICE:
        kernel(0, count, *args)
        return
    unit = -(-count * UNIT // work)
    unit = unit if unit < LANES // 2 else -(-unit // LANES) * LANES
    length = unit * max(1, count * _SLICE // (work * unit))
    slices = [(lo, min(lo + length, count)) for lo in range(0, count, length)]
    if threads <= 1:
        for lo, hi in slices:
            kernel(lo, hi, *args)
        return
    address = address_of(kernel, args)
    share = in_memory(shared)
    if kernel.stats.cache_path:
        # A curve is the numbers in it to whoever hands it on: what is compiled for one serves all.
        share, args = shared, tuple(tuple(a) if isinstance(a, tuple) else a for a in args)
    helpers: list[_Helper] = []
    cores = _other_cores()
    try:
        for _ in range(min(threads, pieces) - 1):
            helper = _pool.helper(threads - 1)
            if helper is None:
                break  # all are at work for other threads
            helpers.append(helper)
        for lo, hi in slices:
            first = 0
            for helper in helpers:
                first = helper.call(first, cores)
            share(address, first, lo, hi, unit, len(helpers) + 1, *args)
    finally:
        _pool.idle.extend(helpers)
