"""Draws from softmax for arrays on a device: checked arguments, kernels, and results.

`_api.device_call` states what is checked here and what only the device can see. An index that
cannot be drawn is -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._api import arguments, host_arrays
from .._api.device_call import Call, GivenArray, Target, as_rows, check
from .._cuda.copying import copy
from .._cuda.interop import buffer_of, view_of
from . import cuda
from .cuda import noise
from .operator import softmax

MOST_DRAWS = 2**32  # of one row: as many as a word of the noise's counter can count


def _check(x: Any, temperature: Any, axis: Any, where: Any) -> Call:
    return check(softmax, x, temperature, axis, True, where, None, {})


def _seed(rng: np.random.Generator) -> int:
    """A key for the noise, the one number that the device needs from a generator on the host."""
    return int(rng.integers(0, 2**64, dtype=np.uint64))


def _draws(size: Any, shape: tuple[int, ...]) -> int:
    draws = math.prod(shape)
    if draws > MOST_DRAWS:
        raise ValueError(f"size is {arguments.show(size)}; expected at most 2**32 draws")
    return draws


def draw(
    x: Any,
    k: int | None,
    size: Any,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    temperature: Any,
    axis: Any,
    where: Any,
) -> Any:
    """k indices for each draw, or a single one without an axis if k is None."""
    c = _check(x, temperature, axis, where)
    draws = _draws(size, shape)
    if k is not None:
        arguments.check_range_of_k(np.asarray(k), c.rows.n, ())
    own = () if k is None else (k,)
    with c.given.kind.device:
        index = c.given.kind.empty((*c.given.batch, *shape, *own), np.dtype(np.int64))
        view = view_of(index, "the result")
        if view.size:
            noise.draw(c.rows, _seed(rng), draws, math.prod(own), buffer_of(view))
        return index


def noisy_softmax(x: Any, rng: np.random.Generator, temperature: Any, axis: Any, where: Any) -> Any:
    """softmax((x + G)/temperature)."""
    c = _check(x, temperature, axis, where)
    with c.given.kind.device:
        noisy = c.rows.empty(c.rows.rows * c.rows.n, c.rows.dtype)
        noise.perturb(c.rows, _seed(rng), 1, False, noisy)
        target = Target(c.given)
        cuda.value(c.rows._replace(x=noisy), "softmax", target.rows)
        return target.finish()


def relaxed(
    x: Any,
    k: Any,
    size: Any,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    relax: Callable[..., Any],
    temperature: Any,
    axis: Any,
    where: Any,
) -> Any:
    """``relax(x + G, k, temperature=temperature)``, along the last axis."""
    c = _check(x, temperature, axis, where)
    given, rows = c.given, c.rows
    draws = _draws(size, shape)
    if not host_arrays.on_device(k):
        number = arguments.real_array(k, "k")
        if number.ndim == 0:
            arguments.check_range_of_k(number, rows.n, ())
    with given.kind.device:
        noisy = given.kind.empty((*given.batch, *shape, rows.n), np.dtype(given.compute))
        view = view_of(noisy, "scratch memory")
        noise.perturb(rows, _seed(rng), draws, True, buffer_of(view))
        k = _stretched(given, k, len(shape))
        p = relax(noisy, k, temperature=_stretched(given, temperature, len(shape)))
        if not host_arrays.on_device(p):
            raise TypeError(f"relax returned {arguments.show(p)}; expected an array of x's kind")
        seen = view_of(p, "what relax returned")
        if seen.shape != view.shape:
            raise ValueError(f"relax returned shape {seen.shape}; expected {view.shape}, its x's")
        last = size is not None or given.axis == len(given.shape) - 1
        if last and seen.dtype == given.dtype:
            return p
        result = given.kind.empty(view.shape if size is not None else given.shape, given.dtype)
        target = view_of(result, "the result")
        if size is None:
            target = as_rows(target, given.axis)
        copy(given.kind.stream, seen, target)
        return result


def _stretched(given: GivenArray, value: Any, axes: int) -> Any:
    """A number for each row repeated for each of its draws."""
    if not axes or not host_arrays.on_device(value):
        return value
    view = view_of(value, "an argument")
    if not view.shape:
        return value
    longer = view._replace(shape=view.shape + (1,) * axes, strides=view.strides + (0,) * axes)
    made = given.kind.empty(longer.shape, view.dtype)
    copy(given.kind.stream, longer, view_of(made, "scratch memory"))
    return made
