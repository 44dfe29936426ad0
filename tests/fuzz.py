"""Random calls of the public functions, compared with the definitions in `reference.py`.

    python tests/fuzz.py SEED SECONDS                       with arrays of NumPy
    python tests/fuzz.py SEED SECONDS torch                 or of torch, jax or dask

Rows are drawn with ties, offsets, infinities, NaN, masks, axes, strides, and scales over many
decades, in three float types. Whatever is wrong is made as small as it stays wrong, and printed as
a program of a few lines; the exit status is 1 then. A seed draws the same calls each time.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import reference

import softtopk_nb as stk

# As the page on accuracy has them: p is off by at most the first number and 4 eps R.
BOUNDS = {
    "thretopk": {"float64": 1e-13, "float32": 1e-6},
    "gradtopk": {"float64": 3e-12, "float32": 1.6e-5},
    "softmax": {"float64": 1e-13, "float32": 1e-6},
}
CURVES = "laplace", "sigmoid", "clip", "exp", "normal", "cauchy"
SMOOTH = "laplace", "sigmoid", "normal", "cauchy"
# What a function may raise to refuse a call; anything else is a fault.
REFUSALS = TypeError, ValueError, NotImplementedError, stk.ConvergenceError


class Case(NamedTuple):
    """A call: `x` has a row for each line, whatever `axis` it is given along."""

    check: str
    x: np.ndarray
    k: Any
    temperature: float
    where: np.ndarray | None = None
    axis: int = -1
    strided: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        lines = [f"x = np.array({self.x.tolist()!r}, {self.x.dtype.name!r})"]
        given = f"x, {self.k!r}, temperature={self.temperature!r}"
        if self.where is not None:
            lines.append(f"where = np.array({self.where.tolist()!r})")
            given += ", where=where"
        given += "".join(f", {name}={value!r}" for name, value in self.options)
        more = f"  # axis={self.axis}, strided={self.strided}"
        return "\n".join([*lines, f"{self.check}({given}){more}"])


# ------------------------------------------------------------------------------------------ fronts


class Front:
    """Arrays of a library, made of NumPy's and made into them."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "jax":
            importlib.import_module("jax").config.update("jax_enable_x64", True)
        self.library = None if name == "numpy" else importlib.import_module(_MODULES[name])

    def array(self, values: Any) -> Any:
        if self.name == "torch":
            return self.library.from_numpy(np.array(values, order="K"))
        if self.name == "jax":
            return self.library.asarray(values)
        if self.name == "dask":
            return self.library.from_array(np.asarray(values), chunks=-1)
        return values

    def call(self, f: Any, case: Case, *more: Any) -> np.ndarray:
        """The result of a function of rows, with rows as lines."""
        given = dict(case.options) | {"temperature": case.temperature}
        arrays = [self.array(_placed(each, case)) for each in (case.x, *more)]
        if case.where is not None:
            given["where"] = self.array(_placed(case.where, case))
        k = () if case.k is None else (case.k,)
        found = np.asarray(f(arrays[0], *k, *arrays[1:], axis=case.axis, **given))
        return np.moveaxis(found, case.axis, -1) if found.ndim == case.x.ndim else found


_MODULES = {"torch": "torch", "jax": "jax.numpy", "dask": "dask.array"}


def _placed(rows: np.ndarray, case: Case) -> np.ndarray:
    """Rows with their axis where the case wants it, and with gaps in memory."""
    moved = np.moveaxis(rows, -1, case.axis)
    if not case.strided:
        return np.ascontiguousarray(moved)
    wide = np.zeros((*moved.shape[:-1], 2 * moved.shape[-1]), rows.dtype)
    wide[..., ::2] = moved
    return wide[..., ::2]


# ------------------------------------------------------------------------------------------ checks


def _rows(case: Case) -> Iterator[tuple[int, np.ndarray, np.ndarray, float, np.ndarray]]:
    """(number, row, which entries are to be solved, for which k, p of the others) of each row."""
    for i, row in enumerate(case.x.astype(np.float64)):
        there = np.ones(len(row), bool) if case.where is None else case.where[i]
        row = np.where(there, row, -np.inf)
        p = np.where(row == np.inf, 1.0, 0.0)
        many, k = int(p.sum()), 1 if case.k is None else case.k
        none = np.zeros(len(row), bool)
        if np.isnan(row).any() or np.isfinite(row).sum() + many < k:
            yield i, row, none, 0, np.full(len(row), np.nan)
        elif many > k:
            yield i, row, none, 0, p * k / many
        else:
            yield i, row, np.isfinite(row), k - many, p


def _bound(name: str, case: Case, row: np.ndarray) -> float:
    finite = row[np.isfinite(row)]
    wide = float(np.ptp(finite / case.temperature)) if len(finite) else 0.0
    computed = "float64" if case.x.dtype == np.float64 else "float32"
    factor = max(1.0, math.sqrt(len(row)) / 2) if ("curve", "cauchy") in case.options else 1.0
    narrow = 2.0**-11 if case.x.dtype == np.float16 else 0.0
    return factor * BOUNDS[name][computed] + 4 * np.finfo(computed).eps * wide + narrow


def _values(name: str, solve: Callable[[Case, np.ndarray, float], Any]) -> Any:
    """The check of an operator's values against `solve` for the finite entries of a row."""

    def check(front: Front, case: Case) -> str | None:
        found = front.call(getattr(stk, name), case)
        for i, row, todo, k, p in _rows(case):
            bound = _bound(name, case, row)
            if todo.any():
                p[todo] = reference.to_float64(solve(case, row[todo], k))
            off = abs(found[i].astype(np.float64) - p)
            if not ((off <= bound) | (np.isnan(p) & np.isnan(found[i]))).all():
                return f"row {i} is {found[i].tolist()}, expected {p.tolist()} to {bound:.1e}"
        return None

    return check


def _thretopk(case: Case, row: np.ndarray, k: float) -> Any:
    return reference.thretopk(row, k, dict(case.options)["curve"], case.temperature).p


def _hardtopk(front: Front, case: Case) -> str | None:
    found = front.call(lambda x, k, temperature, **more: stk.hardtopk(x, k, **more), case)
    for i, row, todo, k, p in _rows(case):
        p[todo] = reference.hardtopk(row[todo], int(k))
        if (row == np.inf).sum() > case.k and not np.isnan(row).any():  # the first of these
            p = reference.hardtopk(row, case.k)
        if not np.array_equal(found[i], p, equal_nan=True):
            return f"row {i} is {found[i].tolist()}, expected {p.tolist()}"
    return None


def _chosen(front: Front, case: Case) -> str | None:
    """`topk`: values are p at the indices, and the indices are those of `hardtopk`."""
    p = front.call(stk.thretopk, case)
    mask = front.call(lambda x, k, temperature, **more: stk.hardtopk(x, k, **more), case)
    index = front.call(lambda *a, **more: stk.topk(*a, **more).indices, case)
    values = front.call(lambda *a, **more: stk.topk(*a, **more).values, case)
    known = ~np.isnan(mask).any(axis=1)
    expected = np.take_along_axis(p, index, -1)
    if not np.array_equal(values, expected, equal_nan=True):
        return f"values are {values.tolist()}, expected {expected.tolist()}"
    if not (np.take_along_axis(mask, index, -1)[known] == 1.0).all():
        return f"indices are {index.tolist()}, expected those of {mask.tolist()}"
    return None


def _tangent(front: Front, case: Case) -> str | None:
    """`jvp` of rows of finite entries, and that `vjp` is its transpose."""
    case = case._replace(x=np.clip(np.nan_to_num(case.x), -1e4, 1e4), where=None)
    wide = np.ptp(case.x.astype(np.float64), axis=1).max(initial=0.0) / case.temperature
    if wide > 1e3:
        return None
    rng = np.random.default_rng(len(case.x))
    dx, g = rng.normal(size=(2, *case.x.shape)).astype(case.x.dtype)
    f = stk.thretopk if dict(case.options) else stk.gradtopk
    dp = front.call(lambda x, k, dx, **more: f.jvp(x, k, dx, **more)[1], case, dx)
    gx = front.call(lambda x, k, g, **more: f.vjp(x, k, **more)[1](g).x, case, g)
    unit = (1e-9 if case.x.dtype == np.float64 else 2e-3) * (1.0 + wide) / case.temperature
    unit += 2.0**-22 if case.x.dtype == np.float16 else 0.0  # to the last bits of its range
    for i, row in enumerate(case.x.astype(np.float64)):
        given = row, case.k, dx[i]
        if f is stk.thretopk:
            curve = dict(case.options)["curve"]
            exact = reference.thretopk_jvp(*given, curve, case.temperature)
        else:
            exact = reference.gradtopk_jvp(*given, case.temperature)
        if abs(dp[i] - reference.to_float64(exact)).max(initial=0.0) > unit * (1 + abs(dx).max()):
            return f"dp of row {i} is {dp[i].tolist()}, expected {reference.to_float64(exact)}"
        one, other = float(dp[i] @ g[i].astype(float)), float(gx[i] @ dx[i].astype(float))
        if abs(one - other) > unit * len(row) * (1 + abs(dx).max()) * (1 + abs(g).max()):
            return f"<g, dp> is {one} and <vjp(g), dx> is {other} in row {i}"
    return None


def _entropy(front: Front, case: Case) -> str | None:
    x = np.nan_to_num(case.x[:1, :8].astype(np.float64), posinf=0.0, neginf=0.0).clip(-1e4, 1e4)
    x, k = x.astype(case.x.dtype), min(case.k, x.shape[1])
    made = stk if front.name in ("numpy", "dask") else None
    made = made or importlib.import_module(f"softtopk_nb.{front.name}")
    array = x if made is stk else front.array(x)
    found = float(np.asarray(made.KSubset(array, k, case.temperature).entropy())[0])
    exact = float(reference.entropy_of_subsets(x[0], k, case.temperature).entropy)
    bound = (1e-9 if case.x.dtype == np.float64 else 1e-4) + (2e-3 if x.dtype == "float16" else 0)
    wide = float(np.ptp(x.astype(np.float64))) / case.temperature if x.size else 0.0
    bound += 4 * k * np.finfo("float64" if x.dtype == np.float64 else "float32").eps * wide
    return None if abs(found - exact) <= bound * (1 + exact) else f"is {found}, expected {exact}"


def _balanced(front: Front, case: Case) -> str | None:
    """Sums, range, and that each row is `thretopk` of the scores less the columns' thresholds."""
    finite = np.nan_to_num(case.x.astype(np.float64), posinf=0.0, neginf=0.0).clip(-1e3, 1e3)
    x = finite.astype(np.float64 if case.x.dtype == np.float64 else np.float32)
    m, n = x.shape
    tau = max(case.temperature, float(np.ptp(x)) / 100, 1e-6)
    k = min(case.k, n) * 0.75
    array = x if front.name == "dask" else front.array(x)
    found = stk.balancedtopk(array, k, temperature=tau, curve=dict(case.options)["curve"])
    p, columns = np.asarray(found.p, np.float64), np.asarray(found.columns, np.float64)
    bound = 1e-6 if x.dtype == np.float64 else 1e-3
    for name, sums, wanted in (("rows", p.sum(1), k), ("columns", p.sum(0), m * k / n)):
        if not (abs(sums - wanted) <= bound * (1 + wanted)).all():
            return f"the sums of {name} are {sums.tolist()}, expected {wanted}"
    return None if (p >= 0).all() and (p <= 1 + bound).all() else f"p is {p.tolist()}, {columns}"


CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Front, Case], str | None]]] = {
    "thretopk": (CURVES, _values("thretopk", _thretopk)),
    "gradtopk": (
        (),
        _values("gradtopk", lambda c, x, k: reference.gradtopk(x, int(k), c.temperature).p),
    ),
    "softmax": (
        (),
        _values("softmax", lambda c, x, k: reference.thretopk(x, k, "exp", c.temperature).p),
    ),
    "hardtopk": ((), _hardtopk),
    "topk": (CURVES, _chosen),
    "derivatives of thretopk": (SMOOTH, _tangent),
    "derivatives of gradtopk": ((), _tangent),
    "KSubset.entropy": ((), _entropy),
    "balancedtopk": (SMOOTH, _balanced),
}
# Dask has no functions for these: it would load the arrays whole.
NOT_OF_DASK = "topk", "derivatives of thretopk", "derivatives of gradtopk"


# ------------------------------------------------------------------------------------------- cases


def drawn(rng: np.random.Generator, front: str) -> Case:
    """A random call."""
    name = str(rng.choice([c for c in CHECKS if front != "dask" or c not in NOT_OF_DASK]))
    curves, _ = CHECKS[name]
    dtypes = ("float32", "float64") if front == "dask" else ("float16", "float32", "float64")
    dtype = np.dtype(str(rng.choice(dtypes)))
    m, n = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 5, 8, 13, 40]))
    x = rng.normal(size=(m, n))
    kind = rng.integers(6)
    if kind == 1:
        x = rng.integers(-1, 3, size=(m, n)).astype(float)  # ties
    elif kind == 2:
        x += 10.0 ** rng.integers(1, 4)  # an offset
    elif kind == 3:
        x *= 10.0 ** rng.integers(-4, 5)
    elif kind == 4:
        x *= float(np.finfo(dtype).max) / 16  # the end of the range
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    if rng.random() < 0.3:
        x[rng.random((m, n)) < 0.2] = -np.inf
    if rng.random() < 0.1:
        x[rng.random((m, n)) < 0.2] = np.inf
    if rng.random() < 0.1:
        x[rng.integers(m), rng.integers(n)] = np.nan
    finite = x[np.isfinite(x)].astype(np.float64)
    spread = float(finite.max() / 2 - finite.min() / 2) * 2 if finite.size else 1.0
    # A framework holds a temperature in the type of float32 rows.
    narrow = front in ("torch", "jax") and dtype != np.float64
    ends = (1e-36, 1e36) if narrow else (1e-300, 1e300)
    tau = min(max(10.0 ** rng.uniform(-3, 3) * (spread or 1.0), ends[0]), ends[1])
    where = rng.random((m, n)) < 0.8 if rng.random() < 0.3 else None
    k: Any = int(rng.integers(0, n + 1))
    if name == "thretopk" and rng.random() < 0.5:
        k = float(rng.uniform(0.0, n))
    if name == "softmax":
        k = None
    options = (("curve", str(rng.choice(curves))),) if curves else ()
    axis = int(rng.choice([-1, 0])) if front != "dask" or m > 1 else -1
    return Case(name, x, k, tau, where, axis, bool(rng.integers(2)), options)


def fault_of(front: Front, case: Case) -> str | None:
    """What is wrong with a call; None if it is right, or refused with a reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            return CHECKS[case.check][1](front, case)
    except REFUSALS as error:
        return None if str(error) else f"{type(error).__name__} without a message"
    except Exception as error:  # whatever it is, it is reported as a fault
        return f"{type(error).__name__}: {error}"


def smaller(case: Case) -> Iterator[Case]:
    """The same with less in it."""
    m, n = case.x.shape
    if case.where is not None:
        yield case._replace(where=None)
    yield from (case._replace(**each) for each in ({"axis": -1}, {"strided": False}))
    for axis, size in ((0, m), (1, n)):
        for i in range(size if size > 1 else 0):
            kept = [j for j in range(size) if j != i]
            x, where = (
                None if each is None else each.take(kept, axis) for each in (case.x, case.where)
            )
            k = case.k if axis == 0 or case.k is None else min(case.k, n - 1)
            yield case._replace(x=x, where=where, k=k)
    for digits in (0, 2, 4):
        with np.errstate(all="ignore"):
            yield case._replace(x=case.x.astype(np.float64).round(digits).astype(case.x.dtype))


def minimal(front: Front, case: Case) -> Case:
    """A call that is wrong too, and of which nothing can be left out."""
    for _ in range(200):
        for less in smaller(case):
            changed = repr(less) != repr(case)
            with contextlib.suppress(Exception):
                if changed and fault_of(front, less):
                    case = less
                    break
        else:
            return case
    return case


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("front", nargs="?", default="numpy", choices=["numpy", *_MODULES])
    given = parser.parse_args()
    front, rng = Front(given.front), np.random.default_rng(given.seed)
    ends, counts, faults = time.monotonic() + given.seconds, collections.Counter[str](), 0
    while time.monotonic() < ends:
        case = drawn(rng, given.front)
        counts[case.check] += 1
        if fault_of(front, case):
            faults += 1
            least = minimal(front, case)
            print(f"{least!r}\n# {fault_of(front, least)}\n", flush=True)
    print(
        f"{sum(counts.values())} calls, {faults} wrong:",
        *map("{0[1]} {0[0]},".format, counts.items()),
    )
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
