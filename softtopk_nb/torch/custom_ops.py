"""Custom operators, the form in which `torch.compile` and `torch.export` see a call.

`opaque` makes one of a function of tensors, for compilers alone; a call that is not traced goes to
the function itself. Custom operators have no derivatives: those are in `functions`.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.library import Library, register_fake, register_vmap

from .._api.front import named
from .._compile.stamp import package_stamp
from ..thretopk import Curve

Tensor = torch.Tensor

_STAMP = package_stamp().hex()[:16]

#: To call one of its operators adds less than half of the time that `custom_op` adds.
_OPERATORS = Library("softtopk_nb", "FRAGMENT")

# Between a name and its options, in the string that a graph holds.
_SEPARATOR = "|"


def is_tracing(x: Tensor) -> bool:
    """Whether a compiler traces the call, or x is a fake tensor, without data."""
    return is_compiling() or isinstance(x, FakeTensor)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward mode is active."""
    level: int = forward_ad._current_level
    return level >= 0 or torch._C._are_functorch_transforms_active()


def written(name: str, options: dict[str, Any]) -> tuple[str, list[float]]:
    """(a function's name and options as a string for a graph, the values of numeric options).

    The compiler may know a number only as a symbol, which is passed on as a number. The string
    begins with a digest of the package: PyTorch keeps compiled graphs on disk, and one that was
    compiled for other sources may expect a state of another size.
    """
    words, numbers = [_STAMP, name], []
    for key, option in options.items():
        if isinstance(option, Curve):
            raise TypeError(f"{key} is {option!r}, which a compiled graph cannot hold")
        if isinstance(option, (str, bool)):
            words.append(f"{key}={option!r}")
        else:
            words.append(key)
            numbers.append(option)
    return _SEPARATOR.join(words), numbers


def read(text: str, numbers: list[float]) -> tuple[str, dict[str, Any]]:
    """Undo `written`: returns (name, options)."""
    _, name, *words = text.split(_SEPARATOR)
    options: dict[str, Any] = {}
    left = iter(numbers)
    for word in words:
        key, is_text, option = word.partition("=")
        options[key] = ast.literal_eval(option) if is_text else next(left)
    return name, options


def _parsed(text: str, numbers: list[float]) -> tuple[Any, dict[str, Any]]:
    """(operator, options) of what was written for an operator."""
    name, options = read(text, numbers)
    return named(name), options


def opaque(shapes: Callable[..., Any], *, returns: str = "Tensor") -> Any:
    """A decorator that makes functions of (op, options, tensors) opaque to compilers.

    `shapes` has the same arguments and returns new tensors of the shapes and types of the result,
    whose type in a schema is `returns`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        _, _, *tensors = inspect.signature(function).parameters
        listed = ", ".join(f"Tensor {each}" for each in tensors)
        name = f"{_OPERATORS.ns}::{function.__name__}"
        _OPERATORS.define(f"{function.__name__}({listed}, str name, float[] numbers) -> {returns}")
        made = getattr(torch.ops.softtopk_nb, function.__name__).default

        @torch.compiler.disable
        def run(*given: Any) -> Any:
            return function(*_parsed(*given[-2:]), *given[:-2])

        _OPERATORS.impl(function.__name__, run, "CompositeExplicitAutograd")
        register_fake(
            name, lambda *given: shapes(*_parsed(*given[-2:]), *given[:-2]), lib=_OPERATORS
        )
        register_vmap(name, functools.partial(with_one_more_axis, made), lib=_OPERATORS)

        @functools.wraps(function)
        def call(op: Any, options: dict[str, Any], *given: Tensor) -> Any:
            if is_tracing(given[0]):
                return made(*given, *written(op.__name__, options))
            return function(op, options, *given)

        return call

    return decorate


def with_one_more_axis(made: Any, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """The batching rule: the axis of `vmap` becomes the first axis of the batch."""
    moved = [
        each
        if not isinstance(each, Tensor)
        else each.expand(info.batch_size, *each.shape)
        if dim is None
        else each.movedim(dim, 0)
        for each, dim in zip(inputs, in_dims, strict=True)
    ]
    result = made(*moved)
    return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0
