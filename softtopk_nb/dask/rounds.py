"""Running what the pieces of a row are asked: on the cluster at hand, or on threads here."""

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
    cull,
    fuse_linear_task_spec,
)
from dask.base import tokenize
from dask.core import reverse_dict

from .._threads import pool

_EACH = 2  # tasks for each thread in a round: the first to end takes from the slower


class Graph:
    """A graph that Dask does not look into: it is run by the task that has it.

    Of what has been persisted the tasks know the names alone. The arrays that it is of keep it from
    being released, where the graph was built; they are not sent along.
    """

    def __init__(self, tasks: Any, arrays: tuple[Any, ...] = ()) -> None:
        self.tasks, self.arrays = tasks, arrays

    def __reduce__(self) -> Any:
        return Graph, (self.tasks,)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """For rounds inside a task of the threaded scheduler, whose own threads may all be taken."""
    return ThreadPoolExecutor(pool.thread_count(), thread_name_prefix="softtopk_nb")


@contextlib.contextmanager
def _client() -> Iterator[Any]:
    """The cluster whose task this is, or None; its thread counts as free meanwhile."""
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
    """Where rounds are run."""

    get: Any  # the values of keys of a graph
    tasks: int  # how many a round is best made of, or 0 where they cost nothing
    places: Any = None  # who holds each of some persisted keys


def _of_cluster(client: Any) -> Runner:
    return Runner(
        lambda graph, keys: client.get(graph, keys, direct=False),
        _EACH * sum(client.nthreads().values()),
        lambda keys: client.sync(client.scheduler.who_has, keys=keys),
    )


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    """What computes keys of a graph."""
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
    several = _in_turn(run, small, list(wanted)) if run.tasks else {}
    single = wanted.keys() - {key for _, keys in several.values() for key in keys}
    order = [key for key in wanted if key in single]
    ends = [*order, *several]
    small = cull({**small, **{name: task for name, (task, _) in several.items()}}, ends)
    found = list(run.get(_renamed(fuse_linear_task_spec(small, ends), ends), ends))
    results = dict(zip(order, found, strict=False))
    for (_, keys), values in zip(several.values(), found[len(order) :], strict=True):
        results.update(zip(keys, values, strict=True))
    return [results[key] for key in wanted]


def _in_turn(run: Runner, graph: Any, wanted: list[Any]) -> dict[Any, tuple[Any, list[Any]]]:
    """Tasks that each do several of the wanted ones, one after the other, and the keys of those.

    A cluster takes 2 ms for a task, as long as a pass over 6 MB. Only those are put together that
    hold no more at a time for it: their chunks are loaded by them alone, or lie on one worker.
    """
    size = -(-len(wanted) // run.tasks)
    if size == 1:
        return {}
    needed_by = reverse_dict(DependenciesMapping(graph))
    loads, outside = {}, {}
    for key in wanted:
        own, others = _alone(graph, needed_by, key)
        shared = [each for each in others if each in graph]
        if all(isinstance(graph[each], DataNode) and len(needed_by[each]) > 1 for each in shared):
            loads[key] = Task.fuse(*own)
            outside[key] = [each for each in others if each not in graph]
    persisted = list({each for keys in outside.values() for each in keys})
    places = run.places(persisted) if persisted else {}
    at_home: dict[Any, list[Any]] = {}
    for key in loads:
        homes = [place for each in outside[key] for place in places.get(each, ())]
        at_home.setdefault(homes[0] if homes else None, []).append(key)
    found = {}
    for keys in at_home.values():
        for i in range(0, len(keys), size):
            these = keys[i : i + size]
            name = f"softtopk-ask-{tokenize(these)}"
            found[name] = Task(name, _listed, *(loads[key] for key in these)), these
    return found


def _renamed(graph: Any, ends: list[Any]) -> dict[Any, Any]:
    """The same tasks under names that no other graph has for different ones."""
    token, kept = tokenize(ends), set(ends)
    names = {
        key: key if key in kept else ("softtopk-load-" + token, i) for i, key in enumerate(graph)
    }
    return {names[key]: node.substitute(names, key=names[key]) for key, node in graph.items()}


def _listed(*values: Any) -> list[Any]:
    return list(values)


def _alone(graph: Any, needed_by: Any, key: Any) -> tuple[list[Any], set[Any]]:
    """The tasks that this one alone needs, itself among them, and what keys they need besides."""
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
