"""What ordinary use costs, as a multiple of the plain call.

Masks, layouts, types and the potential: the plain call is the same operator on a float32 array in C
order, along the last axis; both take turns. The verbs are the value, and the pullback without the
value before it. Rows of other kinds (`fallback.kinds`): the plain call is that on normal rows. The
method that `gradtopk` chooses: the plain call takes the contour. Costs, and loads of the columns
(`balancedtopk`): the plain call is `thretopk` of the same array.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import cases
import fallback
import numpy as np
from clock import Turns

import softtopk_nb as stk

BUDGET = {"quick": 0.1, "full": 0.5}  # seconds a case, if it can be measured in that
SHARE = 0.8  # of the entries take part, about

OPERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "thretopk laplace": (stk.thretopk, {}),
    "thretopk sigmoid": (stk.thretopk, {"curve": "sigmoid"}),
    "gradtopk": (stk.gradtopk, {}),
    "hardtopk": (stk.hardtopk, {}),
    "softmax": (stk.softmax, {}),
}
QUICK = {(1024, 1024, 32)}

#: What is given, with the shape and k of the case.
BUDGETS = {
    "costs": (1024, 1024, 32),
    "costs and vjp": (1024, 1024, 32),
    "loads": (16384, 64, 2),
    "loads and vjp": (16384, 64, 2),
}

Prepared = tuple[np.ndarray, dict[str, Any]]  # x, and keyword arguments


def _random(x: np.ndarray) -> np.ndarray:
    return np.random.default_rng(1).random(x.shape) < SHARE


def _with_gaps(x: np.ndarray) -> Prepared:
    return np.where(_random(x), x, np.float32(-np.inf)), {}


def _padded(x: np.ndarray) -> Prepared:
    n = x.shape[1]
    lengths = np.random.default_rng(1).integers(2 * n * SHARE - n, n + 1, size=(len(x), 1))
    return x, {"where": np.arange(n) < lengths}


USES: dict[str, Callable[[np.ndarray], Prepared]] = {
    "all True": lambda x: (x, {"where": np.ones(x.shape, np.bool_)}),
    "random mask": lambda x: (x, {"where": _random(x)}),
    "one mask": lambda x: (x, {"where": _random(x[0])}),
    "padded": _padded,
    "-inf at random": _with_gaps,
    "axis 0": lambda x: (np.ascontiguousarray(x.T), {"axis": 0}),
    "Fortran order": lambda x: (np.asfortranarray(x), {}),
    "float16": lambda x: (x.astype(np.float16), {}),
    "integers": lambda x: ((100 * x).astype(np.int32), {"temperature": 100.0}),
}


def call_of(name: str, verb: str, x: np.ndarray, k: int, arguments: dict[str, Any]) -> Any:
    """The call to time, its result in memory of its own each time."""
    operator, options = OPERATORS[name]
    given = (x,) if name == "softmax" else (x, k)
    options = {**options, **arguments}
    if verb == "value":
        return lambda: operator(*given, **options)
    if verb == "potential":
        return lambda: operator.potential(*given, **options)
    p, pullback = operator.vjp(*given, **options)
    g = np.random.default_rng(2).normal(size=p.shape).astype(p.dtype)
    return lambda: pullback(g)


def _cases(selection: str) -> list[tuple[str, str, str, tuple[int, int, int]]]:
    shapes = [s for s in (*cases.MAIN[:2], cases.SHAPES[4]) if selection == "full" or s in QUICK]
    found = []
    for name, shape in itertools.product(OPERATORS, shapes):
        verbs = ["value"] if name == "hardtopk" else ["value", "pullback"]
        found += [(name, verb, use, shape) for verb in verbs for use in USES]
        if hasattr(OPERATORS[name][0], "potential"):
            found.append((name, "potential", "plain", shape))
    return found


def _kinds(selection: str) -> list[tuple[str, str, float, tuple[int, int, int]]]:
    operators = [f"thretopk {curve}" for curve in fallback.CURVES] + ["gradtopk"]
    shapes = [(1024, 1024, 64)]
    if selection == "full":
        shapes += [(16384, 64, 4), (16, 65536, 4096)]
    else:
        operators = ["thretopk sigmoid", "gradtopk"]
    kinds = [kind for kind in fallback.NAMES if kind != "normal"]
    return list(itertools.product(operators, kinds, fallback.TEMPERATURES, shapes))


def _choices(selection: str) -> list[tuple[str, str, float, tuple[int, int, int]]]:
    verbs = ("value", "pullback")
    lengths = (96, 192, 512) if selection == "full" else (192,)
    shapes = [(2**18 // n, n, k) for n in lengths for k in (8, n // 2)]
    return list(itertools.product(verbs, ("float32", "float64"), (0.1, 1.0), shapes))


def pytest_generate_tests(metafunc):
    selection = metafunc.config.getoption("--selection")
    if "budget" in metafunc.fixturenames:
        chosen = list(itertools.product(BUDGETS, (0.1, 1.0)))
        names = [f"{budget}, {tau}" for budget, tau in chosen]
        metafunc.parametrize(("budget", "temperature"), chosen, ids=names)
        return
    if "dtype" in metafunc.fixturenames:
        chosen = _choices(selection)
        names = [f"{verb} {rows}x{n}, k={k}, {t}, {tau}" for verb, t, tau, (rows, n, k) in chosen]
        metafunc.parametrize(("verb", "dtype", "temperature", "shape"), chosen, ids=names)
        return
    if "kind" in metafunc.fixturenames:
        chosen = _kinds(selection)
        names = [f"{name} {rows}x{n}, {kind}, {tau}" for name, kind, tau, (rows, n, _) in chosen]
        metafunc.parametrize(("name", "kind", "temperature", "shape"), chosen, ids=names)
        return
    chosen = _cases(selection)
    names = [f"{name} {verb} {rows}x{n}, {use}" for name, verb, use, (rows, n, _) in chosen]
    metafunc.parametrize(("name", "verb", "use", "shape"), chosen, ids=names)


def take_turns(benchmark, request, used, plain, group, **fields):
    """Time both, and note the ratio with what was measured."""
    turns = Turns(used, plain, BUDGET[request.config.getoption("--selection")])
    benchmark.group = f"{group}, in plain calls"
    benchmark.pedantic(turns.take, setup=turns.time_others, rounds=turns.rounds)
    if benchmark.stats is not None:
        taken = np.array(benchmark.stats.stats.data)
        benchmark.extra_info["ordinary"] = {**fields, **turns.figures(taken)}


def bench_use(benchmark, name, verb, use, shape, request):
    rows, n, k = shape
    x = cases.scores(rows, n, "float32", "normal")
    plain = call_of(name, "value" if verb == "potential" else verb, x, k, {})
    given, arguments = (x, {}) if use == "plain" else USES[use](x)
    used = call_of(name, verb, given, k, arguments)
    fields = {"operator": name, "what": verb, "use": use, "rows": rows, "n": n, "k": k}
    take_turns(benchmark, request, used, plain, f"{verb} {rows}x{n}", **fields)


def bench_kind(benchmark, name, kind, temperature, shape, request):
    rows, n, k = shape
    found = fallback.kinds(np.random.default_rng(0), (rows, n))
    operator, _, curve = name.partition(" ")
    options = {"temperature": temperature} | ({"curve": curve} if curve else {})
    call, out = getattr(stk, operator), np.empty((rows, n), np.float32)
    used, plain = (
        functools.partial(call, found[each], k, out=out, **options) for each in (kind, "normal")
    )
    fields = {"operator": name, "what": "value", "use": kind, "rows": rows, "n": n, "k": k}
    group = f"value {rows}x{n}, temperature {temperature}"
    take_turns(benchmark, request, used, plain, group, temperature=temperature, **fields)


def bench_choice(benchmark, verb, dtype, temperature, shape, request):
    """Of the ways that `gradtopk` chooses from, the one that it takes, beside the contour."""
    rows, n, k = shape
    x = cases.scores(rows, n, dtype, "normal")
    used, plain = (
        call_of("gradtopk", verb, x, k, {"temperature": temperature, "method": method})
        for method in ("auto", "contour")
    )
    fields = {"operator": f"gradtopk {dtype}", "what": verb, "rows": rows, "n": n, "k": k}
    group = f"gradtopk {verb} {rows}x{n}, k={k}, {dtype}, temperature {temperature}"
    use = f"the chosen method, k={k}"
    take_turns(benchmark, request, used, plain, group, use=use, temperature=temperature, **fields)


def _of_budget(budget: str, x: np.ndarray, k: int, temperature: float) -> tuple[Any, Any]:
    """The call to time, and the plain one."""
    rng = np.random.default_rng(1)
    g = rng.normal(size=x.shape).astype(x.dtype)
    given: dict[str, Any] = {"temperature": temperature}
    plain = functools.partial(stk.thretopk, x, k, **given)
    if budget == "loads":
        return functools.partial(stk.balancedtopk, x, k, **given), plain
    if budget == "loads and vjp":
        return lambda: stk.balancedtopk.vjp(x, k, **given)[1](g), plain
    cost = rng.uniform(0.5, 1.5, size=x.shape).astype(x.dtype)
    if budget == "costs":
        return functools.partial(stk.thretopk, x, k, cost=cost, **given), plain
    both: list[Any] = []
    for more in ({"cost": cost}, {}):
        both.append(lambda more=more: stk.thretopk.vjp(x, k, **given, **more)[1](g))
    return both[0], both[1]


def bench_budget(benchmark, budget, temperature, request):
    rows, n, k = BUDGETS[budget]
    x = cases.scores(rows, n, "float32", "normal")
    if budget.startswith("loads"):  # that thretopk's own columns are far from
        x = x + cases.scores(1, n, "float32", "normal")
    used, plain = _of_budget(budget, x, k, temperature)
    operator = "balancedtopk" if budget.startswith("loads") else "thretopk laplace"
    fields = {"operator": operator, "what": "value", "use": budget, "rows": rows, "n": n, "k": k}
    group = f"{budget} {rows}x{n}, temperature {temperature}"
    take_turns(benchmark, request, used, plain, group, temperature=temperature, **fields)
