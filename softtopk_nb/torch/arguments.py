"""Validation of arguments, with PyTorch's kinds of errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .._api.arguments import check_bool, real_array, shape_of_rows
from .layout import Layout

Tensor = torch.Tensor
COMPUTED_IN = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def computed(x: Tensor) -> Tensor:
    """A tensor cast to the type to compute in: NumPy has no bfloat16."""
    given = x.dtype
    dtype = COMPUTED_IN.get(given, given)
    return x if given == dtype else x.to(dtype)


def check_tensor(x: Any, name: str) -> Tensor:
    """A dense tensor of real numbers; one of integers or bools in PyTorch's default type."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")
    if x.is_quantized or x.layout != torch.strided:
        kind = "quantized" if x.is_quantized else str(x.layout)
        raise NotImplementedError(f"{name} is a {kind} tensor; expected a dense one")
    if x.is_meta:
        raise NotImplementedError(f"{name} is on the device meta; expected a tensor with a memory")
    if x.dtype in COMPUTED_IN:
        return x
    if x.is_floating_point() or x.is_complex():
        expected = "float32, float64, float16, bfloat16, integers or bool"
        raise TypeError(f"{name} has dtype {x.dtype}; expected {expected}")
    return x.to(torch.get_default_dtype())


def check_integer(value: Any, name: str) -> int:
    """The argument `name`, which is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected an integer")
    return value


def check_dim(ndim: int, dim: Any, axis: Any) -> int:
    """The dimension as a non-negative integer; `axis` is accepted as NumPy's name for it."""
    if axis is not None:
        if dim is not None:
            raise TypeError(f"dim is {dim!r} and axis is {axis!r}; expected one of them")
        dim = axis
    dim = -1 if dim is None else check_integer(dim, "dim")
    if ndim == 0:
        raise IndexError("x is 0-dimensional; expected at least one dimension")
    if not -ndim <= dim < ndim:
        raise IndexError(
            f"dim is {dim}; expected {-ndim} to {ndim - 1}, for x has {ndim} dimensions"
        )
    return dim % ndim


def laid_out(
    x: Any, dim: Any, axis: Any, largest: Any, where: Any, name: str = "x"
) -> tuple[Tensor, Layout]:
    """x in the type to compute in, and its layout."""
    x = check_tensor(x, name)
    shape = tuple(x.shape)
    dim = check_dim(len(shape), dim, axis)
    if not isinstance(largest, bool):
        raise TypeError(f"largest is {largest!r}; expected True or False")
    present = None if where is None else mask(where, x)
    return computed(x), Layout(dim, largest, present, x.dtype, shape[:dim] + shape[dim + 1 :])


def mask(where: Any, x: Tensor) -> Tensor:
    """A checked mask, of x's shape."""
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        what = where.dtype if isinstance(where, Tensor) else type(where).__name__
        raise TypeError(f"where is {what}; expected a tensor of torch.bool")
    return _broadcast(where, tuple(x.shape), "where", x)


def beside(value: Any, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A number, or an array or a list of them, as a tensor on x's device."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float)):
        if _holds_tensors(value):
            raise TypeError(
                f"{name} is a {type(value).__name__} with tensors, whose graph would be lost; "
                "expected a number or one tensor, as torch.stack makes of several"
            )
        value = real_array(value, name)
    return torch.as_tensor(value, dtype=dtype, device=x.device)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, Tensor) or _holds_tensors(each) for each in value)
    return False


def spread(value: Tensor, shape: tuple[int, ...], name: str, x: Tensor) -> Tensor:
    """A tensor of real numbers that is broadcast to this shape."""
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {value.dtype}; expected real numbers")
    return _broadcast(computed(value), shape, name, x)


def _broadcast(given: Tensor, shape: tuple[int, ...], name: str, x: Tensor) -> Tensor:
    if given.device != x.device:
        raise RuntimeError(f"{name} is on {given.device}; expected x's device {x.device}")
    if given.shape == shape:  # fast path for the usual case
        return given
    try:
        return given.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(given.shape)}; expected one that broadcasts to {shape}"
        ) from None


def numbers(
    k: Any, temperature: Any, x: Tensor, layout: Layout, real_k: bool, clamp_k: Any = False
) -> tuple[Any, Any]:
    """k and the temperature: numbers as given, tensors broadcast to the batch shape.

    If `clamp_k`, k is a tensor of at most the number of entries that take part.
    """
    if not real_k and type(k) is not int:
        if isinstance(k, Tensor) and k.dtype.is_floating_point:
            raise TypeError(f"k has dtype {k.dtype}; expected integers: call k.long()")
        if isinstance(k, (float, np.floating)):
            raise TypeError(f"k is {k!r}; expected an integer")
    k = _number(k, "k", x, layout)
    if clamp_k is not False:
        check_bool(clamp_k, "clamp_k")
        k = _clamped(k, x, layout) if clamp_k else k
    return k, _number(temperature, "temperature", x, layout)


def _clamped(k: Any, x: Tensor, layout: Layout) -> Tensor:
    """k, or where fewer entries take part their number, with the gradient 0 in k."""
    present = x != (-math.inf if layout.largest else math.inf)
    count = (present if layout.where is None else present & layout.where).sum(layout.dim)
    if not isinstance(k, Tensor):
        real = isinstance(k, (float, np.floating))
        most = min(k, x.shape[layout.dim])  # a larger one may have no room in a tensor
        k = torch.full_like(count, most, dtype=torch.float64 if real else torch.int64)
    return torch.where(k > count, count, k)


def _number(value: Any, name: str, x: Tensor, layout: Layout) -> Any:
    if type(value) in (int, float):  # fast path for the usual case
        return value
    if isinstance(value, Tensor):
        shape = shape_of_rows(value.ndim, layout.batch, layout.dim)
        full = spread(value, shape, name, x)
        return full if shape == layout.batch else full.squeeze(layout.dim)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        kind = type(value).__name__
        raise TypeError(f"{name} is {value!r}, a {kind}; expected a number or a tensor")
    return value
