"""The functions of this room for arrays on a device: checked, handed to kernels, and given back.

`_api.device_operator` says what is checked here and what only the device can see. An index that
cannot be drawn is -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, host_arrays
from .._api import device_operator as front
from .._api.device_operator import Given
from .._api.operator import Gradients
from .._cuda.arrays import Argument, Buffer, Rows
from .._cuda.copying import copy, new_buffer
from .._cuda.interop import buffer_of, nothing, view_of
from . import calls, cuda
from .cuda import noise

MOST_DRAWS = 2**32  # of one row: a word of the noise's counter


class _Call(NamedTuple):
    given: Given
    rows: Rows
    temperature: tuple[int, ...]  # its shape as given


def _check(x: Any, temperature: Any, axis: Any, where: Any) -> _Call:
    given = front.check_rows(x, axis, where)
    calls.check_nonempty(given.shape, given.axis)
    with given.kind.device:
        tau, shape, owner = front.temperature_of(given, temperature)
        rows = front.rows_of(given, given.view, fill=-np.inf)
    no_k = Argument(nothing(np.float64).pointer, 0.0, 0)
    return _Call(given, front.problem(given, rows, no_k, tau, owner), shape)


class _Target:
    """What a function's value is written to: rows, or one number for each."""

    def __init__(self, given: Given, f: str, sign: int = 1) -> None:
        self._given, self._sign, self._sums = given, sign, f == "logsumexp"
        if self._sums:
            self.rows = new_buffer(given.kind, given.rows, np.float64)
        else:
            self._target = front.Target(given)
            self.rows = self._target.rows

    def finish(self) -> Any:
        """The array, once the kernels have been launched."""
        if self._sums:
            return front.give_back_batch(self._given, self.rows, self._sign)
        return self._target.finish()


# Smooth functions; `f` is the name of one.


def value(f: str, x: Any, temperature: Any, axis: Any, where: Any, sign: int = 1) -> Any:
    """The value, or for logsumexp `sign` times it."""
    c = _check(x, temperature, axis, where)
    with c.given.kind.device:
        target = _Target(c.given, f, sign)
        cuda.value(c.rows, f, target.rows)
        return target.finish()


def jvp(
    f: str, x: Any, dx: Any, dtemperature: Any, temperature: Any, axis: Any, where: Any
) -> tuple[Any, Any]:
    """Value and derivative along a direction."""
    c = _check(x, temperature, axis, where)
    with c.given.kind.device:
        v = front.tangent(c.given, dx, "dx")
        dtau, owner = front.direction(c.given, dtemperature, "dtemperature")
        target, moved = _Target(c.given, f), _Target(c.given, f)
        record = cuda.linearize(c.rows, f, target.rows)
        cuda.push(c.rows, f, record, v, dtau, moved.rows)
        del owner  # kept until the launch
        return target.finish(), moved.finish()


def vjp(
    f: str, x: Any, temperature: Any, axis: Any, where: Any
) -> tuple[Any, Callable[[Any], Gradients]]:
    """Value and pullback."""
    c = _check(x, temperature, axis, where)
    given = c.given
    with given.kind.device:
        target = _Target(given, f)
        record = cuda.linearize(c.rows, f, target.rows)
        result = target.finish()

    def pullback(g: Any, /) -> Gradients:
        with given.kind.device:
            cotangent, owner = _cotangent(given, f, g)
            gx = front.Target(given)
            gtau = new_buffer(given.kind, given.rows, np.float64)
            cuda.pull(c.rows, f, record, cotangent, gx.rows, gtau)
            del owner
            in_tau = front.gradient_of(given, gtau, c.temperature)
            return Gradients(gx.finish(), None, in_tau)

    return result, pullback


def _cotangent(given: Given, f: str, g: Any) -> tuple[Buffer | Argument, Any]:
    if f != "logsumexp":
        return front.tangent(given, g, "the cotangent"), None
    if g is None:
        raise TypeError("the cotangent is None; expected real numbers")
    return front.direction(given, g, "the cotangent")


# Random ones.


def _seed(rng: np.random.Generator) -> int:
    """A key for the noise: all that the device needs of a generator on the host."""
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
    """k indices for each draw, or one without an axis for it if k is None."""
    c = _check(x, temperature, axis, where)
    draws = _draws(size, shape)
    if k is not None:
        _check_k(k, c.given)
    own = () if k is None else (k,)
    with c.given.kind.device:
        index = c.given.kind.empty((*c.given.batch, *shape, *own), np.dtype(np.int64))
        view = view_of(index, "the result")
        if view.size:
            noise.draw(c.rows, _seed(rng), draws, math.prod(own), buffer_of(view))
        return index


def _check_k(k: Any, given: Given) -> None:
    n = given.shape[given.axis]
    if not 0 <= k <= n:
        raise ValueError(f"k is {k}; expected 0 <= k <= n = {n}, x's length along the axis")


def noisy_softmax(x: Any, rng: np.random.Generator, temperature: Any, axis: Any, where: Any) -> Any:
    """softmax((x + G)/temperature)."""
    c = _check(x, temperature, axis, where)
    with c.given.kind.device:
        noisy = c.rows.empty(c.rows.rows * c.rows.n, c.rows.dtype)
        noise.perturb(c.rows, _seed(rng), 1, False, noisy)
        target = _Target(c.given, "softmax")
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
            _check_k(k, given)
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
            target = front.as_rows(target, given.axis)
        copy(given.kind.stream, seen, target)
        return result


def _stretched(given: Given, value: Any, axes: int) -> Any:
    """One number for each row as one for each row of each draw."""
    if not axes or not host_arrays.on_device(value):
        return value
    view = view_of(value, "an argument")
    if not view.shape:
        return value
    longer = view._replace(shape=view.shape + (1,) * axes, strides=view.strides + (0,) * axes)
    made = given.kind.empty(longer.shape, view.dtype)
    copy(given.kind.stream, longer, view_of(made, "scratch memory"))
    return made
