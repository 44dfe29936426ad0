"""What layers have in common: a temperature that may be set or learnt, and checked options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .._api.arguments import check_bool, show, unexpected
from .._api.operator import chosen
from ..selection import Own

Tensor = torch.Tensor


class LayerOptions(Own, total=False):
    """What a layer hands on to its operator."""

    largest: bool
    clamp_k: bool


def check_temperature(value: Any) -> float:
    """The temperature as a positive number."""
    number = number_of(value, "temperature", "a positive finite number")
    if not 0.0 < number < float("inf"):
        raise ValueError(f"temperature is {value!r}; expected a positive finite number")
    return number


def number_of(value: Any, name: str, expected: str) -> float:
    """The argument `name` as a number."""
    try:
        if not isinstance(value, (bool, str)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # as PyTorch has it of several numbers
        pass
    raise TypeError(f"{name} is {show(value)}; expected {expected}")


def operator_name(
    layer: nn.Module,
    op: Any,
    options: Mapping[str, Any],
    *known: str,
    with_potential: bool = False,
) -> Any:
    """The name of a layer's operator, of which all options are checked before the first call.

    `known` are those of them that every operator takes, which are True or False.
    """
    inner: Any = chosen(op, with_potential=with_potential)
    own = {name: each for name, each in options.items() if name not in known}
    for name, each in options.items():
        if name in known:
            check_bool(each, name)
        elif name not in inner.known_options:
            of_layer = [*inspect.signature(type(layer)).parameters][:-1]  # the last is `options`
            knows = (*of_layer, *inner.known_options, *known)
            raise unexpected(f"{type(layer).__name__} of {inner.__name__}", name, knows)
    inner.check_options(own)
    return inner.__name__


def _kept_wide(convert: Any, given: Tensor) -> Tensor:
    """What a conversion gives, but for its type where that is narrower than float32."""
    moved: Tensor = convert(given)
    if not moved.dtype.is_floating_point or moved.dtype.itemsize >= 4:
        return moved
    return given.to(moved.device, torch.float32)


class Temperature(nn.Module):
    """A layer with a temperature, which is a buffer, or a parameter's exponential.

    Its own parameters and buffers are never narrower than float32.
    """

    fixed_temperature: Tensor

    def __init__(self, temperature: float, *, learnt: bool = False) -> None:
        super().__init__()
        number = torch.tensor(check_temperature(temperature))
        self.learn_temperature = learnt
        if learnt:
            self.log_temperature = nn.Parameter(number.log())
        else:
            self.register_buffer("fixed_temperature", number)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert all tensors as `half()`, `to()` and the like do, but its own not below float32.

        In a half type a small temperature is 0, a large k is inf, and what counts stops at 256.
        """
        if recurse:
            for module in self.children():
                module._apply(fn)
        return super()._apply(functools.partial(_kept_wide, fn), recurse=False)

    @property
    def temperature(self) -> Tensor:
        """The temperature, a tensor without dimensions; it may be set to a number."""
        return self.log_temperature.exp() if self.learn_temperature else self.fixed_temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        number = check_temperature(value)
        with torch.no_grad():
            if self.learn_temperature:
                self.log_temperature.fill_(number).log_()
            else:
                self.fixed_temperature.fill_(number)
