"""Running requests to the chunks of rows: on the cluster at hand, or on threads of this process."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import dask.local
import dask.threaded
from dask._task_spec import (
    DataNode,
    DependenciesMapping,
    Task,
    TaskRef,
    cull,
    fuse_linear_task_spec,
)
from dask.base import tokenize
from dask.core import reverse_dict

from .._threads import pool

_EACH = 2  # tasks for each thread in a round: a thread that ends first takes over from slower ones


class Graph:
    """A graph that Dask does not look into: it is run by the task that holds it.

    Of persisted arrays its tasks hold the keys alone. `arrays` keeps these from being released in
    the process where the graph was built; they are not sent along.
    """

    def __init__(self, tasks: Any, arrays: tuple[Any, ...] = ()) -> None:
        self.tasks, self.arrays = tasks, arrays

    def __reduce__(self) -> Any:
        return Graph, (self.tasks,)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """A pool for rounds inside a task of the threaded scheduler, whose threads may all be busy."""
    return ThreadPoolExecutor(pool.thread_count(), thread_name_prefix="softtopk_nb")


@contextlib.contextmanager
def _client() -> Iterator[Any]:
    """The cluster whose task this is, or None; its thread counts as free within this."""
    try:
        from distributed import get_worker, worker_client
    except ImportError:
        yield None
        return
    try:
        get_worker()
    except ValueError:
        yield None
        return
    with worker_client() as client:
        yield client


class Runner(NamedTuple):
    """The functions that run rounds."""

    get: Any  # (graph, keys) -> the values of the keys
    tasks: int  # the best number of tasks in a round, or 0 if tasks cost nothing
    places: Any = None  # (keys) -> the workers that hold these persisted keys


def _of_cluster(client: Any) -> Runner:
    return Runner(
        lambda graph, keys: client.get(graph, keys, direct=False),
        _EACH * sum(client.nthreads().values()),
        lambda keys: client.sync(client.scheduler.who_has, keys=keys),
    )


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    """The runner for this task's cluster, or for this process."""
    with _client() as client:
        if client is not None:
            yield _of_cluster(client)
        elif threading.current_thread() is threading.main_thread():
            yield Runner(dask.local.get_sync, 0)
        else:
            yield Runner(functools.partial(dask.threaded.get, pool=_threads()), 0)


def ask_all(run: Runner, graph: Graph, tasks: dict[Any, tuple[Any, ...]]) -> list[Any]:
    """The results of tasks ``(function, *arguments)``, whose `TaskRef`s are keys of the graph."""
    wanted = {key: Task(key, *task) for key, task in tasks.items()}
    small = cull({**graph.tasks, **wanted}, list(wanted))
    shares = _shares(run, small, list(wanted))
    keys = [f"softtopk-ask-{tokenize(list(share))}" for share in shares]
    for key, share in zip(keys, shares, strict=True):
        small[key] = Task(key, _listed, *share.values())
    small = _renamed(fuse_linear_task_spec(cull(small, keys), keys), keys)
    results: dict[Any, Any] = {}
    for share, values in zip(shares, run.get(small, keys), strict=True):
        results.update(zip(share, values, strict=True))
    return [results[key] for key in wanted]


def _shares(run: Runner, graph: Any, wanted: list[Any]) -> list[dict[Any, Any]]:
    """The wanted keys that each combined task computes, with a task or key for each.

    A cluster takes 1.6 ms for a task, as long as a pass over 5 MB: with this a row of 5e7 in 382
    chunks takes 0.8 s and not 2.6 s (laplace; two workers, AVX-512). Keys are combined only where
    that takes no more memory at a time: their chunks are loaded by them alone, or are on one
    worker.
    """
    size = -(-len(wanted) // run.tasks) if run.tasks else 1
    if size == 1:
        return [{key: TaskRef(key)} for key in wanted]
    needed_by = reverse_dict(DependenciesMapping(graph))
    loads, outside = {}, {}
    shares: list[dict[Any, Any]] = []
    for key in wanted:
        own, others = _alone(graph, needed_by, key)
        shared = [each for each in others if each in graph]
        if all(isinstance(graph[each], DataNode) and len(needed_by[each]) > 1 for each in shared):
            loads[key] = Task.fuse(*own)
            outside[key] = [each for each in others if each not in graph]
        else:
            shares.append({key: TaskRef(key)})
    persisted = list({each for keys in outside.values() for each in keys})
    places = run.places(persisted) if persisted else {}
    at_home: dict[Any, list[Any]] = {}
    for key in loads:
        homes = [place for each in outside[key] for place in places.get(each, ())]
        at_home.setdefault(homes[0] if homes else None, []).append(key)
    for keys in at_home.values():
        for i in range(0, len(keys), size):
            shares.append({key: loads[key] for key in keys[i : i + size]})
    return shares


def _renamed(graph: Any, ends: list[Any]) -> dict[Any, Any]:
    """The tasks under names that no other graph uses for different tasks."""
    token, kept = tokenize(ends), set(ends)
    names = {
        key: key if key in kept else (f"softtopk-load-{token}", i) for i, key in enumerate(graph)
    }
    return {names[key]: node.substitute(names, key=names[key]) for key, node in graph.items()}


def _listed(*values: Any) -> list[Any]:
    return list(values)


def _alone(graph: Any, needed_by: Any, key: Any) -> tuple[list[Any], set[Any]]:
    """(the tasks that this key alone needs, its own among them; the other keys that they need)."""
    own, others, ready = [], set(), [key]
    left: dict[Any, int] = {}
    while ready:
        node = graph[ready.pop()]
        own.append(node)
        for each in node.dependencies:
            left[each] = left.get(each, len(needed_by.get(each, ()))) - 1
            if left[each] or each not in graph or isinstance(graph[each], DataNode):
                others.add(each)
            else:
                others.discard(each)
                ready.append(each)
    return own, others
