"""A pool of threads: batches of rows, or the parts of one long row, over this machine's cores.

Kernels are serial and release the GIL; threads share the rows. So one compiled kernel serves any
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
from typing import Any, NamedTuple

import numpy as np
from numba import _dispatcher, config, int64, typeof
from numba.core.types import Array
from numba.np.numpy_support import from_dtype, map_layout

from .._compile import ranges, subnormals
from .jobs import BOX, NEXT, RECORD, WORD, address_of_shared, serve

WORTH_A_THREAD = 1 << 16  # nanoseconds of work, roughly; waking a thread takes about 40 us
UNIT = 1 << 14  # nanoseconds of work in the smallest range that a thread takes
# Nanoseconds between two checks for signals; some rows take 30 times as long as others.
_SLICE = 1 << 23
LANES = 16  # kernels work on up to 8, 16 or 32 rows side by side: units are multiples of this
_PATIENCE = 1 << 12  # pauses, some 100 us: how long an idle helper polls before it sleeps

# The core of the calling thread, where the system reports it and threads can be pinned to cores.
_core: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    _core = getattr(ctypes.CDLL(None), "sched_getcpu", None)


class _Helper:
    """A thread that polls for work for a while after each call, and then sleeps until the next.

    Before it is woken it is kept off the core of the thread that wakes it. The system often places
    it there, and moves it away a time slice later, when most calls are over.
    """

    def __init__(self) -> None:
        self._wake = threading.Lock()
        self._wake.acquire()
        self._asleep, self._wanted = True, False
        self._cores: set[int] = set()
        memory = np.zeros(2 * BOX, np.int64)
        # Aligned to the size of a box, so that no two boxes share a cache line.
        self._memory = memory[-memory.ctypes.data // WORD % BOX :]
        self.box = self._memory.ctypes.data
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
        """Make the helper look into its box, on one of these cores; returns the box.

        `cores`: any if it is empty. `following`: the box of the helper that was called before.
        """
        self._memory[NEXT // WORD] = following
        self._wanted = True
        # Between polling and sleeping it may miss this, and then has no part in the work.
        if self._asleep:
            self._asleep = False
            if cores and cores != self._cores and self._id is not None:
                self._cores = cores
                with contextlib.suppress(OSError):  # no longer allowed here: any will do
                    os.sched_setaffinity(self._id, cores)
            self._wake.release()
        return self.box

    def record(self, lo: int, hi: int, unit: int, threads: int) -> int:
        """Write down a call of which this helper was called last; returns the record's address."""
        self._memory[RECORD // WORD :][:5] = address_of_shared(), lo, hi, unit, threads
        return self.box + RECORD

    def settle(self) -> None:
        """Wait until the helper sleeps, for at most a tenth of a second."""
        for _ in range(1000):  # a tenth of a second; it takes a thousandth of that
            if self._asleep:
                break
            time.sleep(1e-4)


class _Pool:
    """The helpers of this process: the idle ones, and how many were made."""

    def __init__(self) -> None:
        self.idle: deque[_Helper] = deque()
        self.made = 0
        self._closed = False
        self._making = threading.Lock()

    def helper(self, most: int) -> _Helper | None:
        """An idle helper, or a new one if fewer than `most` were made; None if there is neither."""
        if self._closed:
            return None
        try:
            return self.idle.pop()
        except IndexError:
            pass
        # Without waiting: a signal handler may ask for a helper while its own thread is making one.
        if not self._making.acquire(blocking=False):
            return None
        try:
            if self.made >= most:
                return None
            helper = _Helper()
            self.made += 1
            return helper
        except RuntimeError:  # no new threads: the interpreter is ending, or a limit is reached
            return None
        finally:
            self._making.release()

    def close(self) -> None:
        """Stop handing out helpers, and wait until all idle ones sleep."""
        self._closed = True
        for helper in self.idle:
            helper.settle()


_pool = _Pool()
# The machine code is freed with the interpreter: no thread may be in it then.
atexit.register(lambda: _pool.close())


def _forget_helpers() -> None:
    """Start an empty pool in a forked child: the threads stayed with the parent."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)


def _other_cores() -> set[int]:
    """The cores that the calling thread may use, except its own; empty if unknown."""
    return os.sched_getaffinity(0) - {_core()} if _core else set()


_limits = threading.local()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep calls from this thread on it, for callers that have threads of their own."""
    before = getattr(_limits, "alone", False)
    _limits.alone = True
    try:
        yield
    finally:
        _limits.alone = before


def thread_count() -> int:
    """Threads a call may use: the cores given to this process, or NUMBA_NUM_THREADS if fewer.

    It is 1 under `one_thread`.
    """
    if getattr(_limits, "alone", False):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, int(config.NUMBA_NUM_THREADS)))


class Code(NamedTuple):
    """The machine code of a kernel over ranges for arguments of certain types."""

    address: int
    entry_point: int  # the address of what runs a range for any thread
    call: Any  # the kernel for Python; it does not look at types, which may take longer than a row


_codes: dict[tuple[Any, ...], Code] = {}


def _kind_of(value: Any) -> Any:
    """The Numba type of a value, as `typeof`, which imports `numpy.ma` for its first array."""
    if type(value) is not np.ndarray:
        return typeof(value)
    dtype, layout = from_dtype(value.dtype), map_layout(value)
    return Array(dtype, value.ndim, layout, readonly=not value.flags.writeable)


def code_of(kernel: Any, args: tuple[Any, ...]) -> Code:
    """The kernel's machine code for arguments like these; compiles it first if needed."""
    try:  # `typeof` takes 5 us for each argument, a fingerprint 0.1
        key = (kernel, *map(_dispatcher.compute_fingerprint, args))
    except NotImplementedError:  # for a user's own functions
        key = (kernel, *map(typeof, args))
    code = _codes.get(key)
    if code is None:
        kinds = (int64, int64, *map(_kind_of, args))
        kernel.compile(kinds)
        compiled = kernel.overloads[kinds]
        names = compiled.fndesc.llvm_func_name, ranges.entry_point_of(compiled.fndesc)
        address, entry_point = map(compiled.library.get_pointer_to_function, names)
        if not entry_point:
            raise TypeError(f"{kernel} is no kernel over ranges; expected lo and hi first")
        code = _codes[key] = Code(address, entry_point, compiled.entry_point)
    return code


def is_compiled(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Whether this process already has the kernel's machine code for these arguments."""
    return (int64, int64, *map(_kind_of, args)) in kernel.overloads


def over(count: int, work: int, kernel: Any, *args: Any) -> None:
    """Call ``kernel(lo, hi, *args)`` on ranges that cover 0 .. count.

    `work` is the time for all of them in nanoseconds, roughly: an entry of a solved row takes one.

    Waking a thread takes time: the helpers and the calling thread take ranges, one after the other,
    until none is left. Every range has ended on return, also when one of them raised.

    Python handles signals between slices of the work, so that Ctrl-C need not wait for the end.
    """
    if not count:
        return
    # This thread flushes subnormal numbers to 0, helpers do not: bits would depend on which of them
    # has a row. The check takes 60 ns.
    if subnormals.LEAST / 2 == 0.0:
        with subnormals.kept():
            over(count, work, kernel, *args)
        return
    pieces = min(count, 1 + work // WORTH_A_THREAD)
    threads = thread_count() if pieces > 1 else 1  # the count takes longer than a short row
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
    call = code_of(kernel, args).call
    helpers: list[_Helper] = []
    cores = _other_cores()
    try:
        for _ in range(min(threads, pieces) - 1):
            helper = _pool.helper(threads - 1)
            if helper is None:
                break  # all others are busy
            helpers.append(helper)
        for lo, hi in slices:
            first = 0
            for helper in helpers:
                first = helper.call(first, cores)
            if helpers:
                lo, hi = ranges.SHARED, helpers[-1].record(lo, hi, unit, len(helpers) + 1)
            call(lo, hi, *args)
    finally:
        _pool.idle.extend(helpers)
