"""What can be measured: a case, its rows of scores, and which cases a run selects.

`full` varies one factor at a time around float32, N(0, 1) and the default method, at every shape;
`quick` has every operator and curve once, and a few of the larger shapes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from softtopk_nb._curves.registry import CURVES as PLAIN
from softtopk_nb._curves.registry import NAMES

__all__ = [
    "CURVES",
    "OPERATORS",
    "RARE",
    "SELECTIONS",
    "SPREADS",
    "Case",
    "growth",
    "is_ours",
    "scores",
    "select",
]

DEFAULT = "laplace"
CURVES = (DEFAULT, *(name for name in NAMES if name != DEFAULT))
OPERATORS = ("thretopk", "gradtopk", "itertopk", "wsoftmaxtopk", "hardtopk", "softmax")
DATA = ("normal", "heavy", "clustered", "sorted")
RARE = ("Cauchy", "ties", "flat")  # flat: over a hundredth of a temperature
#: Normally distributed over so many temperatures: where a smooth top-k is nearly hard.
SPREADS = {"spread 10": 10.0, "spread 100": 100.0}

# (rows, n, k)
SHAPES = (
    (65536, 64, 8),
    (8192, 128, 16),
    (1024, 1024, 32),
    (1024, 4096, 64),
    (64, 65536, 64),
    (1, 10**6, 1000),
    (1, 10**7, 1000),
)
MAIN = (SHAPES[0], SHAPES[2], SHAPES[5])
ONE_OF_64 = (1, 64, 8)
ROUTERS = ((10**6, 8, 2), (10**5, 16, 2))  # of a mixture of experts
ENDS = ((1024, 1024, 1), (1024, 1024, 1023))
LONGER = [(1, 10**e, 16) for e in (5, 6, 7, 8)]
MORE_CHOSEN = [(1, 10**6, k) for k in (1, 16, 1000, 50_000, 500_000)] + [(1, 10**5, 50_000)]
ONE_SHORT_ROW = [(1, 1000, 16), (1, 1000, 500), (1, 10_000, 16)]

# Where the cost is O(rows n k) or worse, or seconds: at most so large a product is affordable.
MOST_WORK = {
    "itertopk": 3 * 10**8,
    "wsoftmaxtopk": 3 * 10**8,
    "dp": 4 * 10**7,
    "recursion": 4 * 10**7,
    "log-domain DP": 4 * 10**6,
    "LML (bracketing)": 10**9,
}


class Case(NamedTuple):
    """One thing to measure. The names are those of the record."""

    operator: str
    curve: str | None
    method: str | None
    what: str  # "value", "jvp" or "pullback"
    rows: int
    n: int
    k: int
    dtype: str = "float32"
    data: str = "normal"

    @property
    def name(self) -> str:
        """The case in one word for each field that has a value."""
        kind = [part for part in (self.operator, self.curve, self.method) if part]
        return " ".join([*kind, self.what, f"{self.rows}x{self.n} k={self.k}", *self[-2:]])

    @property
    def affordable(self) -> bool:
        most = min(MOST_WORK.get(str(word), np.inf) for word in (self.operator, self.method))
        return self.rows * self.n * self.k <= most


def is_ours(operator: str) -> bool:
    """Whether this is an operator of the package, and not what it is compared with."""
    return operator in OPERATORS or operator.startswith("KSubset")


@functools.lru_cache(maxsize=1)  # cases are sorted so that those with the same rows follow
def scores(rows: int, n: int, dtype: str, data: str) -> np.ndarray:
    """Rows of scores, the same in every run."""
    rng = np.random.default_rng(0)
    if data == "heavy":
        x = rng.standard_t(2, size=(rows, n))
    elif data == "clustered":
        x = rng.normal(size=8)[rng.integers(8, size=(rows, n))]
        x += 0.01 * rng.normal(size=(rows, n))
    elif data == "Cauchy":
        x = rng.standard_cauchy(size=(rows, n))
    elif data == "ties":
        x = np.round(rng.normal(size=(rows, n)), 1)
    elif data == "flat":
        x = rng.normal(scale=0.01, size=(rows, n))
    else:
        x = rng.normal(scale=SPREADS.get(data, 1.0), size=(rows, n))
        if data == "sorted":
            x.sort(axis=-1)
    return x.astype(dtype)


Kind = tuple[str, str | None, str | None]  # operator, curve, method
Shape = tuple[int, int, int]

THRESHOLDS: list[Kind] = [("thretopk", curve, "newton") for curve in CURVES]
SIMPLE = [kind for kind in THRESHOLDS if kind[1] in ("laplace", "exp", "clip", "sigmoid")]
GRADTOPK: Kind = ("gradtopk", None, "auto")
OTHERS: list[Kind] = [("itertopk", None, None), ("wsoftmaxtopk", None, None)]
SMOOTH = [*THRESHOLDS, GRADTOPK, *OTHERS, ("softmax", None, None)]
HARD: Kind = ("hardtopk", None, None)
METHODS: list[Kind] = [
    *(("thretopk", curve, "scan") for curve in ("laplace", "exp", "clip")),
    *(("thretopk", curve, "bisect") for curve in CURVES),
    ("gradtopk", None, "contour"),
    ("gradtopk", None, "dp"),
    ("gradtopk", None, "recursion"),  # timed whether or not its result is right
]

LOG_DOMAIN: Kind = ("log-domain DP", None, None)  # what it yields is gradtopk's value
SAMPLE: Kind = ("KSubset.sample", None, None)
DIFFERENTIABLE: list[Kind] = [
    ("torch.softmax", None, None),
    ("entmax budget_bisect", "clip", None),
    ("LapSum (sort)", "laplace", None),
    ("LML (bracketing)", "sigmoid", None),
]
TORCH_TOPK: Kind = ("torch.topk", None, None)
BASELINES = [
    *DIFFERENTIABLE,
    TORCH_TOPK,
    ("np.partition", None, None),
    ("scipy softmax", None, None),
    ("np.copyto", None, None),
]
FASTEST = [DIFFERENTIABLE[0], TORCH_TOPK]
# Where k = 1: the one row of the table that others call entmax.
ENTMAX: list[Kind] = [("thretopk", "entmax", "newton"), ("entmax entmax_bisect", "entmax", None)]


def cross(
    kinds: Iterable[Kind],
    whats: Iterable[str],
    shapes: Iterable[Shape],
    dtypes: Iterable[str] = ("float32",),
    data: Iterable[str] = ("normal",),
) -> Iterator[Case]:
    for kind, what, shape, dtype, rows in itertools.product(kinds, whats, shapes, dtypes, data):
        yield Case(*kind, what, *shape, dtype, rows)


def _full() -> Iterator[Case]:
    value, derivatives, both = ["value"], ["jvp", "pullback"], ["float32", "float64"]
    yield from cross([*SMOOTH, HARD, *BASELINES], value, SHAPES, both)
    yield from cross(SMOOTH, derivatives, SHAPES, both)
    yield from cross(DIFFERENTIABLE, ["pullback"], SHAPES)
    yield from cross(METHODS, value, SHAPES)
    yield from cross([*SMOOTH, HARD, *BASELINES], value, MAIN, data=DATA)
    yield from cross([*THRESHOLDS, GRADTOPK, *FASTEST], value, MAIN, data=SPREADS)
    yield from cross(ENTMAX, ["value", "pullback"], [(1024, 1024, 1)])
    usual = [*THRESHOLDS, GRADTOPK, HARD, *FASTEST]
    yield from cross(usual, value, ROUTERS, both)
    yield from cross([*THRESHOLDS, GRADTOPK, DIFFERENTIABLE[0]], ["pullback"], ROUTERS, both)
    yield from cross(usual, value, ENDS, both)
    yield from cross(usual, value, MAIN[:2], both, RARE)
    yield from cross(usual, value, MAIN[:2], ["float64"], [*DATA[1:], *SPREADS])
    yield from _one_row()


def _one_row() -> Iterator[Case]:
    """How the cost of one row grows with n and with k, and what a call costs at least."""
    growing = [THRESHOLDS[0], GRADTOPK]
    yield from cross([*growing, TORCH_TOPK, DIFFERENTIABLE[0]], ["value"], LONGER + MORE_CHOSEN)
    yield from cross([SAMPLE], ["value"], [*ONE_SHORT_ROW, (1, 10**6, 16)], ["float64"])
    short = [GRADTOPK, *METHODS[-2:], LOG_DOMAIN]
    yield from cross(short, ["value"], ONE_SHORT_ROW, ["float64"])
    every = [*SMOOTH, HARD, TORCH_TOPK, DIFFERENTIABLE[0]]
    yield from cross(every, ["value"], [ONE_OF_64])


def growth(selection: str) -> list[tuple[Case, Case]]:
    """Pairs whose times are compared: with another k, or with a tenth of the entries."""
    if selection == "quick":
        pairs = [((1, 10**5, 16), (1, 10**5, 1000)), ((1, 10**5, 16), (1, 10**4, 16))]
        return [_pair(THRESHOLDS[0], *shapes) for shapes in pairs]
    found = []
    for kind in (THRESHOLDS[0], GRADTOPK):
        flat = [_pair(kind, (1, 10**6, k), (1, 10**6, 1000)) for k in (1, 16, 50_000, 500_000)]
        long = [_pair(kind, (1, n, 16), (1, n // 10, 16)) for _, n, _ in LONGER[1:]]
        found += [*flat, *long, _pair(kind, (1, 10**6, 50_000), (1, 10**5, 50_000))]
    for kind, dtype in itertools.product(
        [*(t for t in THRESHOLDS if t[1] in PLAIN), GRADTOPK], ("float32", "float64")
    ):
        found.append(_pair(kind, SHAPES[6], SHAPES[5], dtype))
    return found


def _pair(kind: Kind, one: Shape, other: Shape, dtype: str = "float32") -> tuple[Case, Case]:
    return Case(*kind, "value", *one, dtype), Case(*kind, "value", *other, dtype)


def _quick() -> Iterator[Case]:
    square = [(256, 1024, 32)]
    value, both = ["value"], ["value", "pullback"]
    yield from cross(SMOOTH, ["value", "jvp", "pullback"], square)
    yield from cross([HARD, *BASELINES], value, square)
    yield from cross(DIFFERENTIABLE, ["pullback"], square)
    yield from cross([*SIMPLE, GRADTOPK, TORCH_TOPK], value, [MAIN[0], MAIN[2]])
    yield from cross([METHODS[0], METHODS[3], METHODS[-2]], value, square)
    yield from cross([THRESHOLDS[0], GRADTOPK], value, square, ["float64"])
    yield from cross([THRESHOLDS[0], GRADTOPK], value, square, data=[*DATA, *SPREADS])
    yield from cross(ENTMAX, both, [(256, 1024, 1)])
    yield from cross([SAMPLE, LOG_DOMAIN], value, ONE_SHORT_ROW[:1], ["float64"])
    yield from cross([THRESHOLDS[0], GRADTOPK, HARD], value, [ONE_OF_64])


SELECTIONS = {"full": _full, "quick": _quick}


def select(selection: str, only: str = "") -> list[Case]:
    """The cases of a selection with the word `only` in their names, rows of scores together."""
    found = dict.fromkeys(c for c in SELECTIONS[selection]() if c.affordable and only in c.name)
    return sorted(found, key=lambda c: (c.rows * c.n, c.rows, c.dtype, c.data))
