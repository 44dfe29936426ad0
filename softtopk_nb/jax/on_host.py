"""Functions of arrays of NumPy as parts of a program.

What is not traced is computed at once. A program that is compiled for the CPU calls them through
XLA's foreign function interface: an error that they raise has its own words alone, where one from
`jax.pure_callback`, which is used elsewhere, has a traceback too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from . import calls, foreign

_KIND = "on_host"  # of the handler
_known: dict[str, Function] = {}


class Function(NamedTuple):
    """A function at the top level of a module, with options; equal ones make one program."""

    compute: Callable[..., Any]  # of the options and arrays
    settings: tuple[tuple[str, Any], ...]
    tree: Any  # in which the arrays are handed on

    def __call__(self, *arrays: Any) -> list[Any]:
        """The results, in a row."""
        given = jax.tree.unflatten(self.tree, [np.asarray(each) for each in arrays])
        return jax.tree.leaves(self.compute(dict(self.settings), *given))


@functools.cache
def _key(function: Function) -> str:
    """The words by which a compiled program knows the function."""
    compute = function.compute
    name = f"{compute.__module__}.{compute.__qualname__} {function.tree}"
    key = calls.words(name, function.settings)
    _known[key] = function
    return key


def _answer(key: str, arguments: list[Any], results: list[Any]) -> None:
    for result, values in zip(results, _known[key](*arguments), strict=True):
        result[...] = values


def call(
    compute: Callable[..., Any],
    settings: tuple[tuple[str, Any], ...],
    kinds: Any,
    *given: Any,
    vmap_method: str = "broadcast_all",
) -> Any:
    """The result of ``compute(options, *given)``, whose shapes and types are `kinds`."""
    arrays, tree = jax.tree.flatten(given)
    flat, of_result = jax.tree.flatten(kinds)
    function = Function(compute, settings, tree)
    if not any(isinstance(each, jax.core.Tracer) for each in arrays):
        devices = _devices(arrays)
        if len(devices) <= 1:
            dtypes = [each.dtype for each in flat]
            found = jax.device_put(list(map(np.asarray, function(*arrays), dtypes)), *devices)
            return jax.tree.unflatten(of_result, found)
    found = _called(*arrays, function=function, kinds=tuple(flat), vmap_method=vmap_method)
    return jax.tree.unflatten(of_result, found)


def _devices(arrays: Any) -> set[Any]:
    """The devices on which results belong, none if the arrays may be on any."""
    placed = [each for each in arrays if isinstance(each, jax.Array) and each.committed]
    return {device for each in placed for device in each.devices()}


@functools.partial(jax.jit, static_argnames=("function", "kinds", "vmap_method"), inline=True)
def _called(*arrays: Any, function: Function, kinds: Any, vmap_method: Any) -> Any:
    def by_callback(*arrays: Any) -> Any:
        def compute(*arrays: Any) -> Any:
            dtypes = [each.dtype for each in kinds]
            return list(map(np.asarray, function(*arrays), dtypes))

        return jax.pure_callback(compute, list(kinds), *arrays, vmap_method=vmap_method)

    if not foreign.is_known():
        return by_callback(*arrays)
    target = foreign.python_target(_KIND, _answer)

    def by_handler(*arrays: Any) -> Any:
        made = jax.ffi.ffi_call(target, list(kinds), vmap_method=vmap_method)
        return made(*arrays, call=_key(function))

    return jax.lax.platform_dependent(*arrays, cpu=by_handler, default=by_callback)
