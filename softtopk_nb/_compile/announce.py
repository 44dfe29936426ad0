"""One line for whoever waits while a call compiles, on a terminal or in a notebook.

It comes once compilation has kept a call for a second, and not twice for an operator and a type.
It is silenced as warnings of the logger `softtopk_nb` are, and by the environment variable
SOFTTOPK_NB_QUIET. `python -m softtopk_nb compile` is told of each function instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

QUIET = "SOFTTOPK_NB_QUIET"
WORTH_A_LINE = 1.0  # seconds of compilation
# Seconds without compilation after which an equal call counts as another.
_PAUSE = 1.0

_LOG = logging.getLogger("softtopk_nb")
_PACKAGE = f"{__name__.partition('.')[0]}."

clock: Callable[[], float] = time.monotonic
_announced: set[tuple[str, str]] = set()
_followers: list[Callable[[str], None]] = []


class _Wait(event.Listener):  # type: ignore[misc]  # Numba comes without type hints
    """The compilation that a thread waits for: this kernel, and those shortly before it."""

    def __init__(self) -> None:
        self.waited, self.ended = 0.0, -_PAUSE
        self.begun, self.compiling = 0.0, False
        self.kinds: list[str] = []
        self.kept = self.told = False
        self.call = "", ""

    def begin(self, kind: str, kept: bool) -> None:
        self.begun, self.compiling, self.kept = clock(), True, kept
        call = _called()
        if call != self.call or self.begun - self.ended > _PAUSE:
            self.waited, self.kinds, self.told, self.call = 0.0, [], False, call
        self.kinds.append(kind)

    def end(self) -> None:
        self.ended, self.compiling = clock(), False
        self.waited += self.ended - self.begun

    def on_start(self, event: Any) -> None:
        """Do nothing: Numba's event of a function that begins to compile."""

    def on_end(self, event: Any) -> None:
        """Announce the wait if it has become long: a function has been compiled."""
        if not self.told and self.waited + clock() - self.begun >= WORTH_A_LINE:
            self.told = True
            name, kind = self.call
            if kind not in ("float32", "float64"):
                # Kernels of a float32 call may have arrays of float64 alone.
                kind = "float32" if "float32" in self.kinds else self.kinds[-1]
            _announce(name, kind, self.kept)


class _Waits(threading.local):
    def __init__(self) -> None:
        self.wait = _Wait()


_waits = _Waits()


@contextlib.contextmanager
def waiting(name: str, kind: str, kept: bool) -> Iterator[None]:
    """Tell whoever waits that a kernel is compiled meanwhile, for this type of numbers.

    `kept`: whether the code is kept on disk.
    """
    for tell in _followers:
        tell(name)
    wait = _waits.wait
    if _followers or wait.compiling:  # a kernel that another one calls
        yield
        return
    wait.begin(kind, kept)
    try:
        # Compilation holds a lock: no other thread's functions end meanwhile.
        with event.install_listener("numba:compile", wait):
            yield
        wait.on_end(None)
    finally:
        wait.end()


@contextlib.contextmanager
def followed_by(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` with the name of each kernel that is compiled, and announce no wait."""
    _followers.append(tell)
    try:
        yield
    finally:
        _followers.remove(tell)


def _somebody_reads(stream: Any) -> bool:
    """Whether the stream is a terminal, or shown in a notebook."""
    if stream is None or getattr(stream, "closed", False):
        return False
    # Jupyter's, Colab's and VS Code's kernels replace the stream by one of this module.
    return type(stream).__module__ == "ipykernel.iostream" or bool(stream.isatty())


def _called() -> tuple[str, str]:
    """(operator, type of the scores) of this thread's outermost call; "" if unknown."""
    frame, name, kind = sys._getframe(), "", ""
    while frame := frame.f_back:  # type: ignore[assignment]  # None ends the loop
        if frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            given = frame.f_locals
            owner = given.get("op", given.get("self"))
            found = getattr(getattr(owner, "op", owner), "__name__", "")  # or a call's operator
            if isinstance(found, str) and found:
                scores = given.get("x", given.get("theta"))
                name, kind = found, str(getattr(scores, "dtype", "")).removeprefix("torch.")
    return name, kind


def _announce(name: str, kind: str, kept: bool) -> None:
    if os.environ.get(QUIET) or not _LOG.isEnabledFor(logging.WARNING):
        return
    if not _somebody_reads(sys.stderr):
        return
    what = name or "a function", kind
    if what in _announced:
        return
    _announced.add(what)
    once = (
        "once on this machine; `python -m softtopk_nb compile` does it ahead"
        if kept
        else "for this process"
    )
    line = f"softtopk_nb: compiling {what[0]} for {kind}, about 4 to 11 s, {once}"
    print(line, file=sys.stderr, flush=True)
