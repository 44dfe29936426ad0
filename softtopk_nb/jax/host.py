"""The primitives on NumPy arrays, by the operators, row by row.

Arrays have the scores along the last axis; k, the temperature and directions in them have the shape
of the batch before it. The data of a solved call for derivatives is passed on as a `state`: its
float64 numbers are stored as 32-bit words, which JAX accepts in any mode, and never differentiates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._api import array_calls
from .._api.call import check_numbers
from .._api.operator import registry
from ..losses import fenchel_young

Array = npt.NDArray[Any]
Options = dict[str, Any]

WORDS = 2  # 32-bit words in a number of a state
IN_PLACE = {"mark", "solve"}  # verbs that write their value to `out`


def state_width(op: Any, options: Options, n: int) -> int:
    """Number of 32-bit words in the state of a row of n entries."""
    return WORDS * array_calls.state_width(op, options, n)


def nan_rows(x: Array, k: Array, temperature: Array, *others: Array) -> tuple[Array, ...]:
    """The arrays of a call, with a row of NaN for each k or temperature that is NaN.

    In a compiled program an error in one row would end all of them, as all seeds under `vmap`.
    """
    lost = np.isnan(k) | np.isnan(temperature)
    if lost.any():
        x = np.where(lost[..., None], x.dtype.type(np.nan), x)
        k = np.where(lost, k.dtype.type(0), k)
        temperature = np.where(lost, temperature.dtype.type(1), temperature)
    return x, k, temperature, *others


def mark(
    op: Any, options: Options, x: Array, k: Array, temperature: Array, *, out: Any = None
) -> tuple[Any]:
    """The 0/1 mask of the k largest, or of round(k); k must be valid for the operator."""
    check_numbers(op, x.shape[-1], x.shape[:-1], x.ndim - 1, k, temperature)
    p = registry["hardtopk"](x, np.rint(k).astype(int), temperature=temperature, out=out)
    p[(x > -np.inf).sum(axis=-1) < k] = np.nan  # for a k that was rounded down
    return (p,)


def solve(
    op: Any, options: Options, x: Array, k: Array, temperature: Array, *, out: Any = None
) -> tuple[Array, Array]:
    """(value, state)."""
    p, state = array_calls.solve(op, options, (x, k, temperature), out)
    return p, np.ascontiguousarray(state).view(np.uint32)


def _state(words: Array) -> Array:
    """The state as float64 numbers."""
    return np.array(words).view(np.float64)


def jvp(op: Any, options: Options, *arrays: Array) -> tuple[Array]:
    """The derivative along a direction, from (problem, state, direction)."""
    problem, state, direction = arrays[:3], _state(arrays[3]), arrays[4:]
    return (array_calls.jvp(op, options, problem, state, direction),)


def vjp(op: Any, options: Options, *arrays: Array) -> tuple[Array, Array, Array]:
    """The gradients of <cotangent, value>, one per row, from (problem, state, cotangent)."""
    problem, state, g = arrays[:3], _state(arrays[3]), arrays[4]
    return _all_three(array_calls.vjp(op, options, problem, state, g))


def jvp_of_jvp(op: Any, options: Options, *arrays: Array) -> tuple[Array]:
    """The second derivative along two directions, from (problem, state, two directions)."""
    problem, state, first, other = arrays[:3], _state(arrays[3]), arrays[4:7], arrays[7:]
    return (array_calls.second(op, options, problem, state, first, other)[0],)


def vjp_of_jvp(op: Any, options: Options, *arrays: Array) -> tuple[Array, Array, Array]:
    """The gradients of <cotangent, `jvp`>, from (problem, state, direction, cotangent)."""
    problem, state, first, g = arrays[:3], _state(arrays[3]), arrays[4:7], arrays[7]
    other = g, None, None
    return _all_three(array_calls.second(op, options, problem, state, first, other))


def _all_three(gradients: Any) -> tuple[Array, Array, Array]:
    """Gradients in x, k and the temperature; 0 for a k that is an integer."""
    in_k = np.zeros_like(gradients.temperature) if gradients.k is None else gradients.k
    return gradients.x, in_k, gradients.temperature


def potential(op: Any, options: Options, *problem: Array) -> tuple[Any]:
    """The potential of each row, the smoothed sum of its k largest entries."""
    return (array_calls.number(op, options, "potential", problem),)


def threshold(op: Any, options: Options, *problem: Array) -> tuple[Any]:
    """The threshold of each row, the derivative of the potential in k."""
    return (array_calls.number(op, options, "threshold", problem),)


def surplus(op: Any, options: Options, *problem: Array) -> tuple[Any]:
    """The potential of each row less <x, value>."""
    return (array_calls.number(op, options, "surplus", problem),)


def loss(op: Any, options: Options, x: Array, k: Array, temperature: Array, y: Array) -> tuple[Any]:
    """The Fenchel-Young loss of each row against y; `options` include `constant`."""
    # It is NaN for a row of NaN whatever the target, as its k may not be known.
    lost = np.asarray(np.isnan(x).any(-1))
    y, k = np.where(lost[..., None], y.dtype.type(0), y), np.where(lost, k.dtype.type(0), k)
    return (fenchel_young(op, x, y, k, temperature=temperature, **options),)
