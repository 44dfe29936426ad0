"""The verbs of every operator, for arrays in memory and on a device.

A verb takes an operator, its own arguments, and the operator's arguments: x, its numbers (k,
temperature or the like), axis, largest, where, out and a dict of the operator's own options. It
checks them and uses the checked call, which is one of `call` or of `device_call`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from . import call, host_arrays, prices, short_calls


@functools.cache
def device_call() -> Any:
    """The module for arrays on a device, imported with the first of them."""
    return importlib.import_module(".device_call", __package__)


@functools.cache
def device_programs() -> Any:
    """The module of the short way, imported then too."""
    return importlib.import_module(".device_programs", __package__)


def check(op: Any, x: Any, *arguments: Any) -> Any:
    """Check a call, of arrays in memory or on a device."""
    if prices.are_given(arguments):
        return prices.check(op, x, *arguments)
    if type(x) is not np.ndarray and op.has_device_side and host_arrays.on_device(x):
        return device_call().check(op, x, *arguments)
    return call.check(op, x, *arguments)


def begin(op: Any, x: Any, *arguments: Any) -> Any:
    """A checked call for its value, or for that and gradients: by the short way, if it has one."""
    if prices.are_given(arguments):
        return prices.check(op, x, *arguments)
    if type(x) is not np.ndarray and op.has_device_side and host_arrays.on_device(x):
        return device_programs().find(op, x, *arguments) or device_call().check(op, x, *arguments)
    return call.check(op, x, *arguments)


def value(op: Any, x: Any, *arguments: Any) -> Any:
    """The value."""
    if type(x) is np.ndarray:  # the usual case, in a hurry
        p = short_calls.value(op, x, *arguments)
        return begin(op, x, *arguments).value() if p is None else p
    return begin(op, x, *arguments).value()


def solve(op: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
    """(the value, the call, its state), to be kept for `vjp_in_x`, and for `vjp` beside arrays."""
    short = short_calls.solve(op, x, *arguments) if type(x) is np.ndarray else None
    if short is not None:
        return short
    checked = begin(op, x, *arguments)
    p, state = checked.solve()
    return checked.give_back(p), checked, state


def jvp(op: Any, dx: Any, numbers: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    """Value and derivative along a direction in x and in each of the numbers."""
    checked = check(op, *arguments)
    direction = checked.direction(dx, numbers)
    p, state = checked.solve(direction)
    dp = checked.jvp(state, direction)  # reads arrays that the value may overwrite
    return checked.give_back(p), dp


def vjp(op: Any, *arguments: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Value and VJP function."""
    checked = begin(op, *arguments).kept()
    p, state = checked.solve()

    def vjp_function(g: Any, /) -> Any:
        return checked.vjp(state, g)

    return checked.give_back(p), vjp_function


def hvp(op: Any, v: Any, numbers: tuple[Any, ...], g: Any, *arguments: Any) -> Any:
    """The gradients of <g, derivative along v and a direction in each of the numbers>."""
    checked = check(op, *arguments)
    checked.op.check_second()
    first = checked.direction(v, numbers, "v")
    other = checked.direction(g, (None,) * len(numbers), "g", cotangent=True)
    return checked.second(checked.state(), first, other)


def number(op: Any, name: str, *arguments: Any) -> Any:
    """A number per row in the units of x, by the engine's function of this name."""
    return check(op, *arguments).number(name)
