"""Compiling ahead of time for JAX's calls: programs are lowered, and none is run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .._compile import subnormals
from .._curves.registry import FAMILIES
from .._threshold.cpu.start import SAMPLED
from . import compiled
from .operators import OPERATORS

K = 3
# For one thread and for several; rows that are sampled; and rows that GradTopK solves by nodes.
SHAPES = (8, 64), (4096, 64), (8, SAMPLED), (256, SAMPLED), (8, 600), (512, 600)
LARGE = SHAPES[1::2]  # those in which bfloat16 is converted chunk by chunk


def _everything(op: Any, options: dict[str, Any], x: Any) -> Any:
    """The value, a mask, and first derivatives."""

    def value(x: Any) -> Any:
        return op(x, K, **options)

    p, vjp = jax.vjp(value, x)
    return op(x, K, hard=True, **options), jax.jvp(value, (x,), (p,)), vjp(p)


def _lower(op: Any, options: dict[str, Any], shape: tuple[int, int], dtype: Any) -> None:
    function = functools.partial(_everything, op, options)
    jax.jit(function).lower(jax.ShapeDtypeStruct(shape, dtype))
    with subnormals.kept():  # as when a thread of XLA's calls Python
        compiled.compile_what_is_awaited()


def calls(
    names: list[str], curves: list[str], dtypes: list[str], alpha: float
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (label, function to call) for those of these operators that JAX has."""
    jax.config.update("jax_enable_x64", True)
    for name in filter(OPERATORS.__contains__, names):
        of_curves = [
            {"curve": curve, **({"alpha": alpha} if curve in FAMILIES else {})} for curve in curves
        ]
        for options in of_curves if name == "thretopk" else [{}]:
            for dtype in map(jnp.dtype, (*dtypes, *["bfloat16"] * ("float32" in dtypes))):
                for shape in LARGE if dtype == jnp.bfloat16 else SHAPES:
                    label = " ".join(["jax", name, *map(str, options.values()), dtype.name])
                    yield label, functools.partial(_lower, OPERATORS[name], options, shape, dtype)
