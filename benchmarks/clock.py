"""Time as a ratio: an operator and its unit take turns, and each round has a ratio of its own.

Whatever the machine does meets both alike. But for one thing: threads that spin after their last
call, as those of OpenMP do for some milliseconds, take a core from whoever comes next. So each turn
begins with a rest that outlasts them, and with a call that is not timed, after which a team of
threads is as awake as in a loop of calls. A processor that has rested takes a millisecond to be as
fast as it was: short calls are repeated, for longer than that. Nothing here knows what is timed, or
on which device.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["SHORT", "Turns", "figures", "quartiles", "seconds"]

ROUNDS = 7, 101  # at least, at most
FEW = 3  # at least, where a round takes longer than SLOW
SLOW = 2.0  # seconds
SHORT = 5e-3  # seconds: a shorter call is repeated until it takes as long
REST = 6e-3  # seconds before each turn: libgomp's threads spin for about 4 ms
LONG = 2e-2  # seconds: what wakes a team of threads is nothing beside a longer call

Call = Callable[[], Any]


def seconds(call: Call) -> float:
    """What one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def quartiles(values: np.ndarray) -> list[float]:
    """Median, lower and upper quartile."""
    return [float(q) for q in np.quantile(values, [0.5, 0.25, 0.75])]


def figures(taken: np.ndarray, unit: np.ndarray) -> dict[str, float]:
    """Seconds of both in each round, as the record has them."""
    _, low, high = quartiles(taken / unit)
    median, unit_median = float(np.median(taken)), float(np.median(unit))
    return {
        "seconds": median,
        "unit_seconds": unit_median,
        "ratio": median / unit_median,
        "low": low,
        "high": high,
        "rounds": len(taken),
    }


class Turns:
    """An operator and its unit, ready to be timed in turn.

    Attributes
    ----------
    rounds : int
        As many as the budget in seconds allows, within `ROUNDS`.
    repeat : int
        Calls in a round.
    """

    def __init__(self, call: Call, unit: Call, budget: float, value: Call | None = None):
        # The value, where the call includes it, takes a turn in each round as well.
        others = [unit] if value is None else [unit, value]
        for each in (call, *others):  # compiles, and warms what can be warmed
            each()
        once, *others_once = map(seconds, (call, *others))
        self.call, self.repeat = call, self._repeats(once)
        self._others = [
            (other, self._repeats(took), took)
            for other, took in zip(others, others_once, strict=True)
        ]
        self._once = once
        round_takes = sum(
            REST + max(took, SHORT) + (took if took < LONG else 0.0)
            for took in (once, *others_once)
        )
        least, most = ROUNDS if round_takes < SLOW else (FEW, ROUNDS[1])
        self.rounds = int(np.clip(budget / round_takes, least, most))
        self._taken: list[list[float]] = []

    @staticmethod
    def _repeats(once: float) -> int:
        return max(1, math.ceil(SHORT / max(once, 1e-7)))

    @staticmethod
    def _again(call: Call, times: int) -> None:
        for _ in range(times):
            call()

    @staticmethod
    def _prepare(call: Call, takes: float) -> None:
        time.sleep(REST)
        if takes < LONG:
            call()

    def _turn(self, call: Call, times: int, takes: float) -> float:
        self._prepare(call, takes)
        return seconds(functools.partial(self._again, call, times)) / times

    def time_others(self) -> None:
        """The unit's turn, and the value's; then all is ready for `take`."""
        self._taken.append([self._turn(*other) for other in self._others])
        self._prepare(self.call, self._once)

    def take(self) -> None:
        """The operator's turn."""
        self._again(self.call, self.repeat)

    def figures(self, taken: np.ndarray) -> dict[str, float]:
        """The record's figures, from what the operator's turns took."""
        each = taken / self.repeat
        unit, *values = np.array(self._taken[-len(taken) :]).T
        found = figures(each, unit)
        for value in values:
            found["after_value"] = float(np.median(each - value) / np.median(unit))
        return found
