"""What carries, where a compiler looks on: as custom operators, opaque to it.

Each function here goes to `carry` itself, or, under `torch.compile` and `torch.export`, through an
operator of a graph. These have no derivatives of their own: the functions around them say which is
whose.
"""

# PyTorch 2.6 reads the types of operators, and does not know list[float].
# ruff: noqa: UP006, UP035

from __future__ import annotations

import ast
from typing import Any, List

import torch
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.library import custom_op

from .._api.operator import registry
from ..thretopk import Curve
from . import carry
from .carry import Tensor

# Between an operator and its options, where they are one word of a graph.
_SEPARATOR = "|"


def is_wanted(x: Tensor) -> bool:
    """Whether a compiler looks on, or x is a tensor without numbers."""
    return is_compiling() or isinstance(x, FakeTensor)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward mode is at work."""
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active()


def _words(op: Any, options: dict[str, Any]) -> tuple[str, List[float]]:
    """An operator and its options as one word of a graph, and those of them that are numbers.

    A number may be known to the compiler by a name alone, which goes on as a number.
    """
    words, numbers = [op.__name__], []
    for key, option in options.items():
        if isinstance(option, Curve):
            raise TypeError(f"{key} is {option!r}, which a compiled graph cannot hold")
        if isinstance(option, (str, bool)):
            words.append(f"{key}={option!r}")
        else:
            words.append(key)
            numbers.append(option)
    return _SEPARATOR.join(words), numbers


def _parsed(name: str, numbers: List[float]) -> tuple[Any, dict[str, Any]]:
    """Undo `_words`."""
    op, *words = name.split(_SEPARATOR)
    options: dict[str, Any] = {}
    left = iter(numbers)
    for word in words:
        key, is_text, option = word.partition("=")
        options[key] = ast.literal_eval(option) if is_text else next(left)
    return registry[op], options


@custom_op("softtopk_nb::solve", mutates_args=())
def _solve(
    x: Tensor, k: Tensor, temperature: Tensor, name: str, numbers: List[float]
) -> tuple[Tensor, Tensor]:
    return carry.solve(*_parsed(name, numbers), x, k, temperature)


@_solve.register_fake
def _(
    x: Tensor, k: Tensor, temperature: Tensor, name: str, numbers: List[float]
) -> tuple[Tensor, Tensor]:
    width = carry.state_width(*_parsed(name, numbers), x)
    state = x.new_empty((*x.shape[:-1], width), dtype=torch.float64)
    return x.new_empty(x.shape), state


@custom_op("softtopk_nb::constant", mutates_args=())
def _constant(x: Tensor, k: Tensor, temperature: Tensor, name: str, numbers: List[float]) -> Tensor:
    return carry.value(*_parsed(name, numbers), x, k, temperature)


@custom_op("softtopk_nb::push", mutates_args=())
def _push(
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    dx: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
    name: str,
    numbers: List[float],
) -> Tensor:
    return carry.push(*_parsed(name, numbers), (x, k, temperature), state, (dx, dk, dtemperature))


@_constant.register_fake
@_push.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


@custom_op("softtopk_nb::pull", mutates_args=())
def _pull(
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    g: Tensor,
    name: str,
    numbers: List[float],
) -> tuple[Tensor, Tensor, Tensor]:
    return carry.pull(*_parsed(name, numbers), (x, k, temperature), state, g)


@custom_op("softtopk_nb::second", mutates_args=())
def _second(
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    state: Tensor,
    v: Tensor,
    dk: Tensor,
    dtemperature: Tensor,
    a: Tensor,
    other_dk: Tensor,
    other_dtemperature: Tensor,
    name: str,
    numbers: List[float],
) -> tuple[Tensor, Tensor, Tensor]:
    first, other = (v, dk, dtemperature), (a, other_dk, other_dtemperature)
    return carry.second(*_parsed(name, numbers), (x, k, temperature), state, first, other)


@_pull.register_fake
@_second.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch = x.shape[:-1]
    return x.new_empty(x.shape), x.new_empty(batch), x.new_empty(batch)


@custom_op("softtopk_nb::height", mutates_args=())
def _height(
    x: Tensor, k: Tensor, temperature: Tensor, y: Tensor | None, name: str, numbers: List[float]
) -> Tensor:
    given = (*_parsed(name, numbers), x, k, temperature)
    return carry.potential(*given) if y is None else carry.loss(*given, y)


@custom_op("softtopk_nb::threshold", mutates_args=())
def _threshold(
    x: Tensor, k: Tensor, temperature: Tensor, name: str, numbers: List[float]
) -> Tensor:
    return carry.threshold(*_parsed(name, numbers), x, k, temperature)


@_height.register_fake
@_threshold.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[:-1])


def _vmapped(operator: Any) -> None:
    """One more leading axis is one more axis of the batch."""

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        moved = [
            each
            if not isinstance(each, Tensor)
            else each.expand(info.batch_size, *each.shape)
            if dim is None
            else each.movedim(dim, 0)
            for each, dim in zip(inputs, in_dims, strict=True)
        ]
        result = operator(*moved)
        return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0

    operator.register_vmap(rule)


for _operator in (_solve, _constant, _push, _pull, _second, _height, _threshold):
    _vmapped(_operator)


def solve(op: Any, options: dict[str, Any], *problem: Tensor) -> tuple[Tensor, Tensor]:
    """(value, state)."""
    if not is_wanted(problem[0]):
        return carry.solve(op, options, *problem)
    result: tuple[Tensor, Tensor] = _solve(*problem, *_words(op, options))
    return result


def constant(op: Any, options: dict[str, Any], *problem: Tensor) -> Tensor:
    """The value of an operator without derivatives."""
    if not is_wanted(problem[0]):
        return carry.value(op, options, *problem)
    result: Tensor = _constant(*problem, *_words(op, options))
    return result


def push(op: Any, options: dict[str, Any], *tensors: Tensor) -> Tensor:
    """The derivative along a direction, of (problem, state, direction)."""
    if not is_wanted(tensors[0]):
        x, k, temperature, state, dx, dk, dtau = tensors
        return carry.push(op, options, (x, k, temperature), state, (dx, dk, dtau))
    result: Tensor = _push(*tensors, *_words(op, options))
    return result


def pull(op: Any, options: dict[str, Any], *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients, of (problem, state, cotangent)."""
    if not is_wanted(tensors[0]):
        x, k, temperature, state, g = tensors
        return carry.pull(op, options, (x, k, temperature), state, g)
    result: tuple[Tensor, Tensor, Tensor] = _pull(*tensors, *_words(op, options))
    return result


def second(op: Any, options: dict[str, Any], *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The second derivative, of (problem, state, two directions)."""
    if not is_wanted(tensors[0]):
        x, k, temperature, state, v, dk, dtau, a, ak, atau = tensors
        problem, first, other = (x, k, temperature), (v, dk, dtau), (a, ak, atau)
        return carry.second(op, options, problem, state, first, other)
    result: tuple[Tensor, Tensor, Tensor] = _second(*tensors, *_words(op, options))
    return result


def height(op: Any, options: dict[str, Any], *tensors: Tensor) -> Tensor:
    """The potential, of a problem; the loss, of a problem and a target."""
    x, k, temperature, *target = tensors
    if not is_wanted(x):
        function = carry.loss if target else carry.potential
        return function(op, options, x, k, temperature, *target)
    y = target[0] if target else None
    result: Tensor = _height(x, k, temperature, y, *_words(op, options))
    return result


def threshold(op: Any, options: dict[str, Any], *problem: Tensor) -> Tensor:
    """The derivative of the potential in k."""
    if not is_wanted(problem[0]):
        return carry.threshold(op, options, *problem)
    result: Tensor = _threshold(*problem, *_words(op, options))
    return result
