"""What numba-cuda's simulator lacks: warps, and threads that take turns instead of fighting.

`install` makes each simulated CUDA thread a greenlet. A block runs until all of its threads wait
at a barrier that cannot be completed, which is reported as the deadlock that it would be on a
device; so is a shuffle that names a lane which has already returned. The order in which threads
run is fixed, but not the one a device takes: `ORDER` reverses it, so that a test can tell a result
that depends on it.
"""

import contextlib
import math
import sys

import greenlet
import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel as simulated
from numba.cuda.simulator import kernelapi
from numba.cuda.simulator.kernelapi import Dim3, FakeCUDAModule, FakeCUDAShared

ORDER = 1  # or -1: the direction in which threads take their first turn


class Thread:
    """One CUDA thread: where it is, and the value that it brought to the barrier it waits at."""

    def __init__(self, block, index, function):
        self.block = block
        self.threadIdx, self.blockIdx = Dim3(index, 0, 0), Dim3(block.index, 0, 0)
        self.thread_id = index
        self.value = None
        self.met = None
        self.run = greenlet.greenlet(function)

    def meet(self, lanes, value):
        """Wait for these threads of the block; returns {thread: value} of all of them."""
        group = self.block.groups.setdefault(lanes, {})
        if self.thread_id in group:
            raise RuntimeError(f"thread {self.thread_id} is at this barrier already")
        group[self.thread_id] = value
        self.met = lanes
        self.block.hub.switch()
        return self.value


class Block:
    """The threads of one block, run to their end."""

    def __init__(self, function, arguments, threads, index):
        self.index, self.groups = index, {}
        self.hub = greenlet.getcurrent()

        def run():
            with np.errstate(all="ignore"):  # which each greenlet has its own of
                function(*arguments)

        self.threads = [Thread(self, i, run) for i in range(threads)]

    def run(self):
        global current
        waiting, ready = set(), list(self.threads)[::ORDER]
        while ready:
            for thread in ready:
                current = thread
                thread.run.switch()
                if not thread.run.dead:
                    waiting.add(thread)
            alive = {thread.thread_id for thread in waiting}
            ready = []
            for lanes, group in list(self.groups.items()):
                everyone = alive if lanes is None else set(lanes)
                if lanes is not None and not everyone <= alive:
                    gone = sorted(everyone - alive)
                    raise RuntimeError(f"threads {gone} have returned and cannot take part")
                if set(group) == everyone:
                    del self.groups[lanes]
                    for index in group:
                        self.threads[index].value = group
                        ready.append(self.threads[index])
            ready.sort(key=lambda thread: ORDER * thread.thread_id)
            waiting -= set(ready)
            if waiting and not ready:
                where = {thread.thread_id: thread.met for thread in waiting}
                raise RuntimeError(f"deadlock: threads wait for lanes {where}")


current = None


def _lanes(mask):
    """The threads of the current warp that a mask names."""
    first = current.thread_id // 32 * 32
    if not int(mask) >> (current.thread_id - first) & 1:
        raise RuntimeError(f"thread {current.thread_id} is not in its own mask {int(mask):#x}")
    return tuple(first + lane for lane in range(32) if int(mask) >> lane & 1)


def _shuffle(source):
    def shuffle(self, mask, value, argument, width=32):
        me = current.thread_id
        values = current.meet(_lanes(mask), value)
        lane = me % 32
        first, other = lane - lane % width, source(lane, int(argument), width)
        inside = first <= other < first + width
        return values[me - lane + other] if inside else value

    return shuffle


def _ballot(self, mask, predicate):
    values = current.meet(_lanes(mask), bool(predicate))
    return sum(1 << (index % 32) for index, yes in values.items() if yes)


def _syncthreads_and(self, value):
    return int(all(current.meet(None, value).values()))


def _syncthreads_or(self, value):
    return int(any(current.meet(None, value).values()))


def _syncthreads_count(self, value):
    return sum(map(bool, current.meet(None, value).values()))


def _shared_array(self, shape, dtype, alignment=None):
    """As in the simulator, an array for each place in the source; found without a traceback."""
    frame = sys._getframe(1)
    place = frame.f_code, frame.f_lineno
    if place not in self._allocations:
        kind = dtype if isinstance(dtype, type) else kernelapi.numpy_support.as_dtype(dtype)
        # What a device leaves there is anything but 0.
        poison = np.nan if np.issubdtype(kind, np.floating) else 77
        self._allocations[place] = np.full(shape, poison, kind)
    return self._allocations[place]


def _local_array(self, shape, dtype, alignment=None):
    kind = dtype if isinstance(dtype, type) else kernelapi.numpy_support.as_dtype(dtype)
    return np.full(shape, np.nan if np.issubdtype(kind, np.floating) else 77, kind)


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


@contextlib.contextmanager
def _lenient_math():
    found = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("softtopk_nb") and getattr(module, "math", None) is math
    ]
    for module in found:
        module.math = _Math()
    try:
        yield
    finally:
        for module in found:
            module.math = math


def _launch(self, *arguments):
    if self._device or simulated._kernel_context:
        return self.fn(*arguments)
    (blocks, *_), (threads, *_) = self.grid_dim, self.block_dim
    module = FakeCUDAModule(self.grid_dim, self.block_dim, self.dynshared_size)
    plain = [getattr(argument, "_ary", argument) for argument in arguments]
    with (
        simulated._push_kernel_context(module),
        kernelapi.swapped_cuda_module(self.fn, module),
        _lenient_math(),
    ):
        for index in range(blocks):
            module._shared._allocations.clear()
            Block(self.fn, plain, threads, index).run()


class _Module(type(cuda)):
    """numba.cuda, answering for the kernel that runs, from whichever module it is asked."""


def _of_the_running_kernel(name):
    def look_up(self):
        module = simulated._kernel_context
        if module is None:
            raise AttributeError(f"cuda.{name} outside of a kernel")
        return getattr(module, name)

    return property(look_up)


def install():
    """Once, before the first kernel runs."""
    kernelapi.threading = type("threads", (), {"current_thread": staticmethod(lambda: current)})
    api = FakeCUDAModule
    api.shfl_sync = _shuffle(lambda lane, a, width: lane - lane % width + a % width)
    api.shfl_xor_sync = _shuffle(lambda lane, a, width: lane ^ a)
    api.shfl_down_sync = _shuffle(lambda lane, a, width: lane + a)
    api.shfl_up_sync = _shuffle(lambda lane, a, width: lane - a)
    api.ballot_sync = _ballot
    api.any_sync = lambda self, mask, p: _ballot(self, mask, p) != 0
    api.all_sync = lambda self, mask, p: all(current.meet(_lanes(mask), bool(p)).values())
    api.syncwarp = lambda self, mask=0xFFFFFFFF: current.meet(_lanes(mask), None) and None
    api.syncthreads = lambda self: current.meet(None, None) and None
    api.syncthreads_and = _syncthreads_and
    api.syncthreads_or = _syncthreads_or
    api.syncthreads_count = _syncthreads_count
    FakeCUDAShared.array = _shared_array
    kernelapi.FakeCUDALocal.array = _local_array
    simulated.FakeCUDAKernel.__call__ = _launch
    names = [name for name in dir(api) if not name.startswith("_")]
    names += ["gridDim", "blockDim"]
    for name in names:
        if name in vars(cuda):
            delattr(cuda, name)
        setattr(_Module, name, _of_the_running_kernel(name))
    cuda.__class__ = _Module
