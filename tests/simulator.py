"""What numba-cuda's simulator lacks: warps, and threads that take turns instead of fighting.

`install` makes each simulated CUDA thread a greenlet. A block runs until all of its threads wait
at a barrier that cannot be completed, which is reported as the deadlock that it would be on a
device; so is a shuffle that names a lane which has already returned. The order in which threads
run is fixed, but not the one a device takes: `ORDER` reverses it, so that a test can tell a result
that depends on it.
"""

import contextlib
import functools
import math
import sys
import types

import greenlet
import numpy as np
from numba import cuda
from numba import types as scalars
from numba.cuda.simulator import kernel as simulated
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDALocal, FakeCUDAModule, FakeCUDAShared

ORDER = 1  # or -1: the direction in which threads take their first turn

_here = vars(cuda)  # where kernels find what the running thread is
_OF_A_LAUNCH = "threadIdx", "blockIdx", "blockDim", "gridDim"
_place = functools.cache(lambda index: Dim3(index, 0, 0))


class Thread:
    """One CUDA thread: where it is in its block, and which lanes it waits for."""

    __slots__ = ("bit", "block", "met", "switch", "threadIdx", "thread_id", "warp")

    def __init__(self, block, index, worker):
        self.block, self.switch = block, worker.switch
        self.threadIdx, self.thread_id = _place(index), index
        self.warp, self.bit = index // 32 << 32, 1 << index % 32
        self.met = None

    def run(self):
        """Run to the end, and let the others go on."""
        block = self.block
        block.function(*block.arguments)
        block.alive.remove(self.thread_id)
        block.go_on()

    def meet(self, lanes, value):
        """Wait for these lanes, or for the block; returns {thread: value} of all of them."""
        block = self.block
        group = block.groups.get(lanes)
        if group is None:
            group = block.groups[lanes] = {}
        group[self.thread_id] = value
        self.met = lanes
        block.go_on()
        return group

    def lanes(self, mask):
        """The lanes of its warp that a mask names, of which it must be one, as a number."""
        if not mask & self.bit:
            raise RuntimeError(f"thread {self.thread_id} is not in its own mask {mask:#x}")
        return self.warp | mask


@functools.cache
def _threads_of(lanes):
    warp = lanes >> 32
    return tuple(32 * warp + lane for lane in range(32) if lanes >> lane & 1)


class Block:
    """The threads of one block, run to their end."""

    def __init__(self, function, arguments, threads):
        self.function, self.arguments = function, arguments
        self.groups, self.alive = {}, set(range(threads))
        self.hub = greenlet.getcurrent()
        workers = enumerate(_workers(threads, self.hub))
        self.threads = [Thread(self, index, worker) for index, worker in workers]

    def run(self):
        ready = self.threads[::ORDER]
        while ready:
            self.turns = iter(ready)
            self.go_on()  # to the first of them, and back once each has had its turn
            ready = self.released()
            if self.alive and not ready:
                met = {index: self.threads[index].met for index in sorted(self.alive)}
                where = {index: lanes and _threads_of(lanes) for index, lanes in met.items()}
                raise RuntimeError(f"deadlock: threads wait for lanes {where}")

    def go_on(self):
        """Let the next thread have its turn, or else the hub; comes back with the next release."""
        global current
        thread = next(self.turns, None)
        if thread is None:
            self.hub.switch()
        else:
            current = thread
            _here["threadIdx"] = thread.threadIdx
            thread.switch()

    def released(self):
        """The threads that need not wait any longer, in the order in which they run on."""
        ready, alive = [], self.alive
        for lanes, group in list(self.groups.items()):
            everyone = alive if lanes is None else _threads_of(lanes)
            if len(group) == len(everyone):
                del self.groups[lanes]
                ready += group
            elif not alive.issuperset(everyone):
                gone = sorted({*everyone} - alive)
                raise RuntimeError(f"threads {gone} have returned and cannot take part")
        ready.sort(reverse=ORDER < 0)
        return [self.threads[index] for index in ready]


_resting = []  # greenlets: to start one takes longer than most threads run


def _workers(count, hub):
    """So many greenlets of this hub, each of which runs the thread that is current."""
    if _resting and _resting[0].parent is not hub:
        _resting.clear()
    while len(_resting) < count:
        fresh = greenlet.greenlet(_work)
        fresh.switch()
        _resting.append(fresh)
    return _resting[:count]


def _work():
    with np.errstate(all="ignore"):  # which each greenlet has its own of
        greenlet.getcurrent().parent.switch()
        while True:
            current.run()


current = None


def _shuffle(source):
    def shuffle(self, mask, value, argument, width=32):
        thread = current
        values = thread.meet(thread.lanes(mask), value)
        me = thread.thread_id
        lane = me % 32
        first, other = lane - lane % width, source(lane, argument, width)
        inside = first <= other < first + width
        return values[me - lane + other] if inside else value

    return shuffle


def _ballot(self, mask, predicate):
    values = current.meet(current.lanes(mask), bool(predicate))
    return sum(1 << (index % 32) for index, yes in values.items() if yes)


def _syncthreads_and(self, value):
    return int(all(current.meet(None, value).values()))


def _syncthreads_or(self, value):
    return int(any(current.meet(None, value).values()))


def _syncthreads_count(self, value):
    return sum(map(bool, current.meet(None, value).values()))


@functools.cache
def _poisoned(shape, dtype):
    """What a device leaves in an array is anything but 0."""
    kind = dtype if isinstance(dtype, type) else kernelapi.numpy_support.as_dtype(dtype)
    return np.full(shape, np.nan if np.issubdtype(kind, np.floating) else 77, kind)


def _shared_array(self, shape, dtype, alignment=None):
    """As in the simulator, an array for each place in the source; found without a traceback."""
    frame = sys._getframe(1)
    place = frame.f_code, frame.f_lineno
    if place not in self._allocations:
        self._allocations[place] = _poisoned(shape, dtype).copy()
    return self._allocations[place]


def _local_array(self, shape, dtype, alignment=None):
    return _poisoned(shape, dtype).copy()


class _Math:
    """The math module by the rules of compiled code: infinities and NaN, no exceptions."""

    def __getattr__(self, name):
        function = getattr(math, name)
        if not callable(function):
            return function

        def lenient(*arguments):
            try:
                return function(*arguments)
            except (ValueError, OverflowError):
                special = {
                    "log": lambda v: -math.inf if v == 0 else math.nan,
                    "log2": lambda v: -math.inf if v == 0 else math.nan,
                    "log1p": lambda v: -math.inf if v == -1 else math.nan,
                    "exp": lambda v: math.inf,
                    "pow": lambda v, e: float(np.power(np.float64(v), np.float64(e))),
                }
                return special.get(name, lambda *_: math.nan)(*arguments)

        setattr(self, name, lenient)
        return lenient


_lenient = _Math()


@contextlib.contextmanager
def _lenient_math():
    found = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("softtopk_nb") and getattr(module, "math", None) is math
    ]
    for module in found:
        module.math = _lenient
    try:
        yield
    finally:
        for module in found:
            module.math = math


def _launch(self, *arguments):
    global current
    if self._device or current is not None:
        return self.fn(*arguments)
    (blocks, *_), (threads, *_) = self.grid_dim, self.block_dim
    cuda.gridDim, cuda.blockDim = Dim3(*self.grid_dim), Dim3(*self.block_dim)
    plain = [getattr(argument, "_ary", argument) for argument in arguments]
    try:
        with _lenient_math():
            for index in range(blocks):
                cuda.blockIdx = _place(index)
                cuda.shared._allocations.clear()
                Block(self.fn, plain, threads).run()
    except BaseException:
        _resting.clear()  # they are in the midst of their threads
        raise
    finally:
        current = None
        for name in _OF_A_LAUNCH:
            _here.pop(name, None)  # there is none outside of a kernel


def _cast(self, *arguments):
    """What `int64(v)` and the like are in a kernel, without a search for a signature."""
    if len(arguments) == 1 and isinstance(arguments[0], (int, float, np.generic)):
        return getattr(np, self.name)(arguments[0])
    return _signature(self, *arguments)


_signature = scalars.Number.__call__


def install():
    """Once, before the first kernel runs."""
    kernelapi.threading = types.SimpleNamespace(current_thread=lambda: current)
    api = FakeCUDAModule
    api.shfl_sync = _shuffle(lambda lane, a, width: lane - lane % width + a % width)
    api.shfl_xor_sync = _shuffle(lambda lane, a, width: lane ^ a)
    api.shfl_down_sync = _shuffle(lambda lane, a, width: lane + a)
    api.shfl_up_sync = _shuffle(lambda lane, a, width: lane - a)
    api.ballot_sync = _ballot
    api.any_sync = lambda self, mask, p: _ballot(self, mask, p) != 0
    api.all_sync = lambda self, mask, p: all(current.meet(current.lanes(mask), bool(p)).values())
    api.syncwarp = lambda self, mask=0xFFFFFFFF: current.meet(current.lanes(mask), None) and None
    api.syncthreads = lambda self: current.meet(None, None) and None
    api.syncthreads_and = _syncthreads_and
    api.syncthreads_or = _syncthreads_or
    api.syncthreads_count = _syncthreads_count
    api.ffs = lambda self, value: (int(value) & -int(value)).bit_length()
    FakeCUDAShared.array = _shared_array
    FakeCUDALocal.array = _local_array
    simulated.FakeCUDAKernel.__call__ = _launch
    scalars.Number.__call__ = _cast
    # The kernel that runs is the only one: what it finds in `cuda` need not be looked up for it.
    running = FakeCUDAModule((1, 1, 1), (1, 1, 1), 0)
    for name in dir(running):
        if not name.startswith("_") and name not in ("laneid", *_OF_A_LAUNCH):
            setattr(cuda, name, getattr(running, name))
