"""The axis of the scores in chunks: a search with requests to the chunks, and results by chunk.

A verb on an array is one task, the search, and one task for each chunk of the result. The search
has the graph of x (`rounds.Graph`) and sends requests to every chunk in rounds, those of all rows
at a time; nothing of x is kept between two rounds but what the user has persisted.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.base import optimize, tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from .._api import long_row, pieces
from .._api.arguments import Clamped
from .._api.front import named
from .._threads import pool
from .._threads.long_rows import LONG
from .arguments import Problem, per_row
from .rounds import Graph, ask_all, runner

_ROOMY = 2.0**64  # float32 can hold the squares of directions up to here


class TaskCall(NamedTuple):
    """The parts of a call that every task gets."""

    name: str  # of the operator
    options: dict[str, Any]
    largest: bool
    clamp_k: bool
    batch: tuple[int, ...]  # shape of the rows
    lengths: tuple[int, ...]  # of the chunks along the axis
    result: Any  # type of the result

    @property
    def op(self) -> Any:
        """The operator of NumPy."""
        return named(self.name)

    @property
    def checked_options(self) -> Any:
        """The options, checked, as engines take them."""
        return self.op.check_options(self.options)

    @property
    def dtype(self) -> Any:
        """The type in which rows are computed."""
        return self.op.computed_in_chunks(self.checked_options, np.dtype(self.result).type)


def _rows(given: TaskCall, x: Any, where: Any, v: Any) -> tuple[Any, Any]:
    """The rows of a chunk as the search sees them, and the directions that belong to them."""
    x = np.ascontiguousarray(x, given.dtype).reshape(math.prod(x.shape[:-1]), x.shape[-1])
    x = x if given.largest else -x
    if where is not None:
        x = np.where(where.reshape(x.shape), x, x.dtype.type(-np.inf))
    if v is not None:
        v = np.ascontiguousarray(v).reshape(x.shape)
        if given.dtype == np.float32 and v.dtype != np.float32 and (abs(v) > _ROOMY).any():
            raise ValueError(
                "the direction or cotangent has entries beyond 2^64; expected smaller ones beside "
                "float32 scores whose axis is in chunks"
            )
        v = np.ascontiguousarray(v, given.dtype)
    return x, v


def _answers(given: TaskCall, asked: list[Any], i: int, x: Any, where: Any, v: Any) -> list[Any]:
    """The answers of chunk i along the axis to the requests for its rows."""
    x, v = _rows(given, x, where, v)
    with pool.one_thread():
        return [pieces.answer(ask, i, x[r], None if v is None else v[r]) for r, ask in asked]


def _write(
    given: TaskCall, writings: list[Any], i: int, sign: float, x: Any, where: Any, v: Any
) -> Any:
    """The result of a verb in one chunk."""
    shape, (x, v) = x.shape, _rows(given, x, where, v)
    out = np.empty(x.shape, given.result)
    with pool.one_thread():
        for r, writing in enumerate(writings):
            out[r] = pieces.write(
                writing.of_piece(i), x[r], None if v is None else v[r], given.result
            )
    return out.reshape(shape) if sign > 0 else -out.reshape(shape)


def _search(
    given: TaskCall, graph: Graph, blocks: Any, verb: str, numbers: Any, solved: Any
) -> Any:
    """Search for a verb's results for each row of each block of rows.

    blocks: for each its slices of the batch shape and the keys of its chunks. `solved`: the results
    of a search for the value; then, for derivatives, the numbers are directions.
    """
    op, options, live, results = given.op, given.checked_options, {}, {}
    numbers = [np.broadcast_to(each, given.batch) for each in numbers]
    for b, (place, _) in enumerate(blocks):
        of_rows = [np.ravel(each[place]) for each in numbers]
        for r in range(of_rows[0].size):
            own = tuple(each[r].item() for each in of_rows)
            if verb in ("solve", "record"):
                own = (Clamped(own[0]), *own[1:]) if given.clamp_k else own
                row = long_row.solve(op, options, given.dtype, given.lengths, own, verb == "solve")
            elif verb == "jvp":
                row = long_row.jvp(op, options, solved[b][r][0], own)
            elif verb == "vjp":
                row = long_row.vjp(op, options, solved[b][r][0], own[0])
            else:
                row = long_row.number(op, options, solved[b][r][0], verb)
            live[b, r] = row
    asked: dict[Any, Any] = {}

    def move_on(at: Any, answers: Any) -> None:
        try:
            asked[at] = live[at].send(answers)
        except StopIteration as end:
            results[at] = end.value

    for at in live:
        move_on(at, None)
    with runner() as run:
        while asked:
            answers = _round(given, run, graph, blocks, asked)
            asked = {}
            for at, found in answers.items():
                move_on(at, found)
    per_block: list[list[Any]] = [[] for _ in blocks]
    for b, r in live:
        per_block[b].append(results[b, r])
    return per_block


def _round(given: TaskCall, run: Any, graph: Graph, blocks: Any, asked: dict[Any, Any]) -> Any:
    """Send each row's request to the chunks; returns their answers."""
    rows: dict[int, list[int]] = {}
    for b, r in asked:
        rows.setdefault(b, []).append(r)
    tasks, token = {}, tokenize(np.random.default_rng().integers(1 << 62))
    for b, these in rows.items():
        for i, keys in enumerate(blocks[b][1]):
            of_piece = [(r, asked[b, r].of_piece(i)) for r in these]
            arrays = [None if key is None else TaskRef(key) for key in keys]
            tasks[f"softtopk-ask-{token}", b, i] = _answers, given, of_piece, i, *arrays
    found = dict(zip(tasks, ask_all(run, graph, tasks), strict=True))
    answers: dict[Any, list[Any]] = {at: [] for at in asked}
    for (_, b, _), of_piece in found.items():
        for r, each in zip(rows[b], of_piece, strict=True):
            answers[b, r].append(each)
    return answers


class Axis:
    """A checked call whose axis is in chunks, and its searches."""

    def __init__(self, op: Any, problem: Problem) -> None:
        x = problem.x
        self.op, self.problem = op, problem
        self.given = TaskCall(
            op.__name__,
            problem.options,
            problem.largest,
            problem.clamp_k,
            tuple(x.shape[:-1]),
            tuple(x.chunks[-1]),
            x.dtype,
        )
        counts = [range(len(sizes)) for sizes in problem.batch]
        self.blocks = list(itertools.product(*counts))
        self._solutions: dict[str, Delayed] = {}

    def _task(self, verb: str, numbers: tuple[Any, ...], solved: Any, v: Any) -> Delayed:
        """A search, as a task of its own."""
        problem = self.problem
        arrays, tasks = low_level([problem.x, problem.where, v])
        starts = [np.cumsum((0, *sizes)) for sizes in problem.batch]
        blocks = []
        for block in self.blocks:
            place = tuple(slice(s[j], s[j + 1]) for s, j in zip(starts, block, strict=True))
            keys = [
                [None if a is None else (a.name, *block, i) for a in arrays]
                for i in range(len(self.given.lengths))
            ]
            blocks.append((place, keys))
        whole = [each.rechunk(-1) if isinstance(each, da.Array) else each for each in numbers]
        name = (
            f"softtopk-{verb}-{tokenize(self.given, verb, problem.x, problem.where, v, *numbers)}"
        )
        lazy = [each for each in whole if isinstance(each, da.Array)]
        refs = List(
            *(
                TaskRef((each.name, *(0,) * each.ndim)) if isinstance(each, da.Array) else each
                for each in whole
            )
        )
        known = None if solved is None else TaskRef(solved.key)
        task = Task(
            name,
            _search,
            self.given,
            Graph(tasks, (problem.x, problem.where, v)),
            blocks,
            verb,
            refs,
            known,
        )
        needed = [*lazy, *(() if solved is None else (solved,))]
        return Delayed(name, HighLevelGraph.from_collections(name, {name: task}, needed))

    def solution(self, wanted: bool = True) -> Delayed:
        """The search for the value, made once for all methods of this call."""
        verb = "solve" if wanted else "record"
        if verb not in self._solutions:
            self._solutions[verb] = self._task(verb, self.problem.numbers, None, None)
        return self._solutions[verb]

    def _array(self, found: Delayed, take: Any, v: Any, sign: float = 1.0) -> Any:
        """The array that is written by chunk, once the search has ended."""
        x = self.problem.x
        arrays, tasks = low_level([x, self.problem.where, v])
        name = f"softtopk-write-{tokenize(found.key, sign, take.__name__)}"
        layer, names = after(tasks, found.key)
        for b, block in enumerate(self.blocks):
            own = f"{name}-of", b
            layer[own] = Task(own, _of_block, TaskRef(found.key), b, take)
            for i in range(len(self.given.lengths)):
                key = (name, *block, i)
                keys = [None if a is None else (a.name, *block, i) for a in arrays]
                keys = [names.get(key, key) for key in keys]  # persisted ones have other keys
                refs = [None if key is None else TaskRef(key) for key in keys]
                layer[key] = Task(key, _write, self.given, TaskRef(own), i, sign, *refs)
        graph = HighLevelGraph.from_collections(name, layer, [found])
        p = da.Array(graph, name, x.chunks, meta=np.empty((0,) * x.ndim, x.dtype))
        return self.problem.back(p)

    def _numbers(self, found: Delayed, take: Any, sign: float = 1.0) -> Any:
        """An array with a number for each row, from the search."""
        batch, dtype = self.problem.batch, self.problem.x.dtype
        name = f"softtopk-numbers-{tokenize(found.key, sign, repr(take))}"
        layer = {}
        for b, block in enumerate(self.blocks):
            shape = tuple(sizes[j] for sizes, j in zip(batch, block, strict=True))
            key = (name, *block)
            layer[key] = Task(key, _as_array, TaskRef(found.key), b, take, shape, sign, dtype)
        graph = HighLevelGraph.from_collections(name, layer, [found])
        return da.Array(graph, name, batch, meta=np.empty((0,) * len(batch), dtype))

    def value(self) -> Any:
        """The operator's value."""
        if self.op.reduces:
            return self.number("value")
        return self._array(self.solution(), second, None)

    def number(self, verb: str) -> Any:
        """A number per row in the units of x, as `verb` says."""
        found = self._task(verb, self.problem.numbers, self.solution(False), None)
        return self._numbers(found, itself, 1.0 if self.problem.largest else -1.0)

    def jvp(self, v: Any, moves: tuple[Any, ...]) -> Any:
        """The derivative along a direction."""
        v = v if self.problem.largest else -v
        found = self._task("jvp", moves, self.solution(not self.op.reduces), v)
        return self._numbers(found, itself) if self.op.reduces else self._array(found, itself, v)

    def vjp(self, g: Any) -> tuple[Any, ...]:
        """The gradients in x and in the numbers, one per row."""
        zero, v = per_row(None, self.problem, "the cotangent"), g
        numbers: tuple[Any, ...] = (zero,)
        if self.op.reduces:
            v, numbers = None, (g,)
        found = self._task("vjp", numbers, self.solution(not self.op.reduces), v)
        sign = 1.0 if self.problem.largest else -1.0
        gx = self._array(found, first, v, sign)
        return gx, *(self._numbers(found, place) for place in range(len(self.op.names)))


def low_level(arrays: list[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """The arrays with optimised graphs, and the tasks of these."""
    ready = iter(optimize(*(a for a in arrays if a is not None)))
    arrays, tasks = [None if a is None else next(ready) for a in arrays], {}
    for a in arrays:
        if a is not None:
            tasks.update(convert_legacy_graph(dict(a.__dask_graph__())))
    return arrays, tasks


def after(tasks: dict[Any, Any], key: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """(copies of tasks that start only after this key is computed, their names).

    Otherwise chunks loaded for the search would be kept in memory until the results are written.
    """
    token = tokenize(key)
    names = {
        old: (f"{old[0]}-{token}", *old[1:]) if isinstance(old, tuple) else f"{old}-{token}"
        for old in tasks
    }
    copies: dict[Any, Any] = {}
    for old, node in tasks.items():
        own = {each: names[each] for each in node.dependencies if each in names}
        copy = node.substitute(own, key=names[old])
        begins = all(isinstance(tasks.get(each), DataNode) for each in node.dependencies)
        if begins and isinstance(node, Task):
            copy = Task(names[old], _last, TaskRef(key), copy)
        copies[names[old]] = copy
    return copies, names


def _last(_: Any, value: Any) -> Any:
    return value


def itself(result: Any) -> Any:
    """All of a row's result."""
    return result


def first(result: Any) -> Any:
    """The writing of a row, from (writing, numbers)."""
    return result[0]


def second(result: Any) -> Any:
    """The writing of a row, from (solved row, writing)."""
    return result[1]


def _of_block(found: Any, b: int, take: Any) -> list[Any]:
    return [take(each) for each in found[b]]


def _as_array(
    found: Any, b: int, take: Any, shape: tuple[int, ...], sign: float, dtype: Any
) -> Any:
    values = [each[1][take] if isinstance(take, int) else take(each) for each in found[b]]
    with np.errstate(over="ignore"):
        return (sign * np.array(values).reshape(shape)).astype(dtype)


def is_in_chunks(op: Any, problem: Problem) -> bool:
    """Whether the axis is in chunks, and rows are too long to be brought together."""
    x = problem.x
    if len(x.chunks[-1]) == 1:
        return False
    if op.chunks is None:
        raise ValueError(
            f"x has {len(x.chunks[-1])} chunks along axis {problem.axis}, and {op.__name__} needs "
            "it in one: each of its steps depends on all entries of a row, so that chunks would "
            f"be asked hundreds of times; expected x.rechunk({{{problem.axis}: -1}})"
        )
    method = problem.options.get("method", "auto")
    long = bool(x.shape[-1] >= LONG)
    if long and method not in ("auto", "newton", "contour"):
        raise ValueError(
            f"method is {method!r}, for which a row must be in one place; expected 'auto' where "
            f"axis {problem.axis} is in chunks, or x.rechunk({{{problem.axis}: -1}})"
        )
    return long
