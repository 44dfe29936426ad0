"""What `python -m softtopk_nb compile` says meanwhile: how many functions are left to compile."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any


class Progress:
    """Counts functions as they are compiled, and estimates how many are left.

    What has to be compiled is known only once it is, for results decide which kernels a call needs.
    For each label (an operator, its options and a type) the number is expected that the most
    similar label needed, with the most words in common. Before the first is done nothing is known.
    """

    def __init__(self, labels: list[str]) -> None:
        self._waiting = list(dict.fromkeys(labels))
        self._compiled: Counter[str] = Counter()
        self._done: list[str] = []
        self._label = ""
        self._bar = _bar()

    def begin(self, label: str) -> None:
        """Say that what this label needs is compiled next."""
        if label == self._label:
            return
        self._close()
        self._label = label
        self._waiting.remove(label)
        if self._bar is None:
            print(f"{self._text()}; now {label}", file=sys.stderr, flush=True)
        else:
            self._bar.set_description(label)
            self._show()

    def compiled(self, name: str) -> None:
        """Count a function."""
        self._compiled[self._label] += 1
        if self._bar is not None:
            self._bar.update()
            self._show()

    def end(self) -> None:
        """Say that all is done."""
        self._close()
        if self._bar is None:
            print(self._text(), file=sys.stderr, flush=True)
        else:
            self._show()
            self._bar.close()

    def _close(self) -> None:
        if self._label:
            self._done.append(self._label)
            self._label = ""

    def left(self) -> int | None:
        """About how many functions are left; None if nothing is known yet."""
        if not self._done:
            return None
        here = self._expected(self._label) - self._compiled[self._label] if self._label else 0
        return max(here, 0) + sum(map(self._expected, self._waiting))

    def _expected(self, label: str) -> int:
        def shared_words(done: str) -> int:
            return len({*done.split()} & {*label.split()})

        return self._compiled[max(self._done, key=shared_words)]

    def _text(self) -> str:
        left, count = self.left(), self._compiled.total()
        return f"{count} functions compiled, {'?' if left is None else f'about {left}'} left"

    def _show(self) -> None:
        left = self.left()
        self._bar.total = None if left is None else self._bar.n + left
        self._bar.set_postfix_str("" if left is None else f"about {left} functions left")


def _bar() -> Any:
    """A progress bar of tqdm's, or None if it is not installed or nobody sees it."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(unit=" functions", dynamic_ncols=True)
