"""Times on a GPU, by its own events, and how much a launch costs.

The host runs ahead: before each measurement the device is given a copy to do that takes longer
than the host needs to submit what is measured, so that what lies between two events is the time of
the device alone. What a call costs the host is measured apart (`Clock.host_time`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

__all__ = ["GIB", "Clock", "copies", "missing"]

GIB = 2**30
Call = Callable[[int], object]  # told which of the rotating inputs to take


def missing() -> str | None:
    """None, or why nothing can be measured here."""
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    from numba import cuda

    if cuda.implementation != "NVIDIA" or not cuda.is_available():
        return "numba-cuda finds no CUDA device; is one of the extras cuda12, cuda13 installed?"
    return None


def copies(size: int) -> int:
    """How many inputs of so many bytes no cache holds: together twice the L2 cache or more."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return int(np.clip(-(-2 * cache // size) + 1, 2, 64))


class Clock:
    """Measures calls on the current device and stream."""

    def __init__(self, rounds: int, warm: int = 3, repeat: int = 4):
        self.rounds, self.warm, self.repeat = rounds, warm, repeat
        self._source = torch.zeros(GIB // 4, device="cuda")
        self._target = torch.empty_like(self._source)

    def _head_start(self) -> None:
        self._target.copy_(self._source)

    def measure(self, calls: dict[str, Call]) -> dict[str, np.ndarray]:
        """Milliseconds of one call, in each round; the calls take turns."""
        for call in calls.values():
            for i in range(self.warm):
                call(i)
        torch.cuda.synchronize()
        marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {c: [] for c in calls}
        for i in range(self.rounds):
            for name, call in calls.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self._head_start()
                start.record()
                for j in range(self.repeat):
                    call(i * self.repeat + j)
                end.record()
                marks[name].append((start, end))
        torch.cuda.synchronize()
        return {
            name: np.array([start.elapsed_time(end) / self.repeat for start, end in pairs])
            for name, pairs in marks.items()
        }

    def copy_bandwidth(self) -> np.ndarray:
        """Bytes a second, read and written, of a copy of 1 GiB from device to device."""
        milliseconds = self.measure({"copy": lambda i: self._head_start()})["copy"]
        return 2 * GIB / (1e-3 * milliseconds)

    def host_time(self, call: Callable[[], object], calls: int = 1000) -> np.ndarray:
        """Microseconds that the host spends on a call, and nothing waits for the device."""
        return self._batches(call, calls, lambda: None)

    def round_trip(
        self, call: Callable[[], object], wait: Callable[[], object], calls: int = 200
    ) -> np.ndarray:
        """Microseconds until the result of a call is there, for which `wait` waits."""
        return self._batches(call, calls, wait)

    def _batches(
        self, call: Callable[[], object], calls: int, wait: Callable[[], object]
    ) -> np.ndarray:
        taken = []
        for _ in range(self.rounds + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
                wait()
            taken.append((time.perf_counter() - start) / calls)
        return 1e6 * np.array(taken[1:])
