"""Running what the pieces of a row are asked: on the cluster at hand, or on threads here."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.local
import dask.threaded
from dask._task_spec import Task, cull, fuse_linear_task_spec

from .._threads import pool


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


@contextlib.contextmanager
def runner() -> Iterator[Any]:
    """A function that computes keys of a graph."""
    with _client() as client:
        if client is not None:
            yield lambda graph, keys: client.get(graph, keys, direct=False)
        elif threading.current_thread() is threading.main_thread():
            yield dask.local.get_sync
        else:
            yield lambda graph, keys: dask.threaded.get(graph, keys, pool=_threads())


def ask_all(run: Any, graph: Graph, tasks: dict[Any, tuple[Any, ...]]) -> list[Any]:
    """The results of tasks ``(function, *arguments)``, whose `TaskRef`s are keys of the graph."""
    wanted = {key: Task(key, *task) for key, task in tasks.items()}
    keys = list(wanted)
    small = cull({**graph.tasks, **wanted}, keys)
    return list(run(fuse_linear_task_spec(small, keys), keys))
